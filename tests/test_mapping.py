"""Mapping difficulty by hand and against a plain loop; the draw of pairs; inputs against the model's own."""

import numpy as np
import polars as pl
import pytest
import torch

from subzero.activations import open_activations
from subzero.errors import SubzeroError
from subzero.mapping import DIFFICULTIES, PAIRS, difficulties, draw_pairs, mapping_difficulty, write_pair_inputs
from subzero.tokens import WINDOWS, windows


def plain_windows(count, length, special=0):
    """Windows of numbered tokens, the first `special` of each special."""
    return pl.DataFrame(
        [
            {"window": w, "token": list(range(length)), "start": list(range(length)), "end": list(range(length)),
             "special": [p < special for p in range(length)]}
            for w in range(count)
        ],
        schema={name: column.dtype for name, column in WINDOWS.items()},
    )  # fmt: skip


def test_mapping_difficulty_by_hand():
    x = np.array([[0.0], [1.0], [3.0]])  # distances 1, 2; over the largest .5, 1
    a = np.array([[0.0], [2.0], [2.5]])  # distances 2, .5; over 1.25 gives 1.6, .4
    pairs = np.array([[0, 1], [1, 2]])
    md, left_out = mapping_difficulty(x, a, pairs)
    assert md == pytest.approx([(1.6 / 0.5 + 0.4 / 1) / 2])
    assert left_out == 0


def plain_loop(x, a, pairs):
    found = []
    for neuron in range(a.shape[1]):
        dx, da = [], []
        for i, j in pairs:
            if np.linalg.norm(x[i] - x[j]) > 0:
                dx.append(np.linalg.norm(x[i] - x[j]))
                da.append(abs(a[i, neuron] - a[j, neuron]))
        middle = np.median(da)
        found.append(np.mean([(d / middle) / (e / max(dx)) for d, e in zip(da, dx, strict=True)]))
    return found


@pytest.mark.parametrize("count", [1, 2, 9, 40])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_against_a_plain_loop(count, dtype):
    rng = np.random.default_rng(count)
    x, a = rng.normal(size=(30, 5)).astype(dtype), rng.gumbel(size=(30, 7)).astype(dtype)
    x[3] = x[4]
    pairs = np.concatenate([rng.integers(0, 15, (count, 1)), rng.integers(15, 30, (count, 1))], axis=1)
    pairs = np.concatenate([pairs, [[3, 4]]])
    md, left_out = mapping_difficulty(x, a, pairs)
    assert md == pytest.approx(plain_loop(x.astype(float), a.astype(float), pairs), rel=1e-5)
    assert left_out == 1


def test_scale_and_shift_of_outputs_and_scale_of_inputs_do_not_matter():
    rng = np.random.default_rng(0)
    x, a, pairs = rng.normal(size=(40, 5)), rng.normal(size=(40, 3)), np.arange(40).reshape(20, 2)
    md, _ = mapping_difficulty(x, a, pairs)
    assert mapping_difficulty(3 * x, -5 * a + 2, pairs)[0] == pytest.approx(md)


def test_what_is_undefined():
    x = np.arange(8.0).reshape(4, 2)
    a = np.array([[1.0, 1, 1], [1, 2, np.nan], [1, 1, 1], [2, 5, 3]])
    md, _ = mapping_difficulty(x, a, np.array([[0, 1], [0, 2], [0, 3]]))
    assert np.isnan(md).tolist() == [True, False, True]  # a median of 0, a good one, a value that is not finite
    with pytest.raises(ValueError, match="no pair has distinct inputs"):
        mapping_difficulty(np.ones((2, 3)), a[:2], np.array([[0, 1]]))


def test_tokens_are_in_one_pair_while_there_are_enough():
    found = draw_pairs(plain_windows(5, 8, special=1), 17, seed=0)
    used = found.select("first", "second").to_numpy().ravel()
    assert len(set(used)) == 34
    assert used.max() < 35  # 5 windows of 7 that count
    assert found.schema == {name: column.dtype for name, column in PAIRS.items()}
    for row in found.iter_rows(named=True):
        assert row["first"] == 7 * row["first_window"] + row["first_position"] - 1
        assert row["second"] == 7 * row["second_window"] + row["second_position"] - 1
    assert found.equals(draw_pairs(plain_windows(5, 8, special=1), 17, seed=0))
    assert not found.equals(draw_pairs(plain_windows(5, 8, special=1), 17, seed=1))


