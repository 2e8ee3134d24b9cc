"""The built-in grammar: minimal pairs drawn from templates and a lexicon that are data files beside this one.

A slot asks for a category and features. A word of the lexicon is an entry with one of its forms, so its features are
the entry's own and the value of the feature that the category inflects for:

    the {subject} {verb}   subject: noun, number A   verb: predicate, number A   contrast: [verb, number]
    A = plural             The bakers wait.          *The bakers waits.
"""

import itertools
import json
import random
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from pathlib import Path
from string import Formatter

import polars as pl
import yaml

from subzero.artifacts import Column
from subzero.errors import SubzeroError

FOLDER = Path(__file__).parent
BALANCED = "number"

ITEMS = {
    "item": Column(pl.Int32(), "number of the pair in its benchmark, from 0"),
    "paradigm": Column(pl.String(), "paradigm"),
    "phenomenon": Column(pl.String(), "phenomenon that the paradigm belongs to"),
    "field": Column(pl.String(), "field of linguistics, such as morphology; null where its benchmark has none"),
    "condition": Column(pl.String(), "values of the paradigm's variables, as A=plural,B=singular; mostly null"),
    "good": Column(pl.String(), "grammatical member"),
    "bad": Column(pl.String(), "ungrammatical member"),
    "intrusive": Column(pl.String(), "second ungrammatical member, its licensor in the wrong place; mostly null"),
}


@dataclass(frozen=True)
class Word:
    """A form of a lexicon's entry, with all its features."""

    text: str
    lemma: str
    features: dict = field(hash=False)


