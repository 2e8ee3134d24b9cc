# needs: statistics, the users' own tables
# makes: neuron sets; a job a fraction, so that another fraction runs one job
# cost:  seconds


# ranking by md needs it computed
ranked_by = (
    {"difficulty": "results/{model}/{revision}/difficulty/{corpus}.parquet"}
    if config["selection"]["statistic"] == "md"
    else {}
)


rule select:
    """The sets of one fraction: each side of the ranking, and as many neurons at random."""
    input:
        **ranked_by,
        statistics="results/{model}/{revision}/statistics/{corpus}.parquet",
        model="results/{model}/{revision}/model.json",
    output:
        update(expand("results/{{model}}/{{revision}}/sets/{{corpus}}/{set}.parquet", set=sets(config, "{fraction}"))),
    log:
        "logs/{model}/{revision}/sets/{corpus}/{fraction}.log",
    wildcard_constraints:
        fraction="|".join(map(re.escape, config["selection"]["fractions"])),
    conda:
        "../../envs/torch.yaml"
    resources:
        mem_mb=1000,
    params:
        code=fingerprint("select"),
        difficulty=lambda w, input: f"--difficulty {shlex.quote(input.difficulty)}" if ranked_by else "",
    shell:
        r"""
        subzero select {output:q} --statistics {input.statistics:q} --model {input.model:q} \
            {params.difficulty} --code {params.code} 2>&1 | tee {log:q}
        """


rule select_file:
    """A user's own set, and as many neurons at random."""
    input:
        statistics="results/{model}/{revision}/statistics/{corpus}.parquet",
        model="results/{model}/{revision}/model.json",
        table=lambda w: config["selection"]["files"][w.file].replace("{model}", w.model),
    output:
        update(expand("results/{{model}}/{{revision}}/sets/{{corpus}}/{set}.parquet", set=file_sets(config, "{file}"))),
    log:
        "logs/{model}/{revision}/sets/{corpus}/file-{file}.log",
    wildcard_constraints:
        file="|".join(map(re.escape, config["selection"]["files"])) or "$^",
    conda:
        "../../envs/torch.yaml"
    resources:
        mem_mb=1000,
    params:
        code=fingerprint("select"),
        table=lambda w: config["selection"]["files"][w.file].replace("{model}", w.model),
    shell:
        r"""
        subzero select {output:q} --statistics {input.statistics:q} --model {input.model:q} \
            --file {wildcards.file:q}={params.table:q} --code {params.code} 2>&1 | tee {log:q}
        """
