"""Grammar benchmarks: rows of every kind of file, samples, and the published suites where they are at hand."""

import http.server
import json
import pickle
import threading
from collections import Counter
from functools import partial

import polars as pl
import pytest

from subzero import benchmarks
from subzero.benchmarks import SUITES, TSE, kind, pair_files, read_items
from subzero.errors import SubzeroError
from subzero.grammar import ITEMS, minimal_pairs

BLIMP_ROW = {
    "sentence_good": "The cats sleep.", "sentence_bad": "The cats sleeps.", "field": "morphology",
    "linguistics_term": "subject_verb_agreement", "UID": "regular", "simple_LM_method": True, "pairID": "0",
}  # fmt: skip
NPI = {"past": [("no authors ever", "the authors that no guards ever", "most authors ever")] * 3}
SIMPLE = {"sing": [("the author laughs", "the author laugh")], "plur": [("the authors laugh", "the authors laughs")]}


@pytest.fixture
def written(tmp_path):
    """One pair in each kind of file."""
    row = {"good": "A waits.", "bad": "A wait.", "condition": "sing"}
    (tmp_path / "a.jsonl").write_text(json.dumps(row) + "\n\n")
    pl.DataFrame([row]).write_parquet(tmp_path / "b.parquet")
    pl.DataFrame([row]).write_csv(tmp_path / "c.csv")
    (tmp_path / "d.pickle").write_bytes(pickle.dumps({"sing": [("A waits.", "A wait.")]}))
    (tmp_path / "notes.md").write_text("no pairs")
    return tmp_path


def test_every_kind_of_file_gives_the_same_item(written):
    found = read_items("pairs", [written])
    assert found.drop("item", "paradigm", "phenomenon").unique().rows() == [
        (None, "sing", "A waits.", "A wait.", None),
    ]
    assert found["paradigm"].to_list() == found["phenomenon"].to_list() == ["a", "b", "c", "d"]
    assert found["item"].to_list() == [0, 1, 2, 3]
    assert found.schema == {name: column.dtype for name, column in ITEMS.items()}
    assert pair_files([written, written / "a.jsonl"])[-1].name == "a.jsonl"


def test_blimps_own_names_are_known(tmp_path):
    (tmp_path / "x.jsonl").write_text(json.dumps(BLIMP_ROW))
    (row,) = read_items("blimp", [tmp_path]).iter_rows(named=True)
    assert row == {
        "item": 0, "paradigm": "regular", "phenomenon": "subject_verb_agreement", "field": "morphology",
        "condition": None, "good": "The cats sleep.", "bad": "The cats sleeps.", "intrusive": None,
    }  # fmt: skip


def test_the_third_member_of_an_npi_is_kept_and_the_last_is_the_bad_one(tmp_path):
    (tmp_path / "simple_npi_anim.pickle").write_bytes(pickle.dumps(NPI))
    (tmp_path / "simple_reflexives.pickle").write_bytes(pickle.dumps(SIMPLE))
    found = read_items("tse", [tmp_path], text="sentence")
    first = found.row(0, named=True)
    assert (first["good"], first["bad"]) == ("No authors ever.", "Most authors ever.")
    assert first["intrusive"] == "The authors that no guards ever."
    assert dict(found.select("paradigm", "phenomenon").unique().iter_rows()) == {
        "simple_npi_anim": "npi",
        "simple_reflexives": "reflexive",
    }
    assert found["intrusive"].null_count() == 2


def test_a_sample_is_even_over_conditions_keeps_numbers_and_order(tmp_path):
    content = {"a": [(f"a{n}", "x") for n in range(50)], "b": [(f"b{n}", "x") for n in range(5)]}
    (tmp_path / "p.pickle").write_bytes(pickle.dumps(content))
    whole, part = read_items("pairs", [tmp_path]), read_items("pairs", [tmp_path], per_paradigm=8, seed=1)
    assert Counter(part["condition"]) == {"a": 4, "b": 4}
    assert part.equals(whole.filter(pl.col("item").is_in(part["item"].implode())))
    assert part.equals(read_items("pairs", [tmp_path], per_paradigm=8, seed=1))
    assert not part.equals(read_items("pairs", [tmp_path], per_paradigm=8, seed=2))
    assert read_items("pairs", [tmp_path], per_paradigm=100).equals(whole)
    scarce = read_items("pairs", [tmp_path], per_paradigm=20)
    assert Counter(scarce["condition"]) == {"a": 15, "b": 5}


def test_the_built_in_grammar_is_a_suite_too():
    assert read_items("minimal-pairs", per_paradigm=2).equals(minimal_pairs(2, 0))
    assert read_items("minimal-pairs").equals(minimal_pairs(30, 0))