def test_more_pairs_than_tokens_allow_are_distinct_and_all_are_taken_of_a_small_sample():
    many = draw_pairs(plain_windows(2, 8), 60, seed=0)
    couples = {tuple(sorted(row)) for row in many.select("first", "second").iter_rows()}
    assert len(couples) == many.height == 60
    assert all(one != other for one, other in couples)
    every = draw_pairs(plain_windows(2, 8), 1000, seed=0)
    assert every.height == 16 * 15 // 2
    with pytest.raises(SubzeroError, match=r"the text has 1 token\(s\)"):
        draw_pairs(plain_windows(1, 1), 10, 0)


@pytest.mark.parametrize("family", ["llama", "gpt2", "opt", "phi3"])
@pytest.mark.parametrize("batch", [1, 100, 4096])
def test_inputs_and_pre_activations_are_those_of_the_projection(tiny, tmp_path, provenance, family, batch):
    """x times the projection's weights is a, for the drawn tokens in order."""
    from subzero.models import FAMILIES, neuron_counts, projections

    model, tokenizer = tiny(family, bos=True)
    cut = windows(["The baker waits . Some cells fire on commas , others on verbs . " * 20], tokenizer, 16)
    pairs = draw_pairs(cut, 12, seed=3)
    told = []
    write_pair_inputs(model, family, cut, pairs, tmp_path / "p.zarr", provenance, batch, told.append)
    import zarr

    group = zarr.open_group(tmp_path / "p.zarr", mode="r")
    tokens = np.array(group.attrs["subzero"]["tokens"])
    assert tokens.tolist() == sorted(pairs["first"].to_list() + pairs["second"].to_list())
    used = set(pairs["first_window"]) | set(pairs["second_window"])
    assert sum(told) == 16 * len(used)
    counts = neuron_counts(model, FAMILIES[family])
    for layer, projection in enumerate(projections(model, FAMILIES[family])):
        x, a = (torch.as_tensor(group[f"{name}/L{layer}"][:]) for name in "xa")
        with torch.inference_mode():
            assert torch.allclose(projection(x)[:, : counts[layer]], a, atol=1e-5)
    from subzero.activations import extract

    extract(model, family, cut, tmp_path / "a.zarr", provenance)
    whole = open_activations(tmp_path / "a.zarr")[0]
    for layer in (0, 2):
        assert np.allclose(group[f"a/L{layer}"][:], whole[layer][:][tokens], atol=1e-5)


def test_difficulties_of_a_group(tiny, tmp_path, provenance):
    model, tokenizer = tiny()
    cut = windows(["The baker waits . Some cells fire on commas , others on verbs . " * 20], tokenizer, 16)
    pairs = draw_pairs(cut, 30, seed=3)
    write_pair_inputs(model, "llama", cut, pairs, tmp_path / "p.zarr", provenance)
    found = difficulties(tmp_path / "p.zarr", pairs)
    assert found.schema == {name: column.dtype for name, column in DIFFICULTIES.items()}
    assert found.height == 120
    import zarr

    group = zarr.open_group(tmp_path / "p.zarr", mode="r")
    tokens = group.attrs["subzero"]["tokens"]
    numbers = [[tokens.index(one), tokens.index(other)] for one, other in pairs.select("first", "second").iter_rows()]
    expected = plain_loop(group["x/L1"][:].astype(float), group["a/L1"][:].astype(float), numbers)
    assert found.filter(layer=1)["md"].to_list() == pytest.approx(expected, rel=1e-4)
    chunk = next(path for path in (tmp_path / "p.zarr/x/L1").rglob("*") if path.is_file() and path.name != "zarr.json")
    chunk.write_bytes(chunk.read_bytes()[:-7] + b"damaged")
    with pytest.raises(SubzeroError, match=r"p.zarr: not a group of the pairs' inputs .* Remove it and run again"):
        difficulties(tmp_path / "p.zarr", pairs)
