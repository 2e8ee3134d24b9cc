"""Neuron sets: the top or the bottom of each layer by a statistic, as many at random, or a user's own table."""

from pathlib import Path

import numpy as np
import polars as pl

from subzero.artifacts import Column
from subzero.errors import SubzeroError, near_miss
from subzero.names import NeuronSet
from subzero.statistics import NOT_RANKED, STATISTICS

SETS = {
    "layer": Column(pl.Int32(), "layer, from 0"),
    "neuron": Column(pl.Int32(), "neuron in its layer, from 0"),
    "rank": Column(pl.Int32(), "place in its layer's order, from 0"),
    "value": Column(pl.Float64(), "the statistic that it was chosen by; null for random and file sets"),
}
RANKED = (*(name for name in STATISTICS if name not in NOT_RANKED), "md")

TABLES = {".csv": pl.read_csv, ".parquet": pl.read_parquet}  # the endings of users' own tables


def how_many(fraction: str, neurons: int) -> int:
    """Neurons that a fraction of a layer stands for: rounded half up, at least one."""
    return max(1, int(float(fraction) * neurons + 0.5))


def ranked(statistics: pl.DataFrame, statistic: str, side: str, fraction: str) -> pl.DataFrame:
    """The top or bottom fraction of each layer by a statistic.

    Args:
        statistics: columns layer, neuron and `statistic`; a neuron whose statistic is null is in no set, but counts
            among the neurons that the fraction is taken of.
        statistic: one of RANKED.
        side: top or bottom.
        fraction: as `names.fraction_name` gives it.

    Returns:
        a frame with the columns of SETS; among equal values the lower neuron number comes first.

    Raises:
        SubzeroError: no such statistic, or a layer with too few neurons where it is defined.
    """
    if statistic not in RANKED:
        raise SubzeroError(f"statistic {statistic!r}; allowed: {', '.join(RANKED)}.{near_miss(statistic, RANKED)}")
    return (
        _by_layer(statistics, statistic, fraction)
        .with_columns(value=pl.col(statistic), order=pl.col(statistic) * (-1 if side == "top" else 1))
        .pipe(_lowest)
    )


def random(statistics: pl.DataFrame, fraction: str | pl.DataFrame, seed: int) -> pl.DataFrame:
    """As many neurons of each layer drawn at random, of those whose WD is defined.

    A smaller fraction at the same seed is a part of a larger one, so that a curve over fractions has less noise.

    Args:
        statistics: columns layer, neuron, wd.
        fraction: of each layer; or another set, of whose size in each layer the draw is to be.
        seed: of the draw.

    Returns:
        a frame with the columns of SETS, `value` null.

    Raises:
        SubzeroError: a layer with too few neurons where WD is defined.
    """
    total = statistics.sort("layer", "neuron")
    order = np.concatenate(
        [
            np.random.default_rng([seed, layer]).permutation(rows.height)
            for (layer,), rows in total.group_by("layer", maintain_order=True)
        ]
    )
    drawn = total.with_columns(order=pl.Series(order, dtype=pl.Float64))
    return _by_layer(drawn, "wd", fraction).with_columns(value=pl.lit(None, pl.Float64)).pipe(_lowest)


def _by_layer(statistics: pl.DataFrame, statistic: str, fraction: str | pl.DataFrame) -> pl.DataFrame:
    """The rows with a defined statistic, and how many of their layer are wanted."""
    sizes = statistics.group_by("layer").agg(neurons=pl.len(), defined=pl.col(statistic).count())
    if isinstance(fraction, str):
        wanted = sizes.with_columns(
            wanted=pl.col("neurons").map_elements(lambda n: how_many(fraction, n), return_dtype=pl.Int64)
        )
    else:
        like = fraction.group_by("layer").agg(wanted=pl.len().cast(pl.Int64))
        wanted = sizes.join(like, on="layer")
    short = wanted.filter(pl.col("wanted") > pl.col("defined")).sort("layer")
    if not short.is_empty():
        layer = short.row(0, named=True)
        raise SubzeroError(
            f"layer {layer['layer']}: {layer['wanted']} neurons wanted, but {statistic} is defined for "
            f"{layer['defined']} of {layer['neurons']}"
        )
    return statistics.filter(pl.col(statistic).is_not_null()).join(wanted, on="layer")


def _lowest(rows: pl.DataFrame) -> pl.DataFrame:
    """Of each layer the `wanted` rows that come first by `order`."""
    return (
        rows.sort("layer", "order", "neuron")
        .with_columns(rank=pl.int_range(pl.len()).over("layer"))
        .filter(pl.col("rank") < pl.col("wanted"))
        .select(pl.col(name).cast(column.dtype) for name, column in SETS.items())
    )


def from_file(path: Path, neurons: list[int]) -> pl.DataFrame:
    """A user's own table as a set.

    Args:
        path: .csv or .parquet with columns layer and neuron, both from 0; others are ignored.
        neurons: neurons of each layer of the model.

    Returns:
        a frame with the columns of SETS, ranks in the table's order, `value` null.

    Raises:
        SubzeroError: not readable, a column is missing, a row twice, or a neuron that the model has not.
    """
    if path.suffix not in TABLES:
        raise SubzeroError(f"neuron table {path}; allowed: {' or '.join(TABLES)}")
    try:
        table = TABLES[path.suffix](path).select(pl.col("layer", "neuron").cast(pl.Int64))
    except (OSError, pl.exceptions.PolarsError) as error:
        reason = str(error).splitlines()[0]
        raise SubzeroError(f"neuron table {path}: needs whole-number columns layer and neuron ({reason})") from error
    if table.is_empty():
        raise SubzeroError(f"neuron table {path}: no rows")
    if table.null_count().sum_horizontal().item() or table.is_duplicated().any():
        raise SubzeroError(f"neuron table {path}: each row must name one neuron, once")
    for layer, neuron in table.iter_rows():
        if not 0 <= layer < len(neurons) or not 0 <= neuron < neurons[layer]:
            raise SubzeroError(
                f"neuron table {path}: layer {layer}, neuron {neuron}; the model has layers 0 to {len(neurons) - 1} "
                f"of {max(neurons)} neurons, both counted from 0"
            )
    return table.with_columns(rank=pl.int_range(pl.len()).over("layer"), value=pl.lit(None, pl.Float64)).select(
        pl.col(name).cast(column.dtype) for name, column in SETS.items()
    )


def select(name: NeuronSet, statistics: pl.DataFrame, files: dict[str, pl.DataFrame]) -> pl.DataFrame:
    """The set that a name stands for.

    Args:
        name: the parsed name.
        statistics: columns as in STATISTICS.
        files: the users' tables by name, as `from_file` gives them.

    Raises:
        SubzeroError: a table that is not among `files`; else as `ranked` and `random`.
    """
    if name.file is not None and name.file not in files:
        raise SubzeroError(f"set {name}: no table {name.file!r}; allowed: {', '.join(files) or 'none is given'}")
    if name.kind == "file":
        return files[name.file]
    if name.kind == "random":
        return random(statistics, name.fraction or files[name.file], name.seed)
    return ranked(statistics, name.statistic, name.side, name.fraction)
