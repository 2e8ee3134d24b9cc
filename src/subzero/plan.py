"""Plans: what a configuration costs, counted before anything of it is here."""

from collections.abc import Mapping

import polars as pl

from subzero.batches import BYTES
from subzero.benchmarks import SUITES, read_items
from subzero.configuration import interventions

WHOLE_CORPUS = 300_000  # tokens taken for a corpus used whole: WikiText-2 test and validation have 250,000 to 300,000
SENTENCE = 10  # tokens of a minimal pair's member, about


def forward_tokens(config: Mapping, whole: int = WHOLE_CORPUS) -> int:
    """Tokens through a model for one revision: extraction, then the evaluations of every intervention.

    Args:
        config: as `configuration.check` gives it.
        whole: tokens of a corpus that is used whole.
    """
    selection, evaluation = config["selection"], config["evaluation"]
    text = evaluation["perplexity"]
    length = text["windows"] * text["window"] if text["windows"] else whole
    sentences = sum(2 * _pairs(entry) for entry in evaluation["benchmarks"].values())
    extracted = config["statistics"]["tokens"] or whole
    everything, headline = (interventions(config, f) for f in (selection["fractions"], [selection["headline"]]))
    return extracted + length * len(everything) + sentences * SENTENCE * len(headline)


def _pairs(entry: Mapping) -> int:
    """Pairs of a benchmark; those that would be fetched are counted as they are published."""
    if SUITES[entry["source"]].published and not entry["files"]:
        return sum(min(count, entry["per_paradigm"] or count) for count in SUITES[entry["source"]].published)
    return read_items(*(entry[key] for key in ("source", "files", "per_paradigm", "seed"))).height


def jobs(config: Mapping) -> int:
    """Jobs of one revision of a model: those that name it in their outputs' paths."""
    selection, evaluation = config["selection"], config["evaluation"]
    tables = len(selection["fractions"]) + len(selection["files"])
    model_tokenize_extract_statistics = 1 + 2 + 1 + 1 - (config["statistics"]["store"] in ("fused", "sketch"))
    return model_tokenize_extract_statistics + tables + 2 * (1 + len(evaluation["benchmarks"]))


def plan(config: Mapping, sizes: Mapping[str, Mapping | None], rate: float, whole: int = WHOLE_CORPUS) -> pl.DataFrame:
    """What each model costs, all its revisions together.

    A forward pass of a token takes two floating-point operations a parameter; attention is not counted.

    Args:
        config: as `configuration.check` gives it.
        sizes: model -> parameters, layers, neurons (of a layer); None where they are not known.
        rate: floating-point operations a second that a forward pass reaches.
        whole: tokens of a corpus that is used whole.

    Returns:
        columns model, revisions, forward_tokens, disk_bytes (pre-activations and weights), memory_bytes (weights and
        a quarter of them for work), jobs, seconds; what needs a size that is not known is null.
    """
    tokens, extracted = forward_tokens(config, whole), config["statistics"]["tokens"] or whole
    rows = []
    for name, model in config["models"].items():
        revisions, size = len(model["revisions"]), sizes[name]
        row = {
            "model": name,
            "revisions": revisions,
            "forward_tokens": tokens * revisions,
            "jobs": jobs(config) * revisions,
        }
        if size:
            weights = size["parameters"] * BYTES.get(model["dtype"], 4)
            kept = config["statistics"]["store"] in ("full", "temp")
            activations = kept * BYTES[config["statistics"]["precision"]] * extracted * size["layers"] * size["neurons"]
            row |= {
                "disk_bytes": (activations + weights) * revisions,
                "memory_bytes": weights * 5 // 4,
                "seconds": 2 * size["parameters"] * tokens * revisions / rate,
            }
        rows.append(row)
    whole_numbers = ("revisions", "forward_tokens", "disk_bytes", "memory_bytes", "jobs")
    return pl.DataFrame(
        rows, schema={"model": pl.String, **dict.fromkeys(whole_numbers, pl.Int64), "seconds": pl.Float64}
    )


def measured_rate() -> float:
    """Floating-point operations a second of this machine: the best of a few float32 matrix products, all cores."""
    import time

    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    size = 8192 if device == "cuda" else 2048
    a, best = torch.randn(size, size, device=device), float("inf")
    for _ in range(5):
        start = time.perf_counter()
        (a @ a)[0, 0].item()
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best
