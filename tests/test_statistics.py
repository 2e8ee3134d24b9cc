"""WD against scipy, a brute-force integral and closed values; moments against scipy; each undefined case."""

import mpmath
import numpy as np
import polars as pl
import pytest
import scipy.stats
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy.integrate import quad

from subzero import statistics
from subzero.statistics import (
    STATISTICS,
    block_neurons,
    gaussian_floor,
    neuron_statistics,
    statistics_frame,
    wasserstein_to_normal,
    wd_standard_errors,
)


def by_integration(sample):
    """The definition: integral over q of |F_n^-1(q) - Phi^-1(q)|, cell by cell, by adaptive quadrature."""
    x = np.sort((sample - np.mean(sample)) / np.std(sample))
    n = len(x)
    total = 0.0
    for i, value in enumerate(x):
        kink = scipy.stats.norm.cdf(value)
        inside = [kink] if i / n < kink < (i + 1) / n else None
        total += quad(
            lambda q, v=value: abs(v - scipy.stats.norm.ppf(q)), i / n, (i + 1) / n, points=inside, limit=500
        )[0]
    return total


def distance(sample):
    return wasserstein_to_normal(np.sort(np.asarray(sample, dtype=np.float64))[None])["wd"][0]


def by_mpmath(sample):
    """WD and its part at values below 0, with 50 digits: each cell by the antiderivative, split where it must be."""
    with mpmath.workdps(50):
        values = sorted(mpmath.mpf(float(value)) for value in sample)
        n = len(values)
        mean = mpmath.fsum(values) / n
        std = mpmath.sqrt(mpmath.fsum((value - mean) ** 2 for value in values) / n)
        ends = [mpmath.mpf(0), *(mpmath.npdf(mpmath.sqrt(2) * mpmath.erfinv(mpmath.mpf(2 * i - n) / n))
                                 for i in range(1, n)), mpmath.mpf(0)]  # fmt: skip
        cells = []
        for i, value in enumerate(values):
            x = (value - mean) / std
            kink = mpmath.ncdf(x)
            low, high = mpmath.mpf(i) / n, mpmath.mpf(i + 1) / n
            if low < kink < high:
                below = x * (kink - low) - (ends[i] - mpmath.npdf(x))
                above = (mpmath.npdf(x) - ends[i + 1]) - x * (high - kink)
                cells.append(below + above)
            else:
                cells.append(abs(x / n - (ends[i] - ends[i + 1])))
        negative = mpmath.fsum(cell for cell, value in zip(cells, values, strict=True) if value < 0)
        return float(mpmath.fsum(cells)), float(negative)


@pytest.mark.parametrize("n", [2, 3, 17, 100, 200])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_against_fifty_digits(n, dtype):
    rng = np.random.default_rng(n)
    samples = np.stack(
        [rng.normal(0.3, 1, n), rng.exponential(2, n) - 1, rng.standard_cauchy(n), np.arange(n) % 3 - 1.0]
    ).astype(dtype)
    found = neuron_statistics(samples)
    for row, sample in enumerate(samples):
        wd, negative = by_mpmath(sample)
        assert found["wd"][row] == pytest.approx(wd, abs=1e-9)
        assert found["wd_negative"][row] == pytest.approx(negative, abs=1e-9)


@pytest.mark.parametrize(
    ("sample", "wd"), [([-1, 1], 0.535377), ([0, 0, 0, 1], 0.614227), ([5, 3], 0.535377), ([3, 3, 3, 4], 0.614227)]
)
def test_known_values(sample, wd):
    assert distance(sample) == pytest.approx(wd, abs=1e-6)


def test_two_points_by_hand():
    # cells (0, 1/2) and (1/2, 1), values -1 and 1, both the same by symmetry; the upper is split at Phi(1)
    phi, cdf = scipy.stats.norm.pdf, scipy.stats.norm.cdf
    half = (2 * cdf(1) - 1.5) * 1 + 2 * phi(1) - phi(0)
    found = wasserstein_to_normal(np.array([[-1.0, 1.0]]))
    assert found["wd"][0] == pytest.approx(2 * half, abs=1e-12)
    assert found["wd_negative"][0] == found["wd_positive"][0] == pytest.approx(half, abs=1e-12)
    assert found["wd_signed"][0] == pytest.approx(-0.5 + phi(0), abs=1e-12)  # -1 over half of q, less -phi(0)


