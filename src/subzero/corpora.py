"""Corpora: documents of text, and windows of tokens cut from them.

As one stream (`by="stream"`, the paper's setting) the documents, joined by two newlines, are one text; it is tokenized
once and cut into windows without overlap, the last partial one dropped. By document each is tokenized alone, and its
last window may be shorter:

    text                       |doc 0|\\n\\n|doc 1|\\n\\n|doc 2|
    stream                     BOS t t t t t t t t t t t t t t
    windows                    [ 0         ][ 1       ][ 2     ]x
    document                   BOS t t t t    BOS t t t    BOS t
    windows                    [ 0   ][ 1]    [ 2   ][3]   [ 4 ]

Special tokens are those that the tokenizer itself puts around a text; here once a text, on request once a window.
A corpus `name` has two document-disjoint halves, `name/statistics` (documents 0, 2, 4, ...) and `name/evaluation`.
"""

import bz2
import importlib.util
import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from subzero.artifacts import Column
from subzero.errors import SubzeroError, near_miss

SEPARATOR = "\n\n"
HALVES = ("statistics", "evaluation")
PIECE, OVERLAP, AGREEING = 1_000_000, 4_000, 16  # characters, characters, tokens

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
    "special": Column(pl.List(pl.Boolean()), "whether each token is special, and so out of all statistics"),
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
        rows = _hub_rows("Salesforce/wikitext", f"wikitext-{size}-raw-v1", split, "text", stream=documents is not None)
        return articles(text for _, text in rows)

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


def _hub_rows(
    hub: str, config: str | None, split: str | None, field: str, stream: bool = False
) -> Iterator[tuple[str, str]]:
    """(number, text) of the rows of a data set on the hub, or in a folder as `datasets` reads one."""
    import datasets

    where = f"corpus hub {hub!r}"
    try:
        found = datasets.load_dataset(hub, config, split=split, streaming=stream)
        for number, row in enumerate(found):
            yield str(number), _text(row, field, f"{where}, row {number}")
    except SubzeroError:
        raise
    except Exception as error:  # the library raises many kinds, from the network up
        raise SubzeroError(f"{where}: {_first_line(error)}") from error


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


def _json_rows(path: Path, field: str) -> Iterator[tuple[str, str]]:
    with path.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                where = f"{path.name}:{number}"
                try:
                    row = json.loads(line)
                except ValueError as error:
                    raise SubzeroError(f"corpus file {path}, line {number}: not JSON ({error})") from error
                yield where, _text(row, field, f"corpus file {path}, line {number}")


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
        found, plain = _hub_rows(hub, config, split, field, stream=documents is not None), _unchanged
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


# Windows

TOKEN = np.dtype([("token", np.int32), ("start", np.int64), ("end", np.int64), ("special", bool)])


def tokenize(text: str, tokenizer, piece: int = PIECE) -> np.ndarray:
    """The tokens of a text, without those that a tokenizer puts around it.

    A long text goes through the tokenizer in overlapping pieces, which keeps memory low and lets progress be told.
    Two pieces are joined inside their overlap where a run of tokens agrees in place and id, as near to its middle as
    can be; where there is none the overlap is doubled, at last up to the whole text:

        piece 0    t t t t t t t t|t t t
        piece 1                t t|t t t t t t t
                                  joined

    Args:
        text: any text.
        tokenizer: a fast tokenizer of transformers.
        piece: characters a piece.

    Returns:
        array of TOKEN; start and end count characters of `text`.
    """
    found, done, overlap = [_encode(text[:piece], 0, tokenizer)], piece, OVERLAP
    while done < len(text):
        if overlap > piece // 2:
            return _encode(text, 0, tokenizer)
        begin, stop = done - overlap, done + piece
        fresh = _encode(text[begin:stop], begin, tokenizer)
        joint = _joint(found[-1], fresh, begin)
        if joint is None:
            overlap *= 2
            continue
        found[-1] = found[-1][: joint[0]]
        found.append(fresh[joint[1] :])
        done, overlap = stop, OVERLAP
    return np.concatenate(found)


