#!/usr/bin/env bash
# The check of the engine on a GPU, in at most six minutes: bench/gpu-check.sh [OUT]
# Needs Python with torch, triton and transformers, and no network: what else is missing comes out of .whl, which
# `make gpu-pack` fills elsewhere. Without a GPU it is a dry run that measures nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
export PYTHONPATH=crds:planner:runtime:bench PYTHONUNBUFFERED=1
if ! "$python" -c 'import pydantic, msgspec' 2>/dev/null; then
  site=$(mktemp -d)
  trap 'rm -rf "$site"' EXIT
  "$python" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --target "$site" .whl/*.whl
  export PYTHONPATH="$PYTHONPATH:$site"
fi
# bash counts the seconds since it began.
"$python" -m paceline_bench.gpu.command check --out "${1:-results/gpu}" --seconds $((345 - SECONDS))
