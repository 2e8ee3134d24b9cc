"""config.yaml: checked against its schema and against itself, before anything runs; defaults filled in."""

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path

import yaml

from subzero.benchmarks import READERS, SUITES, pair_files
from subzero.corpora import HALVES, NAMED
from subzero.errors import SubzeroError, near_miss
from subzero.figures import STYLES
from subzero.interventions import OPS
from subzero.models import family
from subzero.names import NeuronSet, fraction_name
from subzero.selection import RANKED, TABLES
from subzero.sources import local_configuration, problem

RESERVED = ("corpora", "figures", "items", "ops")


def read(path: Path) -> dict:
    """A YAML file of keys with values.

    Raises:
        SubzeroError: not readable, or not YAML (says where), or something else than keys with values.
    """
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise SubzeroError(f"{path}: not readable ({getattr(error, 'strerror', None) or error})") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise SubzeroError(f"{path}{where}: not YAML ({getattr(error, 'problem', None) or error})") from error
    if not isinstance(content, dict):
        raise SubzeroError(f"{path}: must hold keys with values, such as 'run: default'")
    return content


def check(config: dict, schema: dict, where: str = "config.yaml", here: bool = True) -> dict:
    """A configuration with all defaults filled in and its fractions in their one spelling.

    Args:
        config: as read from YAML.
        schema: as read from workflow/schemas/config.schema.yaml.
        where: the file's name, for messages.
        here: whether models run in this Python; if not, packages that carry models may be installed elsewhere.

    Returns:
        a new dict; fractions are strings as in paths, `models.*.label` and `figures.*.models` are resolved.

    Raises:
        SubzeroError: one line for each mistake: where, key, value, what is allowed, and the near miss.
    """
    problems = list(_schema_problems(config, schema))
    if not problems:
        filled = _fill(config, schema, schema)
        problems = [*_own_problems(filled), *_model_problems(filled, here)]
    if problems:
        raise SubzeroError("\n".join(f"{where}: {problem}" for problem in problems))
    return _resolve(filled)


# The schema


def _schema_problems(config: dict, schema: dict) -> Iterator[str]:
    from jsonschema import Draft202012Validator

    for error in sorted(
        Draft202012Validator(schema).iter_errors(config), key=lambda e: list(map(str, e.absolute_path))
    ):
        key = _key(error.absolute_path)
        if error.validator == "additionalProperties":
            allowed = list(error.schema["properties"])
            for unknown in sorted(set(map(str, error.instance)) - set(allowed)):
                yield (
                    f"{key + '.' if key else ''}{unknown} is not a key; allowed: {', '.join(allowed)}."
                    f"{near_miss(unknown, allowed)}"
                )
        elif error.validator == "required":
            missing = [name for name in error.validator_value if name not in error.instance]
            yield f"{key} has no {' and no '.join(missing)}; needed: {', '.join(error.validator_value)}"
        elif "propertyNames" in error.absolute_schema_path:
            yield f"{_key([*error.absolute_path, error.instance])} is a bad name; allowed: {error.schema['allowed']}"
        else:
            options = error.schema.get("enum", [])
            yield (
                f"{key or 'the file'} is {error.instance!r}; allowed: {_allowed(error.schema)}."
                f"{near_miss(error.instance, options)}"
            )


def _allowed(schema: dict) -> str:
    """A schema's range in words."""
    if "allowed" in schema:
        return schema["allowed"]
    if "enum" in schema:
        return ", ".join(map(str, schema["enum"]))
    words = {"object": "keys with values", "array": "a list", "string": "a text", "integer": "a whole number",
             "number": "a number", "null": "null", "boolean": "true or false"}  # fmt: skip
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    text = " or ".join(words[t] for t in types)
    return f"{text} (at least one)" if schema.get("minProperties") or schema.get("minLength") else text


def _key(path) -> str:
    """a.b[0].c"""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def _fill(value, schema: dict, root: dict):
    """The value with the schema's defaults in it; named entries get the defaults of an entry."""
    schema = _followed(schema, root)
    if not isinstance(value, dict):
        return deepcopy(value)
    properties = schema.get("properties", {})
    filled = {
        name: _fill(value.get(name, _followed(inner, root).get("default")), inner, root)
        for name, inner in properties.items()
    }
    others = schema.get("additionalProperties")
    entry = others if isinstance(others, dict) else {}
    return filled | {name: _fill(v, entry, root) for name, v in value.items() if name not in properties}


