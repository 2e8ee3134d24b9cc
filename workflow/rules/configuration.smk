# needs: config.yaml, or what --configfile names
# makes: the checked configuration, and what the rules look up in it for their wildcards
# cost:  2 s at each call of snakemake

import json
import re
import shlex
import sys
from pathlib import Path

from subzero.analysis import PANELS
from subzero.benchmarks import kind, pair_files
from subzero.configuration import check, corpora, file_sets, interventions, read, sets
from subzero.errors import SubzeroError
from subzero.figures import FIGURES
from subzero.fingerprint import fingerprint
from subzero.grammar import grammar_hash
from subzero.names import parse_intervention

CONFIG = str(workflow.overwrite_configfiles[-1]) if workflow.overwrite_configfiles else "config.yaml"


def checked(make, *given):
    """What `make` gives; its refusal is one line on stderr, before any job starts."""
    try:
        return make(*given)
    except SubzeroError as error:
        print(error, file=sys.stderr)
        sys.exit(1)


schema = checked(read, Path(workflow.basedir) / "workflow" / "schemas" / "config.schema.yaml")
if not workflow.overwrite_configfiles:  # --configfile takes its place; the schema's defaults fill either
    checked(read, CONFIG)

    configfile: "config.yaml"


HERE = "conda" not in map(str, workflow.deployment_settings.deployment_method)
config = checked(check, config, schema, CONFIG, HERE)


STATISTICS = config["statistics"]
# those that need pre-activations on disk only where these are kept
DRAWN = [name for name, row in FIGURES.items() if not row.stores or STATISTICS["store"] in ("full", "temp")]


wildcard_constraints:
    model="|".join(map(re.escape, config["models"])),
    revision="|".join(re.escape(r) for m in config["models"].values() for r in m["revisions"]),
    corpus="|".join(map(re.escape, corpora(config))),
    figure="|".join(DRAWN),
    panel="[a-z]",
    format="pdf|png|svg",


PAIRS = config["evaluation"]["benchmarks"]
HEADLINE = interventions(config, [config["selection"]["headline"]])
ALL = interventions(config, config["selection"]["fractions"])
CORPUS = config["statistics"]["corpus"]
EVALUATION = f"results/{{model}}/{{revision}}/evaluation/{CORPUS}"
SETS = f"results/{{model}}/{{revision}}/sets/{CORPUS}"


def scheme(wildcards):
    """What stands before the colon of the model's source."""
    return config["models"][wildcards.model]["source"].partition(":")[0]


def family(wildcards):
    """The model's family as model.json says; until there is one, no family's row counts."""
    path = Path(f"results/{wildcards.model}/{wildcards.revision}/model.json")
    return json.loads(path.read_text())["family"] if path.is_file() else "unresolved"


def options(entry, place, *keys):
    """Options of a command from an entry's keys, those that have their default left out; a list's once an item."""
    known = place["additionalProperties"]["properties"]
    given = []
    for key in keys:
        value = entry[key]
        if value != known[key]["default"]:
            values, name = (value, key.removesuffix("s")) if isinstance(value, list) else ([value], key)
            given += [f"--{name.replace('_', '-')} {shlex.quote(str(each))}" for each in values]
    return " ".join(given)


def corpus_options(name, *keys):
    return options(config["corpora"][name], schema["properties"]["corpora"], *keys)


def benchmark_options(name, *keys):
    place = schema["properties"]["evaluation"]["properties"]["benchmarks"]
    return options(PAIRS[name], place, *keys)


def text_names(corpus):
    """The entry of NAMED that a corpus is, if it is one."""
    return [name for name in [config["corpora"][corpus]["source"]] if name]


def whole(wildcards):
    """The corpus whose half, or all of which, the wildcard names."""
    return wildcards.corpus.partition("/")[0]


def half(wildcards):
    """The option for a half of a corpus, which stands after the slash in its name."""
    name = wildcards.corpus.partition("/")[2]
    return f"--half {name}" if name else ""


def cut(wildcards):
    """Length of a window and number of windows: a corpus serves either the statistics or the perplexity."""
    statistics, perplexity = config["statistics"], config["evaluation"]["perplexity"]
    if wildcards.corpus == statistics["corpus"]:
        count = statistics["tokens"] and statistics["tokens"] // statistics["window"]
        return {"window": statistics["window"], "count": count}
    return {"window": perplexity["window"], "count": perplexity["windows"]}


def evaluation_code(wildcards):
    """The op's row is left out: its record is an input, so that one op's code re-runs only what uses it."""
    rows = {"SOURCES": [scheme(wildcards)], "FAMILIES": [family(wildcards)], "BENCHMARKS": [kind(wildcards.benchmark)]}
    return fingerprint("evaluate", OPS=[], **rows)


def set_files(names):
    """The files of the sets that interventions use."""
    return [f"{SETS}/{name}.parquet" for name in dict.fromkeys(parse_intervention(n).set for n in names) if name]


def interventions_of(wildcards):
    """Perplexity is measured under all interventions, minimal pairs under those of the headline fraction."""
    return ALL if kind(wildcards.benchmark) == "perplexity" else HEADLINE


RUN = config["run"]
FOLDER = "figures" if RUN == "default" else f"figures/{RUN}"


def shown(wildcards):
    """What a panel shows: for each of its models, at its last revision, the benchmarks of the panel's kind."""
    perplexity = f"perplexity/{config['evaluation']['perplexity']['corpus']}"
    made_from = PANELS[wildcards.figure + wildcards.panel][1]
    of_kind = {"perplexity": [perplexity], "pairs": list(PAIRS), "stability": [None]}[made_from]
    for name in config["figures"][wildcards.figure]["models"]:
        for benchmark in of_kind:
            yield name, config["models"][name]["revisions"][-1], benchmark


def summaries(wildcards):
    """The summaries that a panel shows, or what it shows of the statistics themselves."""
    places = {None: f"stability/{CORPUS}"}
    return [
        f"results/{name}/{last}/{places.get(b) or f'summary/{RUN}/{b}'}.parquet" for name, last, b in shown(wildcards)
    ]


def panel_labels(wildcards):
    """What the figure calls the model of each summary."""
    labels = [(config["models"][name]["label"], last) for name, last, _ in shown(wildcards)]
    return [label if last == "main" else f"{label}, {last}" for label, last in labels]


def drawn(figure):
    """The letters of the panels that a figure draws."""
    return [letter for letter, drawer in FIGURES[figure].panels.items() if callable(drawer)]
