"""Corpora: documents of plain text, from texts known by name, the hub and the user's own files.

A corpus `name` has two document-disjoint halves, `name/statistics` (documents 0, 2, 4, ...) and `name/evaluation`.
"""

import bz2
import importlib.util
import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from subzero.artifacts import Column
from subzero.errors import SubzeroError, near_miss

SEPARATOR = "\n\n"
HALVES = ("statistics", "evaluation")

DOCUMENTS = {
    "document": Column(pl.Int32(), "number of the document in its source, from 0"),
    "title": Column(pl.String(), "title, or the file's name"),
    "text": Column(pl.String(), "plain text"),
}


# Texts by name


def _wikipedia_sample(split: str | None, documents: int | None) -> Iterator[tuple[str, str]]:
    """The articles of English Wikipedia that gensim's wheel carries for its tests (about a hundred), as mark-up."""
    spec = importlib.util.find_spec("gensim")
    folder = Path(spec.submodule_search_locations[0]) / "test" / "test_data" if spec else Path()
    dumps = sorted(folder.glob("enwiki-latest-pages-articles1.xml-*-shortened.bz2"))
    if not dumps:
        raise SubzeroError(
            "corpus source wikipedia-sample: gensim's wheel, which carries it, is not installed. "
            "Install it without its dependencies: pip install --no-deps gensim"
        )
    with bz2.open(dumps[0]) as dump:
        for _, page in ElementTree.iterparse(dump):
            if page.tag.rpartition("}")[2] != "page":
                continue
            field = {element.tag.rpartition("}")[2]: element.text or "" for element in page.iter()}
            if field["ns"] == "0" and "redirect" not in field:
                yield field["title"], field["text"]
            page.clear()


_NO_PROSE = re.compile(
    r"^(references|notes|footnotes|citations|sources|bibliography|further reading|external links|see also|gallery)\b",
    re.IGNORECASE,
)
# What a parser must leave in the text where mark-up is not closed or wrongly nested: references, tags, rows of tables.
_NOT_CLOSED = re.compile(
    r"<ref\b[^>]*>.*?</ref>|</?[a-z]+\b[^>]*>|^[|!{].*$|\[\[|\]\]|\{\{|\}\}|''", re.IGNORECASE | re.MULTILINE
)


def plain_text(markup: str) -> str:
    """The prose of a wiki page: no templates, tables, references, pictures, lists of links; one paragraph a line."""
    import mwparserfromhell

    page = mwparserfromhell.parse(markup)
    for section in page.get_sections(levels=[2]):
        title = section.filter_headings()[0].title.strip_code().strip()
        if _NO_PROSE.match(title):
            _remove(page, section)
    for tag in page.filter_tags(recursive=True):
        if str(tag.tag).strip().lower() in {"ref", "table", "gallery", "math", "timeline", "score"}:
            _remove(page, tag)
    for link in page.filter_wikilinks(recursive=True):
        if ":" in str(link.title).split("|")[0].strip().lstrip(":")[:12]:
            _remove(page, link)
    text = _NOT_CLOSED.sub("", page.strip_code())
    lines = (re.sub(r"[ \t\xa0]+", " ", line).strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line)


def _remove(page, node) -> None:
    """Take a node out of a page, unless it went with a larger one before."""
    try:
        page.remove(node)
    except ValueError:
        return


_ARTICLE = re.compile(r" = [^=].* = \n?")


