"""The commands, as a user without Snakemake types them."""

import json

import polars as pl
import pytest

from subzero.artifacts import read_metadata
from subzero.cli import app, main


@pytest.fixture
def subzero(capsys, monkeypatch, tmp_path):
    """Runs a command in a folder of its own, in this process (each start of torch takes seconds)."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["subzero", *map(str, arguments)])
        try:
            main()
            status = 0
        except SystemExit as stop:
            status = stop.code or 0
        return status, *capsys.readouterr()

    return run


@pytest.fixture
def well(subzero):
    def run(*arguments):
        status, out, err = subzero(*arguments)
        assert status == 0, out + err
        return out + err

    return run


COMMANDS = [command.callback.__name__.replace("_", "-") for command in app.registered_commands]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command, well):
    said = well(command, "--help")
    assert f"Usage: subzero {command}" in said
    assert ("--code" in said) == (command not in ("plan", "repair"))  # which record nothing new


def test_every_step_by_hand(tiny_folders, tmp_path, well):
    """From a model and two texts to a figure, without Snakemake."""
    (tmp_path / "a.txt").write_text("The baker waits . Some cells fire on commas , others on verbs . " * 40)
    (tmp_path / "b.txt").write_text("Most of them are quiet for most of the words in a sentence . " * 40)
    folder = tiny_folders()

    well("model", f"path:{folder}", "--out", "model.json")
    well("corpus", "prose", "--file", "a.txt", "--file", "b.txt", "--out", "prose.parquet")
    for half in ("statistics", "evaluation"):
        well("tokenize", "prose.parquet", "--model", "model.json", "--half", half, "--window", 32, "--count", 6,
             "--out", f"{half}.parquet")  # fmt: skip
    said = well("extract", "statistics.parquet", "--model", "model.json", "--out", "a.zarr")
    assert "extraction: 192 tokens through the model" in said
    assert "extraction: 192 of 192 tokens" in said
    said = well("statistics", "a.zarr", "--out", "neurons.parquet")
    assert "statistics: 120 of 120 neurons" in said
    well("select", "sets/wd-top-0.05.parquet", "sets/random-0.05-s0.parquet", "--statistics", "neurons.parquet",
         "--model", "model.json")  # fmt: skip
    said = well("select", "sets/wd-top-0.05.parquet", "--statistics", "neurons.parquet", "--model", "model.json")
    assert "sets: 0 made, 1 kept" in said
    well("op", "neg", "--out", "ops/neg.json")
    well("items", "minimal-pairs", "--per-paradigm", 2, "--out", "pairs.parquet")
    names = ["none", "wd-top-0.05.neg.all", "random-0.05-s0.neg.all"]
    options = ["--model", "model.json", "--sets", "sets", "--ops", "ops", "--out-dir", "evaluation"]
    said = well("evaluate", "perplexity/prose/evaluation", *names, "--items", "evaluation.parquet", *options)
    assert "3 of 3 interventions to run" in said
    well("evaluate", "minimal-pairs", *names, "--items", "pairs.parquet", *options)
    for benchmark in ("perplexity/prose/evaluation", "minimal-pairs"):
        well("summarize", benchmark, *names, "--evaluation", "evaluation", "--out", f"summary/{benchmark}.parquet")
    for letter, benchmark in (("a", "perplexity/prose/evaluation"), ("c", "minimal-pairs")):
        well("panel", f"fig3{letter}", f"summary/{benchmark}.parquet", "--label", "Tiny", "--op", "neg",
             "--fraction", "0.05", "--out", f"panels/{letter}.parquet")  # fmt: skip
    assert "drawn from the numbers in panels/" in well("draw", "fig3", "--panels", "panels", "--out", "fig3.png")
    assert (tmp_path / "fig3.png").read_bytes().startswith(b"\x89PNG")
    assert read_metadata(tmp_path / "neurons.parquet")["depends"]["code"] == "by hand"

    # a file that is damaged is made again, and only that one
    damaged = tmp_path / "evaluation/none/minimal-pairs.parquet"
    before = pl.read_parquet(damaged)
    damaged.write_bytes(damaged.read_bytes()[:-20])
    said = well("evaluate", "minimal-pairs", *names, "--items", "pairs.parquet", *options)
    assert "1 of 3 interventions to run, 2 kept" in said
    assert pl.read_parquet(damaged).equals(before)

    # sets of one dtype, evaluation in another
    well("model", f"path:{folder}", "--dtype", "bfloat16", "--out", "half.json")
    half = ["--model", "half.json", "--sets", "sets", "--ops", "ops", "--out-dir", "half"]
    said = well("evaluate", "minimal-pairs", *names[:2], "--items", "pairs.parquet", *half)
    assert "warning: wd-top-0.05.parquet was made with the model in float32, this is bfloat16" in said


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["model", "ggfu:x/y", "--out", "m.json"], "subzero: model source 'ggfu:x/y'; allowed: gguf:"),
        (["op", "nge", "--out", "o.json"], "subzero: op 'nge'; allowed: neg. Did you mean 'neg'?"),
        (["statistics", "nowhere.zarr", "--out", "s.parquet"], "subzero: nowhere.zarr: not a group of activations"),
        (["corpus", "x", "--file", "missing.txt", "--out", "c.parquet"], "subzero: corpus file missing.txt"),
        (["corpus", "x", "--source", "wikipdia", "--out", "c.parquet"], "subzero: corpus source 'wikipdia'; allowed:"),
        (["items", "minimal-pears", "--out", "i.parquet"], "subzero: benchmark 'minimal-pears'; allowed: "),
        (["model", "path:x", "--dtype", "float8", "--out", "m"], "subzero: --dtype 'float8'; allowed: auto, float32"),
        (["tokenize", "x", "--model", "m", "--half", "statistic", "--out", "t"], "subzero: --half 'statistic'; "),
        (["tokenize", "x", "--model", "m", "--by", "word", "--out", "t"], "subzero: --by 'word'; allowed: stream, doc"),
        (["items", "tse", "--text", "plain", "--out", "i"], "subzero: --text 'plain'; allowed: published, sentence."),
        (["measure", "x", "--model", "m", "--store", "full", "--out", "s"], "subzero: --store 'full'; allowed: fused"),
        (["draw", "fig9", "--panels", ".", "--out", "f.pdf"], "subzero: figure 'fig9'; allowed: fig3, stability."),
        (["draw", "fig3", "--panels", ".", "--out", "f.pdf"], "subzero: a.parquet: not a subzero artifact"),
        (["panel", "fig3z", "x", "--label", "l", "--op", "neg", "--fraction", "0.1", "--out", "p"], "subzero: panel"),
        (["panel", "fig3a", "x", "y", "--label", "l", "--op", "neg", "--fraction", "1", "--out", "p"], "subzero: --la"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_and_exit_status_1(arguments, line, tmp_path, subzero):
    status, out, err = subzero(*arguments)
    assert (status, out) == (1, "")
    assert err.startswith(line)
    assert len(err.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.fixture
def prose(tiny_folders, tmp_path, well):
    """model.json and prose.parquet, of a tiny model and a short text."""
    (tmp_path / "a.txt").write_text("The baker waits . " * 400)
    well("model", f"path:{tiny_folders()}", "--out", "model.json")
    well("corpus", "prose", "--file", "a.txt", "--out", "prose.parquet")


def test_a_device_that_is_not_there_is_named(prose, well, subzero):
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    well("tokenize", "prose.parquet", "--model", "model.json", "--window", 32, "--count", 2, "--out", "t.parquet")
    status, _, err = subzero("extract", "t.parquet", "--model", "model.json", "--out", "a.zarr", "--device", "cuda")
    assert status == 1
    assert err.splitlines() == ["subzero: device 'cuda' is not on this machine; allowed: auto, cpu"]


def test_a_window_beyond_the_models_context_is_refused(prose, subzero):
    status, _, err = subzero("tokenize", "prose.parquet", "--model", "model.json", "--window", 129, "--out", "t")
    assert (status, err) == (1, "subzero: window of 129 tokens; the model's context is 128\n")


def test_a_model_that_changed_after_its_description_is_refused(tiny_folders, tmp_path, well, subzero, prose):
    """The weights behind path: were replaced: results must not be recorded as those of the old ones."""
    described = json.loads((tmp_path / "model.json").read_text())
    (tmp_path / "model.json").write_text(json.dumps(described | {"weights": "0" * 64}))
    well("tokenize", "prose.parquet", "--model", "model.json", "--window", 32, "--count", 2, "--out", "t.parquet")
    status, _, err = subzero("extract", "t.parquet", "--model", "model.json", "--out", "a.zarr")
    assert status == 1
    assert "the weights are not those that model.json describes. Remove model.json and run again." in err
