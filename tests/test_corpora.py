import polars as pl
import pytest

from subzero import corpora
from subzero.corpora import half, plain_text, read_documents, windows
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


@pytest.mark.parametrize("bos", [False, True])
def test_windows_are_cut_once_from_the_whole_text(tiny, bos):
    _, tokenizer = tiny(bos=bos)
    text = "Some cells fire on commas , others on verbs .\n\n" * 5
    ids = tokenizer(text)["input_ids"]
    found = windows(text, tokenizer, 8)
    assert found["window"].to_list() == list(range(len(ids) // 8))
    assert [t for row in found["token"] for t in row] == ids[: len(ids) // 8 * 8]
    special = [s for row in found["special"] for s in row]
    assert special == [bos] + [False] * (len(special) - 1)
    spans = zip(found["start"].explode(), found["end"].explode(), special, strict=True)
    assert "".join(text[a:b] for a, b, s in spans if not s) == text[: found["end"].explode()[-1]]


def test_fewer_windows_are_spread_evenly(tiny):
    _, tokenizer = tiny()
    text = "Some cells fire on commas , others on verbs . " * 40
    whole = windows(text, tokenizer, 8).height
    some = windows(text, tokenizer, 8, 4)
    assert some["window"].to_list() == [0, whole // 4, 2 * whole // 4, 3 * whole // 4]
    assert windows(text, tokenizer, 8, 10_000).height == whole
    with pytest.raises(SubzeroError, match="tokens; a window needs 100000"):
        windows(text, tokenizer, 100_000)


def test_a_package_that_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(corpora.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SubzeroError, match="pip install --no-deps gensim"):
        read_documents("wikipedia-sample")