@pytest.mark.parametrize("n", [2, 3, 7, 50])
@pytest.mark.parametrize("draw", ["normal", "exponential", "uniform", "ties"])
def test_against_integration(n, draw):
    rng = np.random.default_rng(n)
    sample = {
        "normal": rng.normal(size=n),
        "exponential": rng.exponential(size=n),
        "uniform": rng.uniform(size=n),
        "ties": np.append(rng.integers(0, 2, size=n - 1), 2).astype(float),
    }[draw]
    assert distance(sample) == pytest.approx(by_integration(sample), abs=1e-7)


def test_against_scipy_on_a_fine_exact_normal_sample():
    rng = np.random.default_rng(0)
    sample = np.concatenate([rng.normal(size=4000), rng.exponential(3, size=1000)])
    quantiles = scipy.stats.norm.ppf((np.arange(1_000_000) + 0.5) / 1_000_000)
    expected = scipy.stats.wasserstein_distance((sample - sample.mean()) / sample.std(), quantiles)
    assert distance(sample) == pytest.approx(expected, abs=1e-4)


def test_shift_and_scale_do_not_matter_and_samples_are_not_weights():
    sample = np.random.default_rng(1).gumbel(size=500)
    wd = distance(sample)
    assert distance(3 * sample - 7) == pytest.approx(wd, rel=1e-12)
    assert distance(-sample) == pytest.approx(wd, rel=1e-12)
    assert distance([0.2, 0.8]) == distance([0.8, 0.2]) == pytest.approx(0.535377, abs=1e-6)


def test_the_negative_part_is_the_cells_below_zero():
    sample = np.sort(np.random.default_rng(2).normal(0.5, 1, size=200))
    found = {name: values[0] for name, values in wasserstein_to_normal(sample[None]).items()}
    assert wasserstein_to_normal(sample[None] - sample.min() + 1)["wd_negative"][0] == 0
    assert wasserstein_to_normal(sample[None] - sample.max() - 1)["wd_negative"][0] == pytest.approx(found["wd"])
    x, n = (sample - sample.mean()) / sample.std(), len(sample)
    expected = sum(
        quad(lambda q, v=v: abs(v - scipy.stats.norm.ppf(q)), i / n, (i + 1) / n, limit=500)[0]
        for i, (v, a) in enumerate(zip(x, sample, strict=True))
        if a < 0
    )
    assert found["wd_negative"] == pytest.approx(expected, abs=1e-5)
    assert found["wd_positive"] == pytest.approx(found["wd"] - expected, abs=1e-5)
    quantile_part = scipy.stats.norm.pdf(scipy.stats.norm.ppf((sample < 0).mean()))
    assert found["wd_signed"] == pytest.approx(x[sample < 0].sum() / n + quantile_part, abs=1e-12)


def test_moments_against_scipy():
    a = np.random.default_rng(3).gamma(2, size=(5, 1000)).astype(np.float32) - 1
    found = neuron_statistics(a)
    wide = a.astype(np.float64)
    assert found["mean"] == pytest.approx(wide.mean(axis=1), rel=1e-9)
    assert found["std"] == pytest.approx(wide.std(axis=1), rel=1e-9)
    assert found["skewness"] == pytest.approx(scipy.stats.skew(wide, axis=1), rel=1e-9)
    assert found["kurtosis"] == pytest.approx(scipy.stats.kurtosis(wide, axis=1), rel=1e-9)
    assert found["fraction_negative"] == pytest.approx((wide < 0).mean(axis=1))
    assert found["mean_negative"] == pytest.approx([row[row < 0].mean() for row in wide], rel=1e-9)
    assert list(found["minimum"]) == list(wide.min(axis=1))
    assert list(found["maximum"]) == list(wide.max(axis=1))
    assert list(found["n"]) == [1000] * 5


def test_order_and_company_of_values_do_not_matter():
    rng = np.random.default_rng(4)
    a = rng.normal(size=(8, 300)).astype(np.float32)
    together = neuron_statistics(a)
    for row in range(8):
        alone = neuron_statistics(rng.permutation(a[row])[None])
        assert alone["wd"][0] == together["wd"][row]


