"""Statistics of a neuron's pre-activations: moments, and the Wasserstein distance (WD) to a Gaussian.

Source of WD: arXiv 2509.24198, section on Wasserstein neurons; the closed form is derived below.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

import numpy as np
import polars as pl
from scipy.special import ndtr, ndtri

from subzero.activations import CHUNK_NEURONS, open_activations, read_block
from subzero.artifacts import Column

STATISTICS = {
    "layer": Column(pl.Int32(), "layer, from 0"),
    "neuron": Column(pl.Int32(), "neuron in its layer, from 0"),
    "n": Column(pl.Int64(), "tokens that count; the statistics are null unless all their values are finite"),
    "mean": Column(pl.Float64(), "mean pre-activation", "pre-activation"),
    "std": Column(pl.Float64(), "standard deviation (population)", "pre-activation"),
    "skewness": Column(pl.Float64(), "third standardised moment; null for a constant neuron"),
    "kurtosis": Column(pl.Float64(), "fourth standardised moment less 3; null for a constant neuron"),
    "fraction_negative": Column(pl.Float64(), "share of pre-activations below 0", "fraction"),
    "mean_negative": Column(pl.Float64(), "mean of those below 0; null if there are none", "pre-activation"),
    "wd": Column(pl.Float64(), "1-Wasserstein distance of the standardised sample to N(0, 1)", "standard deviation"),
    "wd_negative": Column(pl.Float64(), "the part of wd at pre-activations below 0", "standard deviation"),
    "minimum": Column(pl.Float64(), "smallest pre-activation", "pre-activation"),
    "maximum": Column(pl.Float64(), "largest pre-activation", "pre-activation"),
}
NOT_RANKED = ("layer", "neuron", "n")


def wasserstein_to_normal(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Exact 1-Wasserstein distance of standardised samples to N(0, 1), and its part at pre-activations below 0.

    With x the sorted sample, shifted to mean 0 and scaled to (population) variance 1, the distance is

        sum over cells i = 1..n of  integral over q in ((i-1)/n, i/n) of |x_i - Phi^-1(q)| dq .

    An antiderivative of Phi^-1 is -phi(Phi^-1(q)). With z_i = Phi^-1(i/n) and g_i = phi(z_i) (0 at both ends), a cell
    is |x_i/n - (g_{i-1} - g_i)|, but where z_{i-1} < x_i < z_i it is split at Phi(x_i) and is
    x_i (2 Phi(x_i) - (2i-1)/n) + 2 phi(x_i) - g_{i-1} - g_i.

    Args:
        a: (neuron, token) pre-activations, each row sorted in ascending order, finite.

    Returns:
        wd, wd_negative: (neuron,) float64, in standard deviations; NaN for a constant row. `wd_negative` sums the cells
        with a_i < 0 (the pre-activation itself, not its standardised value).

    Source: arXiv 2509.24198, definition of WD; the closed form is our own.
    """
    x, _, _ = _standardised(a)
    return _distance(x, _negatives(a))


