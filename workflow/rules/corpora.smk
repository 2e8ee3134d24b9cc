# needs: the texts named under corpora in config.yaml
# makes: documents, and for each model windows of tokens
# cost:  15 s for the embedded piece of Wikipedia; seconds for tokenization


rule corpus:
    """Read a corpus into documents of plain text."""
    input:
        lambda w: config["corpora"][w.name]["files"],
    output:
        "results/corpora/{name}.parquet",
    log:
        "logs/corpora/{name}.log",
    wildcard_constraints:
        name="|".join(map(re.escape, config["corpora"])),
    conda:
        "../../envs/text.yaml"
    resources:
        mem_mb=1000,
    params:
        code=lambda w: fingerprint("corpus", NAMED=text_names(w.name)),
        text=lambda w: corpus_options(w.name, "source", "hub", "config", "split", "field", "documents", "files"),
    shell:
        r"""
        subzero corpus {wildcards.name:q} {params.text} --code {params.code} \
            --out {output:q} 2>&1 | tee {log:q}
        """


rule tokenize:
    """Cut a corpus, or a document-disjoint half of one, into windows of tokens."""
    input:
        documents=lambda w: f"results/corpora/{whole(w)}.parquet",
        model="results/{model}/{revision}/model.json",
    output:
        "results/{model}/{revision}/tokens/{corpus}.parquet",
    log:
        "logs/{model}/{revision}/tokens/{corpus}.log",
    conda:
        "../../envs/torch.yaml"
    resources:
        mem_mb=1000,
    params:
        code=lambda w: fingerprint("tokenize", SOURCES=[scheme(w)]),
        half=lambda w: half(w),
        window=lambda w: cut(w)["window"],
        windows=lambda w: "" if cut(w)["count"] is None else f"--count {cut(w)['count']}",
        joined=lambda w: corpus_options(whole(w), "by", "separator", "special_tokens"),
    shell:
        r"""
        subzero tokenize {input.documents:q} --model {input.model:q} {params.half} \
            --window {params.window} {params.windows} {params.joined} --code {params.code} \
            --out {output:q} 2>&1 | tee {log:q}
        """
