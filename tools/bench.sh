#!/usr/bin/env bash
# Runs every benchmark; each prints its own table.
set -euo pipefail
cd "$(dirname "$0")/.."
for benchmark in benchmarks/*.py; do
    .venv/bin/python "$benchmark" "$@"
done