def test_what_is_undefined_is_null():
    a = np.array([[2, 2, 2, 2], [1, np.nan, 2, 3], [1, np.inf, 2, 3], [1, 2, 3, 4]], dtype=np.float32)
    rows = statistics_frame(0, 0, neuron_statistics(a))
    assert rows["wd"].is_null().to_list() == [True, True, True, False]
    assert rows["skewness"].is_null().to_list() == [True, True, True, False]
    assert rows["mean"].to_list() == [2, None, None, 2.5]
    assert rows["mean_negative"].to_list() == [None] * 4
    assert rows["n"].to_list() == [4, 3, 3, 4]
    assert not any(rows[name].is_nan().any() for name in rows.columns if rows[name].dtype == pl.Float64)
    assert rows.schema == {name: column.dtype for name, column in STATISTICS.items()}


@pytest.mark.parametrize("n", [7, 100, 1000])
def test_passes_in_pieces_give_the_same(monkeypatch, n):
    """Rows longer than CHUNK, and several rows together."""
    a = np.random.default_rng(6).normal(0.2, 1, size=(9, n)).astype(np.float32)
    whole = neuron_statistics(a)
    monkeypatch.setattr(statistics, "CHUNK", 64)
    pieces = neuron_statistics(a)
    for name, values in whole.items():
        assert pieces[name] == pytest.approx(values, rel=1e-9, abs=1e-12, nan_ok=True), name


def test_a_block_follows_from_the_memory():
    assert block_neurons(20_000, 2, 4000) == 512
    assert block_neurons(300_000, 2, 4000) == 512
    assert block_neurons(300_000, 8, 4000) == 128  # 128 neurons x 300,000 tokens x 8 bytes x 8 threads: 2.5 GB
    assert block_neurons(10**9, 1, 4000) == 1


SAMPLES = arrays.arrays(
    st.sampled_from([np.float16, np.float32, np.float64]),
    st.tuples(st.just(1), st.integers(1, 60)),
    elements=st.floats(-1000, 1000, width=16),
)


@settings(deadline=None, max_examples=200)
@given(SAMPLES, st.sampled_from([1e-30, 0.25, 1.0, 1e30]), st.integers(-8, 8), st.randoms(use_true_random=False))
def test_shift_scale_sign_and_order_change_nothing(a, scale, shift, random):
    first = neuron_statistics(a)
    order = random.sample(range(a.shape[1]), a.shape[1])
    for other in (a[:, order], -a, a.astype(np.float64) * scale, a.astype(np.float64) + shift):
        again = neuron_statistics(other)
        assert again["wd"] == pytest.approx(first["wd"], rel=1e-6, abs=1e-9, nan_ok=True)
        assert again["n"] == first["n"]
    mirrored = neuron_statistics(-a)
    assert mirrored["fraction_negative"] == pytest.approx((a > 0).mean(axis=1))
    if not (a == 0).any():
        assert mirrored["wd_negative"] == pytest.approx(first["wd_positive"], rel=1e-6, abs=1e-9, nan_ok=True)
        assert mirrored["wd_signed"] == pytest.approx(first["wd_signed"], rel=1e-6, abs=1e-9, nan_ok=True)


@settings(deadline=None, max_examples=200)
@given(SAMPLES)
def test_bounds_and_parts(a):
    found = {name: values[0] for name, values in neuron_statistics(a).items()}
    constant = (a == a[0, 0]).all()
    assert np.isnan(found["wd"]) == constant
    assert found["mean"] == pytest.approx(a.astype(np.float64).mean(), rel=1e-9, abs=1e-9)
    assert (found["minimum"], found["maximum"]) == (a.min(), a.max())
    if not constant:
        assert 0 < found["wd"] <= 2  # two distributions of mean 0 and variance 1: at most E|X| + E|Z|
        assert found["wd_negative"] + found["wd_positive"] == pytest.approx(found["wd"], abs=1e-12)
        assert abs(found["wd_signed"]) <= min(found["wd_negative"], found["wd_positive"]) + 1e-9


