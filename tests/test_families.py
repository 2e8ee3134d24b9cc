"""Every family: hooked values against a block written out by hand, interventions against a changed activation."""

import copy

import numpy as np
import polars as pl
import pytest
import torch
from tiny_models import save_tiny_model, tiny_config
from transformers import AutoModelForCausalLM

from subzero.activations import capture, forward_rows
from subzero.errors import SubzeroError
from subzero.interventions import intervene
from subzero.models import FAMILIES, describe, family, load, model_inputs, neuron_counts, projections
from subzero.scoring import sentence_scores

CHOSEN = pl.DataFrame({"layer": [0, 0, 2, 2], "neuron": [3, 17, 0, 39]})
VARIANTS = [
    *((name, {}) for name in FAMILIES),
    ("falcon", {"alibi": True}),
    ("falcon", {"parallel_attn": False}),
    ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2}),
    ("gpt_neox", {"use_parallel_residual": False}),
    ("stablelm", {"use_parallel_residual": True}),
]
IDS = [name + "".join(f",{key}={value}" for key, value in changes.items()) for name, changes in VARIANTS]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """(family, changes) -> model, tokenizer; made once, left unchanged by the tests."""
    kept = {}

    def model(name, changes):
        key = (name, *changes.items())
        if key not in kept:
            folder = save_tiny_model(tmp_path_factory.mktemp("families") / name, name, **changes)
            kept[key] = load(folder, "float32", "cpu")
        return kept[key]

    return model


# A block by hand


def rms(x, norm, offset=0):
    eps = getattr(norm, "variance_epsilon", None) or norm.eps
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * (offset + norm.weight)


def layer_norm(x, norm):
    x = x - x.mean(-1, keepdim=True)
    x = x * (x.square().mean(-1, keepdim=True) + norm.eps).rsqrt() * norm.weight
    return x if norm.bias is None else x + norm.bias


def silu(a):
    return a / (1 + (-a).exp())


def gelu(a):
    return a * (1 + torch.erf(a / 2**0.5)) / 2


def gelu_tanh(a):
    return a * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (a + 0.044715 * a**3))) / 2


def linear(x, projection):
    return x @ projection.weight.T + (0 if projection.bias is None else projection.bias)


def glu(mlp, x, act):
    """(pre-activations, output) of act(gate) * up."""
    a = linear(x, mlp.gate_proj)
    return a, linear(act(a) * linear(x, mlp.up_proj), mlp.down_proj)


def two(up, down, x, act):
    """(pre-activations, output) of down(act(up))."""
    a = linear(x, up)
    return a, linear(act(a), down)


def llama(block, h, attention, act=silu, offset=0):
    h = h + attention
    a, y = glu(block.mlp, rms(h, block.post_attention_layernorm, offset), act)
    return a, h + y


def gemma(block, h, attention):
    return llama(block, h, attention, gelu_tanh, 1)


def gemma2(block, h, attention):
    h = h + rms(attention, block.post_attention_layernorm, 1)
    a, y = glu(block.mlp, rms(h, block.pre_feedforward_layernorm, 1), gelu_tanh)
    return a, h + rms(y, block.post_feedforward_layernorm, 1)


def olmo2(block, h, attention):
    h = h + rms(attention, block.post_attention_layernorm)
    a, y = glu(block.mlp, h, silu)
    return a, h + rms(y, block.post_feedforward_layernorm)


def phi3(block, h, attention):
    h = h + attention
    x = rms(h, block.post_attention_layernorm)
    gate, up = (x @ half.T for half in block.mlp.gate_up_proj.weight.chunk(2))
    return gate, h + linear(silu(gate) * up, block.mlp.down_proj)


def stablelm(block, h, attention):
    if block.use_parallel_residual:
        a, y = glu(block.mlp, layer_norm(h, block.input_layernorm), silu)
        return a, h + attention + y
    h = h + attention
    a, y = glu(block.mlp, layer_norm(h, block.post_attention_layernorm), silu)
    return a, h + y


