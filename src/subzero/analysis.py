"""Summaries of item-level results, and the frames that the figures' panels draw."""

from collections.abc import Callable, Mapping

import polars as pl
from scipy.stats import binomtest

from subzero.artifacts import Column
from subzero.errors import SubzeroError
from subzero.names import UNTOUCHED, parse_intervention, parse_set
from subzero.scoring import perplexity
from subzero.stability import STABILITY

_INTERVENTION = {
    "intervention": Column(pl.String(), "none, or set.op.layers"),
    "condition": Column(pl.String(), "the set without fraction and seed (wd-top, random, file-NAME), or none"),
    "op": Column(pl.String(), "operation; null for none"),
    "layers": Column(pl.String(), "layers; null for none"),
    "fraction": Column(pl.Float64(), "share of each layer's neurons; null for none and file sets", "fraction"),
    "seed": Column(pl.Int32(), "of a random set, else null"),
}
PERPLEXITIES = {
    **_INTERVENTION,
    "tokens": Column(pl.Int64(), "tokens predicted", "tokens"),
    "mean_surprisal": Column(pl.Float64(), "mean over tokens", "nats"),
    "perplexity": Column(pl.Float64(), "exp of the mean surprisal", "per token"),
    "rise": Column(pl.Float64(), "perplexity less that of the untouched model", "per token"),
}
ACCURACIES = {
    **_INTERVENTION,
    "grouping": Column(pl.String(), "overall, phenomenon or paradigm"),
    "group": Column(pl.String(), "name of the phenomenon or paradigm; overall"),
    "pairs": Column(pl.Int32(), "minimal pairs", "pairs"),
    "correct": Column(pl.Int32(), "pairs whose grammatical member is the more probable", "pairs"),
    "ties": Column(pl.Int32(), "pairs of equal members; never correct", "pairs"),
    "error": Column(pl.Float64(), "share of pairs not correct", "fraction"),
    "lower": Column(pl.Float64(), "lower end of the error's 95 % Wilson interval", "fraction"),
    "upper": Column(pl.Float64(), "upper end of the error's 95 % Wilson interval", "fraction"),
    "broken": Column(pl.Int32(), "pairs correct in the untouched model and not here", "pairs"),
    "mended": Column(pl.Int32(), "pairs correct here and not in the untouched model", "pairs"),
    "p_value": Column(pl.Float64(), "exact McNemar test against the untouched model; null for none"),
}


def describe_intervention(name: str) -> dict:
    """An intervention's name as the columns that all summaries begin with."""
    intervention = parse_intervention(name)
    row = {"intervention": name, "condition": UNTOUCHED, "op": intervention.op, "layers": intervention.layers}
    if intervention.set is None:
        return row | {"fraction": None, "seed": None}
    chosen = parse_set(intervention.set)
    condition = {
        "ranked": f"{chosen.statistic}-{chosen.side}",
        "random": "random" if chosen.file is None else f"random-file-{chosen.file}",
        "file": str(chosen),
    }[chosen.kind]
    fraction = None if chosen.fraction is None else float(chosen.fraction)
    return row | {"condition": condition, "fraction": fraction, "seed": chosen.seed}


def summarize_perplexity(results: Mapping[str, pl.DataFrame], decides: str | None = None) -> pl.DataFrame:
    """Perplexity of each intervention.

    Args:
        results: intervention -> frame with a column surprisal (nats); `none` among them.
        decides: of no meaning here.

    Returns:
        a frame with the columns of PERPLEXITIES, a row an intervention.
    """
    start = perplexity(results[UNTOUCHED]["surprisal"].to_numpy())
    rows = []
    for name, items in results.items():
        value = perplexity(items["surprisal"].to_numpy())
        mean = items["surprisal"].cast(pl.Float64).mean()
        rows.append(
            describe_intervention(name)
            | {"tokens": items.height, "mean_surprisal": mean, "perplexity": value, "rise": value - start}
        )
    return _frame(rows, PERPLEXITIES)


def summarize_pairs(results: Mapping[str, pl.DataFrame], decides: str = "sum") -> pl.DataFrame:
    """Errors of each intervention, overall, by phenomenon and by paradigm, tested against the untouched model.

    Args:
        results: intervention -> frame with columns item, paradigm, phenomenon, margin_sum and margin_mean; `none` among
            them, all with the same items.
        decides: sum or mean, what the members of a pair are compared by.

    Returns:
        a frame with the columns of ACCURACIES, a row an intervention and group.

    Raises:
        SubzeroError: an intervention was evaluated on other items.
    """
    margin = pl.col(f"margin_{decides}")
    results = {
        name: items.with_columns(margin=margin, correct=(margin > 0).fill_null(False))
        for name, items in results.items()
    }
    baseline = results[UNTOUCHED].select("item", before="correct")
    rows = []
    for name, items in results.items():
        if not items["item"].sort().equals(baseline["item"].sort()):
            raise SubzeroError(f"{name}: its items are not those of the untouched model. Evaluate both again.")
        joined = items.join(baseline, on="item", how="left", validate="1:1").with_columns(overall=pl.lit("overall"))
        for grouping in ("overall", "phenomenon", "paradigm"):
            for (group,), part in joined.group_by(grouping, maintain_order=True):
                rows.append(
                    describe_intervention(name)
                    | {"grouping": grouping, "group": group}
                    | _errors(part, tested=name != UNTOUCHED)
                )
    return _frame(rows, ACCURACIES)


