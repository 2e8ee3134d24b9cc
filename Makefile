# Needs make, and Python 3.11 to 3.13 with venv; PYTHON=/path/to/python picks another interpreter.
#   make demo    set up .venv and draw figures/fig3.pdf from nothing (at most 15 minutes on two cores)
#   make test    set up .venv and run the tests
#   make lint    formatting and lints        make bench   speed against named peers
#   make scale   a model of 1.5 billion parameters through every step (10 minutes, 6 GB of memory, 8 GB of disk)
#   make lock    pin the newest versions again (needs the network)

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null && echo $$p && break; done)
FILES := $(wildcard $(shell git ls-files 2>/dev/null || find src tests workflow config profiles envs -type f))
export PATH := $(CURDIR)/.venv/bin:$(PATH)

.PHONY: demo test lint bench scale lock
demo: .venv/.installed
	@snakemake --cores all figures/fig3.pdf
	@echo
	@echo "The figure:    figures/fig3.pdf   (also: snakemake --cores all figures/fig3.png)"
	@echo "Its numbers:   results/figures/fig3/a.parquet, c.parquet"
	@echo "Everything:    results/   (a row an item, neuron or token, in parquet)"

test: .venv/.tested
	@echo "All tests passed on these files (log of slow steps: pytest --durations 10)."

.venv/.tested: .venv/.installed $(FILES)
	@pytest
	@touch $@

lint: .venv/.installed
	ruff check .
	ruff format --check .
	snakefmt --check .
	snakemake --lint

bench: .venv/.installed
	python benchmarks/intervention.py

scale: .venv/.installed
	python benchmarks/scale.py

.venv/.installed: requirements.txt requirements-data.txt pyproject.toml
	@test -n "$(PYTHON)" || { echo "make: no Python 3.11 to 3.13 is on the path; give one with PYTHON=/path/to/python"; exit 1; }
	@echo "Setting up .venv with $(PYTHON), once: about 2 minutes and 2 GB, most of it torch"
	@$(PYTHON) -m venv .venv
	python -m pip install --disable-pip-version-check -r requirements.txt
	python -m pip install --disable-pip-version-check --no-deps -r requirements-data.txt -e .
	@touch $@

lock: .venv/.installed
	python -m pip install --quiet uv
	{ sed -n '/^#/p' requirements.txt; echo 'torch==2.13.0' | uv pip compile --universal --fork-strategy fewest --python-version 3.11 \
		--extra dev pyproject.toml -c - --upgrade --no-annotate --no-header | grep -vE '^(cuda-|nvidia-|triton==)'; } > requirements.new
	mv requirements.new requirements.txt
