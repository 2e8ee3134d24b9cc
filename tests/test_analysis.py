import polars as pl
import pytest
import scipy.stats
from statsmodels_free import wilson

from subzero.analysis import (
    ACCURACIES,
    PERPLEXITIES,
    describe_intervention,
    error_by_condition,
    perplexity_by_fraction,
    summarize_pairs,
    summarize_perplexity,
)
