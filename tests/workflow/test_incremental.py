"""What runs again after a change, and what does not: each with real Snakemake on a finished run."""

import json

import polars as pl
import pytest

from subzero.artifacts import read_metadata

AFTER_SETS = {"evaluate_perplexity": 1, "evaluate_pairs": 1, "summarize": 2, "panel": 2, "draw": 1}
ANOTHER_OP = """def keep_negative(a):
    return a.clamp_(max=0)


OPS = {
    "pos": Op(keep_negative, "positive ones set to 0"),
"""
EVALUATION = "results/tiny/main/evaluation/prose/statistics"


def test_a_finished_run_has_nothing_to_do(checkout):
    assert checkout.planned() == {}


def test_nor_elsewhere_nor_with_another_hash_seed_nor_more_cores(checkout):
    """The fixture's copy is another checkout path than the run's already."""
    assert checkout.planned(PYTHONHASHSEED="7") == {}
    assert checkout.jobs("-n", "figures/fig3.pdf", "--cores", "7") == {}
    assert checkout.jobs("-n", "figures/fig3.pdf", "--config", "device=cpu", "memory=2000") == {}


def test_another_fraction_runs_itself_alone_and_taking_it_out_runs_the_summary_and_the_figure(checkout):
    kept = {path: path.read_bytes() for path in (checkout.root / EVALUATION).rglob("*.parquet")}
    checkout.configure(selection={"fractions": [0.01, 0.03, 0.05]})
    expected = {"select": 1, "evaluate_perplexity": 1, "summarize": 1, "panel": 1, "draw": 1}
    assert checkout.planned() == expected
    assert checkout.jobs("--cores", "2", "figures/fig3.pdf") == expected
    log = checkout.root / "logs/tiny/main/evaluation/prose/statistics/perplexity/prose/evaluation.log"
    assert "3 of 10 interventions to run, 7 kept" in log.read_text()
    assert all(path.read_bytes() == content for path, content in kept.items())
    assert (checkout.root / EVALUATION / "wd-top-0.03.neg.all/perplexity/prose/evaluation.parquet").is_file()
    shown = pl.read_parquet(checkout.root / "results/figures/fig3/a.parquet")
    assert sorted(shown["fraction"].unique()) == [0, 0.01, 0.03, 0.05]
    assert checkout.planned() == {}

    checkout.configure()
    expected = {"summarize": 1, "panel": 1, "draw": 1}
    assert checkout.planned() == expected
    assert checkout.jobs("--cores", "2", "figures/fig3.pdf") == expected
    shown = pl.read_parquet(checkout.root / "results/figures/fig3/a.parquet")
    assert sorted(shown["fraction"].unique()) == [0, 0.01, 0.05]
    assert checkout.planned() == {}


@pytest.mark.parametrize("spelling", ["'1e-2'", "0.010", "1.0e-2", "'0.01'"])
def test_a_fraction_is_the_same_however_it_is_written(checkout, spelling):
    config = checkout.root / "config.yaml"
    config.write_text(config.read_text().replace("- 0.01\n", f"- {spelling}\n"))
    assert checkout.planned() == {}


def test_comments_docstrings_and_layout_run_nothing(checkout):
    checkout.edit(
        "src/subzero/statistics.py",
        "    found = _of_sorted(a)\n",
        "    # why\n    found = (\n        _of_sorted(a)\n    )\n",
    )
    checkout.edit("src/subzero/statistics.py", '"""All statistics of a block of neurons.', '"""What it gives.')
    checkout.edit(
        "src/subzero/activations.py",
        "    import zarr\n\n    try:\n        group = zarr.open_group(path",
        "    import zarr  # slow\n\n    try:\n        group = zarr.open_group(path",
    )
    checkout.edit("src/subzero/cli.py", "WD and moments of every neuron.", "Statistics.")
    checkout.edit("workflow/rules/statistics.smk", "# needs: pre-activations", "# needs: activations")
    assert checkout.planned() == {}