def _errors(part: pl.DataFrame, tested: bool) -> dict:
    """Counts, error and interval of one group of pairs, and the test against the untouched model."""
    pairs, correct = part.height, part["correct"].sum()
    interval = binomtest(pairs - correct, pairs).proportion_ci(0.95, method="wilson")
    broken = part.select((pl.col("before") & ~pl.col("correct")).sum()).item()
    mended = part.select((~pl.col("before") & pl.col("correct")).sum()).item()
    changed = broken + mended
    p_value = None
    if tested:
        p_value = binomtest(broken, changed).pvalue if changed else 1.0
    return {
        "pairs": pairs,
        "correct": correct,
        "ties": part.select((pl.col("margin") == 0).sum()).item(),
        "error": (pairs - correct) / pairs,
        "lower": interval.low,
        "upper": interval.high,
        "broken": broken,
        "mended": mended,
        "p_value": p_value,
    }


def _frame(rows: list[dict], schema) -> pl.DataFrame:
    return pl.DataFrame(rows, schema={name: column.dtype for name, column in schema.items()}, orient="row")


SUMMARIES: dict[str, tuple] = {  # key: as in BENCHMARKS; (function, columns)
    "pairs": (summarize_pairs, ACCURACIES),
    "perplexity": (summarize_perplexity, PERPLEXITIES),
}


# Panels


FIG3A = {
    "model": Column(pl.String(), "the model's label"),
    "condition": Column(pl.String(), "which neurons are clamped; none for the untouched model"),
    "fraction": Column(pl.Float64(), "share of each layer's neurons clamped; 0 for none", "fraction"),
    "perplexity": Column(pl.Float64(), "mean over draws", "per token"),
    "standard_error": Column(pl.Float64(), "of the mean over draws; null for a single set", "per token"),
    "draws": Column(pl.Int32(), "sets that the mean is over"),
}
FIG3C = {
    "model": Column(pl.String(), "the model's label"),
    "group": Column(pl.String(), "phenomenon or overall; of several benchmarks, the benchmark, overall"),
    "condition": Column(pl.String(), "which neurons are clamped; none for the untouched model"),
    "error": Column(pl.Float64(), "share of minimal pairs not correct, mean over draws", "fraction"),
    "lower": Column(pl.Float64(), "lower end of the 95 % Wilson interval over pairs (mean over draws)", "fraction"),
    "upper": Column(pl.Float64(), "upper end of the 95 % Wilson interval over pairs (mean over draws)", "fraction"),
    "standard_error": Column(pl.Float64(), "of the error's mean over draws; null for a single set", "fraction"),
    "pairs": Column(pl.Int32(), "minimal pairs", "pairs"),
    "draws": Column(pl.Int32(), "sets that the mean is over"),
}


def _standard_error(column: str) -> pl.Expr:
    """Standard error of the mean over draws; null for one draw."""
    return pl.col(column).std(ddof=1) / pl.len().sqrt()


def perplexity_by_fraction(summaries: Mapping[str, pl.DataFrame], op: str) -> pl.DataFrame:
    """Figure 3a: perplexity against the fraction clamped, random draws averaged.

    Args:
        summaries: a model's label -> frame with the columns of PERPLEXITIES.
        op: the operation shown.

    Returns:
        a frame with the columns of FIG3A; sets without a fraction (file sets) are left to the summaries.
    """
    return _panel(
        summaries,
        FIG3A,
        lambda rows: (
            rows.filter(_shown(op) & (pl.col("fraction").is_not_null() | (pl.col("condition") == UNTOUCHED)))
            .group_by("condition", pl.col("fraction").fill_null(0.0), maintain_order=True)
            .agg(pl.col("perplexity").mean(), standard_error=_standard_error("perplexity"), draws=pl.len())
            .sort("condition", "fraction")
        ),
    )


