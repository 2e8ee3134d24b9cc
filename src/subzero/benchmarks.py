"""Benchmarks: what an intervened model is tried on.

A grammar benchmark is one row of SUITES, which says where its minimal pairs are from; however they came about, they
are scored as `pairs`, a row of BENCHMARKS. In paths a benchmark has the name of its entry in config.yaml, perplexity
that of the corpus: minimal-pairs, blimp, perplexity/wikipedia/evaluation.
"""

import pickle
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import polars as pl

from subzero.artifacts import Schema, replacing
from subzero.corpora import hub_configurations, hub_rows, json_lines
from subzero.errors import SubzeroError, near_miss
from subzero.grammar import ITEMS, minimal_pairs
from subzero.scoring import PAIR_SCORES, SURPRISALS, pair_scores, window_surprisals
from subzero.sources import cache_folder
from subzero.tokens import WINDOWS

# What is scored, and how


@dataclass(frozen=True)
class Benchmark:
    """What is scored, and how.

    items: columns of the input artifact. scores: columns of the item-level result.
    score: (items, model, tokenizer, batch_tokens, advance) -> frame with the columns of `scores`.
    work: (items) -> how many units `advance` will be told of; unit: their name.
    """

    items: Schema
    scores: Schema
    score: Callable
    work: Callable[[pl.DataFrame], int]
    unit: str


BENCHMARKS = {
    "pairs": Benchmark(
        items=ITEMS,
        scores=PAIR_SCORES,
        score=pair_scores,
        work=lambda items: 2 * items.height + items["intrusive"].count(),
        unit="sentences",
    ),
    "perplexity": Benchmark(
        items=WINDOWS,
        scores=SURPRISALS,
        score=lambda items, model, tokenizer, *how: window_surprisals(model, items, *how),
        work=lambda items: int(items["token"].list.len().sum()),
        unit="tokens",
    ),
}


def kind(benchmark: str) -> str:
    """The key in BENCHMARKS of a benchmark's name in paths."""
    return "perplexity" if benchmark.startswith("perplexity/") else "pairs"


# Rows of pairs, as they are published


class _NoClasses(pickle.Unpickler):
    """Reads plain data alone: a pickle that names a class or function could run anything."""

    def find_class(self, module, name):
        raise SubzeroError(f"it names {module}.{name}; a pickle of pairs holds plain data alone")


def _pickle_rows(path: Path) -> Iterator[tuple[str, dict]]:
    """TSE as published: condition -> list of (good, bad) or (good, intrusive, bad)."""
    try:
        with path.open("rb") as file:
            content = _NoClasses(file).load()
        for condition, items in content.items():
            for number, (good, *intrusive, bad) in enumerate(items):
                # of an NPI's three members the one without any licensor is compared, as by the authors of TSE
                row = {"condition": condition, "good": good, "bad": bad, "intrusive": (intrusive or [None])[0]}
                yield f"{condition}, item {number}", row
    except SubzeroError as error:
        raise SubzeroError(f"benchmark file {path}: {error}") from error
    except Exception as error:  # what a damaged pickle raises may be anything
        raise SubzeroError(f"benchmark file {path}: not a pickle of pairs ({type(error).__name__}: {error})") from error


def _json_rows(path: Path) -> Iterator[tuple[str, dict]]:
    for number, row in json_lines(path):
        yield f"line {number}", row


def _table_rows(path: Path) -> Iterator[tuple[str, dict]]:
    try:
        frame = pl.read_parquet(path) if path.suffix == ".parquet" else pl.read_csv(path, infer_schema=False)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise SubzeroError(f"benchmark file {path}: not readable ({str(error).splitlines()[0]})") from error
    for number, row in enumerate(frame.iter_rows(named=True)):
        yield f"row {number}", row


READERS = {  # key: suffix; (path) -> (place, row) pairs
    ".csv": _table_rows,
    ".jsonl": _json_rows,
    ".ndjson": _json_rows,
    ".parquet": _table_rows,
    ".pickle": _pickle_rows,
}
_FIELDS = {  # of a row: what it may be called, as here and in BLiMP
    "good": ("good", "sentence_good"),
    "bad": ("bad", "sentence_bad"),
    "intrusive": ("intrusive",),
    "paradigm": ("paradigm", "UID"),
    "phenomenon": ("phenomenon", "linguistics_term"),
    "field": ("field",),
    "condition": ("condition",),
}