def _distance(x: np.ndarray, negatives: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The sum over cells, and over the first `negatives` cells of each row; x: (neuron, token) standardised, sorted."""
    n = x.shape[1]
    z, g = _normal_cells(n)
    cells = x / n
    cells -= g[:-1] - g[1:]
    np.abs(cells, out=cells)
    row, cell = np.nonzero((x > z[:-1]) & (x < z[1:]))
    inside = x[row, cell]
    density = np.exp(-0.5 * inside**2) / np.sqrt(2 * np.pi)
    cells[row, cell] = inside * (2 * ndtr(inside) - (2 * cell + 1) / n) + 2 * density - g[cell] - g[cell + 1]
    return cells.sum(axis=1), _sum_of_first(cells, negatives)


@lru_cache(maxsize=4)
def _normal_cells(n: int) -> tuple[np.ndarray, np.ndarray]:
    """z_i = Phi^-1(i/n) and g_i = phi(z_i), i = 0..n."""
    z = ndtri(np.arange(n + 1) / n)
    return z, np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)


def _negatives(a: np.ndarray) -> np.ndarray:
    """How many values of each row, sorted, are below 0."""
    return np.count_nonzero(a < 0, axis=1)


def _sum_of_first(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The sum of the first `counts` values of each row, in float64; NaN rows stay NaN."""
    sums = [row[:count].sum(dtype=np.float64) for row, count in zip(values, counts, strict=True)]
    return np.where(np.isnan(values[:, 0]), np.nan, sums)


def _standardised(a: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows at mean 0 and population variance 1, float64, with the means and deviations; a constant row gives NaN.

    a: (neuron, token), each row sorted. Divided by the largest magnitude first, so that 1e30 squares without overflow.
    """
    scale = np.maximum(np.abs(a[:, :1]), np.abs(a[:, -1:])).astype(np.float64)
    x = a / np.where(scale > 0, scale, 1.0)
    mean = x.mean(axis=1, keepdims=True)
    x -= mean
    std = np.sqrt(np.einsum("ij,ij->i", x, x) / x.shape[1])[:, None]
    std = np.where(a[:, :1] == a[:, -1:], 0.0, std)  # exactly: rounding leaves a constant row some 1e-17
    with np.errstate(invalid="ignore", divide="ignore"):
        x /= std
    x[np.broadcast_to(std == 0, x.shape)] = np.nan
    return x, (mean * scale)[:, 0], (std * scale)[:, 0]


def neuron_statistics(a: np.ndarray) -> dict[str, np.ndarray]:
    """All statistics of a block of neurons.

    Args:
        a: (neuron, token) pre-activations, in any order.

    Returns:
        column -> (neuron,) array, for the columns of STATISTICS but layer and neuron; NaN where undefined. A neuron
        with a value that is not finite has `n` less than the number of tokens, and all else NaN.
    """
    n = np.isfinite(a).sum(axis=1)
    a = np.sort(np.where((n == a.shape[1])[:, None], a, np.float32(0)), axis=1)
    x, mean, std = _standardised(a)
    square = x * x
    negatives = _negatives(a)
    wd, wd_negative = _distance(x, negatives)
    with np.errstate(invalid="ignore"):
        found = {
            "mean": mean,
            "std": std,
            "skewness": np.einsum("ij,ij->i", square, x) / a.shape[1],
            "kurtosis": np.einsum("ij,ij->i", square, square) / a.shape[1] - 3,
            "fraction_negative": negatives / a.shape[1],
            "mean_negative": _sum_of_first(a, negatives) / negatives,
            "wd": wd,
            "wd_negative": wd_negative,
            "minimum": a[:, 0].astype(np.float64),
            "maximum": a[:, -1].astype(np.float64),
        }
    undefined = n < a.shape[1]
    return {"n": n, **{name: np.where(undefined, np.nan, values) for name, values in found.items()}}


def statistics_frame(layer: int, first: int, found: dict[str, np.ndarray]) -> pl.DataFrame:
    """A block's statistics as rows; what is undefined is null.

    Args:
        layer: the block's layer.
        first: its first neuron.
        found: as `neuron_statistics` gives them.
    """
    count = len(found["n"])
    columns = {"layer": np.full(count, layer), "neuron": np.arange(first, first + count), **found}
    frame = pl.DataFrame({name: columns[name] for name in STATISTICS})
    return frame.cast({name: column.dtype for name, column in STATISTICS.items()}).with_columns(
        pl.col(pl.Float64).fill_nan(None)
    )


def corpus_statistics(
    path: Path, threads: int = 1, block: int = 16, advance: Callable[[int], None] = lambda count: None
) -> pl.DataFrame:
    """Statistics of every neuron in a group of activations.

    Args:
        path: the zarr group.
        threads: blocks of neurons at a time (numpy sorts without holding the interpreter).
        block: neurons a block; memory is about 40 bytes a token and neuron of a block, times the threads.
        advance: told the number of neurons each time some are done.

    Returns:
        a frame with the columns of STATISTICS, sorted by layer and neuron.
    """
    arrays, _ = open_activations(path)
    frames = []
    with ThreadPoolExecutor(threads) as pool:
        for layer, array in enumerate(arrays):
            for start in range(0, array.shape[1], CHUNK_NEURONS):
                values = read_block(path, layer, array, slice(start, min(start + CHUNK_NEURONS, array.shape[1])))
                firsts = range(0, len(values), block)
                for first, found in zip(
                    firsts, pool.map(neuron_statistics, [values[f : f + block] for f in firsts]), strict=True
                ):
                    frames.append(statistics_frame(layer, start + first, found))
                advance(len(values))
    return pl.concat(frames).sort("layer", "neuron")
