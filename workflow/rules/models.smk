# needs: the sources named under models in config.yaml
# makes: model.json, and for GGUF a safetensors copy in the cache ($SUBZERO_CACHE, or ~/.cache/subzero)
# cost:  reading the weights once; a GGUF of 135 M parameters converts in about 20 s, once


rule model:
    """Resolve a model: fetch or convert its weights; sizes, tokenizer and a hash of the weights."""
    output:
        "results/{model}/{revision}/model.json",
    log:
        "logs/{model}/{revision}/model.log",
    priority: 1  # a source that cannot be had is said before other work
    conda:
        "../../envs/torch.yaml"
    resources:
        mem_mb=config["memory"],
    params:
        code=lambda w: fingerprint("model", SOURCES=[scheme(w)], FAMILIES=[]),
        source=lambda w: config["models"][w.model]["source"],
        dtype=lambda w: config["models"][w.model]["dtype"],
        trust=lambda w: "--trust-remote-code" if config["models"][w.model]["trust_remote_code"] else "",
    shell:
        r"""
        subzero model {params.source:q} --revision {wildcards.revision:q} \
            --dtype {params.dtype} {params.trust} --code {params.code} \
            --out {output:q} 2>&1 | tee {log:q}
        """
