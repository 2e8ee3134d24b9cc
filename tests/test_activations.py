"""Extraction: hooked values against a hand-written forward, and everything that a stopped run may leave behind."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from subzero import activations
from subzero.activations import (
    PROGRESS,
    damaged_chunks,
    extract,
    forward_rows,
    open_activations,
    read_block,
    repair,
    token_chunk,
)
from subzero.artifacts import provenance as made_from
from subzero.errors import SubzeroError
from subzero.models import FAMILIES
from subzero.tokens import WINDOWS

KINDS = ["llama", "gpt_neox"]


def some_windows(count=7, length=16, special=(), seed=0):
    """Random windows; `special`: places (window, position) of special tokens."""
    rng = np.random.default_rng(seed)
    mask = np.zeros((count, length), dtype=bool)
    for place in special:
        mask[place] = True
    zeros = [[0] * length] * count
    return pl.DataFrame(
        {
            "window": range(count),
            "token": rng.integers(2, 400, size=(count, length)).tolist(),
            "start": zeros,
            "end": zeros,
            "special": mask.tolist(),
        },
        schema={name: column.dtype for name, column in WINDOWS.items()},
    )


def by_hand(model, family, tokens):
    """Pre-activations written out from the weights: w.x (+ b), x the normalized input of each block's MLP."""
    inputs = {}
    blocks = model.model.layers if family == "llama" else model.gpt_neox.layers
    handles = [
        block.register_forward_pre_hook(
            lambda m, args, kwargs, n=n: inputs.update({n: args[0] if args else kwargs["hidden_states"]}),
            with_kwargs=True,
        )
        for n, block in enumerate(blocks)
    ]
    with torch.inference_mode():
        outputs = model(tokens, output_hidden_states=True)
    for handle in handles:
        handle.remove()
    found = []
    for number, block in enumerate(blocks):
        hidden = inputs[number]
        torch.testing.assert_close(hidden, outputs.hidden_states[number])
        if family == "llama":  # x = RMSNorm(h + attention(RMSNorm(h)))
            normed = rms(hidden, block.input_layernorm)
            hidden = hidden + attention_llama(block.self_attn, normed)
            x, w, b = rms(hidden, block.post_attention_layernorm), block.mlp.gate_proj.weight, 0
        else:  # parallel residual: the MLP sees the block's own input
            norm = block.post_attention_layernorm
            centred = hidden - hidden.mean(-1, keepdim=True)
            x = centred / (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight + norm.bias
            w, b = block.mlp.dense_h_to_4h.weight, block.mlp.dense_h_to_4h.bias
        found.append((x @ w.T + b).detach().numpy().reshape(-1, w.shape[0]))
    return found


def rms(h, norm):
    return h / (h.square().mean(-1, keepdim=True) + norm.variance_epsilon).sqrt() * norm.weight


def attention_llama(attention, x):
    """Causal attention with rotary positions, a head at a time."""
    batch, length, _ = x.shape
    size = attention.head_dim
    angle = torch.arange(length)[:, None] / 10000 ** (torch.arange(0, size, 2) / size)
    cos, sin = torch.cat([angle, angle], 1).cos(), torch.cat([angle, angle], 1).sin()

    def heads(projection):
        return projection(x).view(batch, length, -1, size).transpose(1, 2)

    def rotate(h):
        return h * cos + torch.cat([-h[..., size // 2 :], h[..., : size // 2]], -1) * sin

    q, k, v = rotate(heads(attention.q_proj)), rotate(heads(attention.k_proj)), heads(attention.v_proj)
    scores = q @ k.transpose(-1, -2) / size**0.5
    scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), -torch.inf)
    return attention.o_proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, -1))


@pytest.mark.parametrize("family", KINDS)
def test_hooked_values_equal_a_hand_written_block(tiny, family):
    model, _ = tiny(family)
    tokens = np.random.default_rng(0).integers(2, 400, size=(3, 12))
    with torch.inference_mode():
        expected = by_hand(model, family, torch.from_numpy(tokens))
    found = forward_rows(model, FAMILIES[family], tokens, np.ones_like(tokens, dtype=bool))
    assert [len(rows) for rows in found] == [36] * 3
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-5)


