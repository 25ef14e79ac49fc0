#!/usr/bin/env bash
# Everything that can be said of the code without running it.
set -euo pipefail
cd "$(dirname "$0")/.."
echo "check: lint, format, types, generated files"
.venv/bin/ruff check --quiet .
.venv/bin/ruff format --check --quiet . || { echo "Some files are not formatted: run make format." >&2; exit 1; }
.venv/bin/mypy --no-error-summary
tools/generate.sh --check
echo "check: passed"