def _followed(schema: dict, root: dict) -> dict:
    """What a {$ref: "#/$defs/NAME"} stands for."""
    return root["$defs"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema


# What the schema cannot say


def _own_problems(config: dict) -> Iterator[str]:
    """Rules across keys, and names that are entries of a table in the package."""
    selection, evaluation = config["selection"], config["evaluation"]
    yield from _not_one_of("selection.statistic", selection["statistic"], RANKED)
    for number, op in enumerate(evaluation["ops"]):
        yield from _not_one_of(f"evaluation.ops[{number}]", op, OPS)
    for name, entry in evaluation["benchmarks"].items():
        yield from _benchmark_problems(f"evaluation.benchmarks.{name}", name, entry)
    yield from _not_one_of("figures.style", config["figures"]["style"], STYLES)

    fractions = []
    for number, fraction in enumerate(selection["fractions"]):
        try:
            fractions.append(fraction_name(fraction))
        except SubzeroError:
            yield f"selection.fractions[{number}] is {fraction!r}; allowed: a number above 0 and below 1"
    try:
        headline = fraction_name(selection["headline"])
    except SubzeroError:
        headline = selection["headline"]
    if headline not in fractions:
        yield f"selection.headline is {selection['headline']!r}; allowed: one of selection.fractions, {fractions}"

    for name, entry in config["corpora"].items():
        yield from _corpus_problems(f"corpora.{name}", entry)
    for key in ("statistics.corpus", "evaluation.perplexity.corpus"):
        corpus = _at(config, key)
        base, slash, half = corpus.partition("/")
        if base not in config["corpora"] or (slash and half not in HALVES):
            allowed = corpora(config)
            yield f"{key} is {corpus!r}; allowed: {', '.join(allowed)}.{near_miss(corpus, allowed)}"
    yield from _overlap(config)
    yield from _missing_files(config)
    tokens, window = config["statistics"]["tokens"], config["statistics"]["window"]
    if config["statistics"]["errors"] and config["statistics"]["store"] == "sketch":
        yield "statistics.errors is True; allowed: false, since statistics.store is 'sketch', which has none"
    if tokens is not None and tokens < window:
        yield f"statistics.tokens is {tokens}; allowed: at least one window, {window}, or null for all"

    for name in config["models"]:
        if name in RESERVED:
            yield f"models.{name} is a bad name; allowed: any but {', '.join(RESERVED)}, which are folders of results/"
    labels = [model["label"] or name for name, model in config["models"].items()]
    for name, label in zip(config["models"], labels, strict=True):
        if labels.count(label) > 1:
            yield f"models.{name}.label is {label!r}; allowed: a label that no other model has"
    for figure, options in config["figures"].items():
        for model in (options.get("models") or []) if isinstance(options, dict) else []:
            yield from _not_one_of(f"figures.{figure}.models", model, config["models"])


def _corpus_problems(key: str, entry: dict) -> Iterator[str]:
    """Where a corpus comes from: one place, with a split where that has splits."""
    given = [name for name in ("source", "hub", "files") if entry[name]]
    source = entry["source"]
    if len(given) != 1:
        yield f"{key} has {' and '.join(given) or 'no text'}; allowed: one of source, hub and files"
    elif source and source not in NAMED:
        yield from _not_one_of(f"{key}.source", source, NAMED)
    elif source and NAMED[source].splits:
        yield from _not_one_of(f"{key}.split", entry["split"], NAMED[source].splits)
    elif entry["hub"] and not entry["split"]:
        yield f"{key}.split is None; allowed: the name of one of the data set's splits, such as train"
    elif entry["split"] and not entry["hub"]:
        yield f"{key}.split is {entry['split']!r}; allowed: null, since there are no splits in {source or 'files'}"
    if entry["config"] and not entry["hub"]:
        yield f"{key}.config is {entry['config']!r}; allowed: null, since only hub data sets have configurations"


def _benchmark_problems(key: str, name: str, entry: dict) -> Iterator[str]:
    """Where a grammar benchmark comes from, and files that are not there."""
    if name == "perplexity":
        yield f"{key} is a bad name; allowed: any other, since perplexity is always measured"
    elif entry["source"] is None and name not in SUITES:
        yield from _not_one_of("evaluation.benchmarks", name, SUITES)
    elif entry["source"] not in (None, *SUITES):
        yield from _not_one_of(f"{key}.source", entry["source"], SUITES)
    else:
        suite = SUITES[entry["source"] or name]
        if suite.draw and entry["files"]:
            yield f"{key}.files is {entry['files']}; allowed: [], its pairs being drawn; for yours set source: pairs"
            return
        if not suite.draw and not suite.rows and not entry["files"]:
            yield f"{key}.files is []; allowed: at least one file or folder of pairs"
    for number, place in enumerate(entry["files"]):
        where = f"{key}.files[{number}] is {place!r}"
        if not Path(place).exists():
            yield f"{where}; allowed: a file or folder that is there, seen from {Path.cwd()}"
        elif not any(path.suffix in READERS for path in pair_files([place])):
            yield f"{where}; allowed: names ending in {', '.join(READERS)}, or a folder of such files"


def _model_problems(config: dict, here: bool) -> Iterator[str]:
    """Sources that are not there and families without a row, as far as files on this machine can say."""
    for name, model in config["models"].items():
        source = model["source"]
        if source.startswith("gguf:") and not here:
            continue
        try:
            wrong = next(filter(None, (problem(source, revision) for revision in model["revisions"])), None)
            for revision in model["revisions"] if not wrong else []:
                if settings := local_configuration(source, revision):
                    family(settings)
        except SubzeroError as error:
            wrong = error
        if wrong:
            yield f"models.{name}.source is {source!r}; {wrong}"


def _not_one_of(key: str, value: str, allowed) -> Iterator[str]:
    if value not in allowed:
        yield f"{key} is {value!r}; allowed: {', '.join(allowed)}.{near_miss(value, allowed)}"


def _at(config: dict, key: str):
    for part in key.split("."):
        config = config[part]
    return config


def _overlap(config: dict) -> Iterator[str]:
    """The text for statistics and the text for perplexity must have no document in common."""
    names = [config["statistics"]["corpus"], config["evaluation"]["perplexity"]["corpus"]]
    (first, _, half), (second, _, other) = (name.partition("/") for name in names)
    if first not in config["corpora"] or second not in config["corpora"]:
        return
    texts = [config["corpora"][name] for name in (first, second)]
    places = [
        (NAMED[text["source"]].text if text["source"] in NAMED else None, text["hub"], text["config"], text["split"])
        for text in texts
    ]
    same = first == second or (places[0] == places[1] and not texts[0]["files"])
    shared = set(texts[0]["files"]) & set(texts[1]["files"]) if first != second else set()
    if shared or (same and not (half and other and half != other)):
        yield (
            f"evaluation.perplexity.corpus is {names[1]!r}, which has documents in common with statistics.corpus "
            f"{names[0]!r}; allowed: disjoint texts, such as {first}/statistics and {first}/evaluation"
        )


def _missing_files(config: dict) -> Iterator[str]:
    """Texts and tables that are not where the configuration says."""
    there = f"allowed: a file that is there, seen from {Path.cwd()}"
    for name, entry in config["corpora"].items():
        for number, file in enumerate(entry["files"]):
            if not Path(file).is_file():
                yield f"corpora.{name}.files[{number}] is {file!r}; {there}"
    for name, file in config["selection"]["files"].items():
        for path in dict.fromkeys(file.replace("{model}", model) for model in config["models"]):
            if Path(path).suffix not in TABLES:
                yield f"selection.files.{name} is {path!r}; allowed: a path ending in {' or '.join(TABLES)}"
            elif not Path(path).is_file():
                yield f"selection.files.{name} is {path!r}; {there}"


def _resolve(config: dict) -> dict:
    """Fractions in their one spelling, in rising order and each once; what stands for a null named."""
    selection = config["selection"]
    for name, entry in config["evaluation"]["benchmarks"].items():
        entry["source"] = entry["source"] or name
        suite = SUITES[entry["source"]]
        entry["decides"] = entry["decides"] or suite.decides
        entry["per_paradigm"] = entry["per_paradigm"] or suite.per_paradigm
    selection["fractions"] = sorted({fraction_name(f) for f in selection["fractions"]}, key=float)
    selection["headline"] = fraction_name(selection["headline"])
    for name, model in config["models"].items():
        model["label"] = model["label"] or name
    for options in config["figures"].values():
        if isinstance(options, dict):
            options["models"] = options["models"] or list(config["models"])
    return config


# What a configuration asks for


def corpora(config: dict) -> list[str]:
    """The corpora and their halves, by the names that they have in paths."""
    return [corpus for name in config["corpora"] for corpus in (name, *(f"{name}/{half}" for half in HALVES))]


def sets(config: dict, fraction: str) -> list[str]:
    """The neuron sets of one fraction: each side of the ranking, and the random draws."""
    selection = config["selection"]
    ranked = [NeuronSet("ranked", selection["statistic"], side, fraction) for side in dict.fromkeys(selection["sides"])]
    drawn = [NeuronSet("random", fraction=fraction, seed=seed) for seed in range(selection["random_seeds"])]
    return [str(name) for name in ranked + drawn]


def file_sets(config: dict, file: str) -> list[str]:
    """The sets of one of the users' own tables: itself, and the random draws of its size."""
    drawn = [NeuronSet("random", file=file, seed=seed) for seed in range(config["selection"]["random_seeds"])]
    return [str(name) for name in [NeuronSet("file", file=file), *drawn]]


def interventions(config: dict, fractions: list[str]) -> list[str]:
    """The interventions on some fractions' sets and the users' own, the untouched model first."""
    chosen = [name for fraction in fractions for name in sets(config, fraction)]
    chosen += [name for file in config["selection"]["files"] for name in file_sets(config, file)]
    return ["none", *(f"{name}.{op}.all" for op in dict.fromkeys(config["evaluation"]["ops"]) for name in chosen)]
