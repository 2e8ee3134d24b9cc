"""Scores: log-probabilities of sentences and surprisal of running text, in nats.

The logits, of whatever type a model has, are turned to float32 before the log-softmax: in bfloat16 the members of a
pair tie.

A sentence's context follows the tokenizer's own rule. With BOS every token is scored; without, the first has no context
and is not:

    BOS The cats sleep .     scored: The cats sleep .
        The cats sleep .     scored:     cats sleep .
"""

from collections.abc import Callable, Sequence

import numpy as np
import polars as pl

from subzero.artifacts import Column
from subzero.batches import in_batches, padded
from subzero.errors import SubzeroError
from subzero.models import context_length, model_inputs

SURPRISALS = {
    "window": Column(pl.Int32(), "number of the window in the text, from 0"),
    "position": Column(pl.Int32(), "place in the window, from 0; the first token has no context and is not predicted"),
    "start": Column(pl.Int64(), "where the token begins in the text", "characters"),
    "end": Column(pl.Int64(), "where the token ends in the text", "characters"),
    "token": Column(pl.Int32(), "token id"),
    "surprisal": Column(pl.Float32(), "minus log-probability given the window so far", "nats"),
}
PAIR_SCORES = {
    "item": Column(pl.Int32(), "number of the pair in its benchmark, from 0"),
    "paradigm": Column(pl.String(), "paradigm"),
    "phenomenon": Column(pl.String(), "phenomenon that the paradigm belongs to"),
    "good_sum": Column(
        pl.Float64(), "log-probability of the grammatical member, summed over its scored tokens", "nats"
    ),
    "bad_sum": Column(pl.Float64(), "the same of the ungrammatical member", "nats"),
    "intrusive_sum": Column(pl.Float64(), "the same of the intrusive member; mostly null", "nats"),
    "good_tokens": Column(pl.Int32(), "scored tokens of the grammatical member", "tokens"),
    "bad_tokens": Column(pl.Int32(), "scored tokens of the ungrammatical member", "tokens"),
    "intrusive_tokens": Column(pl.Int32(), "scored tokens of the intrusive member; mostly null", "tokens"),
    "margin_sum": Column(pl.Float64(), "good less bad, summed over tokens; correct above 0, a tie is not", "nats"),
    "margin_mean": Column(pl.Float64(), "good less bad, mean over tokens; null where nothing is scored", "nats"),
    "unscored_difference": Column(pl.Boolean(), "the members differ in a first token that has no context"),
}


def token_logprobs(logits, targets):
    """Log-probability of each target.

    Args:
        logits: (..., vocabulary) tensor of any floating type.
        targets: (...) tensor of token ids.

    Returns:
        (...) float32 tensor, nats.
    """
    logits = logits.float()
    return logits.gather(-1, targets[..., None])[..., 0] - logits.logsumexp(-1)


def perplexity(surprisals: np.ndarray) -> float:
    """exp of the mean surprisal over tokens truly predicted (not over windows).

    Four tokens at 2 nats and one at 5 give exp(13 / 5) = 13.464.
    """
    return float(np.exp(np.mean(surprisals, dtype=np.float64)))


def window_surprisals(
    model, windows: pl.DataFrame, batch_tokens: int = 2048, advance: Callable[[int], None] = lambda count: None
) -> pl.DataFrame:
    """Surprisal of every token of windows but the first of each, which has no context, and special ones.

    Args:
        model: a transformers model.
        windows: columns as in tokens.WINDOWS.
        batch_tokens: tokens a forward pass (at least one window).
        advance: told the number of tokens each time some are done.

    Returns:
        a frame with the columns of SURPRISALS.
    """
    import torch

    tokens = windows["token"].to_list()
    lengths = [len(window) for window in tokens]
    surprisals: list[np.ndarray] = [np.empty(0)] * len(tokens)

    def run(batch):
        ids, real = padded(tokens[batch])
        inputs = model_inputs(model, ids, real)
        found = []
        with torch.inference_mode():
            logits = model(**inputs).logits
            # a window at a time: float32 logits of a whole batch would be its largest tensor by far
            for row, length in enumerate(lengths[batch]):
                following = inputs["input_ids"][row, 1:length].to(logits.device)
                found.append(-token_logprobs(logits[row, : length - 1], following).cpu().numpy())
        surprisals[batch] = found
        advance(sum(lengths[batch]))

    in_batches(lengths, batch_tokens, run)
    return (
        windows.with_columns(position=pl.int_ranges(pl.col("token").list.len()))
        .explode("token", "start", "end", "special", "position")
        .filter(pl.col("position") > 0)
        .with_columns(surprisal=pl.Series(np.concatenate(surprisals)))
        .filter(~pl.col("special"))
        .select(pl.col(name).cast(column.dtype) for name, column in SURPRISALS.items())
    )


