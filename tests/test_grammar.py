from collections import Counter

import pytest
import yaml

from subzero.errors import SubzeroError
from subzero.grammar import FOLDER, ITEMS, Grammar, grammar_hash, minimal_pairs


@pytest.fixture(scope="module")
def pairs():
    return minimal_pairs(30, seed=0)


def test_every_paradigm_gives_as_many_distinct_pairs(pairs):
    counts = Counter(pairs["paradigm"])
    assert set(counts.values()) == {30}
    assert len(counts) == len(Grammar().paradigms) >= 20
    assert not pairs.select("paradigm", "good", "bad").is_duplicated().any()
    assert set(pairs["phenomenon"]) == {"agreement", "reflexive", "npi"}
    assert pairs.schema == {name: column.dtype for name, column in ITEMS.items()}
    assert pairs["item"].to_list() == list(range(pairs.height))


def test_the_members_of_a_pair_differ_in_what_the_paradigm_contrasts(pairs):
    for row in pairs.iter_rows(named=True):
        good, bad = row["good"].split(), row["bad"].split()
        differing = sum(g != b for g, b in zip(good, bad, strict=False)) + abs(len(good) - len(bad))
        assert row["good"] != row["bad"]
        if row["phenomenon"] != "npi":
            assert (len(good), differing) == (len(bad), 1), row


def test_sentences_are_sentences(pairs):
    for text in [*pairs["good"], *pairs["bad"], *pairs["intrusive"].drop_nulls()]:
        assert text[0].isupper()
        assert text.endswith(".")
        assert "  " not in text
        assert "{" not in text


def test_pairs_are_balanced_over_number(pairs):
    for paradigm in Grammar().paradigms:
        rows = pairs.filter(paradigm=paradigm["paradigm"])
        counts = Counter(rows["condition"])
        assert max(counts.values()) - min(counts.values()) <= 1


def test_agreement_by_eye(pairs):
    """The simple paradigm, checked with the regular inflection of English: a plural subject takes a bare verb."""
    for row in pairs.filter(paradigm="agreement-simple").iter_rows(named=True):
        _, subject, *_ = row["good"].split()
        plural = "plural" in row["condition"]
        if subject.endswith("s"):
            assert plural, row


def test_the_draw_is_by_seed_and_a_longer_one_begins_with_the_shorter():
    assert minimal_pairs(5, 1).equals(minimal_pairs(5, 1))
    assert not minimal_pairs(5, 1).equals(minimal_pairs(5, 2))
    short, long = minimal_pairs(5, 1), minimal_pairs(8, 1)
    assert short["good"].to_list()[:5] == long["good"].to_list()[:5]


def test_too_many_pairs_are_refused_by_paradigm():
    with pytest.raises(SubzeroError, match=r"paradigm .*: 10000000 pairs wanted"):
        grammar = Grammar()
        grammar.pairs(min(grammar.paradigms, key=lambda p: len(p["slots"])), 10_000_000, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p["slots"]["subject"].update(category="nuon"), "slot subject has unknown category 'nuon'"),
        (lambda p: p.update(template="the {subject} {vreb}"), r"template uses \['subject', 'vreb'\]"),
        (lambda p: p["slots"]["subject"].update(animacy="none"), "no word fits slot subject"),
        (lambda p: p.update(contrast=[["verb", "nubmer"]]), r"contrast \[verb, nubmer\] names no slot and feature"),
    ],
)
def test_a_mistake_in_the_data_files_is_named(tmp_path, change, message):
    for name in ("lexicon.yaml", "paradigms.yaml"):
        (tmp_path / name).write_text((FOLDER / name).read_text())
    data = yaml.safe_load((FOLDER / "paradigms.yaml").read_text())
    change(data["paradigms"][0])
    (tmp_path / "paradigms.yaml").write_text(yaml.safe_dump(data))
    with pytest.raises(SubzeroError, match=message):
        Grammar(tmp_path)


def test_comments_and_layout_of_the_data_files_do_not_change_their_hash(tmp_path):
    for name in ("lexicon.yaml", "paradigms.yaml"):
        text = (FOLDER / name).read_text()
        (tmp_path / name).write_text("# another comment\n" + yaml.safe_dump(yaml.safe_load(text), sort_keys=False))
    assert grammar_hash(tmp_path) == grammar_hash()
    other = (tmp_path / "lexicon.yaml").read_text().replace("baker", "miller")
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "lexicon.yaml").write_text(other)
    (folder / "paradigms.yaml").write_text((tmp_path / "paradigms.yaml").read_text())
    assert grammar_hash(folder) != grammar_hash()