def test_real_pre_activations_equal_the_gate_projection_written_out(smollm2):
    model, tokenizer, _ = smollm2
    tokens = tokenizer("The keys to the cabinet are on the table .", return_tensors="pt")["input_ids"]
    residual = {}
    handles = [
        block.post_attention_layernorm.register_forward_pre_hook(lambda m, args, n=n: residual.update({n: args[0]}))
        for n, block in enumerate(model.model.layers)
    ]
    found = forward_rows(model, FAMILIES["llama"], tokens.numpy(), np.ones(tokens.shape, dtype=bool))
    for handle in handles:
        handle.remove()
    assert len(found) == 30
    for number, block in enumerate(model.model.layers):
        with torch.inference_mode():
            expected = rms(residual[number][0], block.post_attention_layernorm) @ block.mlp.gate_proj.weight.T
        np.testing.assert_allclose(found[number], expected.numpy(), atol=1e-3, rtol=1e-4)


def test_batches_do_not_change_the_values(tiny, tmp_path, provenance):
    model, _ = tiny()
    windows = some_windows()
    found = []
    for number, batch in enumerate((16, 48, 10_000)):
        extract(model, "llama", windows, tmp_path / f"{number}.zarr", provenance, batch_tokens=batch)
        arrays, _ = open_activations(tmp_path / f"{number}.zarr")
        found.append(np.stack([array[:] for array in arrays]))
    np.testing.assert_allclose(found[0], found[1], atol=1e-5)
    np.testing.assert_allclose(found[0], found[2], atol=1e-5)


def test_special_tokens_are_in_no_row(tiny, tmp_path, provenance):
    model, _ = tiny()
    plain, marked = some_windows(), some_windows(special=[(0, 0), (3, 5)])
    extract(model, "llama", plain, tmp_path / "plain.zarr", provenance)
    extract(model, "llama", marked, tmp_path / "marked.zarr", provenance)
    all_rows = open_activations(tmp_path / "plain.zarr")[0][1][:]
    kept = open_activations(tmp_path / "marked.zarr")[0][1][:]
    np.testing.assert_array_equal(kept, np.delete(all_rows, [0, 3 * 16 + 5], axis=0))


def test_blocks_are_chunked_on_both_axes_and_read_alone(tiny, tmp_path, provenance, monkeypatch):
    monkeypatch.setattr(activations, "CHUNK_NEURONS", 16)
    monkeypatch.setattr(activations, "token_chunk", lambda neurons: 32)
    model, _ = tiny()
    extract(model, "llama", some_windows(), tmp_path / "a.zarr", provenance)
    arrays, metadata = open_activations(tmp_path / "a.zarr")
    assert arrays[0].shape == (112, 40)
    assert arrays[0].chunks == (32, 16)
    assert arrays[0].metadata.dimension_names == ("token", "neuron")
    assert metadata["depends"]["corpus"] == {"name": "test", "hash": "0"}
    np.testing.assert_array_equal(
        read_block(tmp_path / "a.zarr", 2, arrays[2], slice(16, 32)), arrays[2][:][:, 16:32].T
    )


def test_the_chunk_follows_from_the_model_alone():
    assert token_chunk([1536] * 30) == 2048
    assert token_chunk([40] * 3) == 8192
    assert token_chunk([14336] * 32) == 256


STOPPED = """
import sys, torch, json
sys.path.insert(0, {tests!r})
from test_activations import some_windows
from subzero import activations
from subzero.models import load
activations.token_chunk = lambda neurons: 16
model, _ = load({folder!r}, "float32", "cpu")
import time
def advance(count):
    time.sleep(0.2)
activations.extract(model, "llama", some_windows(40), __import__("pathlib").Path({path!r}), {made_of!r}, 16, advance)
"""


