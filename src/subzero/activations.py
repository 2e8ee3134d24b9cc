"""Pre-activations: captured by forward hooks, kept in a zarr group of one array a layer, [token, neuron].

A chunk holds CHUNK_NEURONS neurons of `token_chunk` tokens, so that a block of neurons can be read alone. Rows are
buffered to whole chunks. Until the last is written the group lies beside its place, as `{corpus}.zarr.partial`, with
its number of finished token blocks in progress.json; a run that was stopped, by whatever, goes on after the last one.
Where a run stopped does not change the batches, so it does not change the result.
"""

import fcntl
import itertools
import json
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import polars as pl

from subzero.artifacts import FORMAT, KEY, replacing
from subzero.batches import in_batches, padded
from subzero.errors import SubzeroError
from subzero.models import FAMILIES, Family, model_inputs, neuron_counts, projections

CHUNK_NEURONS = 512
BUFFER_BYTES = 400_000_000  # of one token block of all layers; decides the chunks, so it is no option
PROGRESS = "progress.json"


def token_chunk(neurons: Sequence[int]) -> int:
    """Tokens a chunk: the largest power of two (256 to 8,192) whose block of all layers fits BUFFER_BYTES."""
    fitting = BUFFER_BYTES // (4 * sum(neurons))
    return min(8192, max(256, 1 << max(0, int(fitting).bit_length() - 1)))


