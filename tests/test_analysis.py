"""Summaries and panels against numbers worked out by hand and by scipy."""

import math

import numpy as np
import polars as pl
import pytest
import scipy.stats

from subzero.analysis import (
    ACCURACIES,
    FIG3A,
    FIG3C,
    PANELS,
    PERPLEXITIES,
    SHOWN,
    STABILITYA,
    STABILITYB,
    SUMMARIES,
    describe_intervention,
    error_by_condition,
    noise_floor,
    perplexity_by_fraction,
    rank_agreement,
    summarize_pairs,
    summarize_perplexity,
)
from subzero.benchmarks import BENCHMARKS
from subzero.errors import SubzeroError


def surprisals(*values):
    return pl.DataFrame({"surprisal": values}, schema={"surprisal": pl.Float32})


def pairs(margins, paradigm="p"):
    count = len(margins)
    return pl.DataFrame(
        {
            "item": range(count),
            "paradigm": [paradigm] * count,
            "phenomenon": ["agreement"] * count,
            "margin_sum": margins,
            "margin_mean": [-m for m in margins],
        },
        schema_overrides={"item": pl.Int32, "margin_sum": pl.Float64, "margin_mean": pl.Float64},
    )


@pytest.mark.parametrize(
    ("name", "condition", "fraction", "seed"),
    [
        ("none", "none", None, None),
        ("wd-top-0.01.neg.all", "wd-top", 0.01, None),
        ("random-0.01-s2.neg.all", "random", 0.01, 2),
        ("file-mine.neg.L3", "file-mine", None, None),
        ("random-file-mine-s1.neg.all", "random-file-mine", None, 1),
    ],
)
def test_names_as_columns(name, condition, fraction, seed):
    row = describe_intervention(name)
    assert (row["condition"], row["fraction"], row["seed"]) == (condition, fraction, seed)


def test_perplexity_and_its_rise():
    found = summarize_perplexity({"none": surprisals(2, 2, 2, 2, 5), "wd-top-0.01.neg.all": surprisals(3, 3, 3, 3, 3)})
    assert found["perplexity"].to_list() == pytest.approx([13.4637, math.exp(3)], rel=1e-4)
    assert found["rise"].to_list() == pytest.approx([0, math.exp(3) - 13.4637], rel=1e-4)
    assert found["tokens"].to_list() == [5, 5]
    assert found.schema == {name: column.dtype for name, column in PERPLEXITIES.items()}


def test_errors_intervals_and_paired_tests():
    before = pairs([1.0] * 8 + [-1.0] * 2)
    after = pairs([1.0] * 2 + [-1.0] * 5 + [0.0] + [1.0, -1.0])  # six broken (one by a tie), one mended
    found = summarize_pairs({"none": before, "wd-top-0.01.neg.all": after})
    row = found.filter(pl.col("grouping") == "overall", pl.col("condition") == "wd-top").row(0, named=True)
    assert (row["pairs"], row["correct"], row["ties"]) == (10, 3, 1)
    assert (row["broken"], row["mended"]) == (6, 1)
    assert row["error"] == pytest.approx(0.7)
    z, p, n = scipy.stats.norm.ppf(0.975), 0.7, 10  # Wilson's interval, written out
    centre, half = (
        (p + z**2 / 2 / n) / (1 + z**2 / n),
        z / (1 + z**2 / n) * math.sqrt(p * (1 - p) / n + z**2 / 4 / n**2),
    )
    assert (row["lower"], row["upper"]) == pytest.approx((centre - half, centre + half))
    assert row["p_value"] == pytest.approx(2 * sum(math.comb(7, k) for k in (0, 1)) / 2**7)
    untouched = found.filter(pl.col("condition") == "none")
    assert untouched["p_value"].is_null().all()
    assert set(found["grouping"]) == {"overall", "phenomenon", "paradigm"}
    assert found.schema == {name: column.dtype for name, column in ACCURACIES.items()}


def test_the_mean_can_decide_and_no_margin_is_no_success():
    margins = pairs([1.0, -1.0, -1.0, 0.0]).with_columns(margin_mean=pl.Series([None, 2.0, 1.0, 0.0]))
    rows = {how: summarize_pairs({"none": margins}, how).filter(grouping="overall") for how in ("sum", "mean")}
    assert {how: (row["correct"].item(), row["ties"].item()) for how, row in rows.items()} == {
        "sum": (1, 1),
        "mean": (2, 1),
    }


def test_panel_c_of_several_benchmarks_has_a_group_each():
    right, wrong = (summarize_pairs({"none": pairs([margin] * 4)}) for margin in (1.0, -1.0))
    both = pl.concat([right.with_columns(benchmark=pl.lit("blimp")), wrong.with_columns(benchmark=pl.lit("tse"))])
    found = error_by_condition({"m": both}, "neg", 0.01)
    assert dict(found.select("group", "error").iter_rows()) == {"blimp": 0.0, "tse": 1.0}


def test_results_on_other_items_are_not_compared():
    with pytest.raises(SubzeroError, match=r"wd-top-0\.01\.neg\.all: its items are not those of the untouched model"):
        summarize_pairs({"none": pairs([1.0, 1.0]), "wd-top-0.01.neg.all": pairs([1.0, 1.0, 1.0])})


