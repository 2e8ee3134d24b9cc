# needs: config.yaml, or what --configfile names
# makes: the checked configuration, and what the rules look up in it for their wildcards
# cost:  2 s at each call of snakemake

import json
import re
import shlex
import sys
from pathlib import Path

from subzero.analysis import PANELS
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


wildcard_constraints:
    model="|".join(map(re.escape, config["models"])),
    revision="|".join(re.escape(r) for m in config["models"].values() for r in m["revisions"]),
    corpus="|".join(map(re.escape, corpora(config))),
    figure="|".join(FIGURES),
    panel="[a-z]",
    format="pdf|png|svg",


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


def options(corpus, *keys):
    """Options of a command from the keys of a corpus, those that have their default left out; a list's once an entry."""
    known = schema["properties"]["corpora"]["additionalProperties"]["properties"]
    given = []
    for key in keys:
        value = config["corpora"][corpus][key]
        if value != known[key]["default"]:
            values, name = (value, key.removesuffix("s")) if isinstance(value, list) else ([value], key)
            given += [f"--{name.replace('_', '-')} {shlex.quote(str(each))}" for each in values]
    return " ".join(given)


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


def benchmark_key(wildcards):
    """The benchmark's key in its tables: perplexity, whatever the corpus."""
    return wildcards.benchmark.partition("/")[0]


def evaluation_code(wildcards):
    """The op's row is left out: its record is an input, so that one op's code re-runs only what uses it."""
    rows = {"SOURCES": [scheme(wildcards)], "FAMILIES": [family(wildcards)], "BENCHMARKS": [benchmark_key(wildcards)]}
    return fingerprint("evaluate", OPS=[], **rows)


def set_files(names):
    """The files of the sets that interventions use."""
    return [f"{SETS}/{name}.parquet" for name in dict.fromkeys(parse_intervention(n).set for n in names) if name]


def interventions_of(wildcards):
    """Perplexity is measured under all interventions, minimal pairs under those of the headline fraction."""
    return ALL if wildcards.benchmark.startswith("perplexity/") else HEADLINE


FOLDER = "figures" if config["run"] == "default" else f"figures/{config['run']}"


def summaries(wildcards):
    """The summaries that a panel shows, one a model: of its last revision."""
    shown = PANELS[f"{wildcards.figure}{wildcards.panel}"][1]
    if shown == "perplexity":
        shown = f"{shown}/{config['evaluation']['perplexity']['corpus']}"
    return [
        f"results/{model}/{config['models'][model]['revisions'][-1]}/summary/{config['run']}/{shown}.parquet"
        for model in config["figures"][wildcards.figure]["models"]
    ]


def panel_labels(wildcards):
    """What the figure calls its models."""
    models = {name: config["models"][name] for name in config["figures"][wildcards.figure]["models"]}
    lasts = {name: model["revisions"][-1] for name, model in models.items()}
    return [m["label"] if lasts[name] == "main" else f"{m['label']}, {lasts[name]}" for name, m in models.items()]


def drawn(figure):
    """The letters of the panels that a figure draws."""
    return [letter for letter, drawer in FIGURES[figure].panels.items() if callable(drawer)]