def articles(rows: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The articles of WikiText, which is published by the line, blank ones among them.

    Their texts joined by two newlines are the rows joined by two newlines, the text that is tokenized in the paper.

    Args:
        rows: lines, with or without a newline at their ends.

    Yields:
        (title, text)
    """
    title, article, before = "", [], ""
    for row in rows:
        if _ARTICLE.fullmatch(row) and not before.strip():
            if title:
                yield title, SEPARATOR.join(article)
                article = []
            title = row.strip().strip("=").strip()
        article.append(row)
        before = row
    if article:
        yield title, SEPARATOR.join(article)


def _wikitext(size: int) -> Callable:
    def pages(split, documents):
        rows = hub_rows("Salesforce/wikitext", f"wikitext-{size}-raw-v1", split, stream=documents is not None)
        return articles(row["text"] for row in rows)

    return pages


def _unchanged(text: str) -> str:
    return text


@dataclass(frozen=True)
class Named:
    """A text that is known by name.

    pages: (split, documents) -> its (title, page) pairs; `documents`: how many will be taken, None for all.
    plain: makes plain text of a page.
    splits: the splits that it has; none where it is one text.
    text: the same for texts that have documents in common.
    """

    pages: Callable[[str | None, int | None], Iterable[tuple[str, str]]]
    plain: Callable[[str], str]
    splits: tuple[str, ...]
    text: str


NAMED = {
    "wikipedia-sample": Named(_wikipedia_sample, plain_text, (), "wikipedia-sample"),
    "wikitext-2": Named(_wikitext(2), _unchanged, ("train", "validation", "test"), "wikitext"),
    "wikitext-103": Named(_wikitext(103), _unchanged, ("train", "validation", "test"), "wikitext"),
}


# Texts of the user


def hub_rows(hub: str, config: str | None, split: str | None, stream: bool = False) -> Iterator[dict]:
    """The rows of a data set on the hub, or in a folder as `datasets` reads one.

    Raises:
        SubzeroError: it cannot be had; one line.
    """
    import datasets

    with _one_line(f"hub data set {hub!r}"):
        yield from datasets.load_dataset(hub, config, split=split, streaming=stream)


def hub_configurations(hub: str) -> list[str]:
    """The configurations of a data set on the hub, or in a folder.

    Raises:
        SubzeroError: it cannot be had; one line.
    """
    import datasets

    with _one_line(f"hub data set {hub!r}"):
        return datasets.get_dataset_config_names(hub)


@contextmanager
def _one_line(where: str) -> Iterator[None]:
    """One line of whatever the library raises, which is of many kinds, from the network up."""
    try:
        yield
    except Exception as error:
        raise SubzeroError(f"{where}: {_first_line(error)}") from error


def _hub_texts(
    hub: str, config: str | None, split: str | None, field: str, stream: bool = False
) -> Iterator[tuple[str, str]]:
    """(number, text) of the rows of a data set."""
    for number, row in enumerate(hub_rows(hub, config, split, stream)):
        yield str(number), _text(row, field, f"hub data set {hub!r}, row {number}")


def _text(row: dict, field: str, where: str) -> str:
    """A row's text."""
    if not isinstance(row, dict) or field not in row:
        there = ", ".join(row) if isinstance(row, dict) else type(row).__name__
        raise SubzeroError(f"{where}: no field {field!r} in it; allowed: {there}.{near_miss(field, row)}")
    if not isinstance(row[field], str | None):
        raise SubzeroError(f"{where}: field {field!r} holds {type(row[field]).__name__}; needed: text")
    return row[field] or ""


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _text_rows(path: Path, field: str) -> Iterator[tuple[str, str]]:
    yield path.name, path.read_text(encoding="utf-8-sig")


def json_lines(path: Path) -> Iterator[tuple[int, object]]:
    """(line, content) of a JSONL file; blank lines are left out.

    Raises:
        SubzeroError: not UTF-8, or a line is no JSON.
    """
    try:
        with path.open(encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield number, json.loads(line)
    except UnicodeDecodeError as error:
        raise SubzeroError(f"file {path}: not readable as UTF-8 text ({error})") from error
    except ValueError as error:
        raise SubzeroError(f"file {path}, line {number}: not JSON ({error})") from error


def _json_rows(path: Path, field: str) -> Iterator[tuple[str, str]]:
    for number, row in json_lines(path):
        yield f"{path.name}:{number}", _text(row, field, f"corpus file {path}, line {number}")


def _parquet_rows(path: Path, field: str) -> Iterator[tuple[str, str]]:
    try:
        frame = pl.scan_parquet(path)
        names = frame.collect_schema()
        if field not in names:
            _text(dict(names), field, f"corpus file {path}")
        for number, text in enumerate(frame.select(field).collect()[field]):
            yield f"{path.name}:{number}", _text({field: text}, field, f"corpus file {path}, row {number}")
    except pl.exceptions.PolarsError as error:
        raise SubzeroError(f"corpus file {path}: not readable as parquet ({_first_line(error)})") from error


READERS = {  # key: suffix; (path, field) -> (title, text) pairs; other files are plain text, a document each
    ".jsonl": _json_rows,
    ".ndjson": _json_rows,
    ".parquet": _parquet_rows,
}


def _file_rows(files: Sequence[Path], field: str) -> Iterator[tuple[str, str]]:
    for path in map(Path, files):
        try:
            yield from READERS.get(path.suffix, _text_rows)(path, field)
        except (OSError, UnicodeDecodeError) as error:
            raise SubzeroError(f"corpus file {path}: not readable as UTF-8 text ({error})") from error


def read_documents(
    source: str | None = None,
    files: Sequence[Path] = (),
    begin: Callable[[int], Callable[[int], None]] = lambda total: lambda count: None,
    *,
    hub: str | None = None,
    config: str | None = None,
    split: str | None = None,
    field: str = "text",
    documents: int | None = None,
) -> pl.DataFrame:
    """The documents of a corpus; one of `source`, `hub` and `files` is given.

    Args:
        source: an entry of NAMED.
        files: JSONL or parquet, a document a row; any other is plain text in UTF-8, a document a file.
        begin: told how many documents there are; gives a function that is told of those that are done.
        hub: a data set on the Hugging Face hub, ORG/NAME, or a folder of one.
        config: its configuration, where it has several.
        split: of `hub`, or of a `source` that has splits.
        field: where a row of `hub` or `files` has its text.
        documents: only the first so many that have text; a data set on the hub is then streamed, not fetched whole.

    Returns:
        a frame with the columns of DOCUMENTS.

    Raises:
        SubzeroError: no such source, not readable as text, or nothing in it.
    """
    if source is not None and source not in NAMED:
        raise SubzeroError(f"corpus source {source!r}; allowed: {', '.join(NAMED)}.{near_miss(source, NAMED)}")
    if source is not None:
        found, plain = NAMED[source].pages(split, documents), NAMED[source].plain
    elif hub is not None:
        found, plain = _hub_texts(hub, config, split, field, stream=documents is not None), _unchanged
    else:
        found, plain = _file_rows(files, field), _unchanged
    if documents is None:
        found = list(found)
    advance, numbered = begin(len(found) if documents is None else documents), []
    for number, (title, page) in enumerate(found):
        text = plain(page)
        if text.strip():
            numbered.append((number, title, text))
        if text.strip() or documents is None:
            advance(1)
        if len(numbered) == documents:
            break
    if not numbered:
        raise SubzeroError(f"corpus {source or hub or [str(f) for f in files]}: no text in it")
    return pl.DataFrame(numbered, schema={n: c.dtype for n, c in DOCUMENTS.items()}, orient="row")


def half(documents: pl.DataFrame, name: str | None) -> pl.DataFrame:
    """A document-disjoint half of a corpus: the even documents are for statistics, the odd for evaluation.

    Raises:
        SubzeroError: the half is empty.
    """
    if name is None:
        return documents
    part = documents.filter(pl.col("document") % 2 == HALVES.index(name))
    if part.is_empty():
        raise SubzeroError(f"corpus half {name!r} is empty: the corpus has {documents.height} document(s)")
    return part
