# needs: pre-activations, or with store: fused or sketch the model and windows of tokens
# makes: WD and moments, a row a neuron
# cost:  a sort of every neuron's values; about 0.7 ms a neuron and core at 20,000 tokens; fused and sketch run the model


if STATISTICS["store"] in ("full", "temp"):

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
            device=config["device"],
        params:
            code=fingerprint("statistics"),
            errors="--errors" if STATISTICS["errors"] else "",
        shell:
            r"""
            subzero statistics {input:q} {params.errors} \
                --device {resources.device} --memory {resources.mem_mb} --threads {threads} \
                --code {params.code} --out {output:q} 2>&1 | tee {log:q}
            """

    rule stability:
        """Whether half of the text, or less of it, ranks the neurons alike."""
        input:
            "results/{model}/{revision}/activations/{corpus}.zarr",
        output:
            "results/{model}/{revision}/stability/{corpus}.parquet",
        log:
            "logs/{model}/{revision}/stability/{corpus}.log",
        conda:
            "../../envs/torch.yaml"
        threads: 8
        resources:
            mem_mb=config["memory"],
        params:
            code=fingerprint("stability"),
            fraction=config["selection"]["headline"],
        shell:
            r"""
            subzero stability {input:q} --fraction {params.fraction} \
                --memory {resources.mem_mb} --threads {threads} --code {params.code} --out {output:q} 2>&1 | tee {log:q}
            """

else:

    rule measure:
        """WD and moments of every neuron on one corpus, with no pre-activations on disk."""
        input:
            tokens="results/{model}/{revision}/tokens/{corpus}.parquet",
            model="results/{model}/{revision}/model.json",
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
            device=config["device"],
        params:
            code=lambda w: fingerprint("measure", SOURCES=[scheme(w)], FAMILIES=[family(w)]),
            store=STATISTICS["store"],
            precision=STATISTICS["precision"],
            errors="--errors" if STATISTICS["errors"] else "",
        shell:
            r"""
            subzero measure {input.tokens:q} --model {input.model:q} \
                --store {params.store} --precision {params.precision} {params.errors} \
                --device {resources.device} --memory {resources.mem_mb} --threads {threads} \
                --code {params.code} --out {output:q} 2>&1 | tee {log:q}
            """
