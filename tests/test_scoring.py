"""Scores against plain forward passes of one sentence or window, and by hand."""

import math

import numpy as np
import polars as pl
import pytest
import torch

from subzero.errors import SubzeroError
from subzero.scoring import PAIR_SCORES, pair_scores, perplexity, sentence_scores, token_logprobs, window_surprisals
from subzero.tokens import windows

SENTENCES = [
    "The baker waits .",
    "The bakers waits .",
    "The baker waits on verbs ; most of them are quiet for most of the words in a sentence .",
    "Some",
    "The baker waits .",
]


def alone(model, tokenizer, sentence):
    """One sentence, one forward pass, float64 log-softmax: its scored tokens' log-probabilities."""
    ids = torch.tensor([tokenizer(sentence)["input_ids"]])
    with torch.inference_mode():
        logprobs = model(ids, use_cache=False).logits[0].double().log_softmax(-1)
    return [logprobs[i, ids[0, i + 1]].item() for i in range(ids.shape[1] - 1)]


def test_perplexity_is_over_tokens_and_not_over_windows():
    assert perplexity(np.array([2, 2, 2, 2, 5], dtype=np.float32)) == pytest.approx(13.464, abs=5e-4)


def test_log_probabilities_by_hand_and_in_float32():
    logits = torch.tensor([[0.0, math.log(3)]])
    assert token_logprobs(logits, torch.tensor([1])).item() == pytest.approx(math.log(0.75))
    rough = torch.tensor([[8.0, 7.9375]], dtype=torch.bfloat16)
    found = token_logprobs(rough, torch.tensor([0]))
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(-math.log(1 + math.exp(-0.0625)), abs=1e-6)


@pytest.mark.parametrize("family", ["llama", "gpt_neox"])
@pytest.mark.parametrize("bos", [False, True])
@pytest.mark.parametrize("batch", [1, 64, 4096])
def test_sums_equal_one_sentence_at_a_time(tiny, family, bos, batch):
    model, tokenizer = tiny(family, bos)
    found = sentence_scores(model, tokenizer, SENTENCES, batch)
    for sentence, row in zip(SENTENCES, found.iter_rows(named=True), strict=True):
        expected = alone(model, tokenizer, sentence)
        assert row["sum"] == pytest.approx(sum(expected), abs=1e-4)
        assert row["tokens"] == len(expected)
        assert (row["first"] is None) == bos


def test_order_and_company_do_not_matter_and_each_sentence_is_told_of_once(tiny):
    model, tokenizer = tiny()
    told = []
    forth = sentence_scores(model, tokenizer, SENTENCES, advance=told.append)["sum"]
    back = sentence_scores(model, tokenizer, SENTENCES[::-1])["sum"].reverse()
    assert forth.to_list() == pytest.approx(back.to_list(), abs=1e-5)
    assert sum(told) == len(SENTENCES)


def test_no_end_token_is_scored_and_bos_is_there_once(tiny):
    model, tokenizer = tiny(bos=True)
    ids = tokenizer("Some cells")["input_ids"]
    assert ids.count(tokenizer.bos_token_id) == 1
    assert sentence_scores(model, tokenizer, ["Some cells"])["tokens"].item() == len(ids) - 1


def test_a_difference_in_the_first_token_is_flagged_without_bos_and_counts_with_it(tiny):
    items = pl.DataFrame(
        {"item": [0, 1], "paradigm": ["p", "p"], "phenomenon": ["f", "f"], "good": ["Some wait", "Some wait"],
         "bad": ["Most wait", "Some waits"], "intrusive": [None, None]},
        schema_overrides={"item": pl.Int32, "intrusive": pl.String},
    )  # fmt: skip
    without = pair_scores(items, *tiny(bos=False))
    assert without["unscored_difference"].to_list() == [True, False]
    with_bos = pair_scores(items, *tiny(bos=True))
    assert with_bos["unscored_difference"].to_list() == [False, False]
    assert without.schema == {name: column.dtype for name, column in PAIR_SCORES.items()}


def test_margins_by_sum_and_by_mean_and_the_third_member(tiny):
    model, tokenizer = tiny(bos=True)
    items = pl.DataFrame(
        {"item": [0, 1], "paradigm": ["p", "p"], "phenomenon": ["f", "f"], "good": [SENTENCES[2], SENTENCES[0]],
         "bad": [SENTENCES[0], SENTENCES[0]], "intrusive": [None, SENTENCES[2]]},
        schema_overrides={"item": pl.Int32},
    )  # fmt: skip
    long, short = alone(model, tokenizer, SENTENCES[2]), alone(model, tokenizer, SENTENCES[0])
    found = pair_scores(items, model, tokenizer)
    assert found["margin_sum"].to_list() == [pytest.approx(sum(long) - sum(short), abs=1e-4), 0]
    assert found["margin_mean"].to_list() == [pytest.approx(np.mean(long) - np.mean(short), abs=1e-4), 0]
    assert found["intrusive_sum"].to_list() == [None, pytest.approx(sum(long), abs=1e-4)]
    assert found["intrusive_tokens"].to_list() == [None, len(long)]


def test_without_context_one_token_has_no_mean(tiny):
    items = pl.DataFrame(
        {"item": [0], "paradigm": ["p"], "phenomenon": ["f"], "good": ["S"], "bad": ["Some wait"],
         "intrusive": [None]},
        schema_overrides={"item": pl.Int32, "intrusive": pl.String},
    )  # fmt: skip
    found = pair_scores(items, *tiny(bos=False))
    assert found["good_tokens"].item() == 0
    assert found["margin_mean"].item() is None


def test_sentences_that_cannot_be_scored_are_refused(tiny):
    model, tokenizer = tiny()
    with pytest.raises(SubzeroError, match="0 tokens; allowed: 1 to 128"):
        sentence_scores(model, tokenizer, [""])
    with pytest.raises(SubzeroError, match="allowed: 1 to 128"):
        sentence_scores(model, tokenizer, ["The baker waits . " * 60])


@pytest.mark.parametrize("batch", [1, 64, 1024])
def test_window_surprisals_equal_a_plain_forward(tiny, batch):
    model, tokenizer = tiny(bos=True)
    text = "The baker waits . Some cells fire on commas , others on verbs . " * 6
    cut = windows([text], tokenizer, 16)
    found = window_surprisals(model, cut, batch)
    first = found.filter(pl.col("window") == 1)
    ids = torch.tensor([cut["token"].to_list()[1]])
    with torch.inference_mode():
        logprobs = model(ids, use_cache=False).logits[0].double().log_softmax(-1)
    expected = [-logprobs[i, ids[0, i + 1]].item() for i in range(15)]
    assert first["surprisal"].to_list() == pytest.approx(expected, abs=1e-4)
    assert first["position"].to_list() == list(range(1, 16))
    assert found.height == cut.height * 15
    for row in first.iter_rows(named=True):  # text from the source by offsets, never decoded
        assert text[row["start"] : row["end"]] == tokenizer.decode([row["token"]])


def test_real_sentences_equal_one_at_a_time(smollm2):
    model, tokenizer, _ = smollm2
    sentences = [
        "The keys to the cabinet are on the table.",
        "The keys to the cabinet is on the table.",
        "No one ever.",
    ]
    found = sentence_scores(model, tokenizer, sentences)
    for sentence, total in zip(sentences, found["sum"], strict=True):
        assert total == pytest.approx(sum(alone(model, tokenizer, sentence)), abs=1e-3)
    assert found["sum"][0] > found["sum"][1]