def gpt_neox(block, h, attention):
    mlp = block.mlp
    seen = h if block.use_parallel_residual else h + attention
    x = layer_norm(seen, block.post_attention_layernorm)
    a, y = two(mlp.dense_h_to_4h, mlp.dense_4h_to_h, x, gelu)
    return a, h + attention + y


def gptj(block, h, attention):
    a, y = two(block.mlp.fc_in, block.mlp.fc_out, layer_norm(h, block.ln_1), gelu_tanh)
    return a, h + attention + y


def phi(block, h, attention):
    a, y = two(block.mlp.fc1, block.mlp.fc2, layer_norm(h, block.input_layernorm), gelu_tanh)
    return a, h + attention + y


def falcon(block, h, attention):
    if block.config.new_decoder_architecture:
        x = layer_norm(h, block.ln_mlp)
    elif block.config.parallel_attn:
        x = layer_norm(h, block.input_layernorm)
    else:
        x = layer_norm(h + attention, block.post_attention_layernorm)
    a, y = two(block.mlp.dense_h_to_4h, block.mlp.dense_4h_to_h, x, gelu)
    return a, h + attention + y


def bloom(block, h, attention):  # its attention module adds the residual itself
    x = layer_norm(attention, block.post_attention_layernorm)
    a, y = two(block.mlp.dense_h_to_4h, block.mlp.dense_4h_to_h, x, gelu_tanh)
    return a, attention + y


def mpt(block, h, attention):
    h = h + attention
    a, y = two(block.ffn.up_proj, block.ffn.down_proj, layer_norm(h, block.norm_2), gelu)
    return a, h + y


def opt(block, h, attention):
    h = h + attention
    a, y = two(block.fc1, block.fc2, layer_norm(h, block.final_layer_norm), torch.relu)
    return a, h + y


def gpt2(block, h, attention):  # Conv1D keeps its weight as (input, output)
    h = h + attention
    a = layer_norm(h, block.ln_2) @ block.mlp.c_fc.weight + block.mlp.c_fc.bias
    return a, h + gelu_tanh(a) @ block.mlp.c_proj.weight + block.mlp.c_proj.bias


def gpt_bigcode(block, h, attention):
    h = h + attention
    a, y = two(block.mlp.c_fc, block.mlp.c_proj, layer_norm(h, block.ln_2), gelu_tanh)
    return a, h + y


BY_HAND = {
    "bloom": bloom,
    "falcon": falcon,
    "gemma": gemma,
    "gemma2": gemma2,
    "gemma3": gemma2,
    "gemma3_text": gemma2,
    "gpt2": gpt2,
    "gpt_bigcode": gpt_bigcode,
    "gpt_neox": gpt_neox,
    "gptj": gptj,
    "llama": llama,
    "mistral": llama,
    "mpt": mpt,
    "olmo2": olmo2,
    "opt": opt,
    "phi": phi,
    "phi3": phi3,
    "qwen2": llama,
    "qwen3": llama,
    "smollm3": llama,
    "stablelm": stablelm,
}


def first(output):
    return output[0] if isinstance(output, tuple) else output


def seen_by_blocks(model, row, tokens):
    """Of each block: its input, its attention's output, its own output, in one forward pass."""
    found, handles = [], []
    for block in model.get_submodule(row.blocks):
        seen = {}
        found.append((block, seen))
        name = next(n for n, _ in block.named_children() if n in ("self_attn", "attention", "attn", "self_attention"))
        handles += [
            block.register_forward_pre_hook(
                lambda m, args, kwargs, s=seen: s.update(h=args[0] if args else kwargs["hidden_states"]),
                with_kwargs=True,
            ),
            getattr(block, name).register_forward_hook(lambda m, i, o, s=seen: s.update(attention=first(o))),
            block.register_forward_hook(lambda m, i, o, s=seen: s.update(y=first(o))),
        ]
    with torch.inference_mode():
        model(tokens, use_cache=False)
    for handle in handles:
        handle.remove()
    return found


