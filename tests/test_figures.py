"""What is drawn is what the panel's frame holds."""

import polars as pl
import pytest
from matplotlib import pyplot as plt
from PIL import Image

from subzero import analysis, figures
from subzero.artifacts import write_parquet
from subzero.errors import SubzeroError
from subzero.figures import FIGURES, draw, error_by_condition, looks, perplexity_by_fraction

A = pl.DataFrame(
    {
        "model": ["m"] * 5,
        "condition": ["none", "wd-top", "wd-top", "random", "random"],
        "fraction": [0.0, 0.05, 0.01, 0.01, 0.05],
        "perplexity": [10.0, 18.0, 14.0, 10.5, 11.0],
        "standard_error": [None, None, None, 0.25, 0.5],
        "draws": [1, 1, 1, 3, 3],
    },
    schema={name: column.dtype for name, column in analysis.FIG3A.items()},
)
C = pl.DataFrame(
    {
        "model": ["m"] * 4,
        "group": ["overall", "npi", "overall", "npi"],
        "condition": ["none", "none", "wd-top", "wd-top"],
        "error": [0.1, 0.2, 0.3, 0.4],
        "lower": [0.05, 0.1, 0.2, 0.3],
        "upper": [0.15, 0.4, 0.5, 0.6],
        "standard_error": [None] * 4,
        "pairs": [1200, 40, 1200, 40],
        "draws": [1] * 4,
    },
    schema={name: column.dtype for name, column in analysis.FIG3C.items()},
)
SETTINGS = {"op": "neg", "fraction": "0.01"}


@pytest.fixture
def ax():
    figure, ax = plt.subplots()
    yield ax
    plt.close(figure)


def test_panel_a_draws_its_rows(ax):
    perplexity_by_fraction(ax, A)
    lines = {container.get_label(): container for container in ax.containers}
    wd, random = lines["top by WD"].lines[0], lines["random"].lines[0]
    assert list(wd.get_xdata()) == [0.01, 0.05]
    assert list(wd.get_ydata()) == [14, 18]
    assert list(random.get_ydata()) == [10.5, 11]
    low_high = [segment[:, 1].tolist() for segment in lines["random"].lines[2][0].get_segments()]
    assert low_high == [[10.25, 10.75], [10.5, 11.5]]
    assert ax.lines[0].get_ydata() == [10, 10]
    assert {text.get_text() for text in ax.texts} == {"10.0", "18.0", "11.0"}
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["1 %", "5 %"]
    assert ax.get_xscale() == "log"


def test_panel_c_draws_its_rows_in_percent(ax):
    error_by_condition(ax, C)
    heights = {
        bars.get_label(): [bar.get_height() for bar in bars] for bars in ax.containers if hasattr(bars, "patches")
    }
    assert heights["untouched"] == pytest.approx([10, 20])
    assert heights["top by WD"] == pytest.approx([30, 40])
    segments = ax.containers[0].lines[2][0].get_segments() if not hasattr(ax.containers[0], "patches") else (
        ax.containers[1].errorbar or ax.containers[0].errorbar
    ).lines[2][0].get_segments()  # fmt: skip
    assert {tuple(round(v) for v in s[:, 1]) for s in segments} in ({(5, 15), (10, 40)}, {(20, 50), (30, 60)})
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["overall\n(n = 1,200)", "NPI\n(n = 40)"]


def test_stability_draws_its_rows(ax):
    rows = pl.DataFrame(
        {"model": "m", "comparison": ["whole", "whole", "halves", "whole"], "tokens": [8, 16, 16, 8],
         "measure": ["jaccard", "jaccard", "jaccard", "spearman"], "value": [0.2, 0.6, 0.4, 0.9],
         "standard_error": [0.1, None, None, None], "chance": [0.01, 0.01, 0.01, 0.0]},
        schema={name: column.dtype for name, column in analysis.STABILITYA.items()},
    )  # fmt: skip
    figures.rank_agreement(ax, rows)
    lines = {container.get_label(): container.lines[0].get_ydata().tolist() for container in ax.containers}
    assert lines == {
        "top sets (Jaccard), part against whole": [0.2, 0.6],
        "top sets (Jaccard), two halves": [0.4],
        "all neurons (Spearman), part against whole": [0.9],
    }
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["8", "16"]


def test_the_noise_floor_is_drawn(ax):
    rows = pl.DataFrame({"model": "m", "tokens": [8, 16], "median_wd": [0.3, 0.2], "floor": [0.1, 0.07]})
    figures.noise_floor(ax, rows)
    assert [line.get_ydata().tolist() for line in ax.lines] == [[0.3, 0.2], [0.1, 0.07]]


def test_an_unknown_condition_gets_a_look_of_its_own():
    found = looks(["file-mine", "random", "none"])
    assert list(found) == ["none", "random", "file-mine"]
    assert found["file-mine"]["label"] == "file-mine"
    assert len({look["color"] for look in found.values()}) == 3


@pytest.mark.parametrize("ending", ["pdf", "png", "svg"])
def test_a_figure_is_the_same_file_for_the_same_numbers(tmp_path, ending):
    for name in "ab":
        draw("fig3", {"a": A, "c": C}, "paper", SETTINGS, tmp_path / f"{name}.{ending}")
    content = (tmp_path / f"a.{ending}").read_bytes()
    assert content == (tmp_path / f"b.{ending}").read_bytes()
    assert content.startswith({"pdf": b"%PDF", "png": b"\x89PNG", "svg": b"<?xml"}[ending])


def test_the_picture_has_a_row_a_model_and_the_places_of_later_panels(tmp_path):
    other = [frame.with_columns(model=pl.lit("another")) for frame in (A, C)]
    draw("fig3", {"a": A, "c": C}, "paper", SETTINGS, tmp_path / "one.png")
    draw(
        "fig3", {"a": pl.concat([A, other[0]]), "c": pl.concat([C, other[1]])}, "paper", SETTINGS, tmp_path / "two.png"
    )
    heights = [Image.open(tmp_path / f"{name}.png").height for name in ("one", "two")]
    assert heights[1] > 1.6 * heights[0]
    draw("fig3", {"a": A, "c": C}, "paper", SETTINGS, tmp_path / "one.svg")
    text = (tmp_path / "one.svg").read_text()
    for words in (">a<", ">b<", ">c<", ">d<", "comes later", "1 % of each layer", "op neg"):
        assert words in text


def test_nothing_to_draw_is_an_error():
    with pytest.raises(SubzeroError, match="fig3, panel c: nothing to draw"):
        draw("fig3", {"a": A, "c": C.clear()}, "paper", SETTINGS, "x.png")


def test_every_drawn_panel_has_its_columns_and_every_column_a_description(tmp_path, provenance):
    for name, figure in FIGURES.items():
        for letter, drawer in figure.panels.items():
            if callable(drawer):
                schema = analysis.PANELS[name + letter][0]
                assert all(column.description for column in schema.values())
    write_parquet(A, tmp_path / "a.parquet", analysis.FIG3A, provenance)
    assert set(figures.STYLES) >= {"paper"}
