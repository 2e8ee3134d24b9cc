"""Figures: frame and axes in, ink out. A panel draws just the rows of its parquet."""

import itertools
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from subzero.errors import SubzeroError
from subzero.names import UNTOUCHED

STYLES = {
    "paper": {
        "font.family": "DejaVu Sans",
        "font.size": 7,
        "axes.titlesize": 7,
        "axes.labelsize": 7,
        "axes.linewidth": 0.6,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "xtick.labelsize": 6,
        "ytick.labelsize": 6,
        "legend.fontsize": 6,
        "legend.frameon": False,
        "lines.linewidth": 1.2,
        "lines.markersize": 3.5,
        "pdf.fonttype": 42,  # embedded as text
        "svg.fonttype": "none",
        "svg.hashsalt": "subzero",
        "figure.dpi": 150,
        "savefig.dpi": 300,
        "figure.constrained_layout.use": True,
    }
}
WIDTH = 5.5  # inches, a paper's text width
ROW = 2.0  # inches a model

# Okabe and Ito's colours, apart in greyscale too; a condition that is not here gets the next of the rest.
LOOK = {
    "none": {"color": "#999999", "marker": "", "label": "untouched"},
    "wd-top": {"color": "#D55E00", "marker": "o", "label": "top by WD"},
    "wd-bottom": {"color": "#56B4E9", "marker": "v", "label": "bottom by WD"},
    "random": {"color": "#0072B2", "marker": "s", "label": "random"},
}
AGREEMENT = {
    "jaccard": {"color": "#D55E00", "label": "top sets (Jaccard)"},
    "spearman": {"color": "#0072B2", "label": "all neurons (Spearman)"},
}
NAMES = {  # phenomena and benchmarks whose names are not read as written
    "npi": "NPI",
    "blimp": "BLiMP",
    "tse": "TSE",
}
_REST = ("#009E73", "#CC79A7", "#E69F00", "#000000")


def looks(conditions) -> dict[str, dict]:
    """Colour, marker and label of each condition, in the order of LOOK and then of the names."""
    known = [c for c in LOOK if c in conditions]
    others = sorted(set(conditions) - set(known))
    rest = zip(others, itertools.cycle(_REST), itertools.cycle("D^Pv"))
    return {c: LOOK[c] for c in known} | {c: {"color": k, "marker": m, "label": c} for c, k, m in rest}


def perplexity_by_fraction(ax, rows: pl.DataFrame) -> None:
    """Figure 3a: perplexity against the fraction of neurons clamped.

    rows: condition, fraction (0-1), perplexity, standard_error (null: a single set); the untouched model at 0. Its
    perplexity and that at the largest fraction of each condition are written in.
    """
    start = rows.filter(pl.col("condition") == UNTOUCHED)["perplexity"].item()
    clamped = rows.filter(pl.col("condition") != UNTOUCHED).sort("condition", "fraction")
    ax.axhline(start, color=LOOK[UNTOUCHED]["color"], linestyle="--", linewidth=0.8)
    ax.annotate(f"{start:.1f}", (1, start), xycoords=("axes fraction", "data"), xytext=(2, 0),
                textcoords="offset points", fontsize=6, va="center", color="#666666")  # fmt: skip
    for condition, look in looks(clamped["condition"].unique()).items():
        line = clamped.filter(pl.col("condition") == condition)
        fraction, value = line["fraction"].to_numpy(), line["perplexity"].to_numpy()
        error = line["standard_error"].fill_null(0.0).to_numpy()
        ax.errorbar(fraction, value, yerr=error, capsize=2, elinewidth=0.8, **look)
        ax.annotate(f"{value[-1]:.1f}", (fraction[-1], value[-1]), xytext=(4, 0), textcoords="offset points",
                    fontsize=6, va="center", color=look["color"], annotation_clip=False)  # fmt: skip
    ticks = sorted(clamped["fraction"].unique())
    ax.set(xscale="log", xlabel="neurons clamped, each layer", ylabel="perplexity")
    ax.set_xticks(ticks, [f"{100 * tick:g} %" for tick in ticks])
    ax.minorticks_off()
    ax.margins(x=0.12, y=0.12)
    ax.legend(loc="upper left", bbox_to_anchor=(0, 0.97))


def error_by_condition(ax, rows: pl.DataFrame) -> None:
    """Figure 3c: share of minimal pairs that a model gets wrong, by phenomenon or by benchmark.

    rows: group, condition, error, lower, upper (0-1), pairs; drawn in percent.
    """
    groups = sorted(rows["group"].unique(maintain_order=True), key=lambda group: group != "overall")
    styles = looks(rows["condition"].unique())
    width = 0.8 / len(styles)
    for number, (condition, look) in enumerate(styles.items()):
        bars = {row["group"]: row for row in rows.filter(pl.col("condition") == condition).iter_rows(named=True)}
        at = [place + (number - (len(styles) - 1) / 2) * width for place in range(len(groups))]
        error = [100 * bars[group]["error"] for group in groups]
        spread = [
            [100 * max(0.0, bars[g]["error"] - bars[g]["lower"]) for g in groups],
            [100 * max(0.0, bars[g]["upper"] - bars[g]["error"]) for g in groups],
        ]
        ax.bar(at, error, width, yerr=spread, color=look["color"], label=look["label"],
               error_kw={"elinewidth": 0.6, "capsize": 1.2, "capthick": 0.6})  # fmt: skip
    pairs = dict(rows.select("group", "pairs").unique().iter_rows())
    ax.set_xticks(range(len(groups)), [f"{NAMES.get(group, group)}\n(n = {pairs[group]:,})" for group in groups])
    ax.set(ylabel="wrong minimal pairs, %")
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=len(styles), columnspacing=0.9, handlelength=1.2)