def pair_files(places: Sequence[str | Path]) -> list[Path]:
    """Files of pairs: those given, and for a folder those in it that can be read, in order of their names."""
    found = []
    for place in map(Path, places):
        found += sorted(p for p in place.iterdir() if p.suffix in READERS) if place.is_dir() else [place]
    return found


def _file_rows(files: Sequence[Path]) -> Iterator[tuple[str, str, dict]]:
    """(file or paradigm, place in it, row) of all rows."""
    for path in map(Path, files):
        if path.suffix not in READERS:
            raise SubzeroError(f"benchmark file {path}; allowed: a name ending in {', '.join(READERS)}")
        if not path.is_file():
            raise SubzeroError(f"benchmark file {path}: not there")
        for place, row in READERS[path.suffix](path):
            yield path.stem, f"benchmark file {path}, {place}", row


# Grammar benchmarks

BLIMP = "nyu-mll/blimp"  # on the hub: a configuration a paradigm
TSE_ADDRESS = "https://raw.githubusercontent.com/BeckyMarvin/LM_syneval/master/EMNLP2018/templates"
TSE = {  # file -> items, as published
    "long_vp_coord": 400,
    "npi_across_anim": 4800,
    "npi_across_inanim": 5760,
    "obj_rel_across_anim": 11200,
    "obj_rel_across_inanim": 11200,
    "obj_rel_no_comp_across_anim": 11200,
    "obj_rel_no_comp_across_inanim": 11200,
    "obj_rel_no_comp_within_anim": 11200,
    "obj_rel_no_comp_within_inanim": 11200,
    "obj_rel_within_anim": 11200,
    "obj_rel_within_inanim": 11200,
    "prep_anim": 16800,
    "prep_inanim": 5600,
    "reflexive_sent_comp": 3360,
    "reflexives_across": 22400,
    "sent_comp": 1680,
    "simple_agrmt": 140,
    "simple_npi_anim": 120,
    "simple_npi_inanim": 144,
    "simple_reflexives": 280,
    "subj_rel": 11200,
    "vp_coord": 840,
}


def _blimp_rows() -> Iterator[tuple[str, str, dict]]:
    try:
        names = hub_configurations(BLIMP)
    except SubzeroError as error:
        raise SubzeroError(
            f"{error}; with a copy of https://github.com/alexwarstadt/blimp give its folder: files: [data]"
        ) from error
    for name in names:
        for number, row in enumerate(hub_rows(BLIMP, name, "train")):
            yield name, f"hub data set {BLIMP}, {name}, row {number}", row


def _tse_rows() -> Iterator[tuple[str, str, dict]]:
    """From the authors' repository, kept in the cache."""
    files = [cache_folder() / "tse" / f"{name}.pickle" for name in TSE]
    for path in files:
        if not path.is_file():
            address = f"{TSE_ADDRESS}/{path.name}"
            try:
                with urlopen(address, timeout=60) as answer, replacing(path) as new, new.open("wb") as file:
                    shutil.copyfileobj(answer, file)
            except (URLError, TimeoutError) as error:
                raise SubzeroError(
                    f"TSE cannot be fetched from {address} ({getattr(error, 'reason', None) or error}); with a copy of "
                    "https://github.com/BeckyMarvin/LM_syneval give its folder: files: [EMNLP2018/templates]"
                ) from error
    counts = Counter()
    for name, place, row in _file_rows(files):
        counts[name] += 1
        yield name, place, row
    if counts != TSE:
        differing = next(name for name in TSE if counts[name] != TSE[name])
        raise SubzeroError(
            f"TSE, {cache_folder() / 'tse' / differing}.pickle: {counts[differing]:,} items; published: "
            f"{TSE[differing]:,}. Remove it and run again."
        )


def _tse_family(paradigm: str) -> str:
    return "npi" if "npi" in paradigm else "reflexive" if "reflexive" in paradigm else "agreement"


@dataclass(frozen=True)
class Suite:
    """A grammar benchmark.

    decides: sum or mean over tokens of the log-probability, by which its authors or the paper compare two members.
    rows: () -> its (paradigm, place, row) where config.yaml gives no files; None: files are needed.
    draw: (per_paradigm, seed) -> its items, for one that is drawn and not read.
    per_paradigm: pairs taken of a paradigm where config.yaml does not say; None: all.
    phenomenon: a paradigm's, where the rows do not say.
    published: how many pairs each paradigm has, where that is known beforehand.
    """

    decides: str
    rows: Callable[[], Iterable[tuple[str, str, dict]]] | None = None
    draw: Callable[[int, int], pl.DataFrame] | None = None
    per_paradigm: int | None = None
    phenomenon: Callable[[str], str] = str
    published: Sequence[int] = ()


