# needs: model.json, windows of tokens
# makes: the pre-activations of every neuron on every token, a zarr group with an array a layer
# cost:  one forward pass over the corpus; 4 bytes a token and neuron of disk (3.8 GB for the default run), 2 in float16


# with store: temp they go once the statistics exist
passing = temp if STATISTICS["store"] == "temp" else lambda place: place


rule extract:
    """Pre-activations by forward hooks; a run that was stopped goes on where it was."""
    input:
        tokens="results/{model}/{revision}/tokens/{corpus}.parquet",
        model="results/{model}/{revision}/model.json",
    output:
        passing(directory("results/{model}/{revision}/activations/{corpus}.zarr")),
    log:
        "logs/{model}/{revision}/activations/{corpus}.log",
    benchmark:
        "logs/{model}/{revision}/activations/{corpus}.tsv"
    conda:
        "../../envs/torch.yaml"
    threads: 8
    resources:
        mem_mb=config["memory"],
        device=config["device"],
    params:
        code=lambda w: fingerprint("extract", SOURCES=[scheme(w)], FAMILIES=[family(w)]),
        precision=STATISTICS["precision"],
        compress=STATISTICS["compress"],
    shell:
        r"""
        subzero extract {input.tokens:q} --model {input.model:q} \
            --precision {params.precision} --compress {params.compress} \
            --device {resources.device} --memory {resources.mem_mb} --threads {threads} \
            --code {params.code} --out {output:q} 2>&1 | tee {log:q}
        """
