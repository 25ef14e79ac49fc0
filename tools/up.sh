#!/usr/bin/env bash
# Runs everything on this machine in the foreground, with its state in $STATE where that is given; Ctrl-C ends it.
set -euo pipefail
cd "$(dirname "$0")/.."
exec .venv/bin/orlop up ${STATE:+--state "$STATE"}