@contextmanager
def capture(
    model, row: Family, sink: Callable, layers: Collection[int] | None = None, inputs: bool = False
) -> Iterator[None]:
    """Give every layer's pre-activations to `sink(layer, values)` at each forward pass inside the block.

    Args:
        model: a transformers model.
        row: its family.
        sink: gets the layer (from 0) and a tensor (batch, position, neuron), or (batch x position, neuron) in families
            that flatten them, such as OPT; it must not keep the tensor itself.
        layers: only of these; None: of all.
        inputs: whether the sink gets the projection's input as well.

    The hooks are removed when the block ends, also by an exception.
    """

    def hook_of(layer):
        def hook(module, given, output):
            values = output.detach()[..., : widths[layer]]
            sink(layer, values, given[0].detach()) if inputs else sink(layer, values)

        return hook

    widths = neuron_counts(model, row)  # of a fused projection the gate alone

    handles = [
        projection.register_forward_hook(hook_of(layer))
        for layer, projection in enumerate(projections(model, row))
        if layers is None or layer in layers
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _EnoughError(Exception):
    """All that was wanted of a forward pass is there."""


def forward_rows(
    model,
    row: Family,
    tokens: np.ndarray,
    keep: np.ndarray,
    real: np.ndarray | None = None,
    layers: Collection[int] | None = None,
    reduce: Callable = lambda layer, values: values.float().cpu().numpy(),
) -> list:
    """Pre-activations of one batch of windows.

    Args:
        model: a transformers model.
        row: its family.
        tokens: (batch, position) token ids.
        keep: (batch, position) bool, False for tokens that must not count, padding among them.
        real: (batch, position) bool, False for padding, on either side; None: there is none.
        layers: only these, in rising order; what comes after the last of them in the model is not run. None: all.
        reduce: (layer, values) -> what is returned of a layer, `values` being a tensor (token, neuron) on its device.

    Returns:
        a float32 array (token, neuron) for each layer, tokens in reading order; or what `reduce` makes of it.

    Raises:
        RuntimeError: a layer's hook did not fire exactly once (the family's row is wrong for this model).
    """
    import torch

    depth = len(projections(model, row))
    wanted = range(depth) if layers is None else sorted(layers)
    found: dict[int, list] = {}
    mask = torch.from_numpy(keep.reshape(-1))

    def sink(layer, values):
        values = values.reshape(-1, values.shape[-1])
        kept = values if mask.all() else values[mask.to(values.device)]
        found.setdefault(layer, []).append(reduce(layer, kept))
        if layer == wanted[-1] < depth - 1:
            raise _EnoughError

    with torch.inference_mode(), capture(model, row, sink, wanted), suppress(_EnoughError):
        # the body alone: the vocabulary projection is a fifth of a small model's work
        model.base_model(**model_inputs(model, tokens, real))
    if any(len(found.get(layer, ())) != 1 for layer in wanted):
        fired = {layer: len(found.get(layer, ())) for layer in wanted}
        raise RuntimeError(f"{type(model).__name__}: hooks must fire once a layer; they fired {fired}")
    return [found[layer][0] for layer in wanted]


def token_rows(windows: pl.DataFrame) -> tuple[list[int], np.ndarray]:
    """Tokens of each window, and of them those that count (special ones do not).

    Args:
        windows: columns as in tokens.WINDOWS.

    Returns:
        lengths, and counts as (window,) int64.
    """
    special = windows["special"].to_list()
    return [len(window) for window in special], np.array([window.count(False) for window in special], dtype=np.int64)


def window_batch(windows: pl.DataFrame, batch: slice) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """ids, keep and real of some windows, as `forward_rows` takes them."""
    part = windows[batch]
    ids, real = padded(part["token"].to_list())
    return ids, real & (padded(part["special"].to_list())[0] == 0), real


def extract(
    model,
    family: str,
    windows: pl.DataFrame,
    path: Path,
    provenance: Mapping,
    batch_tokens: int = 2048,
    advance: Callable[[int], None] = lambda count: None,
    precision: str = "float32",
    compress: str = "none",
) -> None:
    """Write the pre-activations of all neurons on all windows to a zarr group; resumes what was begun.

    Args:
        model: a transformers model.
        family: its key in FAMILIES.
        windows: columns as in tokens.WINDOWS.
        path: the group's place; it appears there when complete.
        provenance: recorded; a partial group with another provenance is thrown away.
        batch_tokens: tokens a forward pass (at least one window).
        advance: told the number of tokens each time some are done, those of an earlier run included.
        precision: float32 or float16, of what is kept; beyond 65,504 float16 has infinity.
        compress: none or zstd.

    Raises:
        SubzeroError: another process is writing the same group.
    """
    row = FAMILIES[family]
    lengths, counts = token_rows(windows)
    firsts = np.cumsum(counts) - counts  # the number of each window's first row
    with _only_writer(path):
        store = _Store(path, neuron_counts(model, row), counts, provenance, precision, compress)

        def run(batch):
            first, count = int(firsts[batch.start]), int(counts[batch].sum())
            if first + count > store.begin:
                rows = forward_rows(model, row, *window_batch(windows, batch))
                fresh = max(0, store.begin - first)
                store.append([values[fresh:] for values in rows])
            advance(sum(lengths[batch]))

        in_batches(lengths, batch_tokens, run)
        store.finish()


@contextmanager
def _only_writer(path: Path) -> Iterator[None]:
    """A lock that ends with its process, however that ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise SubzeroError(f"{path}: another process is writing it; wait for it or stop it") from error
        yield
    path.with_suffix(".lock").unlink(missing_ok=True)


class _Store:
    """The group being written: rows are buffered to whole token blocks."""

    def __init__(
        self, path: Path, neurons: Sequence[int], counts: np.ndarray, provenance: Mapping, precision: str, compress: str
    ):
        import zarr

        tokens = int(counts.sum())
        self.path, self.partial = path, path.with_name(path.name + ".partial")
        self.rows = token_chunk(neurons)
        wanted = json.loads(
            json.dumps({"format": FORMAT, "neurons": list(neurons), "windows": counts.tolist(), **provenance})
        )
        try:
            progress = json.loads((self.partial / PROGRESS).read_text())
            group = zarr.open_group(self.partial, mode="r+")
            fits = progress["depends"] == wanted["depends"]
        except (OSError, ValueError, KeyError):
            fits = False
        if not fits:
            shutil.rmtree(self.partial, ignore_errors=True)
            progress = {"blocks": 0, "depends": wanted["depends"]}
            group = zarr.create_group(self.partial, attributes={KEY: wanted})
            for layer, width in enumerate(neurons):
                group.create_array(
                    f"L{layer}",
                    shape=(tokens, width),
                    chunks=(min(self.rows, tokens), min(CHUNK_NEURONS, width)),
                    dtype=precision,
                    # the checksum, of what is on disk, tells a torn chunk from a whole one
                    compressors=[*([zarr.codecs.ZstdCodec(level=1)] * (compress == "zstd")), zarr.codecs.Crc32cCodec()],
                    fill_value=float("nan"),
                    dimension_names=("token", "neuron"),
                )
        self.progress, self.tokens = progress, tokens
        self.arrays = [group[f"L{layer}"] for layer in range(len(neurons))]
        self.begin = min(progress["blocks"] * self.rows, tokens)
        self.written = self.begin
        self.buffers = [np.empty((min(self.rows, tokens), width), dtype=np.float32) for width in neurons]
        self.filled = 0

    def append(self, layers: list[np.ndarray]) -> None:
        taken = 0
        while taken < len(layers[0]):
            room = min(len(self.buffers[0]) - self.filled, len(layers[0]) - taken)
            for buffer, values in zip(self.buffers, layers, strict=True):
                buffer[self.filled : self.filled + room] = values[taken : taken + room]
            self.filled += room
            taken += room
            if self.filled == len(self.buffers[0]) or self.written + self.filled == self.tokens:
                self._flush()

    def _flush(self) -> None:
        rows = slice(self.written, self.written + self.filled)
        for array, buffer in zip(self.arrays, self.buffers, strict=True):
            with np.errstate(over="ignore"):  # what float16 cannot hold is infinity, and counted by the statistics
                array[rows] = buffer[: self.filled].astype(array.dtype)
        self.written, self.filled = rows.stop, 0
        self.progress["blocks"] += 1
        with replacing(self.partial / PROGRESS) as temporary:
            temporary.write_text(json.dumps(self.progress))

    def finish(self) -> None:
        if self.written != self.tokens:
            raise RuntimeError(f"{self.path}: {self.written} of {self.tokens} tokens were written")
        (self.partial / PROGRESS).unlink()
        shutil.rmtree(self.path, ignore_errors=True)
        self.partial.rename(self.path)


def open_activations(path: Path, whole: bool = True) -> tuple[list, dict]:
    """The arrays of a group, by layer, and what it records of its making.

    Args:
        path: of the group.
        whole: whether a missing chunk is an error.

    Raises:
        SubzeroError: not such a group, of another format, or a chunk is missing (zarr would read it as fill values).
    """
    import zarr

    try:
        group = zarr.open_group(path, mode="r" if whole else "r+")
        metadata = dict(group.attrs[KEY])
        # by name: listing the group would warn of the timestamp that Snakemake puts into folders
        arrays = [group[f"L{layer}"] for layer in range(len(metadata["neurons"]))]
    except (OSError, KeyError, ValueError) as error:
        raise SubzeroError(f"{path}: not a group of activations ({error}). Remove it and run again.") from error
    if metadata["format"] != FORMAT:
        raise SubzeroError(f"{path}: format {metadata['format']}; this version of subzero reads format {FORMAT}")
    for layer, array in enumerate(arrays if whole else []):
        if array.nchunks_initialized != array.nchunks:
            missing = array.nchunks - array.nchunks_initialized
            raise SubzeroError(f"{path}, layer {layer}: {missing} chunk(s) missing. {_MEND.format(path)}")
    return arrays, metadata


_MEND = "Only what is damaged is computed again by: subzero repair {} --tokens TOKENS --model MODEL.json"


def damaged_chunks(path: Path) -> list[tuple[int, int, int]]:
    """Chunks of a group that are missing or whose checksum differs, as (layer, token block, neuron block)."""
    found = []
    for layer, array in enumerate(open_activations(path, whole=False)[0]):
        for block, part in itertools.product(*(range(count) for count in array.cdata_shape)):
            rows, columns = (
                slice(n * size, (n + 1) * size) for n, size in zip((block, part), array.chunks, strict=True)
            )
            try:
                if not (path / f"L{layer}" / "c" / str(block) / str(part)).is_file():
                    raise ValueError("missing")
                array[rows, columns]
            except (ValueError, RuntimeError):  # of the checksum, and of the decompression
                found.append((layer, block, part))
    return found


def repair(
    model,
    family: str,
    windows: pl.DataFrame,
    path: Path,
    chunks: Sequence[tuple[int, int, int]],
    advance: Callable[[int], None] = lambda count: None,
) -> None:
    """Compute some chunks of a group again, in the batches that it was made in, and put each in its place whole.

    Args:
        model, family, windows: those that the group was made from.
        path: of the group.
        chunks: as `damaged_chunks` gives them.
        advance: told the number of tokens each time some are done.
    """
    arrays, metadata = open_activations(path, whole=False)
    size, layers = arrays[0].chunks[0], sorted({layer for layer, _, _ in chunks})
    lengths, counts = token_rows(windows)
    firsts = np.cumsum(counts) - counts
    blocks = {block: {layer: [] for layer in layers} for block in sorted({block for _, block, _ in chunks})}

    def run(batch):
        first, last = int(firsts[batch.start]), int(firsts[batch.start] + counts[batch].sum())
        wanted = [block for block in blocks if first < (block + 1) * size and block * size < last]
        if wanted:
            rows = forward_rows(model, FAMILIES[family], *window_batch(windows, batch), layers=layers)
            for block in wanted:
                part = slice(max(0, block * size - first), (block + 1) * size - first)
                for layer, values in zip(layers, rows, strict=True):
                    blocks[block][layer].append(values[part])
        advance(sum(lengths[batch]))

    in_batches(lengths, metadata["made"].get("batch_tokens", 2048), run)
    for layer, block, part in chunks:
        array, values = arrays[layer], np.concatenate(blocks[block][layer])
        columns = slice(part * array.chunks[1], (part + 1) * array.chunks[1])
        with np.errstate(over="ignore"):
            array[block * size : block * size + len(values), columns] = values[:, columns].astype(array.dtype)


def read_block(path: Path, layer: int, array, neurons: slice) -> np.ndarray:
    """A block of neurons on all tokens, (neuron, token) float32, checksums verified.

    Read a chunk at a time, so that beside the block itself there is no more than that in memory.

    Raises:
        SubzeroError: a chunk's checksum does not match.
    """
    tokens, rows = array.shape[0], array.chunks[0]
    block = np.empty((neurons.stop - neurons.start, tokens), dtype=np.float32)
    try:
        for first in range(0, tokens, rows):
            block[:, first : first + rows] = array[first : first + rows, neurons].T
        return block
    except ValueError as error:
        where = f"{path}, layer {layer}, neurons {neurons.start} to {neurons.stop - 1}"
        raise SubzeroError(f"{where}: a chunk is damaged ({error}). {_MEND.format(path)}") from error
