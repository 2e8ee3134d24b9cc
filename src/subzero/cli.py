"""The command line: one command a step. Reading and writing is here; the science is in the modules."""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from subzero.artifacts import (
    KEY,
    content_hash,
    provenance,
    read_metadata,
    read_parquet,
    replacing,
    up_to_date,
    write_parquet,
)
from subzero.errors import SubzeroError, near_miss
from subzero.progress import Progress

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__, rich_markup_mode=None
)

Out = Annotated[Path, typer.Option(help="Where to write.")]
Code = Annotated[str, typer.Option(help="Fingerprint of the step's code, recorded; rules pass it.")]
ModelFile = Annotated[Path, typer.Option("--model", help="model.json of the model.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
Memory = Annotated[int, typer.Option(help="Megabytes that may be used; batch sizes follow.")]
Threads = Annotated[int, typer.Option(help="Processor cores to use.")]

Precision = Annotated[str, typer.Option(help="float32, or float16, of pre-activations that are kept.")]
MaxNotFinite = Annotated[float, typer.Option(help="Share of neurons that may have NaN or infinity among their values.")]
Errors = Annotated[bool, typer.Option("--errors", help="Standard errors of WD over windows; five times the work.")]

BY_HAND = "by hand"


def main() -> None:
    """Run the command line; an error is one line, and its cause follows only where it was not foreseen."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    try:
        app(prog_name="subzero")
    except SubzeroError as error:
        print(f"subzero: {error}", file=sys.stderr)
        sys.exit(1)
    except OSError as error:
        print(f"subzero: {error.filename or 'a file'}: {error.strerror or error}", file=sys.stderr)
        sys.exit(1)
    except Exception as error:
        command = " ".join(sys.argv[1:2])
        print(
            f"subzero {command}: stopped by an error that was not foreseen, {type(error).__name__}: {error}\n"
            "Please report it with the lines below.",
            file=sys.stderr,
        )
        raise


def _write_json(content: dict, path: Path) -> None:
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _row(table: Mapping, name: str, what: str):
    """A table's row, or an error that names the others."""
    if name not in table:
        raise SubzeroError(f"{what} {name!r}; allowed: {', '.join(table)}.{near_miss(name, table)}")
    return table[name]


def _allowed(what: str, value: str | None, allowed) -> None:
    """Refuse an option's value; None among those allowed stands for not giving it."""
    if value not in allowed:
        words = [word for word in allowed if word is not None]
        raise SubzeroError(f"{what} {value!r}; allowed: {', '.join(words)}.{near_miss(value, words)}")


def _cores(threads: int) -> int:
    """No more threads than there are cores: `--cores 8` on two cores would make a model several times slower."""
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(threads, there))


def _model_slice(model: dict) -> dict:
    """What artifacts record of a model."""
    return {key: model[key] for key in ("source", "revision", "dtype", "weights")}


def _folder(model: dict) -> Path:
    """The folder of the model that model.json names; by its commit where it has one, which needs no network."""
    from subzero.sources import resolve

    return resolve(model["source"], model["commit"] or model["revision"], model["trust_remote_code"])


def _load(model: dict, device: str, memory: int, threads: int, scored: bool, share: float = 1.0):
    """The model that model.json names, checked to be the same weights, its tokenizer, and tokens a forward pass.

    share: of the memory that the weights leave, what a forward pass may take.
    """
    import torch

    from subzero.batches import batch_tokens, check_memory
    from subzero.models import load
    from subzero.sources import file_hash, weight_files

    check_memory(model, memory, device)
    folder = _folder(model)
    if file_hash(weight_files(folder)) != model["weights"]:
        raise SubzeroError(
            f"{folder}: the weights are not those that model.json describes. Remove model.json and run again."
        )
    torch.set_num_threads(_cores(threads))
    loaded, tokenizer = load(folder, model["dtype"], device, model["trust_remote_code"])
    batch = batch_tokens(loaded, model, memory, scored, share)
    print(
        f"{model['source']}: {model['parameters']:,} parameters, {model['dtype']} on {loaded.device}, "
        f"batches of {batch:,} tokens",
        flush=True,
    )
    return loaded, tokenizer, batch


@app.command()
def model(
    source: Annotated[str, typer.Argument(help="hub:ORG/NAME, path:DIR or gguf:PACKAGE_OR_DIR/FILE.")],
    out: Out,
    revision: Annotated[str, typer.Option(help="Checkpoint.")] = "main",
    dtype: Annotated[str, typer.Option(help="float32, bfloat16, float16, or auto: as saved.")] = "float32",
    trust_remote_code: Annotated[bool, typer.Option(help="Let code that the model brings run.")] = False,
    code: Code = BY_HAND,
) -> None:
    """Resolve a model: fetch or convert its weights, and write model.json."""
    from subzero.models import DTYPES, describe
    from subzero.sources import resolve

    _allowed("--dtype", dtype, DTYPES)
    folder = resolve(source, revision, trust_remote_code)
    described = describe(folder, dtype, revision, source, trust_remote_code)
    _write_json(described | {"code": code}, out)
    print(f"{source}: {described['layers']} layers of {max(described['neurons']):,} neurons")


@app.command()
def corpus(
    name: Annotated[str, typer.Argument(help="Its name in config.yaml.")],
    out: Out,
    source: Annotated[str | None, typer.Option(help="A text known by name, such as wikipedia-sample.")] = None,
    hub: Annotated[str | None, typer.Option(help="A data set on the hub, ORG/NAME, or a folder of one.")] = None,
    config: Annotated[str | None, typer.Option(help="Its configuration, where it has several.")] = None,
    split: Annotated[str | None, typer.Option(help="Its split, such as train.")] = None,
    field: Annotated[str, typer.Option(help="Where a row has its text.")] = "text",
    documents: Annotated[int | None, typer.Option(help="Only the first so many; a data set is then streamed.")] = None,
    file: Annotated[list[Path] | None, typer.Option(help="JSONL, parquet or plain text; repeat for more.")] = None,
    code: Code = BY_HAND,
) -> None:
    """Read a corpus into documents of plain text."""
    from subzero.corpora import DOCUMENTS, read_documents

    text = {"hub": hub, "config": config, "split": split, "field": field, "documents": documents}
    frame = read_documents(source, file or [], lambda total: Progress("corpus", total, "documents").advance, **text)
    settings = {"source": source, **text, "files": [str(f) for f in file or []]}
    described = {"name": name, "hash": content_hash(frame)}
    write_parquet(frame, out, DOCUMENTS, provenance("corpus", code, corpus=described, settings=settings))
    print(f"{name}: {frame.height:,} documents, {frame['text'].str.len_chars().sum():,} characters")


@app.command()
def tokenize(
    corpus: Annotated[Path, typer.Argument(help="Documents, as `subzero corpus` writes them.")],
    model: ModelFile,
    out: Out,
    half: Annotated[str | None, typer.Option(help="statistics or evaluation: a half of the documents.")] = None,
    window: Annotated[int, typer.Option(help="Tokens a window.")] = 512,
    count: Annotated[int | None, typer.Option(help="Windows, spread evenly over the text; all if not given.")] = None,
    by: Annotated[str, typer.Option(help="stream (documents joined) or document (each alone).")] = "stream",
    separator: Annotated[str, typer.Option(help="Stands between documents.")] = "\n\n",
    special_tokens: Annotated[str, typer.Option(help="text (once a text) or window (once a window).")] = "text",
    code: Code = BY_HAND,
) -> None:
    """Tokenize a corpus into windows without overlap."""
    from subzero.corpora import DOCUMENTS, HALVES
    from subzero.corpora import half as half_of
    from subzero.models import load_tokenizer, read_model
    from subzero.tokens import WINDOWS
    from subzero.tokens import windows as cut

    _allowed("--half", half, (None, *HALVES))
    _allowed("--by", by, ("stream", "document"))
    _allowed("--special-tokens", special_tokens, ("text", "window"))
    described = read_model(model)
    if described["context"] and window > described["context"]:
        raise SubzeroError(f"window of {window} tokens; the model's context is {described['context']}")
    documents = half_of(read_parquet(corpus, DOCUMENTS), half)
    tokenizer = load_tokenizer(_folder(described), described["trust_remote_code"])
    how = {"by": by, "separator": separator, "special_tokens": special_tokens}
    windows = cut(documents["text"].to_list(), tokenizer, window, count, **how)
    if count is not None and windows.height < count:
        print(f"{corpus}: {count} windows wanted, the text has {windows.height}; all are taken", file=sys.stderr)
    name = read_metadata(corpus)["depends"]["corpus"]["name"] + (f"/{half}" if half else "")
    made_of = provenance(
        "tokens",
        code,
        model=_model_slice(described),
        corpus={"name": name, "hash": content_hash(documents)},
        settings={"window": window, "count": count, **how},
        inputs={"tokenizer": described["tokenizer"]["hash"]},
    )
    write_parquet(windows, out, WINDOWS, made_of)
    print(f"{name}: {windows.height:,} windows of {window} tokens")


@app.command()
def extract(
    tokens: Annotated[Path, typer.Argument(help="Windows, as `subzero tokenize` writes them.")],
    model: ModelFile,
    out: Out,
    device: Device = "auto",
    memory: Memory = 4000,
    threads: Threads = 1,
    precision: Precision = "float32",
    compress: Annotated[str, typer.Option(help="none, or zstd, which saves little and costs time.")] = "none",
    code: Code = BY_HAND,
) -> None:
    """Write the pre-activations of all neurons on all windows; a run that was stopped goes on."""
    from subzero.activations import extract as write_activations
    from subzero.batches import BYTES
    from subzero.models import read_model
    from subzero.sources import check_room
    from subzero.tokens import WINDOWS

    described = read_model(model)
    windows = read_parquet(tokens, WINDOWS)
    metadata = read_metadata(tokens)
    count = int(windows["token"].list.len().sum())
    _allowed("--precision", precision, ("float32", "float16"))
    _allowed("--compress", compress, ("none", "zstd"))
    size = count * sum(described["neurons"]) * BYTES[precision]
    print(f"extraction: {count:,} tokens through the model, {size / 1e9:.2f} GB to disk", flush=True)
    begun = sum(file.stat().st_size for file in out.with_name(f"{out.name}.partial").rglob("*") if file.is_file())
    check_room(out, size - begun, "extraction")
    loaded, _, batch = _load(described, device, memory, threads, scored=False)
    made_of = provenance(
        "activations",
        code,
        model=_model_slice(described),
        corpus=metadata["depends"]["corpus"],
        settings=metadata["depends"]["settings"] | {"precision": precision, "compress": compress},
        inputs={"tokens": metadata["content"]},
        made={"device": str(loaded.device), "memory": memory, "threads": threads, "batch_tokens": batch},
    )
    progress = Progress("extraction", count, "tokens")
    write_activations(loaded, described["family"], windows, out, made_of, batch, progress.advance, precision, compress)


@app.command()
def repair(
    activations: Annotated[Path, typer.Argument(help="The zarr group, as `subzero extract` writes it.")],
    tokens: Annotated[Path, typer.Option(help="The windows that it was made from.")],
    model: ModelFile,
    device: Device = "auto",
    memory: Memory = 4000,
    threads: Threads = 1,
) -> None:
    """Check every chunk of a group, and compute again only those that are missing or damaged."""
    from subzero.activations import damaged_chunks, open_activations
    from subzero.activations import repair as mend
    from subzero.models import read_model
    from subzero.tokens import WINDOWS

    described, metadata = read_model(model), open_activations(activations, whole=False)[1]
    made_of = {"tokens": read_metadata(tokens)["content"]}
    if metadata["depends"]["inputs"] != made_of or metadata["depends"]["model"] != _model_slice(described):
        raise SubzeroError(f"{activations}: not made from {tokens} and {model}")
    chunks = damaged_chunks(activations)
    for layer, block, part in chunks:
        print(f"{activations}, layer {layer}, token block {block}, neuron block {part}: missing or damaged")
    if chunks:
        windows = read_parquet(tokens, WINDOWS)
        loaded, _, _ = _load(described, device, memory, threads, scored=False)
        progress = Progress("repair", int(windows["token"].list.len().sum()), "tokens")
        mend(loaded, described["family"], windows, activations, chunks, progress.advance)
    print(f"{len(chunks)} chunk(s) computed again; all others are whole")


@app.command()
def statistics(
    activations: Annotated[Path, typer.Argument(help="The zarr group, as `subzero extract` writes it.")],
    out: Out,
    device: Device = "auto",
    memory: Memory = 4000,
    threads: Threads = 1,
    max_not_finite: MaxNotFinite = 0.01,
    errors: Errors = False,
    code: Code = BY_HAND,
) -> None:
    """WD and moments of every neuron."""
    from subzero.activations import open_activations
    from subzero.models import found_device
    from subzero.statistics import corpus_statistics

    arrays, metadata = open_activations(activations)
    neurons = sum(array.shape[1] for array in arrays)
    print(f"statistics: {neurons:,} neurons, {arrays[0].shape[0] * neurons:,} values to sort", flush=True)
    progress = Progress("statistics", neurons, "neurons")
    if errors:
        print("standard errors: each neuron's values are ranked too, about five times the work", flush=True)
    frame = corpus_statistics(activations, _cores(threads), memory, found_device(device), progress.advance, errors)
    depends = metadata["depends"]
    made_of = provenance(
        "statistics",
        code,
        model=depends["model"],
        corpus=depends["corpus"],
        settings=depends["settings"] | {"errors": errors},
        inputs={**depends["inputs"], "extraction": depends["code"]},
        made=metadata["made"],
    )
    _write_statistics(frame, out, made_of, max_not_finite)


@app.command()
def stability(
    activations: Annotated[Path, typer.Argument(help="The zarr group, as `subzero extract` writes it.")],
    out: Out,
    fraction: Annotated[str, typer.Option(help="Share of each layer's neurons in the top sets.")] = "0.01",
    memory: Memory = 4000,
    threads: Threads = 1,
    code: Code = BY_HAND,
) -> None:
    """Whether half of the text, or less of it, ranks the neurons alike."""
    from subzero.activations import open_activations
    from subzero.names import fraction_name
    from subzero.stability import STABILITY
    from subzero.stability import stability as compared

    arrays, metadata = open_activations(activations)
    progress = Progress("stability", sum(array.shape[1] for array in arrays), "neurons")
    frame = compared(activations, fraction_name(fraction), _cores(threads), memory, progress.advance)
    depends = metadata["depends"]
    made_of = provenance(
        "stability",
        code,
        model=depends["model"],
        corpus=depends["corpus"],
        settings=depends["settings"] | {"fraction": fraction},
        inputs={**depends["inputs"], "extraction": depends["code"]},
        made=metadata["made"],
    )
    write_parquet(frame, out, STABILITY, made_of)


@app.command()
def measure(
    tokens: Annotated[Path, typer.Argument(help="Windows, as `subzero tokenize` writes them.")],
    model: ModelFile,
    out: Out,
    store: Annotated[str, typer.Option(help="fused (exact, in parts) or sketch (a histogram, bounded error).")],
    precision: Precision = "float32",
    device: Device = "auto",
    memory: Memory = 4000,
    threads: Threads = 1,
    max_not_finite: MaxNotFinite = 0.01,
    errors: Errors = False,
    code: Code = BY_HAND,
) -> None:
    """WD and moments of every neuron without pre-activations on disk: the model runs over the text again."""
    from subzero.batches import room as room_beside
    from subzero.models import read_model
    from subzero.streaming import fused_passes, fused_statistics, sketch_passes, sketch_statistics
    from subzero.tokens import WINDOWS

    _allowed("--store", store, ("fused", "sketch"))
    if errors and store == "sketch":
        raise SubzeroError("--errors: a sketch has no standard errors; allowed: with --store fused")
    _allowed("--precision", precision, ("float32", "float16"))
    described = read_model(model)
    windows, metadata = read_parquet(tokens, WINDOWS), read_metadata(tokens)
    count = int(windows["token"].list.len().sum())
    loaded, _, batch = _load(described, device, memory, threads, scored=False, share=0.3)
    room, threads = 0.7 * room_beside(loaded, memory), _cores(threads)
    if store == "fused":
        runs = len(fused_passes(described["neurons"], count, room, precision, threads))
    else:
        runs = 1 + len(sketch_passes(described["neurons"], room))
    print(f"{store}: {runs} pass(es) of {count:,} tokens, up to {room / 1e9:.2f} GB beside the model", flush=True)
    progress = Progress("statistics", count * runs, "tokens")
    how = {"threads": threads, "batch_tokens": batch, "advance": progress.advance}
    if store == "fused":
        frame = fused_statistics(loaded, described["family"], windows, room, precision, errors=errors, **how)
    else:
        frame = sketch_statistics(loaded, described["family"], windows, room, **how)
    made_of = provenance(
        "statistics",
        code,
        model=_model_slice(described),
        corpus=metadata["depends"]["corpus"],
        settings=metadata["depends"]["settings"] | {"store": store, "precision": precision, "errors": errors},
        inputs={"tokens": metadata["content"]},
        made={"device": str(loaded.device), "memory": memory, "threads": threads, "batch_tokens": batch},
    )
    _write_statistics(frame, out, made_of, max_not_finite)


def _write_statistics(frame, out: Path, made_of: Mapping, max_not_finite: float) -> None:
    """Write statistics, unless too many neurons have values that are not finite, and say what they are."""
    import polars as pl

    from subzero.statistics import STATISTICS, gaussian_floor

    broken = frame.filter(pl.col("n") < frame["n"].max())
    if frame.height and (frame["n"].max() == 0 or broken.height > max_not_finite * frame.height):
        worst = frame.sort("n").row(0, named=True)
        raise SubzeroError(
            f"{broken.height:,} of {frame.height:,} neurons have NaN or infinity among their values, the most in layer "
            f"{worst['layer']}, neuron {worst['neuron']}; allowed: {max_not_finite:g} of them (--max-not-finite). "
            "Take dtype: float32, or precision: float32 if float16 was too small for them"
        )
    write_parquet(frame, out, STATISTICS, made_of)
    undefined, wd = frame["wd"].null_count(), frame["wd"].drop_nulls()
    print(f"WD: median {wd.median() or 0:.3f}, largest {wd.max() or 0:.3f}, undefined for {undefined}")
    n = min(frame["n"].max(), 10**6)
    print(f"noise floor: a Gaussian sample of {n:,} values has WD {gaussian_floor(n):.4f}")
    if broken.height:
        print(f"warning: NaN or infinity in {broken.height:,} neurons, which are in no set", file=sys.stderr)


@app.command()
def pairs(
    tokens: Annotated[Path, typer.Argument(help="Windows, as `subzero tokenize` writes them.")],
    out: Out,
    count: Annotated[int, typer.Option(help="Pairs; all where there are no more.")] = 1000,
    seed: Annotated[int, typer.Option(help="Of the draw.")] = 0,
    code: Code = BY_HAND,
) -> None:
    """Draw pairs of tokens for the mapping difficulty (MD)."""
    from subzero.mapping import PAIRS, draw_pairs
    from subzero.tokens import WINDOWS

    frame, metadata = draw_pairs(read_parquet(tokens, WINDOWS), count, seed), read_metadata(tokens)
    made_of = provenance(
        "pairs",
        code,
        model=metadata["depends"]["model"],
        corpus=metadata["depends"]["corpus"],
        settings={"pairs": count, "seed": seed},
        inputs={"tokens": metadata["content"]},
    )
    write_parquet(frame, out, PAIRS, made_of)
    print(f"{frame.height:,} pairs of tokens")


@app.command()
def pair_inputs(
    tokens: Annotated[Path, typer.Argument(help="Windows, as `subzero tokenize` writes them.")],
    pairs: Annotated[Path, typer.Option(help="As `subzero pairs` writes them.")],
    model: ModelFile,
    out: Out,
    device: Device = "auto",
    memory: Memory = 4000,
    threads: Threads = 1,
    code: Code = BY_HAND,
) -> None:
    """Write the inputs and pre-activations of the pairs' tokens."""
    import polars as pl

    from subzero.mapping import PAIRS, write_pair_inputs
    from subzero.models import read_model
    from subzero.tokens import WINDOWS

    described, metadata = read_model(model), read_metadata(tokens)
    windows, drawn = read_parquet(tokens, WINDOWS), read_parquet(pairs, PAIRS)
    loaded, _, batch = _load(described, device, memory, threads, scored=False)
    made_of = provenance(
        "pair inputs",
        code,
        model=_model_slice(described),
        corpus=metadata["depends"]["corpus"],
        settings=metadata["depends"]["settings"],
        inputs={"tokens": metadata["content"], "pairs": read_metadata(pairs)["content"]},
        made={"device": str(loaded.device), "memory": memory, "threads": threads, "batch_tokens": batch},
    )
    used = windows.filter(pl.col("window").is_in(drawn["first_window"].append(drawn["second_window"]).implode()))
    progress = Progress("inputs of pairs", int(used["token"].list.len().sum()), "tokens")
    write_pair_inputs(loaded, described["family"], windows, drawn, out, made_of, batch, progress.advance)


@app.command()
def difficulty(
    inputs: Annotated[Path, typer.Argument(help="As `subzero pair-inputs` writes them.")],
    pairs: Annotated[Path, typer.Option(help="As `subzero pairs` writes them.")],
    out: Out,
    code: Code = BY_HAND,
) -> None:
    """Mapping difficulty (MD) of every neuron."""
    import zarr

    from subzero.mapping import DIFFICULTIES, PAIRS, difficulties

    try:
        depends = dict(zarr.open_group(inputs, mode="r").attrs[KEY])["depends"]
    except (OSError, KeyError, ValueError) as error:
        raise SubzeroError(f"{inputs}: not a group of the pairs' inputs ({error})") from error
    frame = difficulties(inputs, read_parquet(pairs, PAIRS))
    made_of = provenance(
        "mapping difficulty",
        code,
        model=depends["model"],
        corpus=depends["corpus"],
        settings=read_metadata(pairs)["depends"]["settings"],
        inputs={**depends["inputs"], "inputs": depends["code"]},
    )
    write_parquet(frame, out, DIFFICULTIES, made_of)
    md = frame["md"].drop_nulls()
    print(f"MD: median {md.median() or 0:.3f}, largest {md.max() or 0:.3f}, undefined for {frame['md'].null_count()}")


@app.command()
def select(
    out: Annotated[list[Path], typer.Argument(help="Files to write, named as their sets: FOLDER/wd-top-0.01.parquet.")],
    statistics: Annotated[Path, typer.Option(help="As `subzero statistics` writes them.")],
    model: ModelFile,
    difficulty: Annotated[Path | None, typer.Option(help="For sets by md: as `subzero difficulty` writes it.")] = None,
    file: Annotated[list[str] | None, typer.Option(help="NAME=PATH of a table of yours; repeat for more.")] = None,
    code: Code = BY_HAND,
) -> None:
    """Make neuron sets; those that are there and still right are left alone."""
    from subzero import selection
    from subzero.mapping import DIFFICULTIES
    from subzero.models import read_model
    from subzero.names import parse_set
    from subzero.statistics import STATISTICS

    described = read_model(model)
    frame, metadata = read_parquet(statistics, STATISTICS), read_metadata(statistics)
    used = {"statistics": metadata["content"]}
    if difficulty:
        measured = read_parquet(difficulty, DIFFICULTIES).select("layer", "neuron", "md")
        frame = frame.join(measured, on=["layer", "neuron"], how="left", validate="1:1", maintain_order="left")
        used |= {"difficulty": read_metadata(difficulty)["content"]}
    tables = dict(entry.partition("=")[::2] for entry in file or [])
    files = {name: selection.from_file(Path(path), described["neurons"]) for name, path in tables.items()}
    made = 0
    for path in out:
        parsed = parse_set(path.name.removesuffix(".parquet"))
        table = {"file": content_hash(files[parsed.file])} if parsed.file in files else {}
        made_of = provenance(
            "set",
            code,
            model=_model_slice(described),
            corpus=metadata["depends"]["corpus"],
            settings={"set": str(parsed)},
            inputs=(used if parsed.statistic == "md" else {"statistics": metadata["content"]}) | table,
        )
        if not up_to_date(path, made_of):
            write_parquet(selection.select(parsed, frame, files), path, selection.SETS, made_of)
            made += 1
    print(f"sets: {made} made, {len(out) - made} kept")


@app.command()
def op(
    name: Annotated[str, typer.Argument(help="An operation, such as neg.")],
    out: Out,
    code: Code = BY_HAND,
) -> None:
    """Record what an operation is and the fingerprint of its code, for the evaluations that use it."""
    from subzero.interventions import operation

    row = operation(name)
    _write_json({"op": name, "description": row.description, "constants": list(row.constants), "code": code}, out)


@app.command()
def items(
    benchmark: Annotated[str, typer.Argument(help="Its name in config.yaml.")],
    out: Out,
    source: Annotated[
        str | None, typer.Option(help="minimal-pairs, blimp, tse or pairs; its name if not given.")
    ] = None,
    file: Annotated[list[Path] | None, typer.Option(help="Pairs, or a folder of them; repeat for more.")] = None,
    per_paradigm: Annotated[int | None, typer.Option(help="Most pairs of each paradigm.")] = None,
    seed: Annotated[int, typer.Option(help="Of the draw.")] = 0,
    text: Annotated[str, typer.Option(help="published, or sentence: with a capital and a full stop.")] = "published",
    grammar: Annotated[str, typer.Option(help="Hash of the grammar's data, recorded; rules pass it.")] = "",
    code: Code = BY_HAND,
) -> None:
    """Collect a benchmark's items: minimal pairs, drawn from the built-in grammar, published, or your own."""
    from subzero.benchmarks import read_items
    from subzero.grammar import ITEMS, grammar_hash

    _allowed("--text", text, ("published", "sentence"))
    settings = {"source": source or benchmark, "per_paradigm": per_paradigm, "seed": seed, "text": text}
    frame = read_items(settings["source"], file or [], per_paradigm, seed, text)
    drawn = {"grammar": grammar or grammar_hash()} if settings["source"] == "minimal-pairs" else {}
    settings |= {"benchmark": benchmark, "files": [str(f) for f in file or []]}
    made_of = provenance("items", code, settings=settings, inputs=drawn)
    write_parquet(frame, out, ITEMS, made_of)
    print(f"{benchmark}: {frame.height:,} pairs in {frame['paradigm'].n_unique()} paradigms")


@app.command()
def evaluate(
    benchmark: Annotated[str, typer.Argument(help="A grammar benchmark's name, or perplexity/CORPUS.")],
    names: Annotated[list[str], typer.Argument(help="Interventions: none, wd-top-0.01.neg.all, ...")],
    model: ModelFile,
    items: Annotated[Path, typer.Option(help="The benchmark's items, or the windows of the corpus.")],
    sets: Annotated[Path, typer.Option(help="Folder of the sets.")],
    ops: Annotated[Path, typer.Option(help="Folder of the operations' records.")],
    out_dir: Annotated[Path, typer.Option(help="Folder of the results: INTERVENTION/BENCHMARK.parquet.")],
    device: Device = "auto",
    memory: Memory = 4000,
    threads: Threads = 1,
    code: Code = BY_HAND,
) -> None:
    """Evaluate a model under many interventions, loaded once; results that are there and still right are kept."""
    from contextlib import nullcontext

    from subzero.benchmarks import BENCHMARKS, kind
    from subzero.interventions import intervene
    from subzero.models import read_model
    from subzero.names import parse_intervention, parse_layers
    from subzero.selection import SETS

    row = BENCHMARKS[kind(benchmark)]
    described = read_model(model)
    frame, metadata = read_parquet(items, row.items), read_metadata(items)
    partial = out_dir / ".partial" / benchmark
    waiting = {}
    for name in names:
        intervention = parse_intervention(name)
        inputs, corpus, chosen = {"items": metadata["content"]}, metadata["depends"]["corpus"], None
        if intervention.set is not None:
            chosen = sets / f"{intervention.set}.parquet"
            made_as = read_metadata(chosen)
            inputs |= {"set": made_as["content"]}
            if (dtype := made_as["depends"]["model"]["dtype"]) != described["dtype"]:
                print(
                    f"warning: {chosen.name} was made with the model in {dtype}, this is {described['dtype']}",
                    file=sys.stderr,
                )
            inputs |= {"op": json.loads((ops / f"{intervention.op}.json").read_text())["code"]}
        made_of = provenance(
            "evaluation",
            code,
            model=_model_slice(described),
            corpus=corpus,
            settings={"benchmark": benchmark, "intervention": name, **metadata["depends"]["settings"]},
            inputs=inputs,
        )
        if not up_to_date(out_dir / name / f"{benchmark}.parquet", made_of):
            waiting[name] = (intervention, chosen, made_of)
    # finished results wait beside the declared outputs, which Snakemake puts back as they were when a job fails
    todo = {n: w for n, w in waiting.items() if not up_to_date(partial / f"{n}.parquet", w[2])}
    kept, found = len(names) - len(waiting), len(waiting) - len(todo)
    resumed = f", {found} from a run that was stopped" if found else ""
    print(f"{benchmark}: {len(todo)} of {len(names)} interventions to run, {kept} kept{resumed}", flush=True)
    if todo:
        loaded, tokenizer, batch = _load(described, device, memory, threads, scored=True)
        made = {"device": str(loaded.device), "memory": memory, "threads": threads, "batch_tokens": batch}
        progress = Progress(benchmark, len(todo) * row.work(frame), row.unit)
        for name, (intervention, chosen, made_of) in todo.items():
            around = nullcontext()
            if chosen is not None:
                layers = parse_layers(intervention.layers, described["layers"])
                neurons = read_parquet(chosen, SETS)
                around = intervene(loaded, described["family"], neurons, intervention.op, layers)
            with around:
                scores = row.score(frame, loaded, tokenizer, batch, progress.advance)
            written = made_of | {"made": made_of["made"] | made}
            write_parquet(scores, partial / f"{name}.parquet", row.scores, written)
    for name in waiting:
        target = out_dir / name / f"{benchmark}.parquet"
        target.parent.mkdir(parents=True, exist_ok=True)
        (partial / f"{name}.parquet").replace(target)


@app.command()
def summarize(
    benchmark: Annotated[str, typer.Argument(help="A grammar benchmark's name, or perplexity/CORPUS.")],
    names: Annotated[list[str], typer.Argument(help="Interventions, `none` among them.")],
    evaluation: Annotated[Path, typer.Option(help="Folder of the results: INTERVENTION/BENCHMARK.parquet.")],
    out: Out,
    decides: Annotated[str, typer.Option(help="What the members of a pair are compared by, sum or mean.")] = "sum",
    code: Code = BY_HAND,
) -> None:
    """Summarize a benchmark's item-level results over interventions."""
    from subzero.analysis import SUMMARIES
    from subzero.benchmarks import BENCHMARKS, kind

    _allowed("--decides", decides, ("sum", "mean"))
    key = kind(benchmark)
    function, schema = SUMMARIES[key]
    paths = {name: evaluation / name / f"{benchmark}.parquet" for name in names}
    metadata = {name: read_metadata(path) for name, path in paths.items()}
    depends = metadata["none"]["depends"]
    frame = function({name: read_parquet(path, BENCHMARKS[key].scores) for name, path in paths.items()}, decides)
    made_of = provenance(
        "summary",
        code,
        model=depends["model"],
        corpus=depends["corpus"],
        settings={"benchmark": benchmark, "interventions": names, "decides": decides},
        inputs={name: found["content"] for name, found in metadata.items()},
        made=metadata["none"]["made"],
    )
    write_parquet(frame, out, schema, made_of)


@app.command()
def panel(
    name: Annotated[str, typer.Argument(help="Figure and panel, such as fig3a.")],
    summaries: Annotated[list[Path], typer.Argument(help="As `subzero summarize` writes them, by model.")],
    label: Annotated[list[str], typer.Option(help="What the figure calls its model; once a summary, in order.")],
    op: Annotated[str, typer.Option(help="Operation shown.")],
    fraction: Annotated[str, typer.Option(help="Headline fraction.")],
    out: Out,
    code: Code = BY_HAND,
) -> None:
    """Make the frame that a figure's panel draws."""
    import polars as pl

    from subzero.analysis import PANELS, SHOWN

    if len(label) != len(summaries):
        raise SubzeroError(f"--label is given {len(label)} times; allowed: once for each of {len(summaries)} summaries")
    schema, shown, function = _row(PANELS, name, "panel")
    frames: dict[str, list] = {}
    made_of: dict[str, dict] = {"model": {}, "corpus": {}, "inputs": {}}
    for model, path in zip(label, summaries, strict=True):
        found = read_metadata(path)
        benchmark = found["depends"]["settings"].get("benchmark", shown)
        frames.setdefault(model, []).append(read_parquet(path, SHOWN[shown]).with_columns(benchmark=pl.lit(benchmark)))
        made_of["model"][model], made_of["corpus"][model] = found["depends"]["model"], found["depends"]["corpus"]
        made_of["inputs"][f"{model}: {benchmark}"] = found["content"]
    settings = {"panel": name, "op": op, "fraction": fraction}
    rows = function({model: pl.concat(parts) for model, parts in frames.items()}, op, float(fraction))
    write_parquet(rows, out, schema, provenance("panel", code, settings=settings, **made_of))


@app.command()
def draw(
    figure: Annotated[str, typer.Argument(help="fig3.")],
    panels: Annotated[Path, typer.Option(help="Folder of the panels, as `subzero panel` writes them.")],
    out: Annotated[list[Path], typer.Option(help="Where to write; .pdf, .png or .svg; repeat for more.")],
    style: Annotated[str, typer.Option(help="A style of figures.py.")] = "paper",
    code: Code = BY_HAND,
) -> None:
    """Draw a figure from its panels."""
    from subzero import figures
    from subzero.analysis import PANELS

    row = _row(figures.FIGURES, figure, "figure")
    _allowed("--style", style, figures.STYLES)
    paths = {letter: panels / f"{letter}.parquet" for letter, drawer in row.panels.items() if callable(drawer)}
    frames = {letter: read_parquet(path, PANELS[f"{figure}{letter}"][0]) for letter, path in paths.items()}
    settings = read_metadata(next(iter(paths.values())))["depends"]["settings"]
    for path in out:
        with replacing(path) as temporary:
            figures.draw(figure, frames, style, settings, temporary)
        print(f"{path}: drawn from the numbers in {panels}/")


@app.command()
def plan(
    configfile: Annotated[Path, typer.Option(help="The configuration.")] = Path("config.yaml"),
    schema: Annotated[Path, typer.Option(help="Its schema.")] = Path("workflow/schemas/config.schema.yaml"),
    results: Annotated[Path, typer.Option(help="Where models that are here have their model.json.")] = Path("results"),
    tokens: Annotated[int | None, typer.Option(help="Tokens of a corpus used whole.")] = None,
    rate: Annotated[float | None, typer.Option(help="TFLOP/s of a forward pass; measured here if not given.")] = None,
) -> None:
    """What a configuration costs: tokens, bytes, jobs and time by model. Fetches nothing."""
    from rich.console import Console
    from rich.table import Table

    from subzero import configuration
    from subzero.models import read_model
    from subzero.plan import WHOLE_CORPUS, measured_rate
    from subzero.plan import plan as counted
    from subzero.progress import duration

    config = configuration.check(
        configuration.read(configfile), configuration.read(schema), str(configfile), here=False
    )
    sizes = {}
    for name, entry in config["models"].items():
        path = results / name / entry["revisions"][-1] / "model.json"
        sizes[name] = entry["size"]
        if path.is_file():
            found = read_model(path)
            mean = sum(found["neurons"]) / found["layers"]
            sizes[name] = {"parameters": found["parameters"], "layers": found["layers"], "neurons": mean}
    tokens = tokens or WHOLE_CORPUS
    operations = rate * 1e12 if rate else measured_rate()
    frame = counted(config, sizes, operations, tokens)
    table = Table("model", *("revisions", "forward tokens", "disk", "memory", "jobs", "time"), box=None)
    for row in frame.iter_rows(named=True):
        gigabytes = ("?" if row[k] is None else f"{row[k] / 1e9:,.1f} GB" for k in ("disk_bytes", "memory_bytes"))
        time = "?" if row["seconds"] is None else duration(row["seconds"])
        table.add_row(
            row["model"], str(row["revisions"]), f"{row['forward_tokens']:,}", *gigabytes, str(row["jobs"]), time
        )
    Console(width=110).print(table)
    how = "as given" if rate else "measured here, as a matrix product in float32; a forward pass reaches most of it"
    print(f"Time at {operations / 1e12:,.2f} TFLOP/s ({how}); a corpus used whole counted as {tokens:,} tokens.")
    if any(size is None for size in sizes.values()):
        print("?: the model's size is not known before it is here; `size` in its entry says it.")
