"""How near the statistics are to a bare sort, and how far from scipy.

Peers, on the same values in the same process, in turn: numpy's and torch's sort of each neuron's values, on all cores,
and scipy.stats.wasserstein_distance against a normal sample of the same size (as in the paper's code), a neuron at a
time, on all cores. Half of the neurons are normal, half skewed; time does not depend on the values. The promises: the
kernel in memory at most 1.3 times the sort, from a float16 zarr to parquet at most 2 times, scipy at least 15 times.
Then MD against the bare medians of its columns (at most 2 times).

    python -P benchmarks/statistics.py [--tokens 300000] [--neurons 1024] [--rounds 3]
"""

import os
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import numpy as np
import scipy.stats
import torch
import typer
import zarr

from subzero.activations import CHUNK_NEURONS, open_activations, token_chunk
from subzero.artifacts import FORMAT, KEY, provenance, write_parquet
from subzero.mapping import mapping_difficulty
from subzero.statistics import STATISTICS, corpus_statistics, neuron_statistics

CORES = os.cpu_count()
BLOCK = 32  # neurons that a thread sorts at a time


def make_values(neurons: int, tokens: int) -> np.ndarray:
    """(neuron, token) float32 that float16 holds exactly."""
    draw = np.random.default_rng(0)
    values = np.empty((neurons, tokens), dtype=np.float32)
    for row, place in enumerate(values):
        place[:] = draw.standard_normal(tokens, dtype=np.float32)
        if row % 2:
            np.exp(place / 2, out=place)
    return values.astype(np.float16).astype(np.float32)


def write_zarr(values: np.ndarray, path: Path) -> None:
    """As `extract` writes it, in float16."""
    tokens, neurons = values.shape[1], len(values)
    attributes = {"format": FORMAT, "neurons": [neurons], **provenance("benchmark", "by hand")}
    group = zarr.create_group(path, attributes={KEY: attributes})
    array = group.create_array(
        "L0",
        shape=(tokens, neurons),
        chunks=(min(token_chunk([1536] * 30), tokens), min(CHUNK_NEURONS, neurons)),
        dtype="float16",
        compressors=zarr.codecs.Crc32cCodec(),
    )
    for first in range(0, tokens, array.chunks[0]):
        array[first : first + array.chunks[0]] = values[:, first : first + array.chunks[0]].T


def on_all_cores(work, values: np.ndarray) -> None:
    with ThreadPoolExecutor(CORES) as pool:
        list(pool.map(work, [values[first : first + BLOCK] for first in range(0, len(values), BLOCK)]))


def by_scipy(row: np.ndarray) -> float:
    """One neuron, in the paper's way."""
    sample = np.random.default_rng(0).standard_normal(len(row))
    return scipy.stats.wasserstein_distance((row - row.mean()) / row.std(), sample)


def timed(run) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def main(
    tokens: Annotated[int, typer.Option(help="Values of a neuron.")] = 300_000,
    neurons: Annotated[int, typer.Option(help="A sample of a model's neurons.")] = 1024,
    rounds: Annotated[int, typer.Option(help="Each way is tried so often, in turn; the best counts.")] = 3,
) -> None:
    """Print times a neuron and ratios to the sort."""
    torch.set_num_threads(1)
    values = make_values(neurons, tokens)
    print(f"{neurons:,} neurons of {tokens:,} values, {CORES} cores; ms a neuron, all cores at work", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        write_zarr(values, place / "a.zarr")
        arrays, _ = open_activations(place / "a.zarr")
        assert arrays[0].dtype == np.float16
        copy = np.empty_like(values)

        def to_parquet():
            frame = corpus_statistics(place / "a.zarr", CORES, memory=8000)
            write_parquet(frame, place / "statistics.parquet", STATISTICS, provenance("benchmark", "by hand"))

        ways = {
            "sort by numpy": lambda: on_all_cores(lambda part: part.sort(axis=1), copy),
            "sort by torch": lambda: on_all_cores(lambda part: torch.from_numpy(part).sort(dim=1), copy),
            "statistics in memory": lambda: on_all_cores(lambda part: neuron_statistics(part, overwrite=True), copy),
            "float16 zarr to parquet": to_parquet,
        }
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(rounds):
            for name, run in ways.items():
                copy[:] = values
                times[name].append(timed(run))
        best = {name: 1000 * min(found) / neurons for name, found in times.items()}
        few = list(values[: 4 * CORES])
        with ProcessPoolExecutor(CORES) as pool:
            list(pool.map(by_scipy, few[:CORES]))  # the processes start
            best["scipy"] = 1000 * timed(lambda: list(pool.map(by_scipy, few))) / len(few)
        for name, value in best.items():
            ratio = value / min(best["sort by numpy"], best["sort by torch"])
            print(f"{name:24} {value:8.2f}   {ratio:6.2f} of the faster sort")
        print(f"scipy / statistics in memory: {best['scipy'] / best['statistics in memory']:.0f}")

    draw = np.random.default_rng(0)
    x, a = draw.standard_normal((2000, 4096), dtype=np.float32), draw.standard_normal((2000, 14336), dtype=np.float32)
    pairs = np.arange(2000).reshape(1000, 2)
    da = np.abs(a[pairs[:, 0]] - a[pairs[:, 1]])
    ours, bare = [], []
    for _ in range(rounds):
        bare.append(timed(lambda: np.median(da, axis=0)))
        ours.append(timed(lambda: mapping_difficulty(x, a, pairs)))
    print(f"MD of 14,336 neurons, 1,000 pairs: {min(ours):.3f} s, bare medians {min(bare):.3f} s, "
          f"ratio {min(ours) / min(bare):.2f}")  # fmt: skip


if __name__ == "__main__":
    typer.run(main)
