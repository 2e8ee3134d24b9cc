"""Mapping difficulty (MD): how far apart a neuron puts tokens whose inputs are near.

Pairs of tokens are drawn once a corpus; the model's inputs x of a layer's projection and the pre-activations a are kept
for just those tokens, in a zarr group with an array a layer of each, x/L0 and a/L0, [token, width] and [token, neuron].
"""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import polars as pl

from subzero.activations import capture, token_rows, window_batch
from subzero.artifacts import FORMAT, KEY, Column
from subzero.batches import in_batches
from subzero.errors import SubzeroError
from subzero.models import FAMILIES, model_inputs

PAIRS = {
    "pair": Column(pl.Int32(), "number of the pair, from 0"),
    "first": Column(pl.Int64(), "first token, by its number among those that count, from 0"),
    "second": Column(pl.Int64(), "second token, likewise"),
    "first_window": Column(pl.Int32(), "window of the first token"),
    "first_position": Column(pl.Int32(), "its place in that window, from 0"),
    "second_window": Column(pl.Int32(), "window of the second token"),
    "second_position": Column(pl.Int32(), "its place in that window, from 0"),
}
DIFFICULTIES = {
    "layer": Column(pl.Int32(), "layer, from 0"),
    "neuron": Column(pl.Int32(), "neuron in its layer, from 0"),
    "pairs": Column(pl.Int32(), "pairs of tokens that count", "pairs"),
    "equal_inputs": Column(pl.Int32(), "pairs left out, their inputs being equal", "pairs"),
    "md": Column(
        pl.Float64(), "mapping difficulty; null where the median output distance is 0 or a value is not finite"
    ),
}


def draw_pairs(windows: pl.DataFrame, pairs: int, seed: int) -> pl.DataFrame:
    """Pairs of distinct tokens at random.

    While there are enough tokens each is in one pair (2,000 distinct tokens make the paper's 1,000 pairs); then
    distinct pairs are drawn; and where there are no more than `pairs` of them, all are taken.

    Args:
        windows: columns as in tokens.WINDOWS; special tokens are in no pair.
        pairs: how many.
        seed: of the draw.

    Returns:
        a frame with the columns of PAIRS.

    Raises:
        SubzeroError: fewer than two tokens.
    """
    places = (
        windows.with_columns(position=pl.int_ranges(pl.col("token").list.len()))
        .explode("token", "start", "end", "special", "position")
        .filter(~pl.col("special"))
        .select("window", "position")
    )
    tokens, draw = places.height, np.random.default_rng(seed)
    if tokens < 2:
        raise SubzeroError(f"pairs of tokens: the text has {tokens} token(s)")
    if tokens * (tokens - 1) // 2 <= pairs:
        chosen = np.stack(np.triu_indices(tokens, 1), axis=1)
    elif 2 * pairs <= tokens:
        chosen = draw.choice(tokens, (pairs, 2), replace=False)
    else:
        found: dict[tuple[int, int], None] = {}
        while len(found) < pairs:
            for one, other in np.sort(draw.integers(0, tokens, (pairs, 2)), axis=1):
                if one != other and len(found) < pairs:
                    found[int(one), int(other)] = None
        chosen = np.array(list(found))
    sides = {"first": chosen[:, 0], "second": chosen[:, 1]}
    frame = pl.DataFrame({"pair": np.arange(len(chosen)), **sides})
    for side, rows in sides.items():
        frame = frame.with_columns(places[rows].rename({name: f"{side}_{name}" for name in places.columns}))
    return frame.select(pl.col(name).cast(column.dtype) for name, column in PAIRS.items())


def mapping_difficulty(x: np.ndarray, a: np.ndarray, pairs: np.ndarray) -> tuple[np.ndarray, int]:
    """MD of all neurons of a layer: mean over pairs of (|a_i - a_j| / median) / (|x_i - x_j| / largest).

    Args:
        x: (token, width) inputs of the projection.
        a: (token, neuron) pre-activations of the same tokens, any scale.
        pairs: (pair, 2) token numbers; pairs of equal inputs are left out.

    Returns:
        (neuron,) float64, no unit, NaN where the median is 0 or a value is not finite; and the pairs left out.

    Raises:
        ValueError: no pair has distinct inputs.

    Source: arXiv 2509.24198, definition of MD.
    """
    i, j = pairs.T
    dx = np.linalg.norm(x[i].astype(np.float64) - x[j], axis=1)
    distinct = dx > 0
    if not distinct.any():
        raise ValueError("mapping_difficulty: no pair has distinct inputs")
    i, j, dx = i[distinct], j[distinct], dx[distinct]
    with np.errstate(invalid="ignore", over="ignore"):
        da = np.abs(a[i] - a[j])
        weighted = (dx.max() / dx / len(dx)).astype(da.dtype) @ da
        da = np.ascontiguousarray(da.T)  # a neuron a row: medians of neighbours in memory
        half = len(dx) // 2
        da.partition(half, axis=1)
        low = da[:, half] if len(dx) % 2 else da[:, :half].max(axis=1)
        median = (low.astype(np.float64) + da[:, half]) / 2
        md = weighted / np.where(median > 0, median, np.nan)
    return np.where(np.isfinite(md), md, np.nan).astype(np.float64), int((~distinct).sum())