def test_a_killed_run_goes_on_and_equals_one_that_was_not(tiny, tiny_folders, tmp_path, monkeypatch):
    """SIGKILL in the middle, a torn chunk beyond the last finished block, then the same command again."""
    monkeypatch.setattr(activations, "token_chunk", lambda neurons: 16)
    model, _ = tiny()
    made_of = made_from("activations", "code", corpus={"name": "test", "hash": "0"})
    extract(model, "llama", some_windows(40), tmp_path / "whole.zarr", made_of, 16)

    path, partial = tmp_path / "killed.zarr", tmp_path / "killed.zarr.partial"
    code = STOPPED.format(tests=str(Path(__file__).parent), folder=str(tiny_folders()), path=str(path), made_of=made_of)
    process = subprocess.Popen([sys.executable, "-c", code])
    deadline = time.monotonic() + 120
    while not (partial / PROGRESS).is_file() or json.loads((partial / PROGRESS).read_text())["blocks"] < 5:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not path.exists()
    done = json.loads((partial / PROGRESS).read_text())["blocks"]
    assert 5 <= done < 40
    torn = partial / "L0" / "c" / str(done) / "0"
    torn.parent.mkdir(parents=True, exist_ok=True)
    torn.write_bytes(b"torn")

    ran = []
    original = activations.forward_rows
    monkeypatch.setattr(activations, "forward_rows", lambda *given: (ran.append(1), original(*given))[1])
    extract(model, "llama", some_windows(40), path, made_of, 16)
    assert len(ran) == 40 - done
    assert not partial.exists()
    for ours, theirs in zip(open_activations(path)[0], open_activations(tmp_path / "whole.zarr")[0], strict=True):
        np.testing.assert_array_equal(ours[:], theirs[:])


