"""Statistics without a store against those from one: fused bit for bit, the sketch within its own bound."""

import numpy as np
import polars as pl
import pytest
import torch

from subzero.activations import extract, open_activations
from subzero.errors import SubzeroError
from subzero.statistics import STATISTICS, corpus_statistics, neuron_statistics
from subzero.streaming import (
    BINS,
    EDGES,
    Moments,
    bin_of,
    fused_passes,
    fused_statistics,
    histogram_distance,
    passes,
    sketch_statistics,
)
from subzero.tokens import windows

EXACT = [name for name in STATISTICS if name not in ("wd", "wd_negative", "wd_positive", "wd_se", "wd_bound")]


@pytest.fixture
def text(tiny):
    """A tiny model and 40 windows, the first of them with a special token."""
    model, tokenizer = tiny(bos=True)
    cut = windows(["The baker waits . Some cells fire on commas , others on verbs . " * 100], tokenizer, 32, 40)
    assert cut.height == 40
    assert cut["special"].list.sum().sum() == 1
    return model, cut


def stored(model, cut, folder, provenance, batch, **how):
    extract(model, "llama", cut, folder / "a.zarr", provenance, batch, **how)
    return corpus_statistics(folder / "a.zarr", threads=2)


@pytest.mark.parametrize("precision", ["float32", "float16"])
@pytest.mark.parametrize("room", [1e9, 400_000, 120_000])
def test_fused_equals_stored_bit_for_bit(text, tmp_path, provenance, precision, room):
    model, cut = text
    told = []
    runs = len(fused_passes([40] * 3, 40 * 32 - 1, room, precision, 2))
    assert {1e9: runs == 1, 400_000: True, 120_000: runs > 1}[room]
    found = fused_statistics(model, "llama", cut, room, precision, threads=2, batch_tokens=256, advance=told.append)
    expected = stored(model, cut, tmp_path, provenance, 256, precision=precision)
    assert [name for name in STATISTICS if not found[name].equals(expected[name])] == []
    assert found["n"].unique().to_list() == [40 * 32 - 1]  # the special token does not count
    assert sum(told) == runs * 40 * 32


def test_another_batch_shape_gives_the_same_to_tolerance(text):
    model, cut = text
    one, other = (fused_statistics(model, "llama", cut, 1e9, batch_tokens=batch) for batch in (32, 640))
    for name in ("mean", "std", "wd", "wd_signed"):
        assert one[name].to_numpy() == pytest.approx(other[name].to_numpy(), abs=1e-5)


@pytest.mark.parametrize("room", [1e9, 4 * BINS * 50])
def test_the_sketch_is_within_its_bound(text, tmp_path, provenance, room):
    model, cut = text
    exact = stored(model, cut, tmp_path, provenance, 256)
    found = sketch_statistics(model, "llama", cut, room, threads=2, batch_tokens=256)
    assert found.schema == exact.schema
    for name in ("wd", "wd_negative", "wd_positive"):
        assert ((found[name] - exact[name]).abs() <= found["wd_bound"]).all(), name
    assert 0 < found["wd_bound"].max() < 1e-3
    for name in EXACT:
        assert found[name].to_numpy() == pytest.approx(exact[name].to_numpy(), rel=1e-6, abs=1e-9), name


