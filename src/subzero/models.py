"""Models: where in them the neurons are, and how they are loaded."""

import hashlib
import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from subzero.errors import SubzeroError, near_miss
from subzero.sources import commit, file_hash, weight_files, whole_model


@dataclass(frozen=True)
class Family:
    """Where a family of models keeps its neurons.

    blocks: the transformer blocks, from the model.
    pre_activation: from a block, the projection whose output enters the activation function.
    activation: from a block, that function.
    fused: whether the projection gives gate and up in one output, of which the gate is the first half.
    parallel: whether the MLP reads the block's own input and not the output of attention; or the key of the
        configuration that says so.
    """

    blocks: str
    pre_activation: str
    activation: str
    fused: bool = False
    parallel: bool | str = False


FAMILIES = {  # key: config.model_type, exactly
    "bloom": Family("transformer.h", "mlp.dense_h_to_4h", "mlp.gelu_impl"),
    "falcon": Family("transformer.h", "mlp.dense_h_to_4h", "mlp.act", parallel="parallel_attn"),
    "gemma": Family("model.layers", "mlp.gate_proj", "mlp.act_fn"),
    "gemma2": Family("model.layers", "mlp.gate_proj", "mlp.act_fn"),
    "gemma3": Family("model.language_model.layers", "mlp.gate_proj", "mlp.act_fn"),
    "gemma3_text": Family("model.layers", "mlp.gate_proj", "mlp.act_fn"),
    "gpt2": Family("transformer.h", "mlp.c_fc", "mlp.act"),
    "gpt_bigcode": Family("transformer.h", "mlp.c_fc", "mlp.act"),
    "gpt_neox": Family("gpt_neox.layers", "mlp.dense_h_to_4h", "mlp.act", parallel="use_parallel_residual"),
    "gptj": Family("transformer.h", "mlp.fc_in", "mlp.act", parallel=True),
    "llama": Family("model.layers", "mlp.gate_proj", "mlp.act_fn"),
    "mistral": Family("model.layers", "mlp.gate_proj", "mlp.act_fn"),
    "mpt": Family("transformer.blocks", "ffn.up_proj", "ffn.act"),
    "olmo2": Family("model.layers", "mlp.gate_proj", "mlp.act_fn"),
    "opt": Family("model.decoder.layers", "fc1", "activation_fn"),
    "phi": Family("model.layers", "mlp.fc1", "mlp.activation_fn", parallel=True),
    "phi3": Family("model.layers", "mlp.gate_up_proj", "mlp.activation_fn", fused=True),
    "qwen2": Family("model.layers", "mlp.gate_proj", "mlp.act_fn"),
    "qwen3": Family("model.layers", "mlp.gate_proj", "mlp.act_fn"),
    "smollm3": Family("model.layers", "mlp.gate_proj", "mlp.act_fn"),
    "stablelm": Family("model.layers", "mlp.gate_proj", "mlp.act_fn", parallel="use_parallel_residual"),
}

DTYPES = ("auto", "float32", "bfloat16", "float16")
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")


def family(config: Mapping) -> Family:
    """The row of a model.

    Args:
        config: its config.json.

    Raises:
        SubzeroError: it is a mixture of experts, or its type has no row; says what to add where.
    """
    name = config.get("model_type")
    experts = next((key for key in _EXPERTS if (config.get(key) or 0) > 1), None)
    if name not in FAMILIES and experts:
        raise SubzeroError(
            f"model type {name!r} is a mixture of experts ({experts}: {config[experts]}), which have neurons in every "
            "expert: add a row to FAMILIES and, to projections(), the experts' projections (src/subzero/models.py)."
        )
    if name not in FAMILIES:
        raise SubzeroError(
            f"model type {name!r} has no row in FAMILIES (src/subzero/models.py): "
            "add its blocks, projection and activation." + near_miss(name, FAMILIES)
        )
    return FAMILIES[name]


