"""What changes a step's fingerprint and what does not, on a small package and on ours."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from subzero import fingerprint as module
from subzero.fingerprint import PACKAGE, fingerprint, reached

CLI = '''
"""Commands."""
from small.numbers import double, TABLE

def step(x: "help text" = 3):
    """What it does."""
    return double(x) + TABLE["one"]()  # a comment

def other():
    from small import numbers
    return numbers.triple(1)
'''
NUMBERS = """
import math
FACTOR = 2
def double(x):
    return FACTOR * x
def triple(x):
    return 3 * x
def one():
    return 1
def two():
    return 2
TABLE = {"one": one, "two": two}
"""


@pytest.fixture
def small(tmp_path):
    """cli.py and numbers.py of a package -> its fingerprint of a step."""
    versions = iter(range(100))

    def write(step="step", cli=CLI, numbers=NUMBERS, **tables):
        folder = tmp_path / str(next(versions)) / "small"
        folder.mkdir(parents=True)
        (folder / "cli.py").write_text(textwrap.dedent(cli))
        (folder / "numbers.py").write_text(textwrap.dedent(numbers))
        return fingerprint(step, package=folder, **tables)

    return write


def test_comments_docstrings_annotations_and_layout_do_not_count(small):
    changed = CLI.replace("a comment", "another").replace("What it does.", "Why.").replace("help text", "other help")
    numbers = NUMBERS.replace("return FACTOR * x", "# scaled\n    return (FACTOR *\n            x)")
    assert small(cli=changed, numbers=numbers) == small()


@pytest.mark.parametrize(
    ("old", "new"),
    [("FACTOR = 2", "FACTOR = 5"), ("FACTOR * x", "FACTOR + x"), ("return 1", "return 9")],
    ids=["constant", "function", "function in a table"],
)
def test_what_the_step_reaches_counts(small, old, new):
    assert small(numbers=NUMBERS.replace(old, new)) != small()


def test_what_the_step_does_not_reach_does_not_count(small):
    assert small(numbers=NUMBERS.replace("3 * x", "4 * x")) == small()
    assert small("other", numbers=NUMBERS.replace("3 * x", "4 * x")) != small("other")


def test_only_the_named_rows_of_a_table_count(small):
    more = NUMBERS.replace('"two": two}', '"two": two, "three": triple}')
    other = NUMBERS.replace("return 2", "return 22")
    for numbers in (more, other):
        assert small(numbers=numbers, TABLE=["one"]) == small(TABLE=["one"])
        assert small(numbers=numbers) != small()
    assert small(numbers=NUMBERS.replace("return 1", "return 11"), TABLE=["one"]) != small(TABLE=["one"])


def test_a_parameter_or_variable_is_not_the_function_of_the_same_name(small):
    cli = CLI.replace("def other():", "def inner(other):\n    return [step for step in other(1)]\n\ndef other():")
    assert small("inner", cli=cli.replace("def other():", "def other(y=1):")) == small("inner", cli=cli)
    nested = cli.replace("return [step for step in other(1)]", "return [other for other in step(other)]")
    changed = nested.replace("double(x) +", "double(x) -")
    assert small("inner", cli=nested) != small("inner", cli=changed)


def test_a_name_that_is_local_elsewhere_alone_still_counts(small):
    cli = CLI.replace("return double(x)", "hide = lambda double: double\n    return double(x)")
    other = NUMBERS.replace("FACTOR * x", "FACTOR + x")
    assert small(cli=cli, numbers=other) != small(cli=cli)


def test_an_unknown_step_is_refused(small):
    with pytest.raises(KeyError, match=r"no step 'cli\.nothing'"):
        small("nothing")
    with pytest.raises(KeyError, match="step 'step' does not reach TABEL"):
        small(TABEL=["one"])


def test_the_statistics_step_reaches_its_formula_and_not_the_extraction():
    found = reached("cli.statistics")
    assert "statistics._distances" in found
    assert "activations.open_activations" in found
    assert not {"activations.extract", "activations.forward_rows", "models.load"} & set(found)
    assert "statistics._distances" not in reached("cli.extract")


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_the_same_on_every_supported_python(version, tmp_path):
    """Runs the module's file alone, so that the interpreter needs nothing installed."""
    pythons = [sys.executable, *map(str, sorted(Path.home().glob(f".pyenv/versions/{version}*/bin/python")))]
    pythons += [f"/usr/bin/python{version}"]
    code = (
        "import importlib.util, sys, pathlib\n"
        f"spec = importlib.util.spec_from_file_location('fp', {module.__file__!r})\n"
        "fp = importlib.util.module_from_spec(spec); spec.loader.exec_module(fp)\n"
        f"package = pathlib.Path({str(PACKAGE)!r})\n"
        "steps = ['extract', 'statistics', 'select', 'evaluate', 'draw']\n"
        "print('%d.%d' % sys.version_info[:2], *[fp.fingerprint(s, package) for s in steps])"
    )
    expected = [fingerprint(step) for step in ("extract", "statistics", "select", "evaluate", "draw")]
    for python in filter(lambda p: Path(p).exists(), pythons):
        ran = subprocess.run(
            [python, "-I", "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
        ).stdout.split()
        if ran[0] == version:
            assert ran[1:] == expected
            return
    pytest.skip(f"no Python {version} on this machine")