def by_sketch(sample):
    """One neuron's distance and bound by the sketch, the moments in three pieces."""
    values = torch.as_tensor(sample, dtype=torch.float32)[:, None]
    moments = None
    for piece in values.split(max(1, len(sample) // 3)):
        moments = Moments.of(piece) if moments is None else moments.merge(Moments.of(piece))
    mean, std = moments.mean, moments.std()
    bins = bin_of(values, torch.as_tensor(mean), torch.as_tensor(std))[:, 0].numpy()
    low, high, zero = ((each - mean[0]) / std[0] for each in (moments.minimum[0], moments.maximum[0], 0.0))
    counts = np.bincount(bins, minlength=BINS)
    return moments, histogram_distance(counts, low, high, zero, int(moments.negatives[0]))


DRAWS = {
    "normal": lambda rng: rng.normal(0.3, 2, 20_000),
    "far from 0": lambda rng: rng.normal(100, 1, 20_000),
    "heavy tails": lambda rng: rng.standard_cauchy(20_000),
    "one outlier": lambda rng: np.append(rng.normal(0, 1e-3, 20_000), 1000.0),
    "two values": lambda rng: rng.integers(0, 2, 20_000) * 3.0 - 1,
    "ties at 0": lambda rng: np.maximum(rng.normal(0, 1, 20_000), 0),
    "few": lambda rng: rng.normal(0, 1, 5),
}


@pytest.mark.parametrize("draw", DRAWS)
def test_the_bound_holds_whatever_the_distribution(draw):
    sample = DRAWS[draw](np.random.default_rng(0)).astype(np.float32)
    exact = {name: values[0] for name, values in neuron_statistics(sample[None]).items()}
    moments, (wd, negative, bound) = by_sketch(sample)
    assert abs(wd - exact["wd"]) <= bound <= 1e-3
    assert abs(negative - exact["wd_negative"]) <= bound
    n = len(sample)
    std = moments.std()[0]
    assert (moments.mean[0], std) == pytest.approx((exact["mean"], exact["std"]), rel=1e-9)
    assert moments.three[0] / n / std**3 == pytest.approx(exact["skewness"], rel=1e-6, abs=1e-9)
    assert moments.four[0] / n / std**4 - 3 == pytest.approx(exact["kurtosis"], rel=1e-6, abs=1e-9)


def test_bins_are_even_in_the_arc_tangent():
    assert len(EDGES) == BINS - 1
    assert EDGES[BINS // 2 - 1] == 0
    assert EDGES[BINS // 2] == pytest.approx(np.pi / BINS, rel=1e-6)
    assert -EDGES[0] == pytest.approx(BINS / np.pi, rel=1e-3)
    values = torch.tensor([[-1e30], [-1e-6], [1e-6], [1e30]])
    where = bin_of(values, torch.zeros(1).double(), torch.ones(1).double())[:, 0].tolist()
    assert where == [0, BINS // 2 - 1, BINS // 2, BINS - 1]


def test_passes_by_hand():
    assert passes([5, 5], 100) == [{0: slice(0, 5), 1: slice(0, 5)}]
    assert passes([5, 5], 4) == [{0: slice(0, 4)}, {0: slice(4, 5), 1: slice(0, 3)}, {1: slice(3, 5)}]
    with pytest.raises(SubzeroError, match="not one neuron fits the memory"):
        passes([5], 0)


def test_layers_after_the_last_that_is_wanted_are_not_run(tiny):
    from subzero.activations import forward_rows
    from subzero.models import FAMILIES

    model, _ = tiny()
    ran = []
    for number, block in enumerate(model.model.layers):
        block.register_forward_hook(lambda *_, number=number: ran.append(number))
    tokens = np.arange(12).reshape(2, 6)
    keep = np.ones((2, 6), dtype=bool)
    whole = forward_rows(model, FAMILIES["llama"], tokens, keep)
    ran.clear()
    (part,) = forward_rows(model, FAMILIES["llama"], tokens, keep, layers=[1])
    assert ran == [0]  # the second block stops at its projection
    assert np.array_equal(part, whole[1])
    assert not any(m._forward_hooks for name, m in model.named_modules() if "mlp" in name)


def test_values_that_are_not_finite_are_counted(text):
    model, cut = text
    with torch.no_grad():
        model.model.layers[2].mlp.gate_proj.weight[7] = torch.inf
    for found in (fused_statistics(model, "llama", cut, 1e9), sketch_statistics(model, "llama", cut, 1e9)):
        row = found.filter(layer=2, neuron=7).row(0, named=True)
        assert row["n"] < 40 * 32 - 1
        assert {row[name] for name in STATISTICS if name not in ("layer", "neuron", "n")} == {None}
        assert found.filter(pl.col("wd").is_null()).height == 1


def test_the_store_may_be_float16_and_packed(text, tmp_path, provenance):
    model, cut = text
    for number, how in enumerate([{}, {"precision": "float16"}, {"compress": "zstd"}]):
        extract(model, "llama", cut, tmp_path / f"{number}.zarr", provenance, **how)
    full, half, packed = (open_activations(tmp_path / f"{number}.zarr")[0] for number in range(3))
    assert half[0].dtype == np.float16
    assert np.array_equal(half[1][:], full[1][:].astype(np.float16))
    assert np.array_equal(packed[2][:], full[2][:])
    assert "zstd" in str(packed[0].metadata.codecs).lower()
    assert all("crc32c" in str(arrays[0].metadata.codecs).lower() for arrays in (full, half, packed))
    exact, rough = (corpus_statistics(tmp_path / f"{number}.zarr") for number in (0, 1))
    assert (exact["wd"] - rough["wd"]).abs().max() < 1e-3


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_bfloat16_values_are_kept_as_they_are_in_float32(text, tmp_path, provenance, precision):
    """bfloat16 to float32 is exact; to float16 it may not be."""
    model, cut = text
    model = model.to(torch.bfloat16)
    extract(model, "llama", cut, tmp_path / "a.zarr", provenance, precision=precision)
    values = torch.as_tensor(open_activations(tmp_path / "a.zarr")[0][1][:])
    exact = torch.equal(values.float().bfloat16().float(), values.float())
    assert exact or precision == "float16"
