"""WD against scipy, a brute-force integral and closed values; moments against scipy; each undefined case."""

import numpy as np
import polars as pl
import pytest
import scipy.stats
from scipy.integrate import quad

from subzero.statistics import STATISTICS, neuron_statistics, statistics_frame, wasserstein_to_normal


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


@pytest.mark.parametrize(
    ("sample", "wd"), [([-1, 1], 0.535377), ([0, 0, 0, 1], 0.614227), ([5, 3], 0.535377), ([3, 3, 3, 4], 0.614227)]
)
def test_known_values(sample, wd):
    found, _ = wasserstein_to_normal(np.sort(np.array([sample], dtype=np.float64), axis=1))
    assert found[0] == pytest.approx(wd, abs=1e-6)


def test_two_points_by_hand():
    # cells (0, 1/2) and (1/2, 1), values -1 and 1, both the same by symmetry; the upper is split at Phi(1)
    phi, cdf = scipy.stats.norm.pdf, scipy.stats.norm.cdf
    half = (2 * cdf(1) - 1.5) * 1 + 2 * phi(1) - phi(0)
    assert wasserstein_to_normal(np.array([[-1.0, 1.0]]))[0][0] == pytest.approx(2 * half, abs=1e-12)


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
    found, _ = wasserstein_to_normal(np.sort(sample)[None])
    assert found[0] == pytest.approx(by_integration(sample), abs=1e-7)


def test_against_scipy_on_a_fine_exact_normal_sample():
    rng = np.random.default_rng(0)
    sample = np.concatenate([rng.normal(size=4000), rng.exponential(3, size=1000)])
    quantiles = scipy.stats.norm.ppf((np.arange(1_000_000) + 0.5) / 1_000_000)
    expected = scipy.stats.wasserstein_distance((sample - sample.mean()) / sample.std(), quantiles)
    assert wasserstein_to_normal(np.sort(sample)[None])[0][0] == pytest.approx(expected, abs=1e-4)


def test_shift_and_scale_do_not_matter_and_samples_are_not_weights():
    sample = np.sort(np.random.default_rng(1).gumbel(size=500))[None]
    wd = wasserstein_to_normal(sample)[0][0]
    assert wasserstein_to_normal(3 * sample - 7)[0][0] == pytest.approx(wd, rel=1e-12)
    assert wasserstein_to_normal(np.sort(-sample, axis=1))[0][0] == pytest.approx(wd, rel=1e-12)
    pair = np.array([[0.2, 0.8]])
    assert wasserstein_to_normal(pair)[0] == pytest.approx(
        wasserstein_to_normal(np.array([[0.8, 0.2]]))[0] * 0 + 0.535377
    )


def test_the_negative_part_is_the_cells_below_zero():
    sample = np.sort(np.random.default_rng(2).normal(0.5, 1, size=200))
    wd, negative = wasserstein_to_normal(sample[None])
    shifted = wasserstein_to_normal(sample[None] - sample.min() + 1)
    assert shifted[1][0] == 0
    assert wasserstein_to_normal(sample[None] - sample.max() - 1)[1][0] == pytest.approx(wd[0])
    x, n = (sample - sample.mean()) / sample.std(), len(sample)
    expected = sum(
        quad(lambda q, v=v: abs(v - scipy.stats.norm.ppf(q)), i / n, (i + 1) / n, limit=500)[0]
        for i, (v, a) in enumerate(zip(x, sample, strict=True))
        if a < 0
    )
    assert negative[0] == pytest.approx(expected, abs=1e-5)


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