@settings(deadline=None, max_examples=60)
@given(SAMPLES)
def test_any_sample_against_fifty_digits(a):
    assume(len(np.unique(a)) > 1)
    found = neuron_statistics(a)
    wd, negative = by_mpmath(a[0])
    assert (found["wd"][0], found["wd_negative"][0]) == pytest.approx((wd, negative), abs=1e-7)


@pytest.mark.parametrize("value", [65504.0, -65504.0, 6e-8])
def test_the_ends_of_float16(value):
    a = np.array([[value, 0, 1, value]], dtype=np.float16)
    wide = neuron_statistics(a.astype(np.float64))
    for name, values in neuron_statistics(a).items():
        assert values == pytest.approx(wide[name], rel=1e-12, nan_ok=True)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_extreme_magnitudes(scale):
    a = (np.random.default_rng(5).normal(size=(1, 400)) * scale).astype(np.float32)
    expected = neuron_statistics((a.astype(np.float64) / scale).astype(np.float32))["wd"]
    assert neuron_statistics(a)["wd"] == pytest.approx(expected, rel=1e-5)


def test_real_neurons_agree_with_scipy(smollm2):
    """Pre-activations of SmolLM2 on real text, a few neurons of three layers."""
    import torch

    from subzero.activations import capture
    from subzero.corpora import read_documents
    from subzero.models import FAMILIES
    from subzero.tokens import windows

    model, tokenizer, _ = smollm2
    texts = read_documents("wikipedia-sample")["text"].head(10).to_list()
    ids = torch.tensor(windows(texts, tokenizer, 512, 4)["token"].to_list())
    found = {}
    with torch.inference_mode(), capture(model, FAMILIES["llama"], lambda layer, a: found.update({layer: a.clone()})):
        model(ids)
    quantiles = scipy.stats.norm.ppf((np.arange(200_000) + 0.5) / 200_000)
    for layer in (0, 1, 29):
        a = found[layer].reshape(-1, 1536)[:, :20].T.numpy()
        wd = neuron_statistics(a)["wd"]
        for row, value in zip(a.astype(np.float64), wd, strict=True):
            expected = scipy.stats.wasserstein_distance((row - row.mean()) / row.std(), quantiles)
            assert value == pytest.approx(expected, abs=1e-3)


# Standard errors


def jackknife(a, windows):
    """Delete a window, compute WD again."""
    ends = np.cumsum(windows)
    without = [
        neuron_statistics(np.delete(a, np.arange(end - length, end), axis=1))["wd"]
        for end, length in zip(ends, windows, strict=True)
    ]
    m = len(windows)
    return np.sqrt((m - 1) / m * np.square(without - np.mean(without, axis=0)).sum(axis=0))


@pytest.mark.parametrize("dependent", [False, True])
def test_standard_errors_against_deleting_each_window(dependent):
    rng = np.random.default_rng(7)
    windows = np.full(60, 50)
    a = np.stack([rng.gumbel(size=3000), rng.exponential(size=3000) - 1, rng.lognormal(size=3000)])
    if dependent:
        a *= np.repeat(rng.uniform(0.5, 1.5, size=(3, 60)), 50, axis=1)
    found = wd_standard_errors(a, windows)
    assert found == pytest.approx(jackknife(a, windows), rel=0.1)


def test_standard_errors_are_what_samples_spread_by():
    """Of 400 samples of 20 windows, whose tokens depend on each other."""
    rng = np.random.default_rng(8)
    windows = np.full(20, 40)
    a = 0.7 * rng.gumbel(size=(400, 800)) + np.repeat(rng.normal(size=(400, 20)), 40, axis=1)
    spread = neuron_statistics(a)["wd"].std()
    assert np.median(wd_standard_errors(a, windows)) == pytest.approx(spread, rel=0.2)


def test_standard_errors_that_are_undefined():
    a = np.array([[1.0, 1, 1, 1], [1, 2, np.nan, 4], [1, 2, 3, 5]])
    assert np.isnan(wd_standard_errors(a, np.array([2, 2]))).tolist() == [True, True, False]
    assert np.isnan(wd_standard_errors(a, np.array([4]))).all()


def test_the_noise_floor_falls_with_the_root_of_n():
    assert gaussian_floor(400) == pytest.approx(2 * gaussian_floor(1600), rel=0.2)
    assert gaussian_floor(400) == gaussian_floor(400)