def logits(model, count=3):
    torch.manual_seed(1)
    with torch.inference_mode():
        return model(torch.randint(2, 400, (count, 12)), use_cache=False).logits


@pytest.mark.parametrize(("name", "changes"), VARIANTS, ids=IDS)
def test_hooked_values_equal_a_block_by_hand_and_the_block_does_what_the_hand_does(made, name, changes):
    model, _ = made(name, changes)
    tokens = np.random.default_rng(0).integers(2, 400, size=(3, 12))
    found = forward_rows(model, FAMILIES[name], tokens, np.ones_like(tokens, dtype=bool))
    assert neuron_counts(model, FAMILIES[name]) == [values.shape[1] for values in found]
    for values, (block, seen) in zip(
        found, seen_by_blocks(model, FAMILIES[name], torch.from_numpy(tokens)), strict=True
    ):
        with torch.inference_mode():
            a, y = BY_HAND[name](block, seen["h"], seen["attention"])
        torch.testing.assert_close(torch.from_numpy(values), a.flatten(0, 1), atol=3e-5, rtol=1e-4)
        torch.testing.assert_close(seen["y"], y, atol=1e-4, rtol=1e-4)
        assert 0.2 < (a < 0).float().mean() < 0.8


@pytest.mark.parametrize(("name", "changes"), VARIANTS, ids=IDS)
def test_the_hook_fires_once_a_layer_in_each_forward(made, name, changes):
    model, _ = made(name, changes)
    fired = []
    with capture(model, FAMILIES[name], lambda layer, values: fired.append(layer)):
        for count in (1, 2):
            logits(model, count)
    assert fired == [0, 1, 2] * 2


class Clamped(torch.nn.Module):
    """An activation function that sees max(a, 0) in some columns."""

    def __init__(self, act, columns):
        super().__init__()
        self.act, self.columns = act, columns

    def forward(self, a):
        chosen = torch.zeros(a.shape[-1], dtype=torch.bool)
        chosen[self.columns] = True
        return self.act(torch.where(chosen & (a < 0), torch.zeros_like(a), a))


@pytest.mark.parametrize(("name", "changes"), VARIANTS, ids=IDS)
def test_the_clamp_equals_an_activation_function_that_clamps(made, name, changes):
    model, _ = made(name, changes)
    row = FAMILIES[name]
    changed = copy.deepcopy(model)
    for (layer,), chosen in CHOSEN.group_by("layer"):
        block = changed.get_submodule(row.blocks)[layer]
        parent, _, last = row.activation.rpartition(".")
        act = block.get_submodule(row.activation)
        setattr(block.get_submodule(parent), last, Clamped(act, chosen["neuron"].to_list()))
    untouched = logits(model)
    with intervene(model, name, CHOSEN, "neg"):
        found = logits(model)
    torch.testing.assert_close(found, logits(changed), atol=1e-5, rtol=1e-5)
    assert torch.equal(untouched, logits(model))
    if name == "opt":  # ReLU has no negative side to lose
        assert torch.equal(found, untouched)
    else:
        assert (found - untouched).abs().max() > 1e-3


@pytest.mark.parametrize(("name", "changes"), VARIANTS, ids=IDS)
def test_the_negatives_of_the_chosen_neurons_change_and_nothing_else(made, name, changes):
    model, _ = made(name, changes)
    places, counts = projections(model, FAMILIES[name]), neuron_counts(model, FAMILIES[name])
    after, before, handles = {}, {}, []
    for layer, place in enumerate(places):
        handles.append(place.register_forward_hook(lambda m, i, o, n=layer: before.update({n: o.clone()})))
    with intervene(model, name, CHOSEN, "neg"):
        for layer, place in enumerate(places):
            handles.append(place.register_forward_hook(lambda m, i, o, n=layer: after.update({n: o.clone()})))
        logits(model)
    for handle in handles:
        handle.remove()
    for layer, values in after.items():
        expected = before[layer].clone()
        for neuron in CHOSEN.filter(layer=layer)["neuron"]:
            expected[..., neuron] = expected[..., neuron].clamp(min=0)
        assert torch.equal(values, expected)
        assert torch.equal(values != before[layer], (before[layer] < 0) & (values == 0))
    with (
        pytest.raises(SubzeroError, match="the model has no such neurons"),
        intervene(model, name, pl.DataFrame({"layer": [0], "neuron": [counts[0]]}), "neg"),
    ):
        pass


