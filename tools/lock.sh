#!/usr/bin/env bash
# Writes requirements/run.lock and requirements/test.lock: versions and hashes, no addresses.
# Run by `make lock` when a dependency changes; never by the other targets.
set -euo pipefail
cd "$(dirname "$0")/.."
unset PIP_FIND_LINKS PIP_INDEX_URL PIP_EXTRA_INDEX_URL
compile() {
    "${VENV:-.venv}/bin/uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes \
        --no-emit-index-url --no-emit-find-links --no-header --no-annotate "$@"
}
compile --extra certificates pyproject.toml requirements/build.in --output-file requirements/run.lock
compile requirements/test.in requirements/run.lock --output-file requirements/test.lock