def test_a_partial_group_of_other_settings_is_not_gone_on_with(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(activations, "token_chunk", lambda neurons: 16)
    model, _ = tiny()

    def stop_after_three(count, seen=[]):  # noqa: B006
        seen.append(count)
        if len(seen) == 3:
            raise KeyboardInterrupt

    path = tmp_path / "a.zarr"
    with pytest.raises(KeyboardInterrupt):
        extract(model, "llama", some_windows(seed=1), path, made_from("activations", "old"), 16, stop_after_three)
    extract(model, "llama", some_windows(), path, made_from("activations", "new"), 16)
    extract(model, "llama", some_windows(), tmp_path / "b.zarr", made_from("activations", "new"), 16)
    np.testing.assert_array_equal(open_activations(path)[0][0][:], open_activations(tmp_path / "b.zarr")[0][0][:])


def test_two_writers_of_one_group_are_refused(tiny, tmp_path, provenance):
    model, _ = tiny()

    def second(count):
        extract(model, "llama", some_windows(), tmp_path / "a.zarr", provenance)

    with pytest.raises(SubzeroError, match="another process is writing it"):
        extract(model, "llama", some_windows(), tmp_path / "a.zarr", provenance, advance=second)


def test_a_missing_chunk_is_an_error_and_not_zeros(tiny, tmp_path, provenance):
    model, _ = tiny()
    extract(model, "llama", some_windows(), tmp_path / "a.zarr", provenance)
    next((tmp_path / "a.zarr" / "L1" / "c").rglob("0/0")).unlink()
    with pytest.raises(SubzeroError, match=r"a\.zarr, layer 1: 1 chunk\(s\) missing"):
        open_activations(tmp_path / "a.zarr")


def test_a_damaged_chunk_is_an_error_that_says_where(tiny, tmp_path, provenance):
    model, _ = tiny()
    path = tmp_path / "a.zarr"
    extract(model, "llama", some_windows(), path, provenance)
    chunk = next((path / "L2" / "c").rglob("0/0"))
    content = bytearray(chunk.read_bytes())
    content[100] ^= 0xFF
    chunk.write_bytes(content)
    arrays, _ = open_activations(path)
    with pytest.raises(SubzeroError, match="layer 2, neurons 0 to 39: a chunk is damaged"):
        read_block(path, 2, arrays[2], slice(0, 40))


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_only_what_is_damaged_is_computed_again(tiny, tmp_path, monkeypatch, precision):
    """A chunk each that is gone, cut short, of other bytes and empty; the rest is not written."""
    monkeypatch.setattr(activations, "token_chunk", lambda neurons: 64)
    monkeypatch.setattr(activations, "CHUNK_NEURONS", 16)
    model, _ = tiny()
    path, windows = tmp_path / "a.zarr", some_windows(40)
    made_of = made_from("activations", "code", made={"batch_tokens": 48})
    extract(model, "llama", windows, path, made_of, 48, precision=precision)
    before = [array[:] for array in open_activations(path)[0]]
    chunks = path / "L0/c/3/1", path / "L1/c/0/2", path / "L2/c/5/0", path / "L2/c/9/1"
    chunks[0].unlink()
    chunks[1].write_bytes(chunks[1].read_bytes()[:-50])
    chunks[2].write_bytes(bytes([255]) + chunks[2].read_bytes()[1:])
    chunks[3].write_bytes(b"")
    others = {file: file.stat().st_mtime_ns for file in path.rglob("c/*/*") if file not in chunks}
    damaged = damaged_chunks(path)
    assert damaged == [(0, 3, 1), (1, 0, 2), (2, 5, 0), (2, 9, 1)]
    ran = []
    original = activations.forward_rows
    monkeypatch.setattr(activations, "forward_rows", lambda *a, **k: (ran.append(1), original(*a, **k))[1])
    repair(model, "llama", windows, path, damaged)
    assert len(ran) <= 4 * (64 // 48 + 2)  # only batches that the blocks lie in
    assert damaged_chunks(path) == []
    for ours, theirs in zip(open_activations(path)[0], before, strict=True):
        np.testing.assert_array_equal(ours[:], theirs)
    assert {file: file.stat().st_mtime_ns for file in others} == others


def test_a_full_disk_loses_nothing(tiny, tmp_path, monkeypatch):
    """A file system of its own that is too small, and is then made larger."""
    monkeypatch.setattr(activations, "token_chunk", lambda neurons: 64)
    model, _ = tiny()
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        made_of = made_from("activations", "code")
        with pytest.raises(OSError, match="No space left on device"):
            extract(model, "llama", some_windows(40), disk / "a.zarr", made_of, 48)
        done = json.loads((disk / "a.zarr.partial" / PROGRESS).read_text())["blocks"]
        assert done > 0
        assert not (disk / "a.zarr").exists()
        subprocess.run(["mount", "-o", "remount,size=20m", disk], check=True)
        told = []
        extract(model, "llama", some_windows(40), disk / "a.zarr", made_of, 48, told.append)
        extract(model, "llama", some_windows(40), tmp_path / "b.zarr", made_of, 48)
        for ours, theirs in zip(
            open_activations(disk / "a.zarr")[0], open_activations(tmp_path / "b.zarr")[0], strict=True
        ):
            np.testing.assert_array_equal(ours[:], theirs[:])
    finally:
        subprocess.run(["umount", disk], check=True)


def test_hooks_are_gone_after_an_exception(tiny):
    model, _ = tiny()

    def fail(layer, values):
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError), activations.capture(model, FAMILIES["llama"], fail):
        model(torch.tensor([[5, 6]]))
    assert not any(module._forward_hooks for module in model.modules())


def test_a_hook_that_does_not_fire_is_an_error(tiny):
    """A family's row that names a projection which the forward pass does not call."""
    model, _ = tiny()
    for block in model.model.layers:
        block.unused = torch.nn.Linear(32, 40)
    row = activations.Family("model.layers", "unused", "mlp.act_fn")
    with pytest.raises(RuntimeError, match="hooks must fire once a layer"):
        forward_rows(model, row, np.array([[5, 6]]), np.ones((1, 2), dtype=bool))


def test_memory_stays_flat(tiny, tmp_path, provenance):
    """The captured slices must not keep whole tensors: 200 batches end where ten did."""
    import resource

    model, _ = tiny()
    peaks = []
    extract(
        model,
        "llama",
        some_windows(200),
        tmp_path / "a.zarr",
        provenance,
        16,
        lambda count: peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss),
    )
    assert peaks[-1] - peaks[10] < 20_000  # KiB
