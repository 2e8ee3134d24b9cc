"""Interventions: an operation on the pre-activations of chosen neurons, while a model runs.

An operation is one row of OPS: a function that gets the chosen columns and returns their new values.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import polars as pl

from subzero.errors import SubzeroError, near_miss
from subzero.models import FAMILIES, neuron_counts, projections


@dataclass(frozen=True)
class Op:
    """An operation.

    function: (a, **constants) -> a', tensors (..., neuron) of just the chosen neurons; it may work in place on `a`.
    description: for tables and captions.
    constants: columns of the statistics that it needs, each given as a tensor (neuron,).
    """

    function: Callable
    description: str
    constants: tuple[str, ...] = ()


def clamp_negative(a):
    """a' = max(a, 0). Source: arXiv 2509.24198, the paper's intervention."""
    return a.clamp_(min=0)


OPS = {
    "neg": Op(clamp_negative, "negative pre-activations set to 0"),
}


def operation(name: str) -> Op:
    """The row of an operation.

    Raises:
        SubzeroError: there is none.
    """
    if name not in OPS:
        raise SubzeroError(f"op {name!r}; allowed: {', '.join(OPS)}.{near_miss(name, OPS)}")
    return OPS[name]


@contextmanager
def intervene(
    model,
    family: str,
    neurons: pl.DataFrame,
    op: str,
    layers: Sequence[int] | None = None,
    constants: Mapping[str, np.ndarray] | None = None,
) -> Iterator[None]:
    """Inside the block, a model runs with `op` on the pre-activations of `neurons`; after it, as it was before.

    The columns are gathered, changed and put back in place; the tensor is not copied, and layers without chosen
    neurons have no hook. The hooks go when the block ends, also by an exception.

    Args:
        model: a transformers model.
        family: its key in FAMILIES.
        neurons: columns layer, neuron, both from 0.
        op: a key of OPS.
        layers: the layers to change; None: all.
        constants: for ops that need them, name -> one value for each row of `neurons`.

    Raises:
        SubzeroError: no such op, or a neuron that the model has not.
    """
    import torch

    row = operation(op)
    places, counts = projections(model, FAMILIES[family]), neuron_counts(model, FAMILIES[family])
    missing = set(row.constants) - set(constants or {})
    if missing:
        raise SubzeroError(f"op {op!r} needs constants {sorted(missing)}")
    numbered = neurons.with_row_index("row")
    handles = []

    def hook_of(index, values):
        def hook(module, inputs, output):
            changed = row.function(output.index_select(-1, index), **values)
            output.index_copy_(-1, index, changed)

        return hook

    try:
        for (layer,), chosen in numbered.group_by("layer", maintain_order=True):
            if layers is not None and layer not in layers:
                continue
            columns = chosen["neuron"].to_numpy(writable=True)
            if not 0 <= layer < len(places) or columns.min() < 0 or columns.max() >= counts[layer]:
                raise SubzeroError(f"layer {layer}, neurons up to {columns.max()}: the model has no such neurons")
            weight = places[layer].weight
            index = torch.as_tensor(columns, dtype=torch.long, device=weight.device)
            values = {
                name: torch.as_tensor(
                    constants[name][chosen["row"].to_numpy()], dtype=weight.dtype, device=weight.device
                )
                for name in row.constants
            }
            handles.append(places[layer].register_forward_hook(hook_of(index, values)))
        yield
    finally:
        for handle in handles:
            handle.remove()
