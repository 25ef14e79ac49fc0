#!/usr/bin/env bash
# Writes requirements/run.lock (a cluster's image), onenode.lock (also `orlop up`) and test.lock: versions and hashes, no
# addresses.
# Run by `make lock` when a dependency changes; never by the other targets.
set -euo pipefail
cd "$(dirname "$0")/.."
unset PIP_FIND_LINKS PIP_INDEX_URL PIP_EXTRA_INDEX_URL
compile() {
    "${VENV:-.venv}/bin/uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes \
        --no-emit-index-url --no-emit-find-links --no-header --no-annotate "$@"
}
compile pyproject.toml requirements/build.in --output-file requirements/run.lock
compile --extra onenode pyproject.toml requirements/run.lock --output-file requirements/onenode.lock
compile requirements/test.in requirements/onenode.lock --output-file requirements/test.lock
