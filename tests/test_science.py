"""The paper's first result on a real model: clamping the neurons of highest WD hurts far more than random ones."""

import re

import numpy as np
import pytest

from subzero.activations import extract
from subzero.corpora import half, read_documents
from subzero.interventions import intervene
from subzero.scoring import perplexity, window_surprisals
from subzero.selection import random, ranked
from subzero.statistics import corpus_statistics
from subzero.tokens import windows

SEEDS = 3


def rises(smollm2, statistics_text, evaluation_text, folder, provenance):
    """Rise of perplexity with the top 1 % by WD clamped, and the mean rise over random draws of as many."""
    model, tokenizer, _ = smollm2
    extract(model, "llama", windows([statistics_text], tokenizer, 512, 16), folder / "a.zarr", provenance)
    neurons = corpus_statistics(folder / "a.zarr", threads=2)
    assert neurons["wd"].null_count() == 0
    cut = windows([evaluation_text], tokenizer, 512, 6)

    def measured(chosen=None):
        if chosen is None:
            return perplexity(window_surprisals(model, cut)["surprisal"].to_numpy())
        with intervene(model, "llama", chosen, "neg"):
            return perplexity(window_surprisals(model, cut)["surprisal"].to_numpy())

    start = measured()
    top = measured(ranked(neurons, "wd", "top", "0.01")) - start
    draws = [measured(random(neurons, "0.01", seed)) - start for seed in range(SEEDS)]
    assert measured() == start
    return start, top, float(np.mean(draws))


def test_on_wikitext2(smollm2, shared_data, tmp_path, provenance):
    """As in the issue: WikiText-2 test; statistics from its first articles, perplexity from the others."""
    text = (shared_data / "wikitext2" / "wiki.test.raw").read_text(encoding="utf-8")
    middle = re.compile(r"^ = [^=]+ = $", re.MULTILINE).search(text, len(text) // 2).start()  # where an article begins
    start, top, drawn = rises(smollm2, text[:middle], text[middle:], tmp_path, provenance)
    assert 15 < start < 45
    assert top > 5 * drawn
    assert top > 1


def test_on_the_embedded_wikipedia(smollm2, tmp_path, provenance):
    documents = read_documents("wikipedia-sample")
    parts = ["\n\n".join(half(documents, name)["text"]) for name in ("statistics", "evaluation")]
    start, top, drawn = rises(smollm2, *parts, tmp_path, provenance)
    assert start == pytest.approx(19, abs=4)
    assert top > 5 * drawn
