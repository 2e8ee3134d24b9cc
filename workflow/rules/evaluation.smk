# needs: model.json, neuron sets, a benchmark's items or a corpus's windows
# makes: item-level results, one file an intervention; summaries of them
# cost:  one job a model, revision and benchmark; 13 s an intervention for perplexity and 21 s for minimal pairs (default)


rule op:
    """Record an operation and its code's fingerprint, so that another operation's code touches nothing of this one."""
    output:
        "results/ops/{op}.json",
    log:
        "logs/ops/{op}.log",
    wildcard_constraints:
        op="|".join(config["evaluation"]["ops"]),
    conda:
        "../../envs/torch.yaml"
    params:
        code=lambda w: fingerprint("op", OPS=[w.op]),
    shell:
        "subzero op {wildcards.op} --code {params.code} --out {output:q} 2>&1 | tee {log:q}"


rule items:
    """Collect a benchmark's minimal pairs: drawn, published, or the user's own."""
    input:
        lambda w: pair_files(PAIRS[w.benchmark]["files"]),
    output:
        "results/items/{benchmark}.parquet",
    log:
        "logs/items/{benchmark}.log",
    wildcard_constraints:
        benchmark="|".join(map(re.escape, PAIRS)),
    conda:
        "../../envs/text.yaml"
    resources:
        mem_mb=1000,
    params:
        code=lambda w: fingerprint("items", SUITES=[PAIRS[w.benchmark]["source"]]),
        grammar=lambda w: f"--grammar {grammar_hash()}" if PAIRS[w.benchmark]["source"] == "minimal-pairs" else "",
        pairs=lambda w: benchmark_options(w.benchmark, "source", "per_paradigm", "seed", "text", "files"),
    shell:
        r"""
        subzero items {wildcards.benchmark:q} {params.pairs} {params.grammar} --code {params.code} \
            --out {output:q} 2>&1 | tee {log:q}
        """


rule evaluate_pairs:
    """Minimal pairs under the headline fraction's interventions; what is there and still right is kept."""
    input:
        scored="results/items/{benchmark}.parquet",
        model="results/{model}/{revision}/model.json",
        sets=set_files(HEADLINE),
        ops=expand("results/ops/{op}.json", op=config["evaluation"]["ops"]),
    output:
        update(expand(f"{EVALUATION}/{{name}}/{{benchmark}}.parquet", name=HEADLINE, allow_missing=True)),
    log:
        f"logs/{{model}}/{{revision}}/evaluation/{CORPUS}/{{benchmark}}.log",
    benchmark:
        f"logs/{{model}}/{{revision}}/evaluation/{CORPUS}/{{benchmark}}.tsv"
    wildcard_constraints:
        benchmark="|".join(map(re.escape, PAIRS)),
    conda:
        "../../envs/torch.yaml"
    threads: 8
    resources:
        mem_mb=config["memory"],
        device=config["device"],
    params:
        code=lambda w: evaluation_code(w),
        # not recorded, being a function of the output: taking an intervention out re-runs nothing
        names=lambda w, output: [Path(p.removesuffix(f"{w.benchmark}.parquet")).name for p in output],
        sets=lambda w, input: Path(input.sets[0]).parent,
        folder=EVALUATION,
    shell:
        r"""
        subzero evaluate {wildcards.benchmark:q} {params.names} --model {input.model:q} \
            --items {input.scored:q} --sets {params.sets:q} --ops results/ops \
            --device {resources.device} --memory {resources.mem_mb} --threads {threads} \
            --code {params.code} --out-dir {params.folder:q} 2>&1 | tee {log:q}
        """


use rule evaluate_pairs as evaluate_perplexity with:
    input:
        scored=lambda w: f"results/{w.model}/{w.revision}/tokens/{w.benchmark.removeprefix('perplexity/')}.parquet",
        model="results/{model}/{revision}/model.json",
        sets=set_files(ALL),
        ops=expand("results/ops/{op}.json", op=config["evaluation"]["ops"]),
    output:
        update(expand(f"{EVALUATION}/{{name}}/{{benchmark}}.parquet", name=ALL, allow_missing=True)),
    wildcard_constraints:
        benchmark="perplexity/(" + "|".join(map(re.escape, corpora(config))) + ")",


rule summarize:
    """Errors and perplexities of every intervention, with intervals and tests against the untouched model."""
    input:
        lambda w: expand(f"{EVALUATION}/{{name}}/{{benchmark}}.parquet", name=interventions_of(w), allow_missing=True),
    output:
        f"results/{{model}}/{{revision}}/summary/{config['run']}/{{benchmark}}.parquet",
    log:
        f"logs/{{model}}/{{revision}}/summary/{config['run']}/{{benchmark}}.log",
    conda:
        "../../envs/data.yaml"
    resources:
        mem_mb=2000,
    params:
        code=lambda w: fingerprint("summarize", SUMMARIES=[kind(w.benchmark)], BENCHMARKS=[kind(w.benchmark)]),
        decides=lambda w: f"--decides {PAIRS[w.benchmark]['decides']}" if w.benchmark in PAIRS else "",
        names=lambda w: interventions_of(w),
        folder=EVALUATION,
    shell:
        r"""
        subzero summarize {wildcards.benchmark:q} {params.names} --evaluation {params.folder:q} \
            {params.decides} --code {params.code} --out {output:q} 2>&1 | tee {log:q}
        """
