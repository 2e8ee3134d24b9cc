"""Batches: how many tokens go through a model at once, from a budget of memory, and what happens if it was too much."""

import gc
import sys
from collections.abc import Callable, Sequence

import numpy as np

from subzero.errors import SubzeroError

MOST_TOKENS = {"cpu": 2048, "cuda": 65536, "mps": 8192}  # larger batches are no faster
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def check_memory(model: dict, memory: int, device: str) -> None:
    """Refuse, before it is loaded, a model whose weights alone take more than the budget.

    Args:
        model: the contents of model.json.
        memory: megabytes that may be used.
        device: where it would run; on cuda its weights are not in the budget.

    Raises:
        SubzeroError: says what is needed.
    """
    import torch

    if device.startswith("cuda") or (device == "auto" and torch.cuda.is_available()):
        return
    weights = model["parameters"] * BYTES[model["dtype"]] / 1e6
    if weights > 0.9 * memory:
        raise SubzeroError(
            f"memory is {memory} MB, and the weights of {model['source']} alone take {weights:,.0f} MB in "
            f"{model['dtype']}; allow it at least {1.25 * weights:.0f} with --config memory={1.25 * weights:.0f}"
        )


def room(model, memory: int) -> float:
    """Bytes of the memory that a loaded model leaves, a fifth kept back; on cuda its weights are elsewhere.

    Args:
        model: the model, loaded.
        memory: megabytes that may be used.
    """
    weights = sum(p.numel() * p.element_size() for p in model.parameters() if p.device.type != "cuda")
    return 0.8 * memory * 1e6 - weights


def batch_tokens(model, described: dict, memory: int, scored: bool, share: float = 1.0) -> int:
    """Tokens a forward pass, padding included.

    Counted are the values of a token that are alive at once: a block's own, for extraction the pre-activations of all
    layers in float32, for scoring the logits in the model's type and in float32 (with the copy that the softmax takes).

    Args:
        model: the model, loaded.
        described: the contents of model.json.
        memory: megabytes that may be used; on cuda what is free on the device counts instead.
        scored: whether logits are needed.
        share: of what the weights leave, what a forward pass may take.
    """
    import torch

    size = model.dtype.itemsize
    if model.device.type == "cuda":
        left = 0.8 * min(torch.cuda.mem_get_info(n)[0] for n in range(torch.cuda.device_count()))
    else:
        left = share * room(model, memory)
    block = size * (12 * described["width"] + 4 * max(described["neurons"]))
    kept = described["vocabulary"] * (size + 8) if scored else 4 * sum(described["neurons"])
    return int(min(MOST_TOKENS.get(model.device.type, 2048), max(1, left // (block + kept))))


def in_batches(lengths: Sequence[int], tokens: int, run: Callable[[slice], None]) -> None:
    """Run consecutive slices of texts as batches; a batch that is too large for the memory is halved.

    Args:
        lengths: tokens of each text.
        tokens: the most tokens a batch, padded to its longest text (at least one text).
        run: runs one batch; where it fails it must have kept nothing.

    Raises:
        SubzeroError: one text alone is too large.
    """
    start = 0
    while start < len(lengths):
        stop, longest = start + 1, lengths[start]
        while stop < len(lengths) and (stop + 1 - start) * max(longest, lengths[stop]) <= tokens:
            longest = max(longest, lengths[stop])
            stop += 1
        failed = None
        try:
            run(slice(start, stop))
        except (MemoryError, RuntimeError) as error:
            if not _out_of_memory(error):
                raise
            if stop - start == 1:
                raise SubzeroError(
                    f"out of memory with one text of {longest} tokens; "
                    "take shorter windows, a smaller dtype or a larger device"
                ) from error
            failed = type(error).__name__
        if failed is None:
            start = stop
        else:  # outside of the handler, whose traceback holds the tensors of the failed batch
            tokens = (stop - start) * longest // 2
            print(f"out of memory ({failed}): going on with batches of {tokens:,} tokens", file=sys.stderr, flush=True)
            _free()


def _out_of_memory(error: Exception) -> bool:
    """Whether a device or the allocator ran out; torch raises a plain RuntimeError for the CPU's memory."""
    import torch

    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _free() -> None:
    """Give freed memory back to the device."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def padded(rows: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Rows of different lengths as one array, padded behind with zeros.

    Returns:
        (row, position) int64, and the same in bool: where there is a value.
    """
    lengths = np.array([len(row) for row in rows])
    real = np.arange(lengths.max(initial=0))[None, :] < lengths[:, None]
    array = np.zeros(real.shape, dtype=np.int64)
    array[real] = np.concatenate([np.asarray(row, dtype=np.int64) for row in rows]) if len(rows) else []
    return array, real
