import json

import polars as pl
import pytest

from subzero import corpora
from subzero.corpora import articles, half, plain_text, read_documents
from subzero.errors import SubzeroError

MARKUP = """{{Infobox|name=X}}'''Syntax''' is the study of [[sentence (linguistics)|sentences]].<ref>A. Author</ref>
[[File:Tree.png|thumb|a tree]]
{| class="wikitable"
| cell
|}
== History ==
It is ''old'' &ndash; and [[grammar]] older.
== References ==
{{reflist}}
* A. Author
[[Category:Grammar]]
"""


def test_plain_text_keeps_the_prose_alone():
    text = plain_text(MARKUP)
    assert "Syntax is the study of sentences." in text
    assert "It is old – and grammar older." in text
    for gone in ("Infobox", "Author", "thumb", "cell", "Category", "[[", "{{", "''", "References"):
        assert gone not in text


def test_the_embedded_text_is_prose_in_many_documents():
    totals, told = [], []
    documents = read_documents("wikipedia-sample", begin=lambda total: (totals.append(total), told.append)[1])
    assert totals == [len(told)] == [documents.height]
    text = "\n".join(documents["text"])
    assert documents.height > 90
    assert len(text) > 2_000_000
    for markup in ("[[", "{{", "{|", "|-", "<ref", "''", "Category:", "REDIRECT"):
        assert markup not in text, markup


def test_halves_share_no_document_and_leave_none_out():
    documents = pl.DataFrame({"document": range(5), "title": list("abcde"), "text": list("abcde")})
    first, second = half(documents, "statistics"), half(documents, "evaluation")
    assert first["document"].to_list() == [0, 2, 4]
    assert second["document"].to_list() == [1, 3]
    with pytest.raises(SubzeroError, match=r"corpus half 'evaluation' is empty: the corpus has 1 document\(s\)"):
        half(documents.head(1), "evaluation")


def test_files_are_a_document_each(tmp_path):
    (tmp_path / "a.txt").write_text("One.", encoding="utf-8-sig")
    (tmp_path / "b.txt").write_text("Zwei – drei.", encoding="utf-8")
    found = read_documents(files=[tmp_path / "a.txt", tmp_path / "b.txt"])
    assert found["text"].to_list() == ["One.", "Zwei – drei."]
    assert found["title"].to_list() == ["a.txt", "b.txt"]


def test_files_that_are_no_text_are_refused_by_name(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "b.txt").write_text("  \n")
    for name in ("a", "b", "missing"):
        with pytest.raises(SubzeroError, match=f"{name}.txt"):
            read_documents(files=[tmp_path / f"{name}.txt"])


def test_a_package_that_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(corpora.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SubzeroError, match="pip install --no-deps gensim"):
        read_documents("wikipedia-sample")


# Tables, and data sets as `datasets` reads them

ROWS = [{"text": "One.", "id": 1}, {"text": "", "id": 2}, {"text": "Zwei – drei.", "id": 3}, {"text": None, "id": 4}]


def write_rows(folder):
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    pl.DataFrame(ROWS).write_parquet(folder / "a.parquet")
    (folder / "set").mkdir()
    pl.DataFrame(ROWS).write_parquet(folder / "set" / "train-00000-of-00001.parquet")
    return folder


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet", "set"])
@pytest.mark.parametrize("documents", [None, 1, 2, 50])
def test_a_row_is_a_document(tmp_path, monkeypatch, name, documents):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    place = write_rows(tmp_path) / name
    where = {"hub": str(place), "split": "train"} if name == "set" else {"files": [place]}
    totals, told = [], []
    begin = lambda total: (totals.append(total), told.append)[1]  # noqa: E731
    found = read_documents(**where, documents=documents, begin=begin)
    assert found["text"].to_list() == ["One.", "Zwei – drei."][:documents]
    assert found["document"].to_list() == [0, 2][:documents]
    assert totals == [documents or 4]
    assert sum(told) == (min(documents, 2) if documents else 4)


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet", "set"])
def test_a_field_that_is_not_there_or_holds_no_text_is_named(tmp_path, name):
    place = write_rows(tmp_path) / name
    where = {"hub": str(place), "split": "train"} if name == "set" else {"files": [place]}
    with pytest.raises(SubzeroError, match=r"no field 'txt' in it; allowed: text, id. Did you mean 'text'?"):
        read_documents(**where, field="txt")
    with pytest.raises(SubzeroError, match="field 'id' holds int; needed: text"):
        read_documents(**where, field="id")


def test_tables_that_are_none_are_refused_by_name(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "One."}\n{"text": \n')
    (tmp_path / "b.parquet").write_text("no table")
    (tmp_path / "c.jsonl").write_text("[1]\n")
    for name, said in {"a.jsonl": "line 2: not JSON", "b.parquet": "parquet", "c.jsonl": "allowed: list"}.items():
        with pytest.raises(SubzeroError, match=rf"{name}.*{said}") as refused:
            read_documents(files=[tmp_path / name])
        assert "\n" not in str(refused.value)


def test_a_data_set_that_cannot_be_had_is_one_line(tmp_path, monkeypatch):
    import datasets
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)  # else half a minute of tries
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    write_rows(tmp_path)
    for where in (
        {"hub": str(tmp_path / "set"), "split": "tset"},
        {"hub": str(tmp_path / "set"), "split": "train", "config": "other"},
        {"hub": "nobody/nothing", "split": "train", "documents": 3},
    ):
        with pytest.raises(SubzeroError, match="hub data set") as refused:
            read_documents(**where)
        assert "\n" not in str(refused.value)


WIKITEXT = """\
 = First title =

 One line .
 = not a title =

 = = A section = =

 more .

 = Second <unk> title =

 Last .
"""


@pytest.mark.parametrize("end", [" \n", " "])
def test_wikitexts_articles_join_to_its_rows(end):
    rows = ["", *(line + end if line else "" for line in WIKITEXT.splitlines())]
    found = list(articles(rows))
    assert [title for title, _ in found] == ["First title", "Second <unk> title"]
    assert "\n\n".join(text for _, text in found) == "\n\n".join(rows)


def test_wikitext_is_split_at_its_articles(shared_data):
    rows = (shared_data / "wikitext2" / "test.txt").read_text(encoding="utf-8").split("\n")
    found = list(articles(rows))
    assert "\n\n".join(text for _, text in found) == "\n\n".join(rows)
    assert 55 <= len(found) <= 65  # 60 articles are published
    assert found[0][0] == "Robert <unk>"