SUITES = {
    "minimal-pairs": Suite(decides="sum", draw=minimal_pairs, per_paradigm=30),
    "blimp": Suite(decides="sum", rows=_blimp_rows, published=(1000,) * 67),
    "tse": Suite(decides="mean", rows=_tse_rows, phenomenon=_tse_family, published=tuple(TSE.values())),
    "pairs": Suite(decides="sum"),
}


def read_items(
    suite: str,
    files: Sequence[str | Path] = (),
    per_paradigm: int | None = None,
    seed: int = 0,
    text: str = "published",
) -> pl.DataFrame:
    """The items of a grammar benchmark.

    Args:
        suite: a key of SUITES.
        files: files or folders of pairs, in place of where the suite is published. A row has good and bad, and may have
            intrusive, paradigm (else the file's name), phenomenon, field and condition; BLiMP's own names do as well.
        per_paradigm: the most pairs taken of each paradigm, spread evenly over its conditions; None: the suite's own.
        seed: of that draw.
        text: published, or sentence (a capital at the beginning and a full stop where there is no end).

    Returns:
        a frame with the columns of ITEMS; a pair has the same number in a sample as in the whole.

    Raises:
        SubzeroError: no such suite, no pairs, or a row without both members; says where.
    """
    if suite not in SUITES:
        raise SubzeroError(f"benchmark {suite!r}; allowed: {', '.join(SUITES)}.{near_miss(suite, SUITES)}")
    row = SUITES[suite]
    wanted = per_paradigm or row.per_paradigm
    if row.draw:
        if files:
            raise SubzeroError(f"benchmark {suite}: it is drawn, not read from files; for pairs of yours take 'pairs'")
        return row.draw(wanted, seed)
    if not files and row.rows is None:
        raise SubzeroError(f"benchmark {suite}: needs files of pairs")
    paradigms: dict[str, list[dict]] = {}
    for number, (name, place, found) in enumerate(_file_rows(pair_files(files)) if files else row.rows()):
        item = {"item": number} | _item(found, place)
        item["paradigm"] = item["paradigm"] or name
        item["phenomenon"] = item["phenomenon"] or row.phenomenon(item["paradigm"])
        if text == "sentence":
            item |= {member: _sentence(item[member]) for member in ("good", "bad", "intrusive")}
        paradigms.setdefault(item["paradigm"], []).append(item)
    if not paradigms:
        raise SubzeroError(f"benchmark {suite}: no pairs in {', '.join(map(str, files))}")
    items = [item for part in paradigms.values() for item in _sample(part, wanted, seed)]
    return pl.DataFrame(items, schema={name: column.dtype for name, column in ITEMS.items()})


def _item(row: Mapping, place: str) -> dict:
    """A published row with our names; what it does not have is None."""
    item = {}
    for field, names in _FIELDS.items():
        value = next((row[name] for name in names if name in row), None)
        if field in ("good", "bad") and not value:
            there = ", ".join(map(str, row)) if isinstance(row, Mapping) else type(row).__name__
            raise SubzeroError(f"{place}: no {' or '.join(map(repr, names))} in it; it has {there}")
        if not isinstance(value, str | None):
            raise SubzeroError(f"{place}: {field} is {value!r}; needed: text")
        item[field] = value or None
    return item


def _sentence(text: str | None) -> str | None:
    if text is None:
        return None
    return text[0].upper() + text[1:] + ("" if text[-1] in ".?!" else ".")


def _sample(items: list[dict], count: int | None, seed: int) -> list[dict]:
    """As many of a paradigm's items, of each condition alike, in their order."""
    if count is None or count >= len(items):
        return items
    drawn, placed = Counter(), []
    draw = random.Random(f"{seed}/{items[0]['paradigm']}")
    for place, item in enumerate(draw.sample(items, len(items))):
        placed.append((drawn[item["condition"]], place, item))
        drawn[item["condition"]] += 1
    return sorted((item for *_, item in sorted(placed)[:count]), key=itemgetter("item"))