def projections(model, row: Family) -> list:
    """The pre-activation projections of a model, by layer, counted from 0."""
    return [block.get_submodule(row.pre_activation) for block in model.get_submodule(row.blocks)]


def neuron_counts(model, row: Family) -> list[int]:
    """Neurons by layer, counted from 0: outputs of the pre-activation projection, half of them where it is fused."""
    outputs = [
        projection.out_features if hasattr(projection, "out_features") else projection.nf  # nf: of GPT-2's Conv1D
        for projection in projections(model, row)
    ]
    return [count // 2 if row.fused else count for count in outputs]


def is_parallel(config: Mapping, row: Family) -> bool:
    """Whether a model's MLPs read their blocks' own input."""
    return bool(config.get(row.parallel)) if isinstance(row.parallel, str) else row.parallel


def model_inputs(model, tokens, real=None) -> dict:
    """What a forward pass of a batch gets: ids, and where there is padding before a text, mask and positions too.

    Padding after a text needs neither, since a causal model cannot see it:

        real  1 1 1 0    ids alone
        real  0 1 1 1    mask 0 1 1 1, positions 0 0 1 2

    Args:
        model: a transformers model.
        tokens: (batch, position) array or tensor of token ids.
        real: (batch, position) bool, False for padding; None: no padding.
    """
    import torch

    ids = torch.as_tensor(tokens).long().to(model.device)
    inputs = {"input_ids": ids, "use_cache": False}
    if real is None:
        return inputs
    mask = torch.as_tensor(real).to(model.device).long()
    if (mask[:, 1:] <= mask[:, :-1]).all():
        return inputs
    inputs["attention_mask"] = mask
    if "position_ids" in inspect.signature(model.forward).parameters:
        inputs["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)
    return inputs


def context_length(config) -> int | None:
    """The most tokens that a model can see at once; None where it has no such bound."""
    config = config.get_text_config()
    names = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
    return next((value for name in names if (value := getattr(config, name, None))), None)


# Loading


def load(folder: Path, dtype: str, device: str = "auto", trust_remote_code: bool = False):
    """A model ready to run and its tokenizer.

    Args:
        folder: as `sources.resolve` gives it.
        dtype: one of DTYPES; auto: the type that the weights are saved in.
        device: auto (cuda, else mps, else cpu), or a name that torch knows. On cuda, a model that is too large for
            one GPU is spread over all.
        trust_remote_code: whether the model's own code may run.

    Returns:
        (model in evaluation mode, tokenizer)

    Raises:
        SubzeroError: the device is not there or too small, weights are missing, or there is no usable tokenizer.
    """
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    device = found_device(device)
    config = _read_config(folder, trust_remote_code)
    options = {"dtype": getattr(torch, resolved_dtype(config, folder, dtype)), "trust_remote_code": trust_remote_code}
    if device.startswith("cuda"):
        size = sum(path.stat().st_size for path in weight_files(folder))
        options["device_map"] = _device_map(size, device)
    model = whole_model(AutoModelForCausalLM, folder, **options)
    if spilled := {str(place) for place in getattr(model, "hf_device_map", {}).values()} & {"cpu", "disk"}:
        raise SubzeroError(f"{folder}: too large for the GPUs of this machine, part of it went to {sorted(spilled)}")
    if "device_map" not in options:
        model = model.to(device)
    return model.eval(), load_tokenizer(folder, trust_remote_code)


def found_device(device: str) -> str:
    """A device that is there; auto is cuda, else mps, else cpu.

    Raises:
        SubzeroError: it is not.
    """
    import torch

    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    found = [name for name, usable in there.items() if usable]
    if device == "auto":
        return found[0]
    if device.partition(":")[0] not in found:
        raise SubzeroError(f"device {device!r} is not on this machine; allowed: auto, {', '.join(found)}")
    return device


def _device_map(size: int, device: str) -> str:
    """The device itself, or 'auto' (all GPUs) for weights that leave no room on it."""
    import torch

    free = torch.cuda.mem_get_info(device)[0]
    return "auto" if size > 0.8 * free and device == "cuda" and torch.cuda.device_count() > 1 else device


def _read_config(folder: Path, trust_remote_code: bool = False):
    """A model's configuration; what cannot be read is refused in one line."""
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError) as error:
        try:
            family(json.loads((folder / "config.json").read_text(encoding="utf-8")))
        except (OSError, json.JSONDecodeError) as unreadable:
            raise SubzeroError(f"{folder / 'config.json'}: not readable ({unreadable})") from unreadable
        own = "" if trust_remote_code else " If it needs code of its own, set trust_remote_code for this model."
        raise SubzeroError(
            f"{folder}: its configuration cannot be read ({str(error).splitlines()[0]}).{own}"
        ) from error


def resolved_dtype(config, folder: Path, dtype: str) -> str:
    """`dtype` itself; for auto, the type that the weights are saved in.

    Raises:
        SubzeroError: auto, and the checkpoint does not say or names a type that is none of DTYPES.
    """
    if dtype != "auto":
        return dtype
    saved = str(getattr(config.get_text_config(), "dtype", None) or getattr(config, "dtype", None)).rpartition(".")[2]
    if saved not in DTYPES:
        raise SubzeroError(f"{folder}: dtype auto, and the checkpoint says {saved}; allowed: {', '.join(DTYPES[1:])}")
    return saved


def load_tokenizer(folder: Path, trust_remote_code: bool = False):
    """The fast tokenizer in a model's folder.

    Raises:
        SubzeroError: there is none, or only a slow one, which gives no character offsets.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except (OSError, ValueError) as error:
        raise SubzeroError(f"{folder}: no usable tokenizer ({str(error).splitlines()[0]})") from error
    if not tokenizer.is_fast:
        raise SubzeroError(f"{folder}: {type(tokenizer).__name__} gives no character offsets; a fast one is needed")
    return tokenizer


def describe(folder: Path, dtype: str, revision: str, source: str, trust_remote_code: bool = False) -> dict:
    """What model.json holds: names, sizes, activation, tokenizer, and a hash of the weights.

    The sizes are read from the model built without weights (on torch's meta device), so that this costs no memory.

    Raises:
        SubzeroError: no family's row, no weights, no usable tokenizer, or a configuration that cannot be read.
    """
    import torch
    from transformers import AutoModelForCausalLM

    config = _read_config(folder, trust_remote_code)
    row = family(config.to_dict())
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
    tokenizer = load_tokenizer(folder, trust_remote_code)
    text = config.get_text_config()
    block = model.get_submodule(row.blocks)[0]
    neurons = neuron_counts(model, row)
    return {
        "source": source,
        "revision": revision,
        "commit": commit(folder),
        "trust_remote_code": trust_remote_code,
        "dtype": resolved_dtype(config, folder, dtype),
        "weights": file_hash(weight_files(folder)),
        "architecture": type(model).__name__,
        "family": config.model_type,
        "activation": type(block.get_submodule(row.activation)).__name__,
        "parallel": is_parallel(config.to_dict(), row),
        "layers": len(neurons),
        "neurons": neurons,
        "width": text.hidden_size,
        "vocabulary": text.vocab_size,
        "parameters": sum(p.numel() for p in model.parameters()),
        "context": context_length(config),
        "tokenizer": {
            "class": type(tokenizer).__name__,
            "hash": hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest(),
            "special_tokens_around_a_text": tokenizer.convert_ids_to_tokens(tokenizer("")["input_ids"]),
        },
    }


def read_model(path: Path) -> dict:
    """model.json, read back.

    Raises:
        SubzeroError: not readable.
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SubzeroError(f"{path}: not readable ({error}). Remove it and run again.") from error
