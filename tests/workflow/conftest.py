"""A checkout with a tiny random model, run to the end by real Snakemake once; each test works on a copy of it."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PROSE = "the cells fire on commas and others on verbs while most of them are quiet for most of the words"
CONFIG = {
    "models": {"tiny": {"source": "path:model", "label": "Tiny"}},
    "corpora": {"prose": {"files": [f"texts/{n}.txt" for n in range(4)]}},
    "statistics": {"corpus": "prose/statistics", "tokens": 512, "window": 32},
    "selection": {"fractions": [0.01, 0.05], "random_seeds": 2, "headline": 0.01},
    "evaluation": {
        "perplexity": {"corpus": "prose/evaluation", "windows": 4, "window": 32},
        "benchmarks": {"minimal-pairs": {"per_paradigm": 4}},
    },
}
FIGURE = "figures/fig3.pdf"


@dataclass
class Checkout:
    """A copy of this repository's workflow and package, and the commands that a user types in it."""

    root: Path
    evaluation: ClassVar[dict] = CONFIG["evaluation"]

    def configure(self, **sections):
        """Write config.yaml: CONFIG with some keys replaced, a level deep."""
        config = {k: {**CONFIG.get(k, {}), **v} if isinstance(v, dict) else v for k, v in sections.items()}
        (self.root / "config.yaml").write_text(yaml.safe_dump({**CONFIG, **config}))

    def edit(self, path: str, old: str, new: str):
        """Replace a piece of a file that must be in it once."""
        file = self.root / path
        text = file.read_text()
        assert text.count(old) == 1, (path, old)
        file.write_text(text.replace(old, new))

    def snakemake(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
        binaries = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return subprocess.run(
            [sys.executable, "-m", "snakemake", *arguments],
            cwd=self.root,
            env={**os.environ, "PATH": binaries, "PYTHONPATH": str(self.root / "src"), **environment},
            capture_output=True,
            text=True,
        )

    def jobs(self, *arguments: str, **environment: str) -> dict[str, int]:
        """Rule -> number of jobs, from what Snakemake says before it runs them (with `-n` it does not)."""
        ran = self.snakemake(*arguments, **environment)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        said = ran.stdout + ran.stderr
        if "Nothing to be done" in said:
            return {}
        table = re.search(r"Job stats:\njob +count\n[- ]+\n(.*?)\ntotal", said, re.DOTALL)
        return {name: int(count) for name, count in (line.split() for line in table[1].splitlines())}

    def planned(self, **environment: str) -> dict[str, int]:
        """What `snakemake -n` would run."""
        return self.jobs("-n", FIGURE, **environment)


def copy(source: Path, target: Path) -> Checkout:
    shutil.copytree(source, target, symlinks=True)
    return Checkout(target)


@pytest.fixture(scope="session")
def fresh(tmp_path_factory, tiny_folders) -> Checkout:
    """A checkout in which nothing was run."""
    root = tmp_path_factory.mktemp("fresh") / "checkout"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("src", "workflow", "profiles", "envs"):
        shutil.copytree(ROOT / name, root / name, ignore=ignored)
    shutil.copy2(ROOT / "Snakefile", root)
    shutil.copytree(tiny_folders(), root / "model")
    (root / "texts").mkdir()
    words = PROSE.split()
    for number in range(4):
        text = " ".join(words[(place * (number + 3)) % len(words)] for place in range(600))
        (root / "texts" / f"{number}.txt").write_text(text)
    Checkout(root).configure()
    return Checkout(root)


@pytest.fixture(scope="session")
def finished(fresh, tmp_path_factory) -> Checkout:
    """A checkout whose figure is drawn."""
    checkout = copy(fresh.root, tmp_path_factory.mktemp("finished") / "checkout")
    assert checkout.jobs("--cores", "2", FIGURE) == {
        "model": 1, "corpus": 1, "tokenize": 2, "extract": 1, "statistics": 1, "select": 2, "op": 1, "items": 1,
        "evaluate_perplexity": 1, "evaluate_pairs": 1, "summarize": 2, "panel": 2, "draw": 1,
    }  # fmt: skip
    return checkout


@pytest.fixture
def checkout(finished, tmp_path) -> Checkout:
    """A copy of the finished run, for a test to change."""
    return copy(finished.root, tmp_path / "checkout")


@pytest.fixture
def unrun(fresh, tmp_path) -> Checkout:
    """A copy of the checkout in which nothing was run."""
    return copy(fresh.root, tmp_path / "checkout")
