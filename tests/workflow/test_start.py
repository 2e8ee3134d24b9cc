"""What a user meets before any job runs: the plan, the mistakes, the targets; and a run that is stopped."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from subzero.activations import open_activations

GREETING = "Using workflow specific profile"  # Snakemake's own line, at every call


@pytest.mark.parametrize(
    ("section", "line"),
    [
        ({"selektion": {}}, "config.yaml: selektion is not a key; allowed: run, "),
        ({"selection": {"fractions": [0.01, 1.5]}}, "config.yaml: selection.fractions[1] is 1.5; allowed: "),
        ({"selection": {"statistic": "wdd"}}, "config.yaml: selection.statistic is 'wdd'; allowed: "),
        ({"selection": {"headline": 0.3}}, "config.yaml: selection.headline is 0.3; allowed: one of "),
        ({"evaluation": {"ops": ["nge"]}}, "config.yaml: evaluation.ops[0] is 'nge'; allowed: neg. "),
        ({"evaluation": {"benchmarks": {"blmp": {}}}}, "config.yaml: evaluation.benchmarks is 'blmp'; allowed: "),
        ({"figures": {"fig3": {"models": ["tinny"]}}}, "config.yaml: figures.fig3.models is 'tinny'; allowed: tiny. "),
        ({"statistics": {"corpus": "prose"}}, "config.yaml: evaluation.perplexity.corpus is "),
        ({"models": {"tiny": {"source": "path:nowhere"}}}, "config.yaml: models.tiny.source is 'path:nowhere'; no "),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_on_stderr_and_exit_status_1(unrun, section, line):
    unrun.configure(**section)
    ran = unrun.snakemake("-n", "figures/fig3.pdf")
    said = [text for text in ran.stderr.splitlines() if not text.startswith(GREETING)]
    assert ran.returncode == 1
    assert len(said) == 1
    assert said[0].startswith(line)
    assert ran.stdout == ""
    assert not (unrun.root / "results").exists()


def test_a_file_that_is_not_yaml_is_one_line_with_the_place(unrun):
    (unrun.root / "config.yaml").write_text("selection:\n  fractions: [0.1\n  headline: 3\n")
    ran = unrun.snakemake("-n", "figures/fig3.pdf")
    said = [text for text in ran.stderr.splitlines() if not text.startswith(GREETING)]
    assert (ran.returncode, said) == (
        1,
        ["config.yaml, line 3, column 11: not YAML (expected ',' or ']', but got ':')"],
    )


def test_the_plan_loads_no_model_and_fetches_nothing(unrun):
    unrun.configure(models={"tiny": {"source": "hub:nobody/nothing"}})
    ran = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "snakemake", "-n", "figures/fig3.pdf"],
        cwd=unrun.root,
        env={**os.environ, "PYTHONPATH": str(unrun.root / "src")},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout
    imported = {line.rpartition("|")[2].strip() for line in ran.stderr.splitlines() if line.startswith("import time:")}
    assert "polars" in imported
    assert not {"torch", "transformers", "huggingface_hub", "zarr"} & imported
    assert not (unrun.root / "results").exists()


@pytest.mark.parametrize("target", ["all", "figures", "figures/fig3.pdf", "figures/fig3.png", "figures/fig3.svg"])
def test_named_targets(unrun, target):
    draws = {"all": 6, "figures": 2}.get(target, 1)
    assert unrun.jobs("-n", target)["draw"] == draws


def test_a_configuration_of_ones_own_takes_the_place_of_the_default(unrun):
    """A file that states only what differs from the schema's defaults."""
    config = unrun.root / "config.yaml"
    config.rename(unrun.root / "mine.yaml")
    assert unrun.jobs("-n", "figures/fig3.pdf", "--configfile", "mine.yaml")["select"] == 2


def test_the_figure_is_drawn_and_its_numbers_lie_beside_the_results(finished):
    assert (finished.root / "figures/fig3.pdf").read_bytes().startswith(b"%PDF")
    panel = pl.read_parquet(finished.root / "results/figures/fig3/a.parquet")
    summary = pl.read_parquet(finished.root / "results/tiny/main/summary/default/perplexity/prose/evaluation.parquet")
    random = summary.filter(pl.col("condition") == "random", pl.col("fraction") == 0.05)["perplexity"]
    shown = panel.filter(pl.col("condition") == "random", pl.col("fraction") == 0.05).row(0, named=True)
    assert shown["perplexity"] == pytest.approx(random.mean())
    assert shown["standard_error"] == pytest.approx(random.std() / np.sqrt(2))
    assert shown["draws"] == 2


def test_errors_in_a_job_are_one_line_and_the_others_go_on(unrun):
    weights = unrun.root / "model/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    ran = unrun.snakemake("--cores", "2", "figures/fig3.pdf")
    said = ran.stdout + ran.stderr
    assert ran.returncode == 1
    assert "subzero: model: the model cannot be read (" in said
    assert "Traceback" not in said
    assert (unrun.root / "results/corpora/prose.parquet").is_file()


def test_a_killed_evaluation_goes_on_where_it_was(unrun, finished):
    """SIGKILL to the whole run while perplexity is measured; what was computed is not computed again."""
    unrun.configure(selection={"random_seeds": 40})
    target = "results/tiny/main/summary/default/perplexity/prose/evaluation.parquet"
    environment = {**os.environ, "PYTHONPATH": str(unrun.root / "src")}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    process = subprocess.Popen(
        [sys.executable, "-m", "snakemake", "--cores", "2", target],
        cwd=unrun.root, env=environment, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    partial = unrun.root / "results/tiny/main/evaluation/prose/statistics/.partial/perplexity/prose/evaluation"
    deadline = time.monotonic() + 300
    while len(list(partial.glob("[!.]*.parquet"))) < 3:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.002)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    done = len(list(partial.glob("[!.]*.parquet")))
    assert 3 <= done < 83
    assert unrun.snakemake("--unlock").returncode == 0
    ran = unrun.snakemake("--cores", "2", target)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert (
        f"{83 - done} of 83 interventions to run, 0 kept, {done} from a run that was stopped" in ran.stdout + ran.stderr
    )
    ours, theirs = (pl.read_parquet(checkout.root / target) for checkout in (unrun, finished))
    assert ours.join(theirs, on=ours.columns, nulls_equal=True).height == theirs.height


def test_the_activations_are_a_group_with_their_provenance(finished):
    arrays, metadata = open_activations(finished.root / "results/tiny/main/activations/prose/statistics.zarr")
    assert [array.shape for array in arrays] == [(512, 40)] * 3
    model = json.loads((finished.root / "results/tiny/main/model.json").read_text())
    assert metadata["depends"]["model"]["weights"] == model["weights"]
