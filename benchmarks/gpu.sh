#!/usr/bin/env bash
# GPU against CPU in at most 8 minutes, on a CUDA machine that may have no network.
#
#   benchmarks/gpu.sh          in a checkout, with this project's environment active: compares and prints rates
#   benchmarks/gpu.sh pack     before that, where there is a network: fetches into .whl/ what a machine that has torch and
#                              transformers lacks (polars, zarr and what they need), for Python 3.12 or $PYTHON_VERSION
#
# Copy the checkout with .whl/ to the machine and run the first form there; nothing is fetched, no model is needed.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(command -v python3 || command -v python)

if [ "${1:-}" = pack ]; then
    platforms=()
    for n in 28 27 24 17; do platforms+=(--platform "manylinux_2_${n}_x86_64"); done
    wanted=$(grep -iE '^(polars|polars-runtime-32|zarr|numcodecs|donfig|google-crc32c)==' requirements.txt | sed 's/ *;.*//')
    # shellcheck disable=SC2086
    exec "$python" -m pip download --quiet --no-deps --only-binary=:all: --implementation cp \
        --python-version "${PYTHON_VERSION:-3.12}" "${platforms[@]}" --platform manylinux2014_x86_64 -d .whl $wanted
fi

if [ -d .whl ]; then
    site=$(mktemp -d)
    trap 'rm -rf "$site"' EXIT
    "$python" -m pip install --quiet --no-index --no-deps --no-compile --target "$site" .whl/*.whl
    export PYTHONPATH="$site"
fi
PYTHONPATH="src:${PYTHONPATH:-}" PYTHONUNBUFFERED=1 timeout 480 "$python" benchmarks/gpu.py "$@"
