"""Statistics of a neuron's pre-activations: moments, and the Wasserstein distance (WD) to a Gaussian.

Source of WD: arXiv 2509.24198, section on Wasserstein neurons. The distance of n values, shifted to mean 0, scaled to
(population) variance 1 and sorted, is

    sum over cells i = 1..n of  integral over q in ((i-1)/n, i/n) of |x_i - Phi^-1(q)| dq .

An antiderivative of Phi^-1 is -phi(Phi^-1(q)). With z_i = Phi^-1(i/n) and g_i = phi(z_i) (0 at both ends), a cell is

    |x_i/n - (g_{i-1} - g_i)| ,

but where z_{i-1} < x_i < z_i it is split at Phi(x_i) and is

    x_i (2 Phi(x_i) - (2i-1)/n) + 2 phi(x_i) - g_{i-1} - g_i .

A cell can only be split if |x_i/n - (g_{i-1} - g_i)| < (z_i - z_{i-1})/n, since n (g_{i-1} - g_i) lies between z_{i-1}
and z_i too; these are a few in a thousand, so that beside the sort there is one pass for the moments and one for this.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
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
    "wd_positive": Column(pl.Float64(), "the part of wd at pre-activations from 0 on", "standard deviation"),
    "wd_signed": Column(
        pl.Float64(),
        "sample less normal quantile, integrated over pre-activations below 0 (over the rest it is the opposite)",
        "standard deviation",
    ),
    "wd_se": Column(
        pl.Float64(),
        "standard error of wd, windows of text being independent; null if not asked for",
        "standard deviation",
    ),
    "wd_bound": Column(
        pl.Float64(), "largest error that wd and its parts may have; 0 where exact", "standard deviation"
    ),
    "minimum": Column(pl.Float64(), "smallest pre-activation", "pre-activation"),
    "maximum": Column(pl.Float64(), "largest pre-activation", "pre-activation"),
}
NOT_RANKED = ("layer", "neuron", "n", "wd_se", "wd_bound")
CHUNK = 16384  # values at a time: with what they are compared to, they stay in a core's cache


def wasserstein_to_normal(a: np.ndarray) -> dict[str, np.ndarray]:
    """Exact 1-Wasserstein distance of standardised samples to N(0, 1), and its parts.

    Args:
        a: (neuron, token) pre-activations, each row sorted in ascending order, finite, of any floating type.

    Returns:
        wd, wd_negative, wd_positive, wd_signed: (neuron,) float64, in standard deviations; NaN for a constant row. The
        parts are the cells with a_i below 0 and the others (the pre-activation itself, not its standardised value).

    Source: arXiv 2509.24198, definition of WD; the closed form is our own (see above).
    """
    found = _of_sorted(a)
    return {name: found[name] for name in ("wd", "wd_negative", "wd_positive", "wd_signed")}


@dataclass(frozen=True)
class _Cells:
    """Of n cells of equal probability: z_i and g_i, i = 0..n; g_{i-1} - g_i and (z_i - z_{i-1})/n, i = 1..n."""

    z: np.ndarray
    g: np.ndarray
    share: np.ndarray
    width: np.ndarray


@lru_cache(maxsize=4)
def _cells(n: int) -> _Cells:
    z = ndtri(np.arange(n + 1) / n)
    g = density(z)
    return _Cells(z, g, g[:-1] - g[1:], np.diff(z) / n)


def density(z: np.ndarray) -> np.ndarray:
    """phi, the density of N(0, 1)."""
    return np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)


def _of_sorted(a: np.ndarray) -> dict[str, np.ndarray]:
    """All statistics but n of rows that are sorted and finite; rows together, so that a pass is over CHUNK values."""
    rows, n = a.shape
    together = max(1, CHUNK // n)
    buffers = np.empty((2, together, min(n, CHUNK)))
    parts = [_of_few(a[first : first + together], buffers) for first in range(0, rows, together)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _of_few(a: np.ndarray, buffers: np.ndarray) -> dict[str, np.ndarray]:
    rows, n = a.shape
    counts = np.array([np.searchsorted(row, row.dtype.type(0)) for row in a])  # values below 0
    shift = a[:, n // 2].astype(np.float64)  # the median is within a deviation of the mean: sums about it lose nothing
    sums, below = np.zeros((4, rows)), np.zeros(rows)
    for first in range(0, n, CHUNK):
        values, square = (buffer[:rows, : min(CHUNK, n - first)] for buffer in buffers)
        np.copyto(values, a[:, first : first + CHUNK])
        values -= shift[:, None]
        np.multiply(values, values, out=square)
        whole = values.sum(axis=1)
        sums += [whole, _products(values, values), _products(square, values), _products(square, square)]
        below += _sum_of_first(values, counts - first, whole)
    one, two, three, four = sums / n
    mean, variance = shift + one, np.maximum(two - one**2, 0)
    constant = a[:, 0] == a[:, -1]  # exactly: rounding leaves a constant row some 1e-17
    std = np.where(constant, 0.0, np.sqrt(variance))
    with np.errstate(invalid="ignore", divide="ignore"):
        scale = np.where(constant, np.nan, std)
        wd, wd_negative = _distances(a, mean, scale, counts, buffers[0])
        signed = (below - counts * one) / (scale * n) + _cells(n).g[counts]
        return {
            "mean": mean,
            "std": std,
            "skewness": (three - 3 * one * two + 2 * one**3) / scale**3,
            "kurtosis": (four - 4 * one * three + 6 * one**2 * two - 3 * one**4) / scale**4 - 3,
            "fraction_negative": counts / n,
            "mean_negative": np.where(counts > 0, shift + below / counts, np.nan),
            "wd": wd,
            "wd_negative": wd_negative,
            "wd_positive": wd - wd_negative,
            "wd_signed": signed,
            "wd_se": np.full(rows, np.nan),
            "wd_bound": np.zeros(rows) * wd,
            "minimum": a[:, 0].astype(np.float64),
            "maximum": a[:, -1].astype(np.float64),
        }


def _products(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """The dot product of each row. Long rows come alone, and BLAS is three times faster for one; which way is taken
    follows from the length, so that a neuron's company does not change its bits.
    """
    long = one.shape[1] > CHUNK // 2
    return np.array([one[0] @ other[0]]) if long else np.einsum("ij,ij->i", one, other)


def _sum_of_first(values: np.ndarray, counts: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """The sum of the first `counts` values of each row; below 0 none, beyond the end all, which is `whole`."""
    width = values.shape[1]
    if (counts >= width).all():
        return whole
    if len(values) == 1:
        return values[:, : max(0, counts[0])].sum(axis=1)
    return np.where(np.arange(width) < counts[:, None], values, 0.0).sum(axis=1)


def _distances(
    a: np.ndarray, mean: np.ndarray, std: np.ndarray, counts: np.ndarray, buffer: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The sums over all cells and over the first `counts` of each row; a: (neuron, token), sorted."""
    rows, n = a.shape
    cells, factor = _cells(n), 1 / (std * n)
    total, negative, near = np.zeros(rows), np.zeros(rows), []
    for first in range(0, n, CHUNK):
        values = buffer[:rows, : min(CHUNK, n - first)]
        stop = first + values.shape[1]
        np.copyto(values, a[:, first:stop])
        values -= mean[:, None]
        values *= factor[:, None]
        values -= cells.share[first:stop]
        np.abs(values, out=values)
        whole = values.sum(axis=1)
        total += whole
        negative += _sum_of_first(values, counts - first, whole)
        # the widths fall from the ends to the middle: but at the ends, the larger of a piece's outermost will do
        edge = first == 0 or stop == n
        width = cells.width[first:stop] if edge else max(cells.width[first], cells.width[stop - 1])
        flat = np.flatnonzero(values < width)
        row, place = np.divmod(flat, stop - first)
        near.append((row, first + place, values[row, place]))
    row, cell, value = map(np.concatenate, zip(*near, strict=True))
    x = (a[row, cell] - mean[row]) / std[row]
    inside = (cells.z[cell] < x) & (x < cells.z[cell + 1])
    row, cell, value, x = row[inside], cell[inside], value[inside], x[inside]
    change = x * (2 * ndtr(x) - (2 * cell + 1) / n) + 2 * density(x) - cells.g[cell] - cells.g[cell + 1] - value
    total += np.bincount(row, change, rows)
    negative += np.bincount(row, change * (cell < counts[row]), rows)
    return total, np.where(np.isnan(total), np.nan, negative)


