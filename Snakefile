"""subzero: the neurons whose negative pre-activations carry syntax. `snakemake --cores 8 figures/fig3.pdf`."""


include: "workflow/rules/configuration.smk"
include: "workflow/rules/models.smk"
include: "workflow/rules/corpora.smk"
include: "workflow/rules/activations.smk"
include: "workflow/rules/statistics.smk"
include: "workflow/rules/difficulty.smk"
include: "workflow/rules/selection.smk"
include: "workflow/rules/evaluation.smk"
include: "workflow/rules/figures.smk"


rule all:
    """Every figure in every format."""
    default_target: True
    input:
        expand(f"{FOLDER}/{{figure}}.{{format}}", figure=DRAWN, format=["pdf", "png", "svg"]),


rule figures:
    """Every figure as PDF."""
    input:
        expand(f"{FOLDER}/{{figure}}.pdf", figure=DRAWN),
