"""subzero: the neurons whose negative pre-activations carry syntax.

One module a stage, in the order the data flows; a module imports only from those before it:
models and corpora, activations, statistics, selection, interventions, scoring and benchmarks, analysis, figures.
"""

__version__ = "0.1.0"
