"""Stability: whether another text, or less of it, would have ranked the neurons alike."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import polars as pl
from scipy.stats import spearmanr

from subzero.activations import open_activations, read_block
from subzero.artifacts import Column
from subzero.errors import SubzeroError
from subzero.selection import how_many
from subzero.statistics import block_neurons, gaussian_floor, neuron_statistics

STABILITY = {
    "comparison": Column(pl.String(), "halves (every other window against the rest) or whole (a part against all)"),
    "tokens": Column(pl.Int64(), "tokens of the smaller side", "tokens"),
    "layer": Column(pl.Int32(), "layer, from 0"),
    "fraction": Column(pl.Float64(), "share of the layer's neurons in the top sets", "fraction"),
    "jaccard": Column(pl.Float64(), "neurons in both top sets by WD over those in either"),
    "spearman": Column(pl.Float64(), "rank correlation of WD over the layer's neurons"),
    "median_wd": Column(pl.Float64(), "median WD of the layer on the smaller side", "standard deviation"),
    "floor": Column(pl.Float64(), "mean WD of Gaussian samples of so many tokens", "standard deviation"),
}
PARTS = (8, 4, 2)  # every so manieth window


def parts_of(windows: np.ndarray) -> dict[str, np.ndarray]:
    """Parts of a text, spread over it: name -> (token,) bool.

    Args:
        windows: (window,) tokens of each.

    Raises:
        SubzeroError: fewer than two windows.
    """
    if np.count_nonzero(windows) < 2:
        raise SubzeroError(f"stability: the text has {len(windows)} window(s); needed: at least two")
    number = np.repeat(np.arange(len(windows)), windows)
    parts = {f"1/{step}": number % step == 0 for step in PARTS if len(windows) >= step}
    return parts | {"rest": number % 2 == 1, "all": np.ones(len(number), dtype=bool)}


def agreement(one: np.ndarray, other: np.ndarray, fraction: str) -> tuple[float, float]:
    """Jaccard index of the top sets, and rank correlation, of one layer.

    Args:
        one, other: (neuron,) WD, NaN where undefined; a neuron that is undefined in either is left out.
        fraction: of the layer's neurons, as `names.fraction_name` gives it.
    """
    count = how_many(fraction, len(one))
    known = np.flatnonzero(np.isfinite(one) & np.isfinite(other))
    top, other_top = (set(known[np.argsort(-wd[known], kind="stable")[:count]]) for wd in (one, other))
    correlation = spearmanr(one[known], other[known]).statistic if len(known) > 1 else np.nan
    return len(top & other_top) / max(1, len(top | other_top)), float(correlation)


def stability(
    path: Path,
    fraction: str,
    threads: int = 1,
    memory: int = 4000,
    advance: Callable[[int], None] = lambda count: None,
) -> pl.DataFrame:
    """Agreement between halves of a text, and between parts of it and the whole.

    Args:
        path: the zarr group of activations.
        fraction: of each layer's neurons, as `names.fraction_name` gives it.
        threads, memory, advance: as in `statistics.corpus_statistics`.

    Returns:
        a frame with the columns of STABILITY.

    Raises:
        SubzeroError: fewer than two windows.
    """
    arrays, metadata = open_activations(path)
    parts = parts_of(np.array(metadata["windows"]))
    size = block_neurons(2 * arrays[0].shape[0], threads, memory)

    def work(block: tuple[int, int]) -> tuple[int, dict[str, np.ndarray]]:
        layer, first = block
        values = read_block(path, layer, arrays[layer], slice(first, min(first + size, arrays[layer].shape[1])))
        return layer, {name: neuron_statistics(values[:, part], overwrite=True)["wd"] for name, part in parts.items()}

    found: list[dict[str, list]] = [{name: [] for name in parts} for _ in arrays]
    blocks = [(layer, first) for layer, array in enumerate(arrays) for first in range(0, array.shape[1], size)]
    with ThreadPoolExecutor(threads) as pool:
        for layer, values in pool.map(work, blocks):
            for name, wd in values.items():
                found[layer][name].append(wd)
            advance(len(values["all"]))
    return _compared([{name: np.concatenate(wd) for name, wd in layer.items()} for layer in found], parts, fraction)


def _compared(layers: list[Mapping[str, np.ndarray]], parts: Mapping[str, np.ndarray], fraction: str) -> pl.DataFrame:
    """The rows of all comparisons."""
    couples = [("halves", "rest", "1/2"), *(("whole", name, "all") for name in parts if name not in ("rest", "all"))]
    rows = []
    for comparison, small, large in couples:
        tokens = int(parts[small].sum())
        floor = gaussian_floor(min(tokens, 10**6))
        for layer, wd in enumerate(layers):
            jaccard, spearman = agreement(wd[small], wd[large], fraction)
            median = float(np.nanmedian(wd[small])) if np.isfinite(wd[small]).any() else None
            rows.append((comparison, tokens, layer, float(fraction), jaccard, spearman, median, floor))
    schema = {name: column.dtype for name, column in STABILITY.items()}
    return pl.DataFrame(rows, schema=schema, orient="row").with_columns(pl.col(pl.Float64).fill_nan(None))
