"""The names in paths and in config.yaml: neuron sets, layers, interventions. Parsed here and nowhere else.

set           {statistic}-{side}-{fraction}    wd-top-0.01, wd-bottom-0.35
              random-{fraction}-s{seed}        random-0.01-s0
              file-{name}                      file-mine (a user's own table)
              random-file-{name}-s{seed}       as many at random in each layer
layers        all, L4, L4-7, to-L7             counted from 0, ends included
intervention  none, {set}.{op}.{layers}        wd-top-0.01.neg.all
"""

import re
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from subzero.errors import SubzeroError

UNTOUCHED = "none"
_NAME = r"[A-Za-z0-9_]+(?:-[A-Za-z0-9_]+)*"
_RANKED = re.compile(r"(?P<statistic>[a-z_]+)-(?P<side>top|bottom)-(?P<fraction>[^-]+)")
_RANDOM = re.compile(rf"random-(?:file-(?P<file>{_NAME})|(?P<fraction>[^-]+))-s(?P<seed>\d+)")
_FILE = re.compile(rf"file-(?P<file>{_NAME})")
_LAYERS = re.compile(r"all|L(?P<first>\d+)(?:-(?P<last>\d+))?|to-L(?P<to>\d+)")


def fraction_name(value: object) -> str:
    """A fraction's one spelling: 1e-2, '1e-2', 0.010 and 0.01 all give '0.01'.

    Raises:
        SubzeroError: not a number, or not inside (0, 1).
    """
    try:
        number = Decimal(str(value))
    except InvalidOperation:
        number = None
    if isinstance(value, bool) or number is None or not number.is_finite() or not 0 < number < 1:
        raise SubzeroError(f"fraction {value!r}; allowed: a number above 0 and below 1")
    return format(number.normalize(), "f")


@dataclass(frozen=True)
class NeuronSet:
    """A set's name, taken apart. `kind` is ranked, random or file; what does not apply is None."""

    kind: str
    statistic: str | None = None
    side: str | None = None
    fraction: str | None = None
    file: str | None = None
    seed: int | None = None

    def __str__(self) -> str:
        if self.kind == "ranked":
            return f"{self.statistic}-{self.side}-{self.fraction}"
        if self.kind == "random":
            return f"random-{self.fraction or f'file-{self.file}'}-s{self.seed}"
        return f"file-{self.file}"


def parse_set(name: str) -> NeuronSet:
    """Take a set's name apart.

    Raises:
        SubzeroError: no such form, or a fraction outside (0, 1).
    """
    if match := _RANDOM.fullmatch(name):
        fraction = match["fraction"] and fraction_name(match["fraction"])
        return NeuronSet("random", fraction=fraction, file=match["file"], seed=int(match["seed"]))
    if match := _FILE.fullmatch(name):
        return NeuronSet("file", file=match["file"])
    if match := _RANKED.fullmatch(name):
        return NeuronSet("ranked", match["statistic"], match["side"], fraction_name(match["fraction"]))
    raise SubzeroError(
        f"neuron set {name!r}; allowed: STATISTIC-top-FRACTION, STATISTIC-bottom-FRACTION, "
        "random-FRACTION-sSEED, file-NAME, random-file-NAME-sSEED"
    )


def parse_layers(name: str, depth: int) -> range:
    """The layers that a name stands for, in a model of `depth` layers.

    Raises:
        SubzeroError: no such form, or a layer that the model has not.
    """
    match = _LAYERS.fullmatch(name)
    if match is None:
        raise SubzeroError(f"layers {name!r}; allowed: all, L4, L4-7, to-L7")
    if match["to"]:
        layers = range(int(match["to"]) + 1)
    elif match["first"]:
        layers = range(int(match["first"]), int(match["last"] or match["first"]) + 1)
    else:
        layers = range(depth)
    if not layers or layers[-1] >= depth:
        raise SubzeroError(f"layers {name!r}; allowed: 0 to {depth - 1}, the first not after the last")
    return layers


@dataclass(frozen=True)
class Intervention:
    """What is done to a model: `op` on the neurons of `set` in `layers`; all None for the untouched model."""

    set: str | None = None
    op: str | None = None
    layers: str | None = None

    def __str__(self) -> str:
        return UNTOUCHED if self.set is None else f"{self.set}.{self.op}.{self.layers}"


def parse_intervention(name: str) -> Intervention:
    """Take an intervention's name apart (its set is taken apart by `parse_set`).

    Raises:
        SubzeroError: no such form.
    """
    if name == UNTOUCHED:
        return Intervention()
    parts = name.rsplit(".", 2)
    if len(parts) != 3 or not all(parts):
        raise SubzeroError(f"intervention {name!r}; allowed: none, or SET.OP.LAYERS such as wd-top-0.01.neg.all")
    return Intervention(*parts)