def test_another_formula_of_the_statistics_runs_what_follows_and_not_the_extraction(checkout):
    checkout.edit("src/subzero/statistics.py", "/ scale**4 - 3,", "/ scale**4,")
    assert checkout.planned() == {"statistics": 1, "select": 2, **AFTER_SETS}


def test_another_value_of_a_setting_runs_its_dependents(checkout):
    checkout.configure(evaluation={"perplexity": {"corpus": "prose/evaluation", "windows": 3, "window": 32}})
    assert checkout.planned() == {"tokenize": 1, "evaluate_perplexity": 1, "summarize": 1, "panel": 1, "draw": 1}
    checkout.configure(models={"tiny": {"source": "path:model", "label": "Renamed"}})
    assert checkout.planned() == {"panel": 2, "draw": 1}


def test_a_row_more_in_the_tables_runs_nothing_that_does_not_use_it(checkout):
    checkout.edit(
        "src/subzero/models.py",
        '    "llama": Family(',
        '    "new": Family("model.layers", "mlp.up", "mlp.act"),\n    "llama": Family(',
    )
    checkout.edit("src/subzero/interventions.py", "OPS = {\n", ANOTHER_OP)
    assert checkout.planned() == {}


def test_a_new_op_that_is_used_computes_itself_alone(checkout):
    checkout.edit("src/subzero/interventions.py", "OPS = {\n", ANOTHER_OP)
    checkout.configure(evaluation={**checkout.evaluation, "ops": ["neg", "pos"]})
    assert checkout.jobs("--cores", "2", "figures/fig3.pdf") == {"op": 1, **AFTER_SETS}
    log = (checkout.root / "logs/tiny/main/evaluation/prose/statistics/perplexity/prose/evaluation.log").read_text()
    assert "6 of 13 interventions to run, 7 kept" in log
    assert checkout.planned() == {}


def test_another_code_of_an_op_runs_the_evaluations_that_use_it_and_not_the_untouched_model(checkout):
    checkout.edit("src/subzero/interventions.py", "return a.clamp_(min=0)", "return a.clamp_(min=0.001)")
    assert checkout.jobs("--cores", "2", "figures/fig3.pdf") == {"op": 1, **AFTER_SETS}
    log = (checkout.root / "logs/tiny/main/evaluation/prose/statistics/perplexity/prose/evaluation.log").read_text()
    assert "6 of 7 interventions to run, 1 kept" in log


def test_a_file_that_is_lost_is_made_again_alone(checkout):
    lost = checkout.root / EVALUATION / "wd-top-0.05.neg.all/perplexity/prose/evaluation.parquet"
    content = lost.read_bytes()
    lost.unlink()
    assert checkout.jobs("--cores", "2", str(lost.relative_to(checkout.root))) == {"evaluate_perplexity": 1}
    log = (checkout.root / "logs/tiny/main/evaluation/prose/statistics/perplexity/prose/evaluation.log").read_text()
    assert "1 of 7 interventions to run, 6 kept" in log
    assert pl.read_parquet(lost).equals(pl.read_parquet(content))


def test_another_run_draws_into_its_own_folder_and_shares_the_results(checkout):
    checkout.configure(run="other", selection={"headline": 0.05})
    figure = "figures/other/fig3.png"
    expected = {"evaluate_pairs": 1, "summarize": 2, "panel": 2, "draw": 1}
    assert checkout.jobs("-n", figure) == expected
    assert checkout.jobs("--cores", "2", figure) == expected
    assert (checkout.root / figure).is_file()
    assert (checkout.root / "results/figures/other/fig3/c.parquet").is_file()
    checkout.configure()
    assert checkout.planned() == {}


def test_another_statistics_corpus_adds_files_and_going_back_costs_nothing(checkout):
    checkout.configure(
        statistics={"corpus": "prose/evaluation"},
        evaluation={**checkout.evaluation, "perplexity": {"corpus": "prose/statistics", "windows": 4, "window": 32}},
    )
    planned = checkout.planned()
    assert planned["statistics"] == 1
    assert "model" not in planned