def neuron_statistics(a: np.ndarray, device: str = "cpu", overwrite: bool = False) -> dict[str, np.ndarray]:
    """All statistics of a block of neurons.

    Args:
        a: (neuron, token) pre-activations, in any order.
        device: where they are sorted.
        overwrite: whether `a` may be sorted in place.

    Returns:
        column -> (neuron,) array, for the columns of STATISTICS but layer and neuron; NaN where undefined. A neuron
        with a value that is not finite has `n` less than the number of tokens, and all else NaN.
    """
    a = _sorted(a, device, overwrite)
    n = np.full(len(a), a.shape[1])
    undefined = ~(np.isfinite(a[:, 0]) & np.isfinite(a[:, -1]))  # what is not finite was sorted to the ends
    if undefined.any():
        n[undefined] = np.isfinite(a[undefined]).sum(axis=1)
        a[undefined] = 0
    return {"n": n} | {name: np.where(undefined, np.nan, values) for name, values in _of_sorted(a).items()}


def _sorted(a: np.ndarray, device: str, overwrite: bool) -> np.ndarray:
    """Rows in ascending order. On a CPU numpy sorts float32 three times faster than torch does."""
    if device != "cpu":
        import torch

        return torch.as_tensor(a).to(device).float().sort(dim=1).values.cpu().numpy()
    a = a if overwrite and a.dtype.itemsize >= 4 else a.astype(np.promote_types(a.dtype, np.float32))
    a.sort(axis=1)
    return a