@pytest.mark.parametrize(("name", "changes"), VARIANTS, ids=IDS)
def test_company_and_padding_on_either_side_do_not_matter(made, name, changes):
    model, _ = made(name, changes)
    rng = np.random.default_rng(2)
    texts = [rng.integers(2, 400, size=length) for length in (5, 12, 9)]
    alone = [forward_rows(model, FAMILIES[name], text[None], np.ones((1, len(text)), dtype=bool)) for text in texts]
    expected = [np.concatenate(layers) for layers in zip(*alone, strict=True)]
    for before in (False, True):
        tokens, real = np.ones((3, 12), dtype=np.int64), np.zeros((3, 12), dtype=bool)
        for number, text in enumerate(texts):
            place = slice(12 - len(text), 12) if before else slice(0, len(text))
            tokens[number, place], real[number, place] = text, True
        assert ("attention_mask" in model_inputs(model, tokens, real)) == before
        found = forward_rows(model, FAMILIES[name], tokens, real, real)
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=5e-5, rtol=1e-4)


@pytest.mark.parametrize(("name", "changes"), VARIANTS, ids=IDS)
def test_scores_do_not_depend_on_company(made, name, changes):
    model, tokenizer = made(name, changes)
    sentences = ["The baker waits .", "Some cells fire on commas , others on verbs ; most of them are quiet .", "Some"]
    together = sentence_scores(model, tokenizer, sentences, 4096)
    for number, sentence in enumerate(sentences):
        alone = sentence_scores(model, tokenizer, [sentence])
        assert together["sum"][number] == pytest.approx(alone["sum"].item(), abs=1e-4)
        ids = torch.tensor([tokenizer(sentence)["input_ids"]])
        with torch.inference_mode():
            logprobs = model(ids, use_cache=False).logits[0].double().log_softmax(-1)
        plain = sum(logprobs[i, ids[0, i + 1]].item() for i in range(ids.shape[1] - 1))
        assert alone["sum"].item() == pytest.approx(plain, abs=1e-4)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_is_described(tmp_path, name):
    folder = save_tiny_model(tmp_path / name, name)
    found = describe(folder, "float32", "main", "path:x")
    assert (found["family"], found["layers"], found["width"], found["vocabulary"]) == (name, 3, 32, 400)
    assert found["neurons"] == [128 if name in ("bloom", "mpt") else 40] * 3
    assert found["context"] == 128
    assert found["parallel"] == (name in ("falcon", "gpt_neox", "gptj", "phi"))
    assert found["activation"] not in ("Linear", "Identity")
    model, _ = load(folder, "float32", "cpu")
    assert found["parameters"] == sum(p.numel() for p in model.parameters())


def test_every_family_can_be_built_from_its_configuration():
    for name in FAMILIES:
        with torch.device("meta"):
            assert AutoModelForCausalLM.from_config(tiny_config(name)).config.model_type == name


def test_what_has_no_row_is_refused_and_told_what_to_add_where():
    with pytest.raises(
        SubzeroError, match=r"'mamba' has no row in FAMILIES \(src/subzero/models\.py\): add its blocks"
    ):
        family({"model_type": "mamba"})
    with pytest.raises(SubzeroError, match=r"Did you mean 'llama'\?"):
        family({"model_type": "lama"})


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe", "deepseek_v3", "phimoe"])
def test_a_mixture_of_experts_is_refused(name):
    from transformers import AutoConfig

    with pytest.raises(SubzeroError, match=f"'{name}' is a mixture of experts .*add a row to FAMILIES") as refused:
        family(AutoConfig.for_model(name).to_dict())
    assert "\n" not in str(refused.value)
