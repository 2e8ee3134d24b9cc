"""Interventions against forward passes written out by hand."""

import polars as pl
import pytest
import torch

from subzero.errors import SubzeroError
from subzero.interventions import OPS, Op, intervene, operation
from subzero.models import FAMILIES, projections
from subzero.statistics import STATISTICS

TOKENS = torch.randint(2, 400, (3, 12), generator=torch.Generator().manual_seed(0))
CHOSEN = pl.DataFrame({"layer": [0, 0, 2], "neuron": [3, 17, 39]})


def logits(model):
    with torch.inference_mode():
        return model(TOKENS, use_cache=False).logits.clone()


def by_hand(model, family, change):
    """The whole forward pass with `change(layer, a)` between each projection and its activation, without hooks.

    Attention, norms and embeddings are the model's own modules; the MLP is written out.
    """

    def mlp(layer, block):
        def forward(x):
            if family == "llama":
                a = change(layer, x @ block.gate_proj.weight.T)
                gated = a / (1 + torch.exp(-a)) * (x @ block.up_proj.weight.T)  # SiLU, up
                return gated @ block.down_proj.weight.T
            a = change(layer, x @ block.dense_h_to_4h.weight.T + block.dense_h_to_4h.bias)
            h = 0.5 * a * (1 + torch.erf(a / 2**0.5))  # GELU
            return h @ block.dense_4h_to_h.weight.T + block.dense_4h_to_h.bias

        return forward

    blocks = model.get_submodule(FAMILIES[family].blocks)
    original = [block.mlp.forward for block in blocks]
    for layer, block in enumerate(blocks):
        block.mlp.forward = mlp(layer, block.mlp)
    try:
        return logits(model)
    finally:
        for block, forward in zip(blocks, original, strict=True):
            block.mlp.forward = forward


def clamp_chosen(layer, a):
    a = a.clone()
    for chosen_layer, neuron in CHOSEN.iter_rows():
        if chosen_layer == layer:
            column = a[..., neuron]
            a[..., neuron] = torch.where(column > 0, column, torch.zeros_like(column))
    return a


@pytest.mark.parametrize("family", ["llama", "gpt_neox"])
def test_the_clamp_equals_a_hand_written_forward(tiny, family):
    model, _ = tiny(family)
    untouched = logits(model)
    torch.testing.assert_close(by_hand(model, family, lambda layer, a: a), untouched, atol=1e-5, rtol=1e-5)
    with intervene(model, family, CHOSEN, "neg"):
        found = logits(model)
    torch.testing.assert_close(found, by_hand(model, family, clamp_chosen), atol=1e-5, rtol=1e-5)
    assert (found - untouched).abs().max() > 1e-3


@pytest.mark.parametrize("family", ["llama", "gpt_neox"])
def test_only_the_negatives_of_the_chosen_neurons_change_and_in_place(tiny, family):
    model, _ = tiny(family)
    before, after = {}, {}
    places = projections(model, FAMILIES[family])
    handles = [p.register_forward_hook(lambda m, i, o, n=n: before.update({n: o})) for n, p in enumerate(places)]
    copies = [p.register_forward_hook(lambda m, i, o, n=n: after.update({n: o.clone()})) for n, p in enumerate(places)]
    logits(model)
    with intervene(model, family, CHOSEN, "neg"):
        logits(model)
    for handle in handles + copies:
        handle.remove()
    for layer, kept in after.items():  # `before` holds the tensors themselves, `after` copies from before the op ran
        chosen = CHOSEN.filter(layer=layer)["neuron"].to_list()
        rest = [n for n in range(40) if n not in chosen]
        assert torch.equal(before[layer][..., rest], kept[..., rest])
        assert torch.equal(before[layer][..., chosen], kept[..., chosen].clamp(min=0))


@pytest.mark.parametrize("family", ["llama", "gpt_neox"])
def test_the_untouched_model_is_bit_identical_before_and_after(tiny, family):
    model, _ = tiny(family)
    before = logits(model)
    with intervene(model, family, CHOSEN, "neg"):
        logits(model)
    assert torch.equal(before, logits(model))
    with pytest.raises(RuntimeError, match="stop"), intervene(model, family, CHOSEN, "neg"):
        raise RuntimeError("stop")
    assert torch.equal(before, logits(model))
    assert not any(module._forward_hooks for module in model.modules())


def test_nothing_is_registered_for_layers_without_neurons(tiny):
    model, _ = tiny()
    places = projections(model, FAMILIES["llama"])
    with intervene(model, "llama", CHOSEN, "neg"):
        assert [len(place._forward_hooks) for place in places] == [1, 0, 1]
    with intervene(model, "llama", CHOSEN, "neg", layers=range(1)):
        assert [len(place._forward_hooks) for place in places] == [1, 0, 0]


def test_chosen_layers_alone_are_changed(tiny):
    model, _ = tiny()
    with intervene(model, "llama", CHOSEN, "neg", layers=[2]):
        found = logits(model)
    with intervene(model, "llama", CHOSEN.filter(layer=2), "neg"):
        assert torch.equal(found, logits(model))


def test_an_op_gets_its_constants_for_just_its_neurons(tiny, monkeypatch):
    """A second row in the table: pre-activations replaced by a constant a neuron, in the order of the frame's rows."""
    monkeypatch.setitem(OPS, "fill", Op(lambda a, mean: mean.expand_as(a), "replaced by the mean", ("mean",)))
    model, _ = tiny()
    shuffled = pl.DataFrame({"layer": [2, 0, 0], "neuron": [39, 17, 3]})
    constants = {"mean": torch.tensor([9.0, 1.5, -2.0]).numpy()}
    seen = {}
    with intervene(model, "llama", shuffled, "fill", constants=constants):
        place = projections(model, FAMILIES["llama"])[0]
        handle = place.register_forward_hook(lambda m, i, o: seen.update(a=o.clone()))
        logits(model)
        handle.remove()
    assert (seen["a"][..., 17] == 1.5).all()
    assert (seen["a"][..., 3] == -2.0).all()
    with (
        pytest.raises(SubzeroError, match=r"op 'fill' needs constants \['mean'\]"),
        intervene(model, "llama", shuffled, "fill"),
    ):
        pass


def test_every_op_names_columns_of_the_statistics():
    for row in OPS.values():
        assert set(row.constants) <= set(STATISTICS)
        assert row.description


def test_bad_ops_and_neurons_are_refused_by_name(tiny):
    model, _ = tiny()
    with pytest.raises(SubzeroError, match=r"op 'nge'; allowed: neg\. Did you mean 'neg'\?"):
        operation("nge")
    for rows in ({"layer": [0], "neuron": [40]}, {"layer": [3], "neuron": [0]}, {"layer": [0], "neuron": [-1]}):
        with (
            pytest.raises(SubzeroError, match="the model has no such neurons"),
            intervene(model, "llama", pl.DataFrame(rows), "neg"),
        ):
            pass
        assert not any(module._forward_hooks for module in model.modules())