def test_a_users_own_set_gets_random_sets_of_its_size(checkout):
    (checkout.root / "mine.csv").write_text("layer,neuron\n0,3\n2,7\n2,8\n")
    checkout.configure(selection={"files": {"mine": "mine.csv"}})
    assert checkout.jobs("--cores", "2", "figures/fig3.pdf") == {"select_file": 1, **AFTER_SETS}
    drawn = pl.read_parquet(checkout.root / "results/tiny/main/sets/prose/statistics/random-file-mine-s1.parquet")
    assert sorted(drawn["layer"]) == [0, 2, 2]
    shown = pl.read_parquet(checkout.root / "results/figures/fig3/c.parquet")
    assert {"file-mine", "random-file-mine"} <= set(shown["condition"])
    assert checkout.planned() == {}


def test_every_parquet_says_what_it_was_made_from(finished):
    weights = json.loads((finished.root / "results/tiny/main/model.json").read_text())["weights"]
    seen = set()
    for path in (finished.root / "results").rglob("*.parquet"):
        metadata = read_metadata(path)
        seen.add(metadata["kind"])
        assert metadata["format"] == 1
        assert {"numpy", "polars", "subzero"} <= set(metadata["made"]["versions"])
        assert len(metadata["depends"]["code"]) == 16
        assert metadata["depends"]["settings"], path
        assert set(metadata["columns"]) == set(pl.read_parquet_schema(path))
        assert all(column["description"] and "unit" in column for column in metadata["columns"].values())
        if metadata["kind"] not in ("corpus", "items"):
            models = metadata["depends"]["model"]
            model = models["Tiny"] if metadata["kind"] == "panel" else models
            assert (model["source"], model["weights"]) == ("path:model", weights)
        if metadata["kind"] in ("corpus", "tokens", "statistics", "set"):
            assert len(metadata["depends"]["corpus"]["hash"]) == 64
    assert seen == {"corpus", "tokens", "statistics", "set", "items", "evaluation", "summary", "panel"}


@pytest.mark.parametrize("store", ["temp", "fused", "sketch"])
def test_how_pre_activations_are_kept_decides_what_runs_and_what_is_left(unrun, finished, store):
    unrun.configure(statistics={"store": store})
    jobs = unrun.jobs("--cores", "2", "results/tiny/main/statistics/prose/statistics.parquet")
    makes = {"temp": {"extract": 1, "statistics": 1}}.get(store, {"measure": 1})
    assert jobs == {"model": 1, "corpus": 1, "tokenize": 1} | makes
    assert not (unrun.root / "results/tiny/main/activations/prose/statistics.zarr").exists()
    ours, theirs = (
        pl.read_parquet(checkout.root / "results/tiny/main/statistics/prose/statistics.parquet")
        for checkout in (unrun, finished)
    )
    if store == "sketch":
        assert ((ours["wd"] - theirs["wd"]).abs() <= ours["wd_bound"]).all()
    else:
        assert ours.equals(theirs)
    assert unrun.jobs("-n", "results/tiny/main/statistics/prose/statistics.parquet") == {}


def test_ranking_by_mapping_difficulty_computes_that_and_no_more(checkout):
    checkout.configure(selection={"statistic": "md"})
    jobs = checkout.jobs("--cores", "2", "figures/fig3.pdf")
    assert jobs == {"pairs": 1, "pair_inputs": 1, "difficulty": 1, "select": 2} | AFTER_SETS
    md = pl.read_parquet(checkout.root / "results/tiny/main/difficulty/prose/statistics.parquet")
    chosen = pl.read_parquet(checkout.root / "results/tiny/main/sets/prose/statistics/md-top-0.05.parquet")
    for layer in range(3):
        best = md.filter(layer=layer).sort("md", descending=True)["neuron"].head(2)
        assert chosen.filter(layer=layer)["neuron"].to_list() == best.to_list()
    checkout.configure(selection={"statistic": "md"}, statistics={"seed": 1})
    assert checkout.planned() == {"pairs": 1, "pair_inputs": 1, "difficulty": 1, "select": 2} | AFTER_SETS