class Grammar:
    """Lexicon and paradigms, checked.

    Args:
        folder: holds lexicon.yaml and paradigms.yaml.

    Raises:
        SubzeroError: an unknown feature, value, category or slot, or a form that is missing; says where.
    """

    def __init__(self, folder: Path = FOLDER):
        self.folder = folder
        lexicon = yaml.safe_load((folder / "lexicon.yaml").read_text(encoding="utf-8"))
        self.features: dict[str, list] = lexicon["features"]
        self.words = {name: self._words(name, category) for name, category in lexicon["categories"].items()}
        self.paradigms = yaml.safe_load((folder / "paradigms.yaml").read_text(encoding="utf-8"))["paradigms"]
        for paradigm in self.paradigms:
            self._check(paradigm)

    def _words(self, name: str, category: dict) -> list[Word]:
        """All forms of a category's entries."""
        inflected = category.get("inflects")
        if inflected is not None and inflected not in self.features:
            raise SubzeroError(f"{self.folder}/lexicon.yaml: {name} inflects for {inflected!r}, not a feature")
        values = self.features[inflected] if inflected else ["form"]
        words = []
        for entry in category["entries"]:
            own = {k: v for k, v in entry.items() if k not in (*values, "lemma")}
            for value in values:
                if not isinstance(entry.get(value), str):
                    raise SubzeroError(f"{self.folder}/lexicon.yaml: {name} {entry['lemma']!r} has no form {value!r}")
                words.append(Word(entry[value], entry["lemma"], own | ({inflected: value} if inflected else {})))
            for feature, value in own.items():
                if feature in self.features and value not in self.features[feature]:
                    raise SubzeroError(f"{self.folder}/lexicon.yaml: {name} {entry['lemma']!r}: {feature} {value!r}")
        return words

    def _check(self, paradigm: dict) -> None:
        where = f"{self.folder}/paradigms.yaml: {paradigm.get('paradigm')}"
        used = [slot for _, slot, _, _ in Formatter().parse(paradigm["template"]) if slot]
        if sorted(used) != sorted(paradigm["slots"]):
            raise SubzeroError(f"{where}: template uses {sorted(used)}, slots are {sorted(paradigm['slots'])}")
        for slot, wanted in paradigm["slots"].items():
            if wanted["category"] not in self.words:
                raise SubzeroError(f"{where}: slot {slot} has unknown category {wanted['category']!r}")
        for binding in self.bindings(paradigm):
            for slot in used:
                if not self.candidates(paradigm, slot, binding):
                    raise SubzeroError(f"{where}: no word fits slot {slot} with {binding}")
        for slot, feature in [*paradigm["contrast"], *paradigm.get("intrusive", [])]:
            if slot not in used or feature not in self.features:
                raise SubzeroError(f"{where}: contrast [{slot}, {feature}] names no slot and feature")

    def bindings(self, paradigm: dict) -> list[dict[str, str]]:
        """Every assignment of values to a paradigm's balanced variables."""
        variables = sorted(
            {
                value
                for wanted in paradigm["slots"].values()
                for feature, value in wanted.items()
                if feature == BALANCED and value.isupper()
            }
        )
        return [
            dict(zip(variables, values, strict=True))
            for values in itertools.product(self.features[BALANCED], repeat=len(variables))
        ]

    def candidates(self, paradigm: dict, slot: str, binding: dict[str, str]) -> list[Word]:
        """The words that fit a slot; a variable that is not bound fits everything."""
        wanted = {k: binding.get(v, v) for k, v in paradigm["slots"][slot].items() if k != "category"}
        fixed = {k: v for k, v in wanted.items() if not v.isupper()}
        return [
            word
            for word in self.words[paradigm["slots"][slot]["category"]]
            if all(word.features.get(k) == v for k, v in fixed.items())
        ]

    def exchanged(self, paradigm: dict, slot: str, word: Word, feature: str) -> Word:
        """The form of a word's entry that differs in one feature alone."""
        wanted = word.features | {feature: next(v for v in self.features[feature] if v != word.features[feature])}
        category = self.words[paradigm["slots"][slot]["category"]]
        return next(w for w in category if w.lemma == word.lemma and w.features == wanted)

    def pairs(self, paradigm: dict, count: int, seed: int) -> list[dict]:
        """Distinct minimal pairs of a paradigm, balanced over its number variables.

        Args:
            paradigm: one of `paradigms`.
            count: pairs wanted.
            seed: of the draw; each paradigm has its own stream, so another paradigm changes nothing here.

        Raises:
            SubzeroError: the paradigm has not so many distinct pairs.
        """
        bindings, found = self.bindings(paradigm), {}
        draw = random.Random(f"{seed}/{paradigm['paradigm']}")
        slots = list(paradigm["slots"])
        for number in range(count):
            binding = bindings[number % len(bindings)]
            for _ in range(1000):
                words = {slot: draw.choice(self.candidates(paradigm, slot, binding)) for slot in slots}
                row = self._row(paradigm, words, binding)
                if not self._repeats(paradigm, words) and (row["good"], row["bad"]) not in found:
                    break
            else:
                raise SubzeroError(
                    f"paradigm {paradigm['paradigm']}: {count} pairs wanted; it has little more than {len(found)}"
                )
            found[row["good"], row["bad"]] = row
        return list(found.values())

    def _repeats(self, paradigm: dict, words: dict[str, Word]) -> bool:
        """Whether an entry stands twice in a sentence, although its category has others."""
        counts = Counter((paradigm["slots"][slot]["category"], word.lemma) for slot, word in words.items())
        return any(
            count > 1 and len({w.lemma for w in self.words[category]}) > 1 for (category, _), count in counts.items()
        )

    def _row(self, paradigm: dict, words: dict[str, Word], binding: dict[str, str]) -> dict:
        def member(contrasts) -> str:
            chosen = dict(words)
            for slot, feature in contrasts:
                chosen[slot] = self.exchanged(paradigm, slot, chosen[slot], feature)
            sentence = paradigm["template"].format(**{slot: word.text for slot, word in chosen.items()})
            return f"{sentence[0].upper()}{sentence[1:]}."

        return {
            "paradigm": paradigm["paradigm"],
            "phenomenon": paradigm["phenomenon"],
            "condition": ",".join(f"{name}={value}" for name, value in binding.items()),
            "good": member([]),
            "bad": member(paradigm["contrast"]),
            "intrusive": member(paradigm["intrusive"]) if "intrusive" in paradigm else None,
        }


def minimal_pairs(per_paradigm: int, seed: int, folder: Path = FOLDER) -> pl.DataFrame:
    """The built-in minimal pairs.

    Args:
        per_paradigm: pairs of each paradigm.
        seed: of the draw.
        folder: of the grammar's data files.

    Returns:
        a frame with the columns of ITEMS.
    """
    grammar = Grammar(folder)
    rows = [row for paradigm in grammar.paradigms for row in grammar.pairs(paradigm, per_paradigm, seed)]
    return pl.DataFrame(
        [{"item": number, **row} for number, row in enumerate(rows)], schema={n: c.dtype for n, c in ITEMS.items()}
    )


@cache
def grammar_hash(folder: Path = FOLDER) -> str:
    """A hash of the data files' content: their comments and layout do not count."""
    data = [yaml.safe_load((folder / name).read_text(encoding="utf-8")) for name in ("lexicon.yaml", "paradigms.yaml")]
    return sha256(json.dumps(data).encode()).hexdigest()[:16]
