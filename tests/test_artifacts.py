import json
import stat

import numpy as np
import polars as pl
import pytest

from subzero.artifacts import (
    Column,
    content_hash,
    provenance,
    read_metadata,
    read_parquet,
    replacing,
    up_to_date,
    write_parquet,
)
from subzero.errors import SubzeroError

SCHEMA = {
    "item": Column(pl.Int32(), "number of the item"),
    "surprisal": Column(pl.Float64(), "minus log-probability", "nats"),
    "intrusive": Column(pl.String(), "mostly null"),
}
FRAME = pl.DataFrame(
    {"item": [0, 1], "surprisal": [1.5, None], "intrusive": [None, None]},
    schema={name: column.dtype for name, column in SCHEMA.items()},
)


def test_what_is_written_is_read_back_with_its_metadata(tmp_path):
    made_of = provenance("test", "abc", model={"weights": "w"}, settings={"window": 512}, made={"device": "cpu"})
    write_parquet(FRAME, tmp_path / "a.parquet", SCHEMA, made_of)
    assert read_parquet(tmp_path / "a.parquet", SCHEMA).equals(FRAME)
    metadata = read_metadata(tmp_path / "a.parquet")
    assert metadata["columns"]["surprisal"] == {"description": "minus log-probability", "unit": "nats"}
    assert metadata["depends"]["model"] == {"weights": "w"}
    assert metadata["depends"]["settings"] == {"window": 512}
    assert metadata["depends"]["code"] == "abc"
    assert metadata["made"]["versions"]["polars"] == pl.__version__
    assert metadata["content"] == content_hash(FRAME)


def test_types_are_declared_so_an_all_null_column_keeps_its_type(tmp_path, provenance):
    write_parquet(FRAME, tmp_path / "a.parquet", SCHEMA, provenance)
    assert pl.read_parquet_schema(tmp_path / "a.parquet")["intrusive"] == pl.String
    other = FRAME.with_columns(intrusive=pl.lit("no one"))
    write_parquet(other, tmp_path / "b.parquet", SCHEMA, provenance)
    for order in (["a", "b"], ["b", "a"]):
        together = pl.scan_parquet([tmp_path / f"{name}.parquet" for name in order]).collect()
        assert sorted(together["intrusive"].drop_nulls()) == ["no one", "no one"]


@pytest.mark.parametrize(
    "frame",
    [FRAME.drop("item"), FRAME.with_columns(more=1), FRAME.with_columns(pl.col("item").cast(pl.Int64))],
    ids=["missing", "undeclared", "another type"],
)
def test_a_frame_that_is_not_as_declared_is_refused(frame, tmp_path, provenance):
    with pytest.raises(TypeError, match="columns differ"):
        write_parquet(frame, tmp_path / "a.parquet", SCHEMA, provenance)
    assert not list(tmp_path.iterdir())


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(RuntimeError), replacing(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_a_written_file_has_the_permissions_that_any_new_file_has(tmp_path):
    with replacing(tmp_path / "a.txt") as temporary:
        temporary.write_text("x")
    (tmp_path / "b.txt").write_text("x")
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a.txt", "b.txt")]
    assert modes[0] == modes[1]


def test_up_to_date_is_what_decides_and_not_how_it_was_made(tmp_path):
    path = tmp_path / "a.parquet"
    write_parquet(FRAME, path, SCHEMA, provenance("test", "abc", settings={"n": 1}, made={"device": "cpu"}))
    assert up_to_date(path, provenance("test", "abc", settings={"n": 1}, made={"device": "cuda"}))
    assert not up_to_date(path, provenance("test", "abd", settings={"n": 1}))
    assert not up_to_date(path, provenance("test", "abc", settings={"n": 2}))
    assert not up_to_date(path, provenance("other", "abc", settings={"n": 1}))
    assert not up_to_date(tmp_path / "missing.parquet", provenance("test", "abc"))
    path.write_bytes(path.read_bytes()[:-10])
    assert not up_to_date(path, provenance("test", "abc", settings={"n": 1}))


def test_what_is_no_artifact_is_refused_in_one_line(tmp_path):
    (tmp_path / "a.parquet").write_text("not parquet")
    FRAME.write_parquet(tmp_path / "b.parquet")
    for name in ("a", "b", "missing"):
        with pytest.raises(SubzeroError, match=f"{name}.parquet: not a subzero artifact"):
            read_metadata(tmp_path / f"{name}.parquet")


def test_damage_inside_a_file_is_named(tmp_path, provenance):
    rng = np.random.default_rng(0)
    frame = FRAME.sample(5000, with_replacement=True).with_columns(surprisal=pl.Series(rng.normal(size=5000)))
    write_parquet(frame, tmp_path / "a.parquet", SCHEMA, provenance)
    content = bytearray((tmp_path / "a.parquet").read_bytes())
    content[4:2000] = bytes(1996)
    (tmp_path / "a.parquet").write_bytes(content)
    with pytest.raises(SubzeroError, match=r"a\.parquet: damaged .* Remove it and run again"):
        read_parquet(tmp_path / "a.parquet", SCHEMA)


def test_a_later_format_is_refused_by_its_number(tmp_path):
    FRAME.write_parquet(tmp_path / "a.parquet", metadata={"subzero": json.dumps({"format": 99})})
    with pytest.raises(SubzeroError, match="format 99; this version of subzero reads format 1"):
        read_parquet(tmp_path / "a.parquet", SCHEMA)


def test_content_hash_is_of_values_not_of_files():
    assert content_hash(FRAME) == content_hash(FRAME.clone())
    assert content_hash(FRAME) != content_hash(FRAME.with_columns(surprisal=pl.lit(1.5)))
    assert content_hash(FRAME) != content_hash(FRAME.reverse())