def summary_of(values):
    """Perplexity summary from intervention -> perplexity."""
    return summarize_perplexity({name: surprisals(math.log(value)) for name, value in values.items()})


def test_panel_a_averages_random_draws_with_their_standard_error():
    values = {
        "none": 10.0,
        "wd-top-0.01.neg.all": 14.0,
        "random-0.01-s0.neg.all": 10.0,
        "random-0.01-s1.neg.all": 11.0,
        "random-0.01-s2.neg.all": 12.0,
        "wd-top-0.01.other.all": 99.0,
        "wd-top-0.01.neg.L1": 99.0,
        "file-mine.neg.all": 99.0,
    }
    found = perplexity_by_fraction({"m": summary_of(values)}, "neg")
    rows = {row["condition"]: row for row in found.iter_rows(named=True)}
    assert set(rows) == {"none", "wd-top", "random"}
    assert rows["none"]["perplexity"] == pytest.approx(10, rel=1e-6)
    assert rows["none"]["fraction"] == 0
    assert rows["wd-top"]["perplexity"] == pytest.approx(14, rel=1e-6)
    assert rows["wd-top"]["standard_error"] is None
    assert rows["random"]["perplexity"] == pytest.approx(11, rel=1e-6)
    assert rows["random"]["standard_error"] == pytest.approx(scipy.stats.sem([10, 11, 12]), rel=1e-5)
    assert rows["random"]["draws"] == 3
    assert found.schema == {name: column.dtype for name, column in FIG3A.items()}


def test_panel_c_takes_the_headline_fraction_and_file_sets():
    rng = np.random.default_rng(0)
    results = {
        name: pairs(rng.normal(0.5, 1, 40).tolist())
        for name in ("none", "wd-top-0.01.neg.all", "wd-top-0.05.neg.all", "random-0.01-s0.neg.all",
                     "random-0.01-s1.neg.all", "file-mine.neg.all")
    }  # fmt: skip
    found = error_by_condition({"m": summarize_pairs(results).with_columns(benchmark=pl.lit("x"))}, "neg", 0.01)
    assert found["group"].unique().sort().to_list() == ["agreement", "overall"]
    overall = {row["condition"]: row for row in found.filter(group="overall").iter_rows(named=True)}
    assert set(overall) == {"none", "wd-top", "random", "file-mine"}
    errors = {name: (frame["margin_sum"] <= 0).mean() for name, frame in results.items()}
    assert overall["wd-top"]["error"] == pytest.approx(errors["wd-top-0.01.neg.all"])
    draws = [errors[f"random-0.01-s{seed}.neg.all"] for seed in (0, 1)]
    assert overall["random"]["error"] == pytest.approx(np.mean(draws))
    assert overall["random"]["standard_error"] == pytest.approx(scipy.stats.sem(draws))
    assert found.schema == {name: column.dtype for name, column in FIG3C.items()}


def test_models_come_in_the_order_given():
    values = {"none": 10.0, "wd-top-0.01.neg.all": 14.0}
    found = perplexity_by_fraction({"b": summary_of(values), "a": summary_of(values)}, "neg")
    assert found["model"].unique(maintain_order=True).to_list() == ["b", "a"]


def test_stability_panels_average_layers():
    rows = pl.DataFrame(
        [("halves", 64, 0, 0.1, 0.2, 0.6, 0.3, 0.05), ("halves", 64, 1, 0.1, 0.6, 0.8, 0.5, 0.05),
         ("whole", 32, 0, 0.1, 0.1, 0.4, 0.4, 0.07), ("whole", 32, 1, 0.1, 0.3, 0.4, 0.6, 0.07)],
        schema={name: column.dtype for name, column in SHOWN["stability"].items()}, orient="row",
    )  # fmt: skip
    found = rank_agreement({"m": rows})
    assert found.schema == {name: column.dtype for name, column in STABILITYA.items()}
    by = {(r["comparison"], r["measure"]): r for r in found.iter_rows(named=True)}
    assert by["halves", "jaccard"]["value"] == pytest.approx(0.4)
    assert by["halves", "jaccard"]["standard_error"] == pytest.approx(scipy.stats.sem([0.2, 0.6]))
    assert by["halves", "jaccard"]["chance"] == pytest.approx(0.1 / 1.9)
    assert (by["whole", "spearman"]["value"], by["whole", "spearman"]["chance"]) == (pytest.approx(0.4), 0)
    floor = noise_floor({"m": rows})
    assert floor.schema == {name: column.dtype for name, column in STABILITYB.items()}
    assert floor.row(0, named=True) == {"model": "m", "tokens": 32, "median_wd": 0.5, "floor": 0.07}


def test_tables_fit_together():
    assert set(SUMMARIES) == set(BENCHMARKS)
    assert {made_from for _, made_from, _ in PANELS.values()} <= set(SHOWN)
    assert {name: columns for name, (_, columns) in SUMMARIES.items()}.items() <= SHOWN.items()
