# needs: the model and windows of tokens
# makes: pairs of tokens, their inputs and pre-activations, and the mapping difficulty (MD), a row a neuron
# cost:  a forward pass over the windows that the pairs' tokens are in; made only where something asks for it


rule pairs:
    """Draw pairs of tokens, once a corpus."""
    input:
        "results/{model}/{revision}/tokens/{corpus}.parquet",
    output:
        "results/{model}/{revision}/pairs/{corpus}.parquet",
    log:
        "logs/{model}/{revision}/pairs/{corpus}.log",
    conda:
        "../../envs/torch.yaml"
    resources:
        mem_mb=1000,
    params:
        code=fingerprint("pairs"),
        pairs=STATISTICS["pairs"],
        seed=STATISTICS["seed"],
    shell:
        r"""
        subzero pairs {input:q} --count {params.pairs} --seed {params.seed} \
            --code {params.code} --out {output:q} 2>&1 | tee {log:q}
        """


rule pair_inputs:
    """Inputs and pre-activations of the pairs' tokens."""
    input:
        tokens="results/{model}/{revision}/tokens/{corpus}.parquet",
        pairs="results/{model}/{revision}/pairs/{corpus}.parquet",
        model="results/{model}/{revision}/model.json",
    output:
        directory("results/{model}/{revision}/pair_inputs/{corpus}.zarr"),
    log:
        "logs/{model}/{revision}/pair_inputs/{corpus}.log",
    conda:
        "../../envs/torch.yaml"
    threads: 8
    resources:
        mem_mb=config["memory"],
        device=config["device"],
    params:
        code=lambda w: fingerprint("pair_inputs", SOURCES=[scheme(w)], FAMILIES=[family(w)]),
    shell:
        r"""
        subzero pair-inputs {input.tokens:q} --pairs {input.pairs:q} --model {input.model:q} \
            --device {resources.device} --memory {resources.mem_mb} --threads {threads} \
            --code {params.code} --out {output:q} 2>&1 | tee {log:q}
        """


rule difficulty:
    """Mapping difficulty (MD) of every neuron."""
    input:
        inputs="results/{model}/{revision}/pair_inputs/{corpus}.zarr",
        pairs="results/{model}/{revision}/pairs/{corpus}.parquet",
    output:
        "results/{model}/{revision}/difficulty/{corpus}.parquet",
    log:
        "logs/{model}/{revision}/difficulty/{corpus}.log",
    conda:
        "../../envs/torch.yaml"
    resources:
        mem_mb=config["memory"],
    params:
        code=fingerprint("difficulty"),
    shell:
        r"""
        subzero difficulty {input.inputs:q} --pairs {input.pairs:q} \
            --code {params.code} --out {output:q} 2>&1 | tee {log:q}
        """