def rank_agreement(ax, rows: pl.DataFrame) -> None:
    """Figure stability a: agreement of rankings against the number of tokens.

    rows: comparison, measure, tokens, value, standard_error (null: one layer), chance.
    """
    for (measure, chance), part in rows.group_by("measure", "chance", maintain_order=True):
        look = AGREEMENT[measure]
        for (comparison,), line in part.sort("tokens").group_by("comparison", maintain_order=True):
            whole = comparison == "whole"
            label = f"{look['label']}, {'part against whole' if whole else 'two halves'}"
            ax.errorbar(line["tokens"].to_numpy(), line["value"].to_numpy(),
                        yerr=line["standard_error"].fill_null(0.0).to_numpy(), capsize=2, elinewidth=0.8,
                        color=look["color"], marker="o" if whole else "D", linestyle="-" if whole else "",
                        label=label)  # fmt: skip
        ax.axhline(chance, color=look["color"], linestyle=":", linewidth=0.8)
    ax.set(xscale="log", xlabel="tokens", ylabel="agreement of rankings by WD", ylim=(-0.05, 1.05))
    _token_ticks(ax, rows)
    ax.legend(loc="center left", bbox_to_anchor=(0, 0.35))


def noise_floor(ax, rows: pl.DataFrame) -> None:
    """Figure stability b: median WD and that of Gaussian samples against the number of tokens.

    rows: tokens, median_wd, floor.
    """
    ax.plot(rows["tokens"].to_numpy(), rows["median_wd"].to_numpy(), marker="o", color=LOOK["wd-top"]["color"],
            label="median neuron")  # fmt: skip
    ax.plot(rows["tokens"].to_numpy(), rows["floor"].to_numpy(), linestyle="--", color=LOOK[UNTOUCHED]["color"],
            label="Gaussian sample")  # fmt: skip
    ax.set(xscale="log", xlabel="tokens", ylabel="WD", ylim=(0, None))
    _token_ticks(ax, rows)
    ax.legend()


def _token_ticks(ax, rows: pl.DataFrame) -> None:
    ticks = sorted(rows["tokens"].unique())
    ax.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    ax.minorticks_off()
    ax.margins(x=0.12)


def later(ax, what: str) -> None:
    """The place of a panel that is not drawn yet."""
    ax.set_axis_off()
    ax.text(0.5, 0.5, textwrap.fill(what, 26), transform=ax.transAxes, ha="center", va="center", fontsize=6,
            color="#666666", style="italic")  # fmt: skip


@dataclass(frozen=True)
class Figure:
    """A figure's panels and the line under them.

    panels: letter -> what draws it, (axes, rows); or what is to come there.
    note: a format string over the panels' settings (op, percent).
    stores: whether it needs pre-activations on disk.
    """

    panels: Mapping[str, Callable | str]
    note: str
    stores: bool = False


FIGURES = {
    "fig3": Figure(
        panels={
            "a": perplexity_by_fraction,
            "b": "perplexity-matched fraction of low-WD neurons: comes later",
            "c": error_by_condition,
            "d": "surprisal by part of speech: comes later",
        },
        note="a, c: op {op} on all layers; fractions are of each layer. a: bars are standard errors over random draws. "
        "c: {percent} % of each layer, bars are 95 % Wilson intervals over pairs.",
    ),
    "stability": Figure(
        panels={"a": rank_agreement, "b": noise_floor},
        note="a: top sets are {percent} % of each layer; bars are standard errors over layers, dotted lines chance. "
        "b: WD of a Gaussian sample falls with the root of its size.",
        stores=True,
    ),
}


def draw(figure: str, panels: Mapping[str, pl.DataFrame], style: str, settings: Mapping[str, str], path: Path) -> None:
    """Draw a figure, a row of panels a model, to PDF, PNG or SVG by the path's ending.

    Args:
        figure: a key of FIGURES.
        panels: letter -> frame with a column model, for each panel that is drawn.
        style: a key of STYLES.
        settings: op, and fraction (0-1), for the line under the figure.
        path: where to; written as is (the caller replaces atomically).

    Raises:
        SubzeroError: a panel has no rows.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    for letter, rows in panels.items():
        if rows.is_empty():
            raise SubzeroError(f"{figure}, panel {letter}: nothing to draw")
    labels = next(iter(panels.values()))["model"].unique(maintain_order=True).to_list()
    drawers = FIGURES[figure].panels
    ratios = [1.3 if callable(drawer) else 0.55 for drawer in drawers.values()]
    size = (WIDTH * 1.45, ROW * len(labels) + 0.35)
    with matplotlib.rc_context(STYLES[style]):
        fig, axes = plt.subplots(len(labels), len(drawers), squeeze=False, figsize=size, width_ratios=ratios)
        for label, row in zip(labels, axes, strict=True):
            for (letter, drawer), ax in zip(drawers.items(), row, strict=True):
                ax.set_title(letter, loc="left", fontweight="bold", fontsize=9, x=-0.02, pad=14)
                if callable(drawer):
                    drawer(ax, panels[letter].filter(pl.col("model") == label))
                else:
                    later(ax, drawer)
            row[0].text(0.06, 1.04, textwrap.shorten(label, 70), transform=row[0].transAxes, fontsize=7, va="bottom")
        note = FIGURES[figure].note.format(op=settings["op"], percent=f"{100 * float(settings['fraction']):g}")
        fig.text(0.005, -0.01, textwrap.fill(note, 160), fontsize=5, color="#666666", va="top")
        # no dates inside, so that the same numbers give the same file
        metadata = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(path.suffix[1:])
        fig.savefig(path, metadata=metadata, bbox_inches="tight")
        plt.close(fig)
