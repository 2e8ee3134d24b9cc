"""Statistics without pre-activations on disk: the model runs over the text again instead.

fused   all values of a part of the neurons at a time, in memory: exact, one pass a part.
sketch  one pass for moments, one for a histogram of standardised values: constant memory at any number of tokens, and a
        proven bound on the error of WD.

The histogram's bins are of equal width d = pi / BINS in the arc tangent of the standardised value x, so about
d (1 + x^2) wide. Moving every value to the middle of its bin changes WD by at most half the mean width,
(d / 2) E[1 + x^2] = d, since x has variance 1, whatever its distribution: 4,096 bins give at most 0.00077. Each
neuron's own bound is summed from its counts.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import polars as pl
from scipy.special import ndtr, ndtri

from subzero.activations import CHUNK_NEURONS, forward_rows, token_rows, window_batch
from subzero.batches import in_batches
from subzero.errors import SubzeroError
from subzero.models import FAMILIES, neuron_counts
from subzero.statistics import density, statistics_frame, with_errors

BINS = 4096
ROUNDING = 1.001  # the bins are found in float32, a few ten-thousandths of their width from where they are


def passes(neurons: Sequence[int], most: int) -> list[dict[int, slice]]:
    """The neurons that each pass over the text takes: layer -> a slice of its neurons, in order.

    Args:
        neurons: of each layer.
        most: neurons a pass.

    Raises:
        SubzeroError: not even one fits.
    """
    if most < 1:
        raise SubzeroError("not one neuron fits the memory; allow more with --config memory=, or store: sketch")
    found, room = [{}], most
    for layer, count in enumerate(neurons):
        first = 0
        while first < count:
            if room == 0:
                found.append({})
                room = most
            stop = min(count, first + room)
            found[-1][layer] = slice(first, stop)
            room -= stop - first
            first = stop
    return found


def _run(model, family, windows, batch_tokens, advance, layers, reduce, keep: Callable) -> None:
    """One pass: `keep(first, found)` of each batch, `first` being the number of its first token that counts."""
    lengths, counts = token_rows(windows)
    firsts = np.cumsum(counts) - counts

    def run(batch):
        found = forward_rows(model, FAMILIES[family], *window_batch(windows, batch), layers=layers, reduce=reduce)
        keep(int(firsts[batch.start]), found)
        advance(sum(lengths[batch]))

    in_batches(lengths, batch_tokens, run)


# Fused


def fused_passes(neurons: Sequence[int], tokens: int, room: float, precision: str, threads: int) -> list:
    """The passes of `fused_statistics`.

    Args:
        neurons: of each layer.
        tokens: that count.
        room: bytes that may be held.
        precision: float32 or float16, of what is held.
        threads: blocks of neurons at work, in float32.
    """
    block = min(CHUNK_NEURONS, max(1, int(room / 4 / (4 * tokens * threads))))  # a quarter of the room is for these
    held = room - 4 * tokens * threads * block
    return passes(neurons, int(held // (np.dtype(precision).itemsize * tokens)))


def fused_statistics(
    model,
    family: str,
    windows: pl.DataFrame,
    room: float,
    precision: str = "float32",
    threads: int = 1,
    batch_tokens: int = 2048,
    advance: Callable[[int], None] = lambda count: None,
    errors: bool = False,
) -> pl.DataFrame:
    """The statistics that the pre-activations on disk would give, bit for bit at the same batch shape.

    Args:
        model: a transformers model.
        family: its key in FAMILIES.
        windows: columns as in tokens.WINDOWS.
        room: bytes that may be held beside the model; the model runs over the text once for each part that fits.
        precision: float32 or float16, of what is held.
        threads: blocks of neurons at a time.
        batch_tokens: tokens a forward pass (at least one window).
        advance: told the number of tokens each time some are done, over all passes.
        errors: whether standard errors of WD are computed, which takes several times as long.

    Returns:
        a frame with the columns of STATISTICS.
    """
    lengths = token_rows(windows)[1]
    tokens = int(lengths.sum())
    counts = neuron_counts(model, FAMILIES[family])
    frames = []
    for part in fused_passes(counts, tokens, room, precision, threads):
        held = {layer: np.empty((tokens, s.stop - s.start), dtype=precision) for layer, s in part.items()}

        def keep(first, found, held=held):
            for values, block in zip(found, held.values(), strict=True):
                with np.errstate(over="ignore"):
                    block[first : first + len(values)] = values

        def reduce(layer, values, part=part):
            return values[:, part[layer]].float().cpu().numpy()

        _run(model, family, windows, batch_tokens, advance, part, reduce, keep)
        frames += _statistics_of(part, held, threads, lengths if errors else None)
    return pl.concat(frames)


def _statistics_of(
    part: Mapping[int, slice], held: Mapping[int, np.ndarray], threads: int, windows: np.ndarray | None
) -> list[pl.DataFrame]:
    """Frames of the neurons held, in order."""
    tokens = len(next(iter(held.values())))
    size = max(1, min(CHUNK_NEURONS, 400_000_000 // (4 * tokens)))

    def work(block: tuple[int, int]) -> pl.DataFrame:
        layer, first = block
        values = np.ascontiguousarray(held[layer][:, first : first + size].T, dtype=np.float32)
        return statistics_frame(layer, part[layer].start + first, with_errors(values, windows))

    blocks = [(layer, first) for layer, block in held.items() for first in range(0, block.shape[1], size)]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, blocks))


# Sketch


@dataclass
class Moments:
    """Sums of powers about the mean of the values seen so far, (neuron,) float64 each; `n` counts the tokens.

    Source of `merge`: P. Pebay, Formulas for robust, one-pass parallel computation of covariances and arbitrary-order
    statistical moments, Sandia report SAND2008-6212 (2008), equations 1.1 to 2.1.
    """

    n: int
    mean: np.ndarray
    two: np.ndarray
    three: np.ndarray
    four: np.ndarray
    negatives: np.ndarray
    negative_sum: np.ndarray
    finite: np.ndarray
    minimum: np.ndarray
    maximum: np.ndarray

    @classmethod
    def of(cls, values) -> "Moments":
        """Of a tensor (token, neuron)."""
        wide = values.cpu().double() if values.device.type == "mps" else values.double()
        mean = wide.mean(dim=0)
        d = wide - mean
        square = d * d
        below = wide.clamp(max=0)
        found = (mean, square.sum(0), (square * d).sum(0), (square * square).sum(0), (wide < 0).sum(0), below.sum(0),
                 wide.isfinite().sum(0), wide.amin(0), wide.amax(0))  # fmt: skip
        return cls(len(wide), *(each.cpu().numpy() for each in found))

    def merge(self, other: "Moments") -> "Moments":
        """Of both samples together."""
        a, b, n = self.n, other.n, self.n + other.n
        delta = other.mean - self.mean
        return Moments(
            n=n,
            mean=self.mean + delta * b / n,
            two=self.two + other.two + delta**2 * a * b / n,
            three=self.three
            + other.three
            + delta**3 * a * b * (a - b) / n**2
            + 3 * delta * (a * other.two - b * self.two) / n,
            four=self.four
            + other.four
            + delta**4 * a * b * (a * a - a * b + b * b) / n**3
            + 6 * delta**2 * (a * a * other.two + b * b * self.two) / n**2
            + 4 * delta * (a * other.three - b * self.three) / n,
            negatives=self.negatives + other.negatives,
            negative_sum=self.negative_sum + other.negative_sum,
            finite=self.finite + other.finite,
            minimum=np.minimum(self.minimum, other.minimum),
            maximum=np.maximum(self.maximum, other.maximum),
        )

    def std(self) -> np.ndarray:
        """Population standard deviation; 0 of a constant, NaN where a value is not finite."""
        return np.where(self.minimum == self.maximum, 0.0, np.sqrt(self.two / self.n))


def bin_of(values, mean, std):
    """The bin of each value, int16, from a tensor (token, neuron) and tensors (neuron,) in float64."""
    import torch

    values = values.cpu() if values.device.type == "mps" else values  # which has no float64
    angle = torch.atan(((values.double() - mean) / std).float()) / np.pi + 0.5
    return (angle.nan_to_num(0) * BINS).floor().clamp(0, BINS - 1).to(torch.int16)


EDGES = np.tan(np.pi * (np.arange(1, BINS) / BINS - 0.5))  # between the bins


def histogram_distance(
    counts: np.ndarray, low: float, high: float, zero: float, negatives: int
) -> tuple[float, float, float]:
    """WD of one neuron from its histogram.

    Args:
        counts: (bin,) values in each.
        low, high: the smallest and the largest standardised value.
        zero: where the pre-activation 0 is in standardised units.
        negatives: values below it; a bin that it lies in is divided there.

    Returns:
        wd, its part at pre-activations below 0, and the bound on the error of either.
    """
    n, bins = counts.sum(), np.flatnonzero(counts)
    ends = np.concatenate([[low], EDGES, [high]])
    left, right = np.maximum(ends[bins], low), np.minimum(ends[bins + 1], high)
    count = counts[bins]
    before = np.cumsum(count) - count
    split = np.flatnonzero((before < negatives) & (negatives < before + count))
    if len(split):
        (at,) = split
        middle = min(max(zero, left[at]), right[at])
        left, right = np.insert(left, at + 1, middle), np.insert(right, at, middle)
        count = np.insert(count, at, negatives - before[at])
        count[at + 1] -= negatives - before[at]
    total = np.concatenate([[0], np.cumsum(count)])
    q = total / n
    x, z = (left + right) / 2, ndtri(q)
    g = density(z)
    cells = np.abs(x * np.diff(q) - (g[:-1] - g[1:]))
    inside = (z[:-1] < x) & (x < z[1:])
    kink = x * (2 * ndtr(x) - q[:-1] - q[1:]) + 2 * density(x) - g[:-1] - g[1:]
    cells[inside] = kink[inside]
    bound = ROUNDING * np.abs(right - left) @ count / (2 * n)
    return cells.sum(), cells[total[1:] <= negatives].sum(), bound


def sketch_passes(neurons: Sequence[int], room: float) -> list:
    """The passes of `sketch_statistics` after the first, by the bytes that its counts may take."""
    return passes(neurons, int(room // (4 * BINS)))


def sketch_statistics(
    model,
    family: str,
    windows: pl.DataFrame,
    room: float,
    threads: int = 1,
    batch_tokens: int = 2048,
    advance: Callable[[int], None] = lambda count: None,
) -> pl.DataFrame:
    """Statistics in constant memory; WD within `wd_bound` of the exact one, all else exact.

    Args:
        model, family, windows, threads, batch_tokens, advance: as in `fused_statistics`.
        room: bytes for the histograms, 16 kB a neuron; there is a pass for each part of the neurons that fits.

    Returns:
        a frame with the columns of STATISTICS.
    """
    import torch

    moments: dict[int, Moments] = {}

    def merge(first, found):
        for layer, part in enumerate(found):
            moments[layer] = moments[layer].merge(part) if layer in moments else part

    _run(model, family, windows, batch_tokens, advance, None, lambda layer, values: Moments.of(values), merge)
    frames = []
    for part in sketch_passes(neuron_counts(model, FAMILIES[family]), room):
        counts = {layer: torch.zeros((s.stop - s.start, BINS), dtype=torch.int32) for layer, s in part.items()}

        def reduce(layer, values, part=part):
            device = "cpu" if values.device.type == "mps" else values.device
            mean, std = (
                torch.as_tensor(each[part[layer]], device=device)
                for each in (moments[layer].mean, moments[layer].std())
            )
            return bin_of(values[:, part[layer]], mean, std).cpu()

        def keep(first, found, counts=counts):
            for bins, count in zip(found, counts.values(), strict=True):
                flat = bins.long() + BINS * torch.arange(bins.shape[1])
                count.view(-1).scatter_add_(0, flat.view(-1), torch.ones(flat.numel(), dtype=torch.int32))

        _run(model, family, windows, batch_tokens, advance, part, reduce, keep)
        frames += _sketched(part, counts, moments, threads)
    return pl.concat(frames)


def _sketched(part: Mapping[int, slice], counts: Mapping, moments: Mapping[int, Moments], threads: int) -> Iterator:
    """Frames of the neurons of one pass, in order."""
    with ThreadPoolExecutor(threads) as pool:
        for layer, neurons in part.items():
            m, n = moments[layer], moments[layer].n
            std = m.std()
            undefined = (m.finite < n) | (std == 0)
            with np.errstate(invalid="ignore", divide="ignore"):
                low, high, zero = ((each - m.mean) / std for each in (m.minimum, m.maximum, 0.0))
                skewness, kurtosis = m.three / n / std**3, m.four / n / std**4 - 3
                mean_negative = m.negative_sum / m.negatives
                signed = (m.negative_sum - m.negatives * m.mean) / (std * n) + density(ndtri(m.negatives / n))
            rows = counts[layer].numpy()

            def one(neuron, layer_rows=rows, first=neurons.start, m=m, ends=(low, high, zero), none=undefined):
                if none[neuron]:
                    return np.nan, np.nan, np.nan
                where = (each[neuron] for each in ends)
                return histogram_distance(layer_rows[neuron - first].astype(np.int64), *where, m.negatives[neuron])

            distances = np.array(list(pool.map(one, range(neurons.start, neurons.stop))))
            finite = m.finite[neurons] == n
            columns = {
                "mean": m.mean, "std": std, "skewness": skewness, "kurtosis": kurtosis,
                "fraction_negative": m.negatives / n, "mean_negative": mean_negative, "wd_signed": signed,
                "minimum": m.minimum, "maximum": m.maximum,
            }  # fmt: skip
            found = {name: values[neurons] for name, values in columns.items()}
            found["wd_signed"] = np.where(np.isnan(distances[:, 0]), np.nan, found["wd_signed"])
            found |= {"wd": distances[:, 0], "wd_negative": distances[:, 1], "wd_bound": distances[:, 2]}
            found["wd_positive"] = found["wd"] - found["wd_negative"]
            found["wd_se"] = np.full(len(finite), np.nan)
            found = {name: np.where(finite, values, np.nan) for name, values in found.items()}
            yield statistics_frame(layer, neurons.start, {"n": m.finite[neurons], **found})
