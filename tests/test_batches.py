"""Batches follow from the memory, and a batch that was too large is halved: tried with memory that really runs out."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from subzero.batches import batch_tokens, check_memory, in_batches, padded
from subzero.errors import SubzeroError
from subzero.models import describe

# 8,192 tokens give 1.6 GB of logits; what may be taken beyond what is loaded is 0.6 GB
SCARCE = """
import resource, sys
import polars as pl
import torch
from transformers import AutoModelForCausalLM, LlamaConfig
from subzero.scoring import window_surprisals
from subzero.tokens import WINDOWS

torch.set_num_threads(1)
torch.manual_seed(0)
model = AutoModelForCausalLM.from_config(LlamaConfig(
    vocab_size=50_000, hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1)).eval()
tokens = torch.randint(0, 50_000, (128, 64)).tolist()
windows = pl.DataFrame(
    [{"window": n, "token": row, "start": range(64), "end": range(64), "special": [False] * 64}
     for n, row in enumerate(tokens)], schema={name: column.dtype for name, column in WINDOWS.items()})
few = window_surprisals(model, windows, 256)
now = next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmSize"))
resource.setrlimit(resource.RLIMIT_AS, (now + int(sys.argv[1]), now + int(sys.argv[1])))
told = []
many = window_surprisals(model, windows, 8192, told.append)
assert sum(told) == 8192, told
gap = (few["surprisal"] - many["surprisal"]).abs().max()
assert few.drop("surprisal").equals(many.drop("surprisal")) and gap < 1e-5, gap
"""


def scarce(room):
    return subprocess.run([sys.executable, "-c", SCARCE, str(room)], capture_output=True, text=True)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the limit is set by what Linux says is in use")
def test_memory_that_runs_out_halves_the_batches_and_says_so():
    ran = scarce(600_000_000)
    assert ran.returncode == 0, ran.stderr
    lines = [line for line in ran.stderr.splitlines() if "out of memory" in line]
    sizes = [int(re.search(r"batches of ([\d,]+) tokens", line)[1].replace(",", "")) for line in lines]
    assert sizes
    assert sizes == [8192 >> n for n in range(1, len(sizes) + 1)]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the limit is set by what Linux says is in use")
def test_one_text_that_is_too_large_is_an_error_that_says_what_to_do():
    ran = scarce(10_000_000)
    assert ran.returncode != 0
    assert "out of memory with one text of 64 tokens; take shorter windows" in ran.stderr


def test_other_errors_are_not_taken_for_memory():
    def run(batch):
        raise RuntimeError("hooks must fire once a layer")

    with pytest.raises(RuntimeError, match="hooks must fire"):
        in_batches([3, 3], 100, run)


@pytest.mark.parametrize(
    ("lengths", "tokens", "batches"),
    [
        ([4, 4, 4], 8, [(0, 2), (2, 3)]),
        ([4, 4, 4], 100, [(0, 3)]),
        ([4, 4, 4], 1, [(0, 1), (1, 2), (2, 3)]),  # at least one text
        ([1, 1, 6, 6], 12, [(0, 2), (2, 4)]),  # padded: three texts to 6 would be 18
        ([], 8, []),
    ],
)
def test_a_batch_is_counted_with_its_padding(lengths, tokens, batches):
    found = []
    in_batches(lengths, tokens, lambda batch: found.append((batch.start, batch.stop)))
    assert found == batches


def test_padding_by_hand():
    ids, real = padded([[5, 6, 7], [8], []])
    assert ids.tolist() == [[5, 6, 7], [8, 0, 0], [0, 0, 0]]
    assert np.array_equal(real, [[1, 1, 1], [1, 0, 0], [0, 0, 0]])


def test_weights_beyond_the_budget_are_refused_before_they_are_loaded():
    model = {"parameters": 1_500_000_000, "dtype": "bfloat16", "source": "hub:a/x"}
    check_memory(model, 4000, "cpu")
    with pytest.raises(SubzeroError, match=r"2000 MB, and the weights of hub:a/x .* 3,000 MB .* --config memory=3750"):
        check_memory(model, 2000, "cpu")


def test_batches_shrink_with_the_memory(tiny, tiny_folders):
    model, _ = tiny()
    described = describe(tiny_folders(), "float32", "main", "path:x")
    sizes = [batch_tokens(model, described, memory, scored=True) for memory in (500, 10, 2, 1)]
    assert sizes[0] == 2048
    assert sizes == sorted(sizes, reverse=True)
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    a_token = 4 * (12 * 32 + 4 * 40) + 400 * (4 + 8)  # a block's own values, and logits twice with the softmax's copy
    assert sizes[-1] == (0.8e6 - weights) // a_token
    assert batch_tokens(model, described, 0, scored=True) == 1
