#!/usr/bin/env bash
# Packages that must not bring their dependencies; Snakemake runs this in the checkout, once the environment is made.
set -euo pipefail
python -m pip install --no-deps gensim==4.4.0 --editable .
