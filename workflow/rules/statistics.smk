# needs: pre-activations
# makes: WD and moments, a row a neuron
# cost:  a sort of every neuron's values; about 0.6 ms a neuron and core at 20,000 tokens


rule statistics:
    """WD and moments of every neuron on one corpus."""
    input:
        "results/{model}/{revision}/activations/{corpus}.zarr",
    output:
        "results/{model}/{revision}/statistics/{corpus}.parquet",
    log:
        "logs/{model}/{revision}/statistics/{corpus}.log",
    benchmark:
        "logs/{model}/{revision}/statistics/{corpus}.tsv"
    conda:
        "../../envs/torch.yaml"
    threads: 8
    resources:
        mem_mb=config["memory"],
    params:
        code=fingerprint("statistics"),
    shell:
        r"""
        subzero statistics {input:q} --threads {threads} --code {params.code} \
            --out {output:q} 2>&1 | tee {log:q}
        """
