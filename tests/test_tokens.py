import numpy as np
import pytest

from subzero.corpora import read_documents
from subzero.errors import SubzeroError
from subzero.tokens import TOKEN, tokenize, windows


@pytest.mark.parametrize("bos", [False, True])
def test_windows_are_cut_once_from_the_whole_text(tiny, bos):
    _, tokenizer = tiny(bos=bos)
    text = "Some cells fire on commas , others on verbs .\n\n" * 5
    ids = tokenizer(text)["input_ids"]
    found = windows([text], tokenizer, 8)
    assert found["window"].to_list() == list(range(len(ids) // 8))
    assert [t for row in found["token"] for t in row] == ids[: len(ids) // 8 * 8]
    special = [s for row in found["special"] for s in row]
    assert special == [bos] + [False] * (len(special) - 1)
    spans = zip(found["start"].explode(), found["end"].explode(), special, strict=True)
    assert "".join(text[a:b] for a, b, s in spans if not s) == text[: found["end"].explode()[-1]]


def test_fewer_windows_are_spread_evenly(tiny):
    _, tokenizer = tiny()
    text = "Some cells fire on commas , others on verbs . " * 40
    whole = windows([text], tokenizer, 8).height
    some = windows([text], tokenizer, 8, 4)
    assert some["window"].to_list() == [0, whole // 4, 2 * whole // 4, 3 * whole // 4]
    assert windows([text], tokenizer, 8, 10_000).height == whole
    with pytest.raises(SubzeroError, match="tokens; a window needs 100000"):
        windows([text], tokenizer, 100_000)


HARD = "naïve café 😀😀 \u200bZ\u0301 中文字符 \t\t  tabs\r\n\r\n" + "=" * 300 + " " * 300 + "é" * 40 + " don't 1234 "


@pytest.fixture(scope="session")
def long_text():
    return "\n\n".join(read_documents("wikipedia-sample")["text"].head(8)) + HARD * 20


@pytest.mark.parametrize("piece", [9_000, 50_000, 10_000_000])
def test_pieces_have_the_ids_of_the_whole(smollm2, long_text, piece):
    _, tokenizer, _ = smollm2
    whole = tokenizer(long_text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    found = tokenize(long_text, tokenizer, piece)
    assert found["token"].tolist() == whole["input_ids"]
    assert list(zip(found["start"], found["end"], strict=True)) == whole["offset_mapping"]


def test_pieces_that_never_agree_are_given_up_for_the_whole(tiny):
    _, tokenizer = tiny()
    text = "a" * 30_000  # tokens at different places of one long word never agree for certain
    found = tokenize(text, tokenizer, 9_000)
    assert found["token"].tolist() == tokenizer(text)["input_ids"]


def test_special_tokens_in_the_text_are_out_of_the_statistics(tiny):
    _, tokenizer = tiny()
    found = tokenize("The baker</s> waits .", tokenizer)
    assert found["special"].sum() == 1
    assert found["token"][found["special"]].tolist() == [tokenizer.eos_token_id]


TEXTS = ["The baker waits .", "Some cells fire on commas , others on verbs .", "The bakers wait ."]


def flat(frame):
    rows = frame.explode("token", "start", "end", "special")
    return [rows[name].to_list() for name in ("token", "start", "end", "special")]


@pytest.mark.parametrize("bos", [False, True])
def test_by_document_none_of_its_tokens_is_lost(tiny, bos):
    _, tokenizer = tiny(bos=bos)
    joined = "||".join(TEXTS)
    found = windows(TEXTS, tokenizer, 8, by="document", separator="||")
    token, start, end, special = flat(found)
    assert token == [number for text in TEXTS for number in tokenizer(text)["input_ids"]]
    assert sum(special) == len(TEXTS) * bos
    spans = [joined[a:b] for a, b, s in zip(start, end, special, strict=True) if not s]
    assert "".join(spans) == "".join(TEXTS)
    lengths = found["token"].list.len().to_list()
    assert max(lengths) == 8
    assert min(lengths) < 8


@pytest.mark.parametrize("by", ["stream", "document"])
def test_special_tokens_once_a_window(tiny, by):
    _, tokenizer = tiny(bos=True)
    found = windows(TEXTS, tokenizer, 8, by=by, special_tokens="window")
    assert all(row[0] == tokenizer.bos_token_id for row in found["token"].to_list())
    assert all(row == [True] + [False] * (len(row) - 1) for row in found["special"].to_list())
    texts = ["\n\n".join(TEXTS)] if by == "stream" else TEXTS
    own = [number for text in texts for number in tokenizer(text, add_special_tokens=False)["input_ids"]]
    token, _, _, special = flat(found)
    kept = [number for number, s in zip(token, special, strict=True) if not s]
    assert kept == (own if by == "document" else own[: len(own) // 7 * 7])


def test_special_tokens_behind_a_text_follow_the_tokenizers_rule(tiny):
    from tokenizers.processors import TemplateProcessing

    _, tokenizer = tiny()
    rule = TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)])
    tokenizer.backend_tokenizer.post_processor = rule
    found = windows(TEXTS, tokenizer, 8, by="document")
    assert flat(found)[0] == [number for text in TEXTS for number in tokenizer(text)["input_ids"]]
    assert all(row["special"].count(False) for row in found.iter_rows(named=True))
    with pytest.raises(SubzeroError, match="leave no room for text"):
        windows(TEXTS, tokenizer, 2, special_tokens="window")


def test_windows_of_a_text_without_tokens(tiny):
    _, tokenizer = tiny(bos=True)
    assert len(tokenize("", tokenizer)) == 0
    assert tokenize("", tokenizer).dtype == TOKEN
    found = windows(["", TEXTS[0]], tokenizer, 8, by="document")
    assert found.height == windows([TEXTS[0]], tokenizer, 8, by="document").height
    assert np.array_equal(found["start"].explode().to_numpy()[1:], np.array(flat(found)[1])[1:])
