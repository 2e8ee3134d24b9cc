"""Tiny random models of every family, made from their transformers configurations."""

from pathlib import Path

TEXT = (
    "The baker waits . The bakers wait . A neuron is one row of the projection before the activation function . "
    "Some cells fire on commas , others on verbs ; most of them are quiet for most of the words in a sentence . "
) * 20


def save_tokenizer(folder: Path, bos: bool):
    """A byte-level BPE tokenizer trained on TEXT, with a BOS rule or without."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
        )
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>").save_pretrained(folder)


SPECIAL = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
SIZES = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 4}
SIZES |= {"vocab_size": 400, "max_position_embeddings": 128, "initializer_range": 0.2, **SPECIAL}
GROUPED = {"num_key_value_heads": 2, "head_dim": 8}
OWN_SIZES = {  # model type: what its configuration calls otherwise or needs besides SIZES
    "bloom": {"seq_length": 128},
    "falcon": {"ffn_hidden_size": 40},
    "gemma": GROUPED,
    "gemma2": {**GROUPED, "sliding_window": 8, "query_pre_attn_scalar": 8},
    "gemma3_text": {**GROUPED, "sliding_window": 8, "query_pre_attn_scalar": 8, "sliding_window_pattern": 2},
    "gpt2": {"n_inner": 40},
    "gpt_bigcode": {"n_inner": 40},
    "gptj": {"n_inner": 40, "rotary_dim": 4},
    "mistral": {**GROUPED, "sliding_window": 8},
    "mpt": {"max_seq_len": 128},
    "olmo2": {"num_key_value_heads": 2},
    "opt": {"ffn_dim": 40, "word_embed_proj_dim": 32},
    "phi3": {"num_key_value_heads": 2, "sliding_window": 8},
    "qwen2": {"num_key_value_heads": 2},
    "qwen3": GROUPED,
    "smollm3": {"num_key_value_heads": 2},
    "stablelm": {"num_key_value_heads": 2},
}
EYES = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
EYES |= {"image_size": 8, "patch_size": 4}


def tiny_config(family: str, **changes):
    """The configuration of a tiny model: three layers of 40 neurons (BLOOM, MPT: 128)."""
    from transformers import AutoConfig

    if family == "gemma3":
        text = {"model_type": "gemma3_text", **SIZES, **OWN_SIZES["gemma3_text"]}
        return AutoConfig.for_model("gemma3", text_config=text, vision_config=EYES, mm_tokens_per_image=4, **SPECIAL)
    return AutoConfig.for_model(family, **SIZES, **OWN_SIZES.get(family, {}), **changes)


def save_tiny_model(folder: Path, family: str = "llama", bos: bool = False, seed: int = 0, **changes) -> Path:
    """A random model of a family with its tokenizer; norms and biases are random too, so that none can be left out."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(tiny_config(family, **changes))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    save_tokenizer(folder, bos)
    return folder
