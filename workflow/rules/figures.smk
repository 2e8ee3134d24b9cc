# needs: summaries
# makes: the numbers of each panel, and the pictures
# cost:  seconds


rule panel:
    """The numbers in a panel of a figure."""
    input:
        summaries,
    output:
        f"results/{FOLDER}/{{figure}}/{{panel}}.parquet",
    log:
        f"logs/{FOLDER}/{{figure}}/{{panel}}.log",
    conda:
        "../../envs/data.yaml"
    params:
        code=lambda w: fingerprint("panel", PANELS=[w.figure + w.panel], SHOWN=[PANELS[w.figure + w.panel][1]]),
        shown=lambda w: summaries(w),
        labels=lambda w: " ".join(f"--label {shlex.quote(label)}" for label in panel_labels(w)),
        op=config["evaluation"]["ops"][0],
        fraction=config["selection"]["headline"],
        corpus=config["statistics"]["corpus"],
    shell:
        r"""
        subzero panel {wildcards.figure}{wildcards.panel} {params.shown:q} {params.labels} \
            --op {params.op} --fraction {params.fraction} --code {params.code} \
            --out {output:q} 2>&1 | tee {log:q}
        """


rule draw:
    """A figure, from the numbers of its panels."""
    input:
        lambda w: expand(f"results/{FOLDER}/{{figure}}/{{panel}}.parquet", panel=drawn(w.figure), allow_missing=True),
    output:
        report(f"{FOLDER}/{{figure}}.{{format}}", caption="../report/figure.rst", category="Figures"),
    log:
        f"logs/{FOLDER}/{{figure}}.{{format}}.log",
    conda:
        "../../envs/figures.yaml"
    params:
        code=lambda w: fingerprint(
            "draw",
            FIGURES=[w.figure],
            PANELS=[w.figure + letter for letter in drawn(w.figure)],
            STYLES=[config["figures"]["style"]],
        ),
        style=config["figures"]["style"],
        panels=f"results/{FOLDER}/{{figure}}",
    shell:
        r"""
        subzero draw {wildcards.figure} --panels {params.panels:q} --style {params.style} \
            --code {params.code} --out {output:q} 2>&1 | tee {log:q}
        """
