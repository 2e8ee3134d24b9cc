"""Agreement of rankings by hand, against scipy, and on a store."""

import numpy as np
import pytest
import scipy.stats

from subzero.activations import extract, open_activations
from subzero.errors import SubzeroError
from subzero.stability import STABILITY, agreement, parts_of, stability
from subzero.statistics import neuron_statistics
from subzero.tokens import windows


def test_parts_by_hand():
    parts = parts_of(np.array([2, 1, 2, 1]))
    assert parts["1/2"].tolist() == [True, True, False, True, True, False]
    assert parts["rest"].tolist() == [False, False, True, False, False, True]
    assert parts["1/4"].tolist() == [True, True, False, False, False, False]
    assert set(parts) == {"1/4", "1/2", "rest", "all"}
    with pytest.raises(SubzeroError, match="needed: at least two"):
        parts_of(np.array([5]))


def test_agreement_by_hand():
    one = np.array([9.0, 8, 7, 1, 2, np.nan])
    other = np.array([9.0, 1, 8, 7, 2, 5])
    jaccard, spearman = agreement(one, other, "0.34")  # two of six: {0, 1} and {0, 2}
    assert jaccard == pytest.approx(1 / 3)
    assert spearman == pytest.approx(scipy.stats.spearmanr(one[:5], other[:5]).statistic)
    assert agreement(one, one, "0.34") == pytest.approx((1, 1))


def test_a_store_against_its_parts(tiny, tmp_path, provenance):
    model, tokenizer = tiny()
    cut = windows(["The baker waits . Some cells fire on commas , others on verbs . " * 60], tokenizer, 32, 16)
    extract(model, "llama", cut, tmp_path / "a.zarr", provenance)
    found = stability(tmp_path / "a.zarr", "0.1", threads=2)
    assert found.schema == {name: column.dtype for name, column in STABILITY.items()}
    assert found.group_by("comparison", "tokens").len().sort("comparison", "tokens").rows() == [
        ("halves", 256, 3), ("whole", 64, 3), ("whole", 128, 3), ("whole", 256, 3),
    ]  # fmt: skip
    values = open_activations(tmp_path / "a.zarr")[0][1][:].reshape(16, 32, 40)
    first, second = (neuron_statistics(values[n::2].reshape(256, 40).T)["wd"] for n in (0, 1))
    row = found.filter(comparison="halves", layer=1).row(0, named=True)
    assert row["spearman"] == pytest.approx(scipy.stats.spearmanr(first, second).statistic)
    tops = [set(np.argsort(-wd)[:4]) for wd in (first, second)]
    assert row["jaccard"] == pytest.approx(len(tops[0] & tops[1]) / len(tops[0] | tops[1]))
    assert row["median_wd"] == pytest.approx(np.median(second))
