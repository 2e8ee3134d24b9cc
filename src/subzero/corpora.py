"""Corpora: documents of text, and windows of tokens cut from them.

The documents of a corpus, joined by two newlines, are one text; it is tokenized once (special tokens once a text) and
cut into windows without overlap, the last partial one dropped:

    text     |doc 0|\\n\\n|doc 1|\\n\\n|doc 2|
    tokens   BOS? t t t t t t t t t t t t t t
    windows  [ 0       ][ 1       ][ 2     ]x

A corpus `name` has two document-disjoint halves, `name/statistics` (documents 0, 2, 4, ...) and `name/evaluation`.
"""

import bz2
import importlib.util
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
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
WINDOWS = {
    "window": Column(pl.Int32(), "number of the window in the text, from 0"),
    "token": Column(pl.List(pl.Int32()), "token ids"),
    "start": Column(pl.List(pl.Int64()), "where each token begins in the text", "characters"),
    "end": Column(pl.List(pl.Int64()), "where each token ends in the text", "characters"),
    "special": Column(pl.List(pl.Boolean()), "whether each token is special, without text, and out of all statistics"),
}


# Sources


def _wikipedia_sample() -> Iterator[tuple[str, str]]:
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


EMBEDDED = {  # source: (what gives its (title, page) pairs, what makes plain text of a page)
    "wikipedia-sample": (_wikipedia_sample, plain_text),
}


def read_documents(
    source: str | None = None,
    files: Sequence[Path] = (),
    begin: Callable[[int], Callable[[int], None]] = lambda total: lambda count: None,
) -> pl.DataFrame:
    """The documents of a corpus.

    Args:
        source: an entry of EMBEDDED.
        files: plain text in UTF-8, a document a file.
        begin: told how many documents there are; gives a function that is told of those that are done.

    Returns:
        a frame with the columns of DOCUMENTS.

    Raises:
        SubzeroError: no such source, not readable as text, or nothing in it.
    """
    if source is not None:
        if source not in EMBEDDED:
            raise SubzeroError(
                f"corpus source {source!r}; allowed: {', '.join(EMBEDDED)}.{near_miss(source, EMBEDDED)}"
            )
        pages, plain = EMBEDDED[source]
        found = list(pages())
        advance, pairs = begin(len(found)), []
        for title, page in found:
            pairs.append((title, plain(page)))
            advance(1)
    else:
        pairs = []
        for path in map(Path, files):
            try:
                pairs.append((path.name, path.read_text(encoding="utf-8-sig")))
            except (OSError, UnicodeDecodeError) as error:
                raise SubzeroError(f"corpus file {path}: not readable as UTF-8 text ({error})") from error
    numbered = [(number, title, text) for number, (title, text) in enumerate(pairs) if text.strip()]
    if not numbered:
        raise SubzeroError(f"corpus {source or [str(f) for f in files]}: no text in it")
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


# Windows


def windows(text: str, tokenizer, length: int, count: int | None = None) -> pl.DataFrame:
    """Windows of tokens without overlap, evenly spread over a text.

    Args:
        text: the whole text, tokenized once.
        tokenizer: a fast tokenizer of transformers; it adds its special tokens once.
        length: tokens a window.
        count: windows wanted, spread evenly over all that the text has; None or too large: all.

    Returns:
        a frame with the columns of WINDOWS, a row a window.

    Raises:
        SubzeroError: the text has not one whole window.
    """
    encoding = tokenizer(text, return_offsets_mapping=True, return_special_tokens_mask=True, verbose=False)
    whole = len(encoding["input_ids"]) // length
    if whole == 0:
        raise SubzeroError(f"the text has {len(encoding['input_ids'])} tokens; a window needs {length}")
    numbers = np.arange(whole) if count is None or count >= whole else np.arange(count) * whole // count
    offsets = np.array(encoding["offset_mapping"], dtype=np.int64)
    columns = {
        "token": np.array(encoding["input_ids"], dtype=np.int32),
        "start": offsets[:, 0],
        "end": offsets[:, 1],
        "special": np.array(encoding["special_tokens_mask"], dtype=bool),
    }
    cut = {name: values[: whole * length].reshape(whole, length)[numbers].tolist() for name, values in columns.items()}
    return pl.DataFrame({"window": numbers.tolist(), **cut}, schema={n: c.dtype for n, c in WINDOWS.items()})
