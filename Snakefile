"""subzero: the neurons whose negative pre-activations carry syntax. `snakemake --cores 8 figures/fig3.pdf`."""

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


schema = checked(read, Path(workflow.basedir) / "workflow/schemas/config.schema.yaml")
if not workflow.overwrite_configfiles:  # --configfile takes its place; the schema's defaults fill either
    checked(read, CONFIG)

    configfile: "config.yaml"


config = checked(check, config, schema, CONFIG)


wildcard_constraints:
    model="|".join(map(re.escape, config["models"])),
    revision="|".join(re.escape(r) for m in config["models"].values() for r in m["revisions"]),
    corpus="|".join(map(re.escape, corpora(config))),
    figure="|".join(FIGURES),
    panel="[a-z]",
    format="pdf|png|svg",


include: "workflow/rules/models.smk"
include: "workflow/rules/corpora.smk"
include: "workflow/rules/activations.smk"
include: "workflow/rules/statistics.smk"
include: "workflow/rules/selection.smk"
include: "workflow/rules/evaluation.smk"
include: "workflow/rules/figures.smk"


rule all:
    """Every figure in every format."""
    default_target: True
    input:
        expand(f"{FOLDER}/{{figure}}.{{format}}", figure=FIGURES, format=["pdf", "png", "svg"]),


rule figures:
    """Every figure as PDF."""
    input:
        expand(f"{FOLDER}/{{figure}}.pdf", figure=FIGURES),