def write_pair_inputs(
    model,
    family: str,
    windows: pl.DataFrame,
    pairs: pl.DataFrame,
    path: Path,
    provenance: Mapping,
    batch_tokens: int = 2048,
    advance: Callable[[int], None] = lambda count: None,
) -> None:
    """Run the windows that the pairs' tokens are in, and write inputs and pre-activations of these tokens.

    Args:
        model: a transformers model.
        family: its key in FAMILIES.
        windows: columns as in tokens.WINDOWS.
        pairs: columns as in PAIRS.
        path: the zarr group's place; it appears there when complete.
        provenance: recorded, with the numbers of the tokens (as in PAIRS), in rising order.
        batch_tokens: tokens a forward pass (at least one window).
        advance: told the number of tokens each time some are done.
    """
    import torch
    import zarr

    tokens = np.unique(pairs.select("first", "second").to_numpy())
    lengths, counts = token_rows(windows)
    firsts = np.cumsum(counts) - counts
    needed = np.flatnonzero(np.histogram(tokens, np.append(firsts, counts.sum()))[0])
    part, wanted = windows[needed], [tokens[(tokens >= f) & (tokens < f + c)] - f for f, c in zip(
        firsts[needed], counts[needed], strict=True)]  # fmt: skip
    found: dict[str, list] = {}

    def run(batch):
        ids, keep, real = window_batch(part, batch)
        places = [np.flatnonzero(row)[rows] + number * ids.shape[1]
                  for number, (row, rows) in enumerate(zip(keep, wanted[batch], strict=True))]  # fmt: skip
        chosen = torch.as_tensor(np.concatenate(places))
        batch_found = {}

        def sink(layer, values, inputs):
            for name, each in (("x", inputs), ("a", values)):
                rows = each.reshape(-1, each.shape[-1])[chosen.to(each.device)]
                batch_found[f"{name}/L{layer}"] = rows.float().cpu().numpy()

        with torch.inference_mode(), capture(model, FAMILIES[family], sink, inputs=True):
            model.base_model(**model_inputs(model, ids, real))
        for name, rows in batch_found.items():
            found.setdefault(name, []).append(rows)
        advance(sum(part["token"].list.len()[batch]))

    in_batches([lengths[number] for number in needed], batch_tokens, run)
    partial = path.with_name(path.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    group = zarr.create_group(partial, attributes={KEY: {"format": FORMAT, "tokens": tokens.tolist(), **provenance}})
    for name, pieces in found.items():
        values = np.concatenate(pieces)
        array = group.create_array(
            name, shape=values.shape, chunks=values.shape, dtype="float32", compressors=zarr.codecs.Crc32cCodec()
        )
        array[:] = values
    shutil.rmtree(path, ignore_errors=True)
    partial.rename(path)


def difficulties(path: Path, pairs: pl.DataFrame, advance: Callable[[int], None] = lambda count: None) -> pl.DataFrame:
    """MD of every neuron.

    Args:
        path: the group that `write_pair_inputs` wrote.
        pairs: columns as in PAIRS.
        advance: told the number of neurons each time some are done.

    Returns:
        a frame with the columns of DIFFICULTIES.

    Raises:
        SubzeroError: not such a group, or a chunk of it is damaged.
    """
    import zarr

    try:
        group = zarr.open_group(path, mode="r")
        tokens = np.array(group.attrs[KEY]["tokens"])
        numbers = np.searchsorted(tokens, pairs.select("first", "second").to_numpy())
        frames, layer = [], 0
        while f"a/L{layer}" in group:
            md, equal = mapping_difficulty(group[f"x/L{layer}"][:], group[f"a/L{layer}"][:], numbers)
            frames.append(
                pl.DataFrame(
                    {
                        "layer": layer,
                        "neuron": np.arange(len(md)),
                        "pairs": len(numbers) - equal,
                        "equal_inputs": equal,
                        "md": md,
                    }
                )
            )
            advance(len(md))
            layer += 1
    except (OSError, KeyError, ValueError) as error:
        raise SubzeroError(f"{path}: not a group of the pairs' inputs ({error}). Remove it and run again.") from error
    return (
        pl.concat(frames)
        .cast({name: column.dtype for name, column in DIFFICULTIES.items()})
        .with_columns(pl.col("md").fill_nan(None))
    )
