#!/usr/bin/env bash
# Runs Orlop in the foreground with its state in $STATE, which is made if it is not there; Ctrl-C ends it.
set -euo pipefail
cd "$(dirname "$0")/.."
fail() { printf 'make up: %s\n' "$*" >&2; exit 2; }
[ -n "${STATE:-}" ] || fail "STATE is empty: it names the folder for Orlop's state."
case $STATE in /*) ;; *) STATE=$PWD/$STATE ;; esac
# A folder that is there keeps its mode: it may be somebody else's, and the socket is for its owner alone anyway.
if [ ! -d "$STATE" ]; then
    mkdir -p -m 0700 -- "$STATE" 2>/dev/null || fail "the folder $STATE cannot be made: name another with STATE=…"
fi
exec .venv/bin/orlop driver --endpoint "unix://$STATE/csi.sock" --nodeid "$(hostname)"
