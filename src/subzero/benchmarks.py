"""Benchmarks: what an intervened model is tried on. A benchmark is one row of BENCHMARKS.

A benchmark's name in paths is its key here, for perplexity followed by the corpus: minimal-pairs,
perplexity/wikipedia/evaluation.
"""

from collections.abc import Callable
from dataclasses import dataclass

import polars as pl

from subzero.artifacts import Schema
from subzero.grammar import ITEMS, minimal_pairs
from subzero.scoring import PAIR_SCORES, SURPRISALS, pair_scores, window_surprisals
from subzero.tokens import WINDOWS


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


def _score_pairs_by_sum(items, model, tokenizer, batch_tokens, advance):
    return pair_scores(items, "sum", model, tokenizer, batch_tokens, advance)


def _score_windows(items, model, tokenizer, batch_tokens, advance):
    return window_surprisals(model, items, batch_tokens, advance)


BENCHMARKS = {
    "minimal-pairs": Benchmark(
        items=ITEMS,
        scores=PAIR_SCORES,
        score=_score_pairs_by_sum,
        work=lambda items: 2 * items.height,
        unit="sentences",
    ),
    "perplexity": Benchmark(
        items=WINDOWS,
        scores=SURPRISALS,
        score=_score_windows,
        work=lambda items: int(items["token"].list.len().sum()),
        unit="tokens",
    ),
}

# Beside the rows and not in them: how pairs are drawn does not matter to a model that scores them.
DRAWS = {
    "minimal-pairs": minimal_pairs
}  # key: as in BENCHMARKS; (per_paradigm, seed) -> frame with the columns of ITEMS
