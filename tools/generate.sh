#!/usr/bin/env bash
# Runs every generator; with --check each compares what it gives with what is committed.
set -euo pipefail
cd "$(dirname "$0")/.."
.venv/bin/python tools/generate_csi_stubs.py "$@"
.venv/bin/python tools/generate_flag_reference.py "$@"
.venv/bin/python tools/generate_command_reference.py "$@"
.venv/bin/python tools/generate_kube_schemas.py "$@"
.venv/bin/python tools/generate_kube_protos.py "$@"
.venv/bin/python tools/generate_crds.py "$@"
.venv/bin/python tools/generate_manifests.py "$@"
