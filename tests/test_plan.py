"""The plan counts what Snakemake and the commands then do."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from subzero.configuration import check, interventions
from subzero.grammar import minimal_pairs
from subzero.plan import forward_tokens, jobs, plan

ROOT = Path(__file__).resolve().parents[1]
SCHEMA = yaml.safe_load((ROOT / "workflow/schemas/config.schema.yaml").read_text())
BIN = Path(sys.executable).parent


def read(path):
    return check(yaml.safe_load((ROOT / path).read_text()), SCHEMA, path)


@pytest.fixture(scope="module")
def dry_run(tmp_path_factory):
    """A dry-run of figure 3 in an empty folder, with no way to the hub."""

    def run(path):
        folder = tmp_path_factory.mktemp("dry")
        config = read(path)
        figure = "figures/fig3.pdf" if config["run"] == "default" else f"figures/{config['run']}/fig3.pdf"
        command = [BIN / "snakemake", "-n", figure, "--snakefile", ROOT / "Snakefile", "--directory", folder]
        environment = os.environ | {"HF_ENDPOINT": "http://127.0.0.1:9", "PATH": f"{BIN}:{os.environ['PATH']}"}
        ran = subprocess.run(
            [*command, "--configfile", ROOT / path], capture_output=True, text=True, env=environment, cwd=ROOT
        )
        assert ran.returncode == 0, ran.stderr
        return {name: int(count) for name, count in re.findall(r"^(\w+) +(\d+)$", ran.stdout, re.MULTILINE)}

    return run


@pytest.mark.parametrize("path", ["config.yaml", "config/paper.yaml"])
def test_jobs_are_those_that_snakemake_counts(dry_run, path):
    config = read(path)
    counts = dry_run(path)
    once = sum(counts.get(rule, 0) for rule in ("corpus", "items", "op", "panel", "draw"))
    assert counts["total"] - once == jobs(config) * len(config["figures"]["fig3"]["models"])


def test_forward_tokens_are_those_of_the_default_run():
    config = read("config.yaml")
    pairs = 20 * minimal_pairs(30, 0).height  # ten tokens a member, about
    perplexity, grammar = interventions(config, config["selection"]["fractions"]), interventions(config, ["0.01"])
    assert (len(perplexity), len(grammar)) == (17, 5)
    assert forward_tokens(config) == 20480 + 17 * 12 * 512 + 5 * pairs


def test_pairs_are_those_that_are_scored(tmp_path):
    (tmp_path / "mine.csv").write_text("good,bad\na b,a c\na d,a e\n")
    config = read("config.yaml")
    without = forward_tokens(config | {"evaluation": config["evaluation"] | {"benchmarks": {}}})
    for name, entry, pairs in [
        ("blimp", {}, 67_000),
        ("tse", {"per_paradigm": 150}, 22 * 150 - (150 - 140) - (150 - 120) - (150 - 144)),
        ("mine", {"source": "pairs", "files": [str(tmp_path / "mine.csv")]}, 2),
    ]:
        raw = yaml.safe_load((ROOT / "config.yaml").read_text())
        raw["evaluation"]["benchmarks"] = {name: entry}
        assert forward_tokens(check(raw, SCHEMA)) - without == 5 * 20 * pairs


@pytest.mark.parametrize(("store", "bytes_each"), [("temp", 2), ("fused", 0), ("sketch", 0)])
def test_what_is_kept_decides_the_disk(store, bytes_each):
    raw = yaml.safe_load((ROOT / "config/paper.yaml").read_text())
    raw["statistics"] |= {"store": store, "precision": "float16"}
    config = check(raw, SCHEMA)
    size = {"parameters": 1_000_000, "layers": 2, "neurons": 100}
    row = plan(config, dict.fromkeys(config["models"], size), 1e9, 1000).filter(model="llama-3.1-8b").row(0, named=True)
    assert row["disk_bytes"] == 1000 * 2 * 100 * bytes_each + 2_000_000
    assert row["jobs"] == jobs(check(raw | {"statistics": raw["statistics"] | {"store": "full"}}, SCHEMA)) - (
        store != "temp"
    )


def test_a_plan_by_hand():
    config = read("config/paper.yaml")
    size = {"parameters": 1_000_000, "layers": 2, "neurons": 100}
    frame = plan(config, dict.fromkeys(config["models"]) | {"llama-3.1-8b": size}, rate=1e9, whole=1000)
    rows = {row["model"]: row for row in frame.iter_rows(named=True)}
    row = rows["llama-3.1-8b"]
    assert row["disk_bytes"] == 1000 * 2 * 100 * 4 + 2_000_000  # bfloat16 weights
    assert row["memory_bytes"] == 2_500_000
    assert row["seconds"] == pytest.approx(2 * 1_000_000 * row["forward_tokens"] / 1e9)
    assert rows["pythia-1.4b"]["forward_tokens"] == 6 * row["forward_tokens"]
    assert rows["pythia-1.4b"]["seconds"] is None


def test_the_papers_plan_is_printed():
    command = [BIN / "subzero", "plan", "--configfile", "config/paper.yaml", "--rate", "100"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    config = read("config/paper.yaml")
    assert all(re.search(rf"^ {re.escape(name)} +\d", ran.stdout, re.MULTILINE) for name in config["models"])
    assert "Time at 100.00 TFLOP/s (as given)" in ran.stdout
