"""A GPU against the CPU: the same captured values, WD, interventions and scores; and how fast each step is there.

The model is SmolLM2-135M's shape with random weights, the text is the built-in grammar's, the tokenizer is trained on
it: nothing is fetched. Rates are printed beside that of the peer, the bare forward pass on the same device, type and
tokens. A difference beyond its bound is an error. See benchmarks/gpu.sh.

    python benchmarks/gpu.py [--device cuda] [--layers 30] [--windows 64]
"""

import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import numpy as np
import polars as pl
import torch
import typer

from subzero.activations import extract, forward_rows
from subzero.artifacts import provenance
from subzero.grammar import minimal_pairs
from subzero.interventions import intervene
from subzero.models import FAMILIES
from subzero.scoring import pair_scores, sentence_scores, window_surprisals
from subzero.selection import ranked
from subzero.statistics import corpus_statistics, neuron_statistics, statistics_frame
from subzero.tokens import windows as cut

WINDOW = 512
BATCH = {"cuda": 8192, "cpu": 2048}  # tokens a forward pass


def make_tokenizer(sentences):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=["<s>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(sentences, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>")


def make_model(layers: int):
    from transformers import AutoModelForCausalLM, LlamaConfig

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=layers,
        num_attention_heads=9,
        num_key_value_heads=3,
        tie_word_embeddings=True,
        initializer_range=0.04,
    )
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


class Checks:
    """Differences and their bounds; what is beyond is remembered."""

    def __init__(self):
        self.failed = []

    def __call__(self, what: str, difference: float, bound: float) -> None:
        good = difference <= bound
        print(f"{'ok  ' if good else 'BAD '} {what}: {difference:.2e} (bound {bound:.0e})", flush=True)
        self.failed += [] if good else [what]


def seconds(device: str, run) -> float:
    """Of the second of two runs, the device's queue emptied."""
    for _ in range(2):
        start = time.perf_counter()
        run()
        if device == "cuda":
            torch.cuda.synchronize()
    return time.perf_counter() - start


def compare(check: Checks, cpu, gpu, tokenizer, windows: pl.DataFrame, pairs: pl.DataFrame) -> pl.DataFrame:
    """All that must agree, in float32; the neurons of highest WD for what follows."""
    row, tokens = FAMILIES["llama"], np.array(windows["token"].head(2).to_list())
    keep = np.ones(tokens.shape, dtype=bool)
    here, there = (forward_rows(model, row, tokens, keep) for model in (cpu, gpu))
    gap = max(np.abs(a - b).max() / a.std() for a, b in zip(here, there, strict=True))
    check("captured pre-activations, largest difference in standard deviations", gap, 1e-3)
    found = [[neuron_statistics(a.T) for a in side] for side in (here, there)]
    gap = max(np.abs(a["wd"] - b["wd"]).max() for a, b in zip(*found, strict=True))
    check("WD, largest difference", gap, 1e-3)
    frame = pl.concat(statistics_frame(layer, 0, values) for layer, values in enumerate(found[0]))
    chosen = ranked(frame, "wd", "top", "0.01")
    ids = torch.as_tensor(tokens[:1])

    def logits(model, around):
        with torch.inference_mode(), around:
            return model(ids.to(model.device), use_cache=False).logits.float().cpu()

    clamped = [logits(model, intervene(model, "llama", chosen, "neg")) for model in (cpu, gpu)]
    before, after = logits(gpu, nullcontext()), logits(gpu, nullcontext())
    check("logits of the clamped model", (clamped[0] - clamped[1]).abs().max().item(), 1e-2)
    check(
        "untouched logits before and after the clamp, which are the same bits", (before - after).abs().max().item(), 0
    )
    check("share of the clamp's effect that differs",
          ((clamped[0] - clamped[1]).norm() / (clamped[1] - before).norm()).item(), 1e-2)  # fmt: skip
    scores = [pair_scores(pairs, model, tokenizer)["good_sum"] for model in (cpu, gpu)]
    check("sentence scores, nats", (scores[0] - scores[1]).abs().max(), 1e-2)
    surprisals = [window_surprisals(model, windows.head(2))["surprisal"] for model in (cpu, gpu)]
    check("surprisals, nats", (surprisals[0] - surprisals[1]).abs().max(), 1e-2)
    return chosen


def rates(device: str, model, tokenizer, windows: pl.DataFrame, sentences: list[str], chosen: pl.DataFrame) -> None:
    """Print what each step reaches, and against the bare forward pass."""
    batch, count = BATCH[device], windows["token"].list.len().sum()
    ids = torch.as_tensor(np.array(windows["token"].to_list())).to(model.device)

    def forward(body):
        with torch.inference_mode():
            for part in ids.split(batch // WINDOW):
                body(input_ids=part, use_cache=False)

    dtype = str(model.dtype).removeprefix("torch.")
    bare = count / seconds(device, lambda: forward(model.base_model))
    full = count / seconds(device, lambda: forward(model))
    print(f"{dtype}: bare forward {bare:,.0f} tokens/s, with the vocabulary projection {full:,.0f}")

    def line(what, rate, peer, unit="tokens/s"):
        print(f"{dtype}: {what} {rate:,.0f} {unit}, {rate / peer:.2f} of the bare forward", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        path, made_of = Path(folder) / "a.zarr", provenance("benchmark", "by hand")
        took = seconds(device, lambda: extract(model, "llama", windows, path, made_of, batch))
        line("extraction to zarr", count / took, bare)
        neurons = chosen["layer"].n_unique() * 1536
        took = seconds(device, lambda: corpus_statistics(path, torch.get_num_threads()))
        print(f"{dtype}: statistics {neurons / took:,.0f} neurons/s of {count:,} tokens (on the CPU)", flush=True)

    def clamped():
        with intervene(model, "llama", chosen, "neg"):
            forward(model)

    line("clamped forward", count / seconds(device, clamped), full)
    line("perplexity", count / seconds(device, lambda: window_surprisals(model, windows, batch)), full)
    scored = sum(map(len, tokenizer(sentences)["input_ids"]))
    line("sentences, all their tokens counted,",
         scored / seconds(device, lambda: sentence_scores(model, tokenizer, sentences, batch)), full)  # fmt: skip


def main(
    device: Annotated[str, typer.Option(help="cuda; cpu only tries the script.")] = "cuda",
    layers: Annotated[int, typer.Option(help="Blocks.")] = 30,
    windows: Annotated[int, typer.Option(help=f"Windows of {WINDOW} tokens.")] = 64,
) -> None:
    """Print the comparison and the rates; exit status 1 if anything differs."""
    if device == "cuda" and not torch.cuda.is_available():
        sys.exit("no CUDA device is on this machine")
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}, {torch.get_num_threads()} threads", flush=True)
    pairs = minimal_pairs(30, 0)
    sentences = [*pairs["good"], *pairs["bad"]]
    tokenizer = make_tokenizer(sentences)
    text = [" ".join(sentences) + "\n"] * (1 + windows * WINDOW // 4000)
    frame = cut(text, tokenizer, WINDOW, windows)
    cpu, check = make_model(layers), Checks()
    gpu = make_model(layers).to(device)
    chosen = compare(check, cpu, gpu, tokenizer, frame, pairs.head(60))
    for dtype in (torch.float32, torch.bfloat16):
        rates(device, gpu.to(dtype), tokenizer, frame, sentences, chosen)
    if check.failed:
        sys.exit(f"differs: {'; '.join(check.failed)}")


if __name__ == "__main__":
    typer.run(main)
