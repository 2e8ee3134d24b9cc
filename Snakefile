"""subzero: the neurons whose negative pre-activations carry syntax. `snakemake --cores 8 figures/fig3.pdf`."""

import json
import re
import shlex
import sys
from pathlib import Path

import yaml
from subzero.analysis import PANELS
from subzero.configuration import check, corpora, file_sets, interventions, sets
from subzero.errors import SubzeroError
from subzero.figures import FIGURES
from subzero.fingerprint import fingerprint
from subzero.grammar import grammar_hash
from subzero.names import parse_intervention

if not workflow.overwrite_configfiles:  # --configfile takes its place; the schema's defaults fill either

    configfile: "config.yaml"


try:
    config = check(
        config,
        schema=yaml.safe_load((Path(workflow.basedir) / "workflow/schemas/config.schema.yaml").read_text()),
        where=str((workflow.overwrite_configfiles or ["config.yaml"])[-1]),
    )
except SubzeroError as error:
    print(error, file=sys.stderr)
    sys.exit(1)


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
    """Every figure in every format, and every summary."""
    default_target: True
    input:
        expand(f"{FOLDER}/{{figure}}.{{format}}", figure=FIGURES, format=["pdf", "png", "svg"]),


rule figures:
    """Every figure as PDF."""
    input:
        expand(f"{FOLDER}/{{figure}}.pdf", figure=FIGURES),
