import pytest

from subzero.errors import SubzeroError
from subzero.names import Intervention, NeuronSet, fraction_name, parse_intervention, parse_layers, parse_set


@pytest.mark.parametrize("written", [0.01, "1e-2", "0.010", "0.01", 1e-2, "1E-2", ".01"])
def test_a_fraction_has_one_spelling(written):
    assert fraction_name(written) == "0.01"


@pytest.mark.parametrize("written", [0, 1, -0.1, 1.5, "x", "", None, True, "nan", "inf", [0.1]])
def test_what_is_no_fraction_is_refused(written):
    with pytest.raises(SubzeroError, match=r"allowed: a number above 0 and below 1"):
        fraction_name(written)


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        ("wd-top-0.01", NeuronSet("ranked", "wd", "top", "0.01")),
        ("fraction_negative-bottom-0.35", NeuronSet("ranked", "fraction_negative", "bottom", "0.35")),
        ("random-0.01-s12", NeuronSet("random", fraction="0.01", seed=12)),
        ("file-mine", NeuronSet("file", file="mine")),
        ("random-file-mine-2-s0", NeuronSet("random", file="mine-2", seed=0)),
    ],
)
def test_set_names_there_and_back(name, parsed):
    assert parse_set(name) == parsed
    assert str(parsed) == name


@pytest.mark.parametrize(
    "name", ["wd", "wd-middle-0.01", "random-0.01", "wd-top-2", "file-", "", "wd-top-0.01.neg.all"]
)
def test_bad_set_names_are_refused_by_name(name):
    with pytest.raises(SubzeroError, match="allowed:"):
        parse_set(name)


@pytest.mark.parametrize(
    ("name", "layers"),
    [("all", [0, 1, 2, 3]), ("L2", [2]), ("L1-3", [1, 2, 3]), ("to-L1", [0, 1])],
)
def test_layers(name, layers):
    assert list(parse_layers(name, depth=4)) == layers


@pytest.mark.parametrize("name", ["L4", "L3-1", "to-L4", "layer2", "L", "L1-9"])
def test_bad_layers_are_refused_by_name(name):
    with pytest.raises(SubzeroError, match=name):
        parse_layers(name, depth=4)


def test_intervention_names_there_and_back():
    assert parse_intervention("none") == Intervention()
    parsed = parse_intervention("wd-top-0.01.neg.to-L7")
    assert parsed == Intervention("wd-top-0.01", "neg", "to-L7")
    assert str(parsed) == "wd-top-0.01.neg.to-L7"
    with pytest.raises(SubzeroError, match="clamp"):
        parse_intervention("clamp")