class Evil:
    def __reduce__(self):
        return print, ("it ran",)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.pickle", pickle.dumps({"x": [Evil()]}), "names builtins.print; a pickle of pairs holds plain data alone"),
        ("a.pickle", b"\x80\x04", "not a pickle of pairs"),
        ("a.pickle", pickle.dumps(["good", "bad"]), "not a pickle of pairs"),
        ("a.jsonl", b'{"good": "A", "bad": "B"}\n{"good"', "line 2: not JSON"),
        ("a.jsonl", b'{"good": "A"}', "line 1: no 'bad' or 'sentence_bad' in it; it has good"),
        ("a.jsonl", b'{"good": "A", "bad": ""}', "line 1: no 'bad'"),
        ("a.jsonl", b"[1, 2]", "line 1: no 'good' or 'sentence_good' in it; it has list"),
        ("a.jsonl", b'{"good": 3, "bad": "B"}', "line 1: good is 3; needed: text"),
        ("a.jsonl", b"\n", "no pairs in"),
        ("a.parquet", b"x", "not readable"),
        ("a.csv", b"left,right\na,b\n", "row 0: no 'good' or 'sentence_good' in it; it has left, right"),
        ("a.txt", b"x", "allowed: a name ending in .csv"),
    ],
)
def test_bad_files_are_one_line_with_the_place(tmp_path, capsys, name, content, said):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SubzeroError, match=said) as refused:
        read_items("pairs", [tmp_path / name])
    assert name in str(refused.value)
    assert "\n" not in str(refused.value)
    assert capsys.readouterr().out == ""


def test_what_a_suite_cannot_do_is_said(tmp_path):
    with pytest.raises(SubzeroError, match=r"benchmark 'blmp'; allowed: .* Did you mean 'blimp'\?"):
        read_items("blmp")
    with pytest.raises(SubzeroError, match="needs files of pairs"):
        read_items("pairs")
    with pytest.raises(SubzeroError, match="drawn, not read from files"):
        read_items("minimal-pairs", [tmp_path])
    with pytest.raises(SubzeroError, match="not there"):
        read_items("pairs", [tmp_path / "a.jsonl"])


def test_kinds():
    assert [kind(name) for name in ("perplexity/a/b", "blimp", "perplexities")] == ["perplexity", "pairs", "pairs"]


# Where the suites are published


@pytest.fixture
def served(tmp_path, monkeypatch):
    """A web server on this machine in place of the TSE authors' repository, and what it was asked for."""
    folder, asked = tmp_path / "served", []
    folder.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            asked.append(self.path)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(benchmarks, "TSE_ADDRESS", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr(benchmarks, "TSE", {"simple_npi_anim": 3, "simple_agrmt": 2})
    monkeypatch.setenv("SUBZERO_CACHE", str(tmp_path / "cache"))
    yield folder, asked
    server.shutdown()
    server.server_close()


def test_tse_is_fetched_once_and_then_read_from_the_cache(served):
    folder, asked = served
    (folder / "simple_npi_anim.pickle").write_bytes(pickle.dumps(NPI))
    (folder / "simple_agrmt.pickle").write_bytes(pickle.dumps(SIMPLE))
    first = read_items("tse")
    assert (first.height, len(asked)) == (5, 2)
    assert read_items("tse", per_paradigm=1).height == 2
    assert len(asked) == 2


def test_tse_that_cannot_be_fetched_says_what_to_do(served):
    folder, _ = served
    with pytest.raises(
        SubzeroError, match=r"cannot be fetched from .*simple_npi_anim.pickle \(File not found\); .*files:"
    ):
        read_items("tse")
    (folder / "simple_npi_anim.pickle").write_bytes(pickle.dumps(NPI))
    (folder / "simple_agrmt.pickle").write_bytes(pickle.dumps(NPI))
    with pytest.raises(SubzeroError, match=r"simple_agrmt.pickle: 3 items; published: 2. Remove it"):
        read_items("tse")


def test_blimp_is_read_by_its_configurations(tmp_path, monkeypatch):
    """A data set laid out as on the hub, in a folder."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "blimp"
    card = ["---", "configs:"]
    for name in ("adjunct_island", "causative"):
        (folder / name).mkdir(parents=True)
        row = {key: value for key, value in BLIMP_ROW.items() if key != "pairID"} | {"UID": name, "pair_id": 0}
        pl.DataFrame([row] * 3).write_parquet(folder / name / "train-00000-of-00001.parquet")
        card += [f"- config_name: {name}", "  data_files:", "  - split: train", f"    path: {name}/train-*"]
    (folder / "README.md").write_text("\n".join([*card, "---", ""]))
    monkeypatch.setattr(benchmarks, "BLIMP", str(folder))
    found = read_items("blimp", per_paradigm=2)
    assert Counter(found["paradigm"]) == {"adjunct_island": 2, "causative": 2}
    assert set(found["field"]) == {"morphology"}


def test_blimp_that_cannot_be_had_says_what_to_do(monkeypatch):
    import datasets
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)  # else half a minute of tries
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(SubzeroError, match=r"hub data set 'nyu-mll/blimp': .*; with a copy of .*files: \[data\]"):
        read_items("blimp")


def test_the_published_suites(shared_data):
    blimp = read_items("blimp", [shared_data / "blimp"])
    assert blimp.height == sum(SUITES["blimp"].published) == 67_000
    assert Counter(blimp["paradigm"].value_counts()["count"].to_list()) == {1000: 67}
    assert blimp["phenomenon"].n_unique() == 13
    assert {"morphology", "syntax", "semantics"} <= set(blimp["field"])
    tse = read_items("tse", [shared_data / "tse"])
    assert tse.height == sum(SUITES["tse"].published) == 163_124
    assert dict(tse["paradigm"].value_counts().iter_rows()) == TSE
    assert tse["intrusive"].count() == sum(count for name, count in TSE.items() if "npi" in name)
    assert set(tse["phenomenon"]) == {"agreement", "reflexive", "npi"}