def sentence_scores(
    model,
    tokenizer,
    sentences: Sequence[str],
    batch_tokens: int = 1024,
    advance: Callable[[int], None] = lambda count: None,
) -> pl.DataFrame:
    """Summed log-probability of sentences.

    Each distinct beginning (a sentence without its last token) runs once, in batches sorted by length and padded on the
    right, where a causal model cannot see the padding.

    Args:
        model: a causal transformers model.
        tokenizer: its tokenizer; special tokens as it adds them, but none after a sentence.
        sentences: any number, in any order, repeated or not.
        batch_tokens: tokens a forward pass, padding included (at least one sentence).
        advance: told the number of sentences each time some are done.

    Returns:
        a frame in the order of `sentences`: sum (nats, 0 for a sentence with no scored token), tokens (scored), first
        (the first token's id where it is not scored, else null).

    Raises:
        SubzeroError: a sentence without tokens, or longer than the model's context.
    """
    import torch

    encoded, context = _encode(tokenizer, sentences)
    limit = context_length(model.config)
    for sentence, ids in zip(sentences, encoded, strict=True):
        if not ids or (limit and len(ids) > limit):
            raise SubzeroError(f"sentence {sentence[:60]!r}: {len(ids)} tokens; allowed: 1 to {limit}")
    waiting: dict[tuple[int, ...], list[int]] = {}
    for number, ids in enumerate(encoded):
        waiting.setdefault(tuple(ids[:-1]), []).append(number)
    beginnings = sorted(waiting, key=len)
    sums = np.zeros(len(encoded))

    def run(batch):
        ids, real = padded(beginnings[batch])
        if ids.size:
            with torch.inference_mode():
                logits = model(**model_inputs(model, ids, real)).logits.float()
                logprobs = logits - logits.logsumexp(-1, keepdim=True)
            for row, beginning in enumerate(beginnings[batch]):
                for number in waiting[beginning]:
                    following = torch.tensor(encoded[number][1:], dtype=torch.long, device=logprobs.device)
                    scored = logprobs[row, : len(beginning)].gather(1, following[:, None])
                    sums[number] = scored.double().sum().item()
        advance(sum(len(waiting[beginning]) for beginning in beginnings[batch]))

    in_batches([len(beginning) for beginning in beginnings], batch_tokens, run)
    return pl.DataFrame(
        {
            "sum": sums,
            "tokens": [len(ids) - 1 for ids in encoded],
            "first": [None if context else ids[0] for ids in encoded],
        },
        schema={"sum": pl.Float64, "tokens": pl.Int32, "first": pl.Int32},
    )


def _encode(tokenizer, sentences: Sequence[str]) -> tuple[list[list[int]], bool]:
    """Token ids with the tokenizer's own BOS and no end token, and whether there is a BOS."""
    special = tokenizer("")["input_ids"]
    context = bool(special) and special[0] == tokenizer.bos_token_id
    encoded = tokenizer(list(sentences), add_special_tokens=False, verbose=False)["input_ids"]
    return [[tokenizer.bos_token_id, *ids] if context else list(ids) for ids in encoded], context


def pair_scores(items: pl.DataFrame, model, tokenizer, batch_tokens: int = 1024, advance=lambda n: None):
    """All members of every minimal pair, scored. What decides, sum or mean, is for the summary to choose.

    Args:
        items: columns item, paradigm, phenomenon, good, bad, intrusive (null where there is none).
        model, tokenizer, batch_tokens, advance: as in `sentence_scores`.

    Returns:
        a frame with the columns of PAIR_SCORES.
    """
    members = pl.concat(
        items.select("item", sentence=member, member=pl.lit(member)) for member in ("good", "bad", "intrusive")
    ).drop_nulls("sentence")
    scores = sentence_scores(model, tokenizer, members["sentence"].to_list(), batch_tokens, advance)
    scored = pl.concat([members, scores], how="horizontal")
    frame = items.select("item", "paradigm", "phenomenon")
    for member in ("good", "bad", "intrusive"):
        rows = scored.filter(pl.col("member") == member).drop("sentence", "member")
        named = rows.rename({name: f"{member}_{name}" for name in scores.columns})
        frame = frame.join(named, on="item", how="left", validate="1:1", maintain_order="left")
    mean = {member: pl.col(f"{member}_sum") / pl.col(f"{member}_tokens") for member in ("good", "bad")}
    return frame.with_columns(
        margin_sum=pl.col("good_sum") - pl.col("bad_sum"),
        margin_mean=pl.when(pl.min_horizontal("good_tokens", "bad_tokens") > 0).then(mean["good"] - mean["bad"]),
        unscored_difference=(pl.col("good_first") != pl.col("bad_first")).fill_null(False),
    ).select(pl.col(name).cast(column.dtype) for name, column in PAIR_SCORES.items())
