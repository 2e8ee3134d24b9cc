"""Files that outlive a step: parquet with declared columns and provenance, written whole or not at all."""

import hashlib
import importlib.metadata
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from subzero.errors import SubzeroError

FORMAT = 1
KEY = "subzero"
PACKAGES = ("subzero", "numpy", "polars", "scipy", "tokenizers", "torch", "transformers", "zarr")


@dataclass(frozen=True)
class Column:
    """A declared column: its type, what it holds, and its unit (None: no unit)."""

    dtype: pl.DataType
    description: str
    unit: str | None = None


Schema = Mapping[str, Column]


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`, moved onto it when the block ends well and removed when it does not."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=f".tmp{path.suffix}")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def versions() -> dict[str, str]:
    """The installed versions of the packages that results can depend on."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def content_hash(frame: pl.DataFrame) -> str:
    """SHA-256 of a frame's values and column names, whatever file they are in."""
    return hashlib.sha256(frame.write_ndjson().encode()).hexdigest()


def write_parquet(frame: pl.DataFrame, path: Path, schema: Schema, provenance: Mapping) -> None:
    """Write a frame with its declared columns and its provenance, atomically.

    Args:
        frame: exactly the columns of `schema`, in any order, of exactly its types.
        path: where to; an existing file is replaced whole.
        schema: the declared columns.
        provenance: see `provenance`.

    Raises:
        TypeError: a column is missing, undeclared or of another type (a mistake in this package, not a user's).
    """
    declared = {name: column.dtype for name, column in schema.items()}
    if dict(frame.schema) != declared:
        differing = set(frame.schema.items()) ^ set(declared.items())
        raise TypeError(f"{path}: columns differ from the declared ones: {sorted(map(str, differing))}")
    frame = frame.select(*declared)
    metadata = {
        "format": FORMAT,
        "content": content_hash(frame),
        "columns": {n: {"description": c.description, "unit": c.unit} for n, c in schema.items()},
        **provenance,
    }
    with replacing(path) as temporary:
        frame.write_parquet(temporary, metadata={KEY: json.dumps(metadata, sort_keys=True)})


def read_parquet(path: Path, schema: Schema) -> pl.DataFrame:
    """Read an artifact back, columns checked.

    Raises:
        SubzeroError: not readable or damaged, of another format version, or with other columns.
    """
    metadata = read_metadata(path)
    if metadata["format"] != FORMAT:
        raise SubzeroError(f"{path}: format {metadata['format']}; this version of subzero reads format {FORMAT}")
    try:
        frame = pl.read_parquet(path)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise SubzeroError(f"{path}: damaged ({str(error).splitlines()[0]}). Remove it and run again.") from error
    declared = {name: column.dtype for name, column in schema.items()}
    if dict(frame.schema) != declared:
        raise SubzeroError(f"{path}: columns are {frame.columns}; expected {list(declared)}. Remove it and run again.")
    return frame


def read_metadata(path: Path) -> dict:
    """What an artifact says of itself: format, content hash, columns, depends, made.

    Raises:
        SubzeroError: the file is no parquet, or was not written by subzero.
    """
    try:
        return json.loads(pl.read_parquet_metadata(path)[KEY])
    except (OSError, KeyError, ValueError, pl.exceptions.PolarsError) as error:
        raise SubzeroError(f"{path}: not a subzero artifact ({error}). Remove it and run again.") from error


def provenance(
    kind: str,
    code: str,
    model: Mapping | None = None,
    corpus: Mapping | None = None,
    settings: Mapping | None = None,
    inputs: Mapping | None = None,
    made: Mapping | None = None,
) -> dict:
    """What an artifact records of its making.

    Args:
        kind: what the artifact is.
        code: the fingerprint of its step's code.
        model: source, revision, weight hash, dtype.
        corpus: name and content hash of the text.
        settings: the slice of the configuration that was used.
        inputs: content hashes of the other inputs.
        made: how it came about without deciding its content (device, memory, batch shape); versions are added.

    Returns:
        kind, depends, made. Two artifacts of one kind with equal `depends` are the same artifact.
    """
    depends = {"model": model, "corpus": corpus, "settings": settings or {}, "inputs": inputs or {}, "code": code}
    return {"kind": kind, "depends": depends, "made": {**(made or {}), "versions": versions()}}


def up_to_date(path: Path, wanted: Mapping) -> bool:
    """Whether a file exists, can be read, and was made from just what `wanted` (a provenance) says."""
    try:
        found = read_metadata(path)
    except SubzeroError:
        return False
    same = json.loads(json.dumps(wanted["depends"]))
    return (found.get("format"), found.get("kind"), found.get("depends")) == (FORMAT, wanted["kind"], same)
