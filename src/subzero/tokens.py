"""Tokens: windows of tokens cut from the documents of a corpus.

As one stream (`by="stream"`, the paper's setting) the documents, joined by two newlines, are one text; it is tokenized
once and cut into windows without overlap, the last partial one dropped. By document each is tokenized alone, and its
last window may be shorter:

    text                       |doc 0|\\n\\n|doc 1|\\n\\n|doc 2|
    stream                     BOS t t t t t t t t t t t t t t
    windows                    [ 0         ][ 1       ][ 2     ]x
    document                   BOS t t t t    BOS t t t    BOS t
    windows                    [ 0   ][ 1]    [ 2   ][3]   [ 4 ]

Special tokens are those that the tokenizer itself puts around a text; here once a text, on request once a window.
"""

from collections.abc import Sequence

import numpy as np
import polars as pl

from subzero.artifacts import Column
from subzero.corpora import SEPARATOR
from subzero.errors import SubzeroError

PIECE, OVERLAP, AGREEING = 1_000_000, 4_000, 16  # characters, characters, tokens

WINDOWS = {
    "window": Column(pl.Int32(), "number of the window in the text, from 0"),
    "token": Column(pl.List(pl.Int32()), "token ids"),
    "start": Column(pl.List(pl.Int64()), "where each token begins in the text", "characters"),
    "end": Column(pl.List(pl.Int64()), "where each token ends in the text", "characters"),
    "special": Column(pl.List(pl.Boolean()), "whether each token is special, and so out of all statistics"),
}

TOKEN = np.dtype([("token", np.int32), ("start", np.int64), ("end", np.int64), ("special", bool)])


def tokenize(text: str, tokenizer, piece: int = PIECE) -> np.ndarray:
    """The tokens of a text, without those that a tokenizer puts around it.

    A long text goes through the tokenizer in overlapping pieces, which keeps memory low.
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