def _encode(text: str, begin: int, tokenizer) -> np.ndarray:
    encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    tokens = np.zeros(len(encoding["input_ids"]), dtype=TOKEN)
    tokens["token"] = encoding["input_ids"]
    offsets = np.array(encoding["offset_mapping"], dtype=np.int64).reshape(-1, 2) + begin
    tokens["start"], tokens["end"] = offsets[:, 0], offsets[:, 1]
    special = {f"{name}_token_id" for name in ("bos", "eos", "pad", "cls", "sep")}
    ids = [number for name in special if (number := getattr(tokenizer, name, None)) is not None]
    tokens["special"] = np.isin(tokens["token"], ids)  # written out in the text, such as <|endoftext|>
    return tokens


def _joint(left: np.ndarray, right: np.ndarray, begin: int) -> tuple[int, int] | None:
    """Where two arrays of tokens that overlap from `begin` can be joined: (tokens of left kept, of right dropped)."""
    first = int(np.searchsorted(left["start"], begin))
    places = {token: number for number, token in enumerate(right.tolist())}
    half = AGREEING // 2
    middle = (first + len(left)) // 2
    for number in sorted(range(first + half, len(left) - half), key=lambda number: abs(number - middle)):
        other = places.get(left[number].item(), -1)
        if other < half:
            continue
        if np.array_equal(left[number - half : number + half], right[other - half : other + half]):
            return number, other
    return None


def _around(tokenizer) -> tuple[np.ndarray, np.ndarray]:
    """What a tokenizer puts before and behind a text."""
    encoding = tokenizer("a", return_special_tokens_mask=True)
    tokens = np.zeros(len(encoding["input_ids"]), dtype=TOKEN)
    tokens["token"], tokens["special"] = encoding["input_ids"], encoding["special_tokens_mask"]
    (own,) = np.nonzero(~tokens["special"])
    return tokens[: own[0]], tokens[own[-1] + 1 :]


def _at(tokens: np.ndarray, place: int) -> np.ndarray:
    """Special tokens, put at a place of the text."""
    moved = tokens.copy()
    moved["start"] = moved["end"] = place
    return moved


def windows(
    texts: Sequence[str],
    tokenizer,
    length: int,
    count: int | None = None,
    *,
    by: str = "stream",
    separator: str = SEPARATOR,
    special_tokens: str = "text",
) -> pl.DataFrame:
    """Windows of tokens without overlap, evenly spread over a corpus.

    Args:
        texts: the documents.
        tokenizer: a fast tokenizer of transformers.
        length: tokens a window, special ones included.
        count: windows wanted, spread evenly over all that the corpus has; None or too large: all.
        by: stream (documents joined, every window whole) or document (a document's last window may be shorter).
        separator: stands between documents; where they are not joined it still counts in start and end.
        special_tokens: text (once a text, as the tokenizer does) or window (once a window).

    Returns:
        a frame with the columns of WINDOWS, a row a window; start and end count characters of the joined text.

    Raises:
        SubzeroError: there is not one window, or no room for text in it.
    """
    before, behind = _around(tokenizer)
    room = length - (len(before) + len(behind) if special_tokens == "window" else 0)
    if room < 1:
        raise SubzeroError(f"windows of {length} tokens leave no room for text beside the special ones")
    if by == "stream":
        texts = [separator.join(texts)]
    cut, begin, tokens = [], 0, 0
    for text in texts:
        found = tokenize(text, tokenizer)
        found["start"] += begin
        found["end"] += begin
        if special_tokens == "text":
            found = np.concatenate([_at(before, begin), found, _at(behind, begin + len(text))])
        tokens += len(found)
        for first in range(0, len(found), room):
            window = found[first : first + room]
            if (by == "stream" and len(window) < room) or window["special"].all():
                continue
            if special_tokens == "window":
                window = np.concatenate([_at(before, window["start"][0]), window, _at(behind, window["end"][-1])])
            cut.append(window)
        begin += len(text) + len(separator)
    if not cut:
        raise SubzeroError(f"the text has {tokens} tokens; a window needs {length}")
    numbers = range(len(cut)) if count is None or count >= len(cut) else [n * len(cut) // count for n in range(count)]
    chosen = np.concatenate([cut[number] for number in numbers])
    flat = {"window": np.repeat(np.array(numbers), [len(cut[number]) for number in numbers])}
    flat |= {name: np.ascontiguousarray(chosen[name]) for name in TOKEN.names}
    frame = pl.DataFrame(flat).group_by("window", maintain_order=True).agg(pl.all())
    return frame.select(pl.col(name).cast(column.dtype) for name, column in WINDOWS.items())