def wd_standard_errors(a: np.ndarray, windows: np.ndarray) -> np.ndarray:
    """Standard error of each WD by its influence function, summed over windows of text (a linear jackknife over them).

    With x standardised and s(q) = sign(F_n^-1(q) - Phi^-1(q)), one token more at x moves WD by

        IF(x) = H(x) - mean H - x A - (x^2 - 1)/2 B ,    H(x) = integral up to x of s(F_n(t)) dt ,
        A = integral of s dq ,    B = integral of s F_n^-1 dq ;

    A and B stand for what it does to mean and deviation. Tokens of a window may depend on each other in any way: with
    m windows of sums S_w the error is sqrt(m / (m - 1) sum S_w^2) / n. Near the noise floor, where s changes sign many
    times, WD is not linear in the sample and the error is too large by up to a half.

    Args:
        a: (neuron, token) finite pre-activations in the order of the text.
        windows: (window,) tokens of each, which add up to the tokens of `a`.

    Returns:
        (neuron,) float64, in standard deviations; NaN for a constant row, and for fewer than two windows.

    Source: our own; the influence function of W1 is the derivative of its integral over t of |F(t) - Phi(t)|.
    """
    n, m = a.shape[1], np.count_nonzero(windows)
    found = np.full(len(a), np.nan)
    if m < 2:
        return found
    z, number = _cells(n).z, np.repeat(np.arange(len(windows)), windows)
    low = np.arange(n) / n
    for row, values in enumerate(a):
        order = np.argsort(values)
        x = values[order].astype(np.float64)
        if x[0] == x[-1] or not np.isfinite(x[[0, -1]]).all():
            continue
        x = (x - x.mean()) / x.std()
        sign = np.clip(
            2 * n * (ndtr(x) - low) - 1, -1, 1
        )  # mean of s over each cell: Phi(x_i) parts it, if it is inside
        middle = np.clip(z[1:-1], x[:-1], x[1:])
        h = np.concatenate([[0], np.cumsum(x[:-1] + x[1:] - 2 * middle)])
        influence = h - h.mean() - x * sign.mean() - (x**2 - 1) / 2 * (sign @ x) / n
        sums = np.bincount(number[order], influence, len(windows))
        found[row] = np.sqrt(m / (m - 1) * (sums @ sums)) / n
    return found


def gaussian_floor(n: int, draws: int = 20) -> float:
    """Mean WD of Gaussian samples of n values, which no neuron can be told from; always the same draws."""
    draw = np.random.default_rng(0)
    return float(
        np.mean([neuron_statistics(draw.standard_normal((1, n)), overwrite=True)["wd"][0] for _ in range(draws)])
    )


def with_errors(a: np.ndarray, windows: np.ndarray | None, device: str = "cpu") -> dict[str, np.ndarray]:
    """`neuron_statistics` of a block that may be overwritten, with standard errors where there are windows."""
    errors = {} if windows is None else {"wd_se": wd_standard_errors(a, windows)}
    return neuron_statistics(a, device, overwrite=True) | errors


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


def block_neurons(tokens: int, threads: int, memory: int) -> int:
    """Neurons a block, each thread having one: a chunk's, or the largest part of it that fits.

    Args:
        tokens: values a neuron, of which each takes 4 bytes, and as much again while a block is read.
        threads: blocks at a time.
        memory: megabytes that may be used.
    """
    block, most = CHUNK_NEURONS, 0.8 * memory * 1e6 / (8 * tokens * threads)
    while block > max(1, most):
        block //= 2
    return block


def corpus_statistics(
    path: Path,
    threads: int = 1,
    memory: int = 4000,
    device: str = "cpu",
    advance: Callable[[int], None] = lambda count: None,
    errors: bool = False,
) -> pl.DataFrame:
    """Statistics of every neuron in a group of activations.

    Args:
        path: the zarr group.
        threads: blocks of neurons at a time (numpy sorts without holding the interpreter).
        memory: megabytes that may be used; a block of neurons on all tokens is held by each thread.
        device: where they are sorted.
        advance: told the number of neurons each time some are done.
        errors: whether standard errors of WD are computed, which takes several times as long.

    Returns:
        a frame with the columns of STATISTICS, sorted by layer and neuron.
    """
    arrays, metadata = open_activations(path)
    windows = np.array(metadata["windows"]) if errors else None
    size = block_neurons(arrays[0].shape[0], threads, memory)

    def work(block: tuple[int, int]) -> pl.DataFrame:
        layer, first = block
        values = read_block(path, layer, arrays[layer], slice(first, min(first + size, arrays[layer].shape[1])))
        return statistics_frame(layer, first, with_errors(values, windows, device))

    blocks = [(layer, first) for layer, array in enumerate(arrays) for first in range(0, array.shape[1], size)]
    frames = []
    with ThreadPoolExecutor(threads) as pool:
        for frame in pool.map(work, blocks):
            frames.append(frame)
            advance(frame.height)
    return pl.concat(frames)
