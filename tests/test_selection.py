import numpy as np
import polars as pl
import pytest

from subzero import selection
from subzero.errors import SubzeroError
from subzero.names import parse_set
from subzero.selection import RANKED, SETS, from_file, how_many, random, ranked, select


@pytest.fixture
def statistics():
    """Two layers of 100 neurons; WD null for neurons 0 to 4 of layer 1."""
    rng = np.random.default_rng(0)
    wd = rng.permutation(200) / 200.0
    frame = pl.DataFrame({"layer": [0] * 100 + [1] * 100, "neuron": [*range(100)] * 2, "wd": wd})
    undefined = (pl.col("layer") == 1) & (pl.col("neuron") < 5)
    return frame.with_columns(wd=pl.when(undefined).then(None).otherwise("wd"), mean=-pl.col("wd"))


def test_the_top_and_bottom_of_each_layer(statistics):
    for side, reverse in (("top", True), ("bottom", False)):
        found = ranked(statistics, "wd", side, "0.05")
        for layer in (0, 1):
            rows = statistics.filter(pl.col("layer") == layer).drop_nulls("wd")
            expected = sorted(rows.iter_rows(named=True), key=lambda row: row["wd"], reverse=reverse)[:5]
            mine = found.filter(pl.col("layer") == layer)
            assert mine["neuron"].to_list() == [row["neuron"] for row in expected]
            assert mine["value"].to_list() == [row["wd"] for row in expected]
            assert mine["rank"].to_list() == [0, 1, 2, 3, 4]
        assert found.schema == {name: column.dtype for name, column in SETS.items()}


def test_equal_values_go_by_neuron_number():
    ties = pl.DataFrame({"layer": [0] * 10, "neuron": range(10), "wd": [1.0] * 10}).sample(
        fraction=1, shuffle=True, seed=1
    )
    assert ranked(ties, "wd", "top", "0.3")["neuron"].to_list() == [0, 1, 2]
    assert ranked(ties, "wd", "bottom", "0.3")["neuron"].to_list() == [0, 1, 2]


def test_an_undefined_statistic_puts_its_neuron_in_no_set(statistics):
    for frame in (ranked(statistics, "wd", "top", "0.95"), random(statistics, "0.95", 0)):
        layer = frame.filter(pl.col("layer") == 1)
        assert sorted(layer["neuron"]) == list(range(5, 100))
    with pytest.raises(SubzeroError, match="layer 1: 99 neurons wanted, but wd is defined for 95 of 100"):
        ranked(statistics, "wd", "top", "0.99")


@pytest.mark.parametrize(
    ("fraction", "neurons", "count"),
    [("0.01", 1536, 15), ("0.005", 1536, 8), ("0.0001", 1536, 1), ("0.5", 3, 2), ("0.999", 10, 10)],
)
def test_how_many(fraction, neurons, count):
    assert how_many(fraction, neurons) == count


def test_random_sets_are_drawn_without_return_by_seed_and_nested(statistics):
    small, large = random(statistics, "0.05", 3), random(statistics, "0.2", 3)
    assert small.group_by("layer").len()["len"].to_list() == [5, 5]
    assert not small.select("layer", "neuron").is_duplicated().any()
    assert small.join(large, on=["layer", "neuron"], how="anti").is_empty()
    assert small.equals(random(statistics.reverse(), "0.05", 3))
    assert not small.equals(random(statistics, "0.05", 4))
    assert small["value"].is_null().all()


def test_every_neuron_is_as_likely(statistics):
    draws = pl.concat([random(statistics, "0.1", seed) for seed in range(300)]).filter(pl.col("layer") == 0)
    counts = draws.group_by("neuron").len()["len"]
    assert len(counts) == 100
    # each count is hypergeometric around 30; chi square over 100 neurons, far inside what 99 degrees of freedom allow
    assert ((counts - 30) ** 2 / (30 * 0.9)).sum() < 150


def test_a_random_set_of_a_files_size(statistics):
    like = pl.DataFrame({"layer": [1, 1, 1], "neuron": [7, 8, 9]})
    found = random(statistics, like, 0)
    assert found["layer"].to_list() == [1, 1, 1]


def test_an_unknown_statistic_is_refused_with_the_near_miss(statistics):
    with pytest.raises(SubzeroError, match=r"statistic 'kurtosys'; allowed: .* Did you mean 'kurtosis'\?"):
        ranked(statistics, "kurtosys", "top", "0.1")
    assert "n" not in RANKED


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_users_table(tmp_path, suffix):
    table = pl.DataFrame({"neuron": [3, 1, 0], "layer": [0, 0, 1], "note": ["x", "y", "z"]})
    path = tmp_path / f"mine{suffix}"
    (table.write_csv if suffix == ".csv" else table.write_parquet)(path)
    found = from_file(path, [4, 4])
    assert found.rows() == [(0, 3, 0, None), (0, 1, 1, None), (1, 0, 0, None)]
    chosen = select(parse_set("file-mine"), pl.DataFrame(), {"mine": found})
    assert chosen.equals(found)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("layer,neuron\n0,4\n", "layer 0, neuron 4; the model has layers 0 to 1 of 4 neurons"),
        ("layer,neuron\n2,0\n", "layer 2, neuron 0"),
        ("layer,neuron\n0,1\n0,1\n", "each row must name one neuron, once"),
        ("layer,neuron\n0,\n", "each row must name one neuron, once"),
        ("layer,neuron\n", "no rows"),
        ("layer\n0\n", "needs whole-number columns layer and neuron"),
        ("layer,neuron\n0,x\n", "needs whole-number columns layer and neuron"),
    ],
)
def test_a_bad_table_is_refused_by_name(tmp_path, text, message):
    path = tmp_path / "mine.csv"
    path.write_text(text)
    with pytest.raises(SubzeroError, match=rf"{path}.*{message}"):
        from_file(path, [4, 4])


def test_a_table_of_another_kind_or_that_is_missing(tmp_path):
    with pytest.raises(SubzeroError, match=r"allowed: \.csv or \.parquet"):
        from_file(tmp_path / "mine.txt", [4])
    with pytest.raises(SubzeroError, match=r"mine\.csv"):
        from_file(tmp_path / "mine.csv", [4])
    with pytest.raises(SubzeroError, match="no table 'yours'; allowed: mine"):
        selection.select(parse_set("file-yours"), pl.DataFrame(), {"mine": pl.DataFrame()})