def error_by_condition(summaries: Mapping[str, pl.DataFrame], op: str, fraction: float) -> pl.DataFrame:
    """Figure 3c: grammar errors of the untouched model and under the clamp of one fraction.

    Args:
        summaries: a model's label -> frame with the columns of ACCURACIES, and benchmark.
        op: the operation shown.
        fraction: the headline fraction; file sets, which have none, are shown too.

    Returns:
        a frame with the columns of FIG3C, groups overall and phenomena; where there are several benchmarks, these.
    """
    benchmarks = {name for rows in summaries.values() for name in rows["benchmark"]}
    if len(benchmarks) > 1:
        overall = pl.col("grouping") == "overall"
        summaries = {label: rows.filter(overall).with_columns(group="benchmark") for label, rows in summaries.items()}
    wanted = pl.col("fraction").is_null() | ((pl.col("fraction") - fraction).abs() < 1e-12)
    return _panel(
        summaries,
        FIG3C,
        lambda rows: (
            rows.filter(_shown(op) & wanted & (pl.col("grouping") != "paradigm"))
            .group_by("group", "condition", maintain_order=True)
            .agg(
                pl.col("error", "lower", "upper").mean(),
                pl.col("pairs").first(),
                standard_error=_standard_error("error"),
                draws=pl.len(),
            )
        ),
    )


def _shown(op: str) -> pl.Expr:
    return (pl.col("condition") == UNTOUCHED) | ((pl.col("op") == op) & (pl.col("layers") == "all"))


def _panel(summaries: Mapping[str, pl.DataFrame], schema, rows_of: Callable) -> pl.DataFrame:
    """The models' rows, one after another, with the panel's columns."""
    return pl.concat(
        rows_of(summary)
        .with_columns(model=pl.lit(label))
        .select(pl.col(name).cast(column.dtype) for name, column in schema.items())
        for label, summary in summaries.items()
    )


STABILITYA = {
    "model": Column(pl.String(), "the model's label"),
    "comparison": Column(pl.String(), "halves of the text, or a part against the whole"),
    "measure": Column(pl.String(), "jaccard (of the top sets) or spearman (of all neurons' WD)"),
    "tokens": Column(pl.Int64(), "tokens of the smaller side", "tokens"),
    "value": Column(pl.Float64(), "mean over layers"),
    "standard_error": Column(pl.Float64(), "of the mean over layers; null for one layer"),
    "chance": Column(pl.Float64(), "what unrelated rankings would give"),
}
STABILITYB = {
    "model": Column(pl.String(), "the model's label"),
    "tokens": Column(pl.Int64(), "tokens", "tokens"),
    "median_wd": Column(pl.Float64(), "median WD, mean over layers", "standard deviation"),
    "floor": Column(pl.Float64(), "mean WD of Gaussian samples of so many tokens", "standard deviation"),
}


def rank_agreement(summaries: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """Figure stability a: agreement of rankings by WD against the number of tokens.

    Args:
        summaries: a model's label -> frame with the columns of stability.STABILITY.

    Returns:
        a frame with the columns of STABILITYA. Two unrelated sets of a share p have p^2 in common of 2p - p^2.
    """
    share = pl.col("fraction").first()
    by_chance = pl.when(pl.col("measure").first() == "jaccard").then(share / (2 - share)).otherwise(0.0)
    return _panel(
        summaries,
        STABILITYA,
        lambda rows: (
            rows.unpivot(["jaccard", "spearman"], index=["comparison", "tokens", "layer", "fraction"],
                         variable_name="measure")
            .group_by("comparison", "measure", "tokens", maintain_order=True)
            .agg(pl.col("value").mean(), standard_error=_standard_error("value"), chance=by_chance)
            .sort("comparison", "measure", "tokens")
        ),
    )  # fmt: skip


def noise_floor(summaries: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """Figure stability b: the layers' median WD against the number of tokens, and that of Gaussian samples.

    Args:
        summaries: a model's label -> frame with the columns of stability.STABILITY.

    Returns:
        a frame with the columns of STABILITYB.
    """
    return _panel(
        summaries,
        STABILITYB,
        lambda rows: (
            rows.filter(pl.col("comparison") == "whole")
            .group_by("tokens", maintain_order=True)
            .agg(pl.col("median_wd").mean(), pl.col("floor").first())
            .sort("tokens")
        ),
    )


SHOWN = {  # what panels are made from: its columns
    "pairs": ACCURACIES,
    "perplexity": PERPLEXITIES,
    "stability": STABILITY,
}
PANELS = {  # figure and panel: (columns, key in SHOWN of what it is made from, function of that, op, fraction)
    "fig3a": (FIG3A, "perplexity", lambda summaries, op, fraction: perplexity_by_fraction(summaries, op)),
    "fig3c": (FIG3C, "pairs", error_by_condition),
    "stabilitya": (STABILITYA, "stability", lambda summaries, op, fraction: rank_agreement(summaries)),
    "stabilityb": (STABILITYB, "stability", lambda summaries, op, fraction: noise_floor(summaries)),
}
