#!/usr/bin/env bash
# Runs everything on this machine in the foreground, with its state in $STATE where that is given; Ctrl-C ends it.
# With --may-run it only says whether it may.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ "$(id -u)" -ne 0 ]; then
    echo "orlop up: it mounts file systems and starts pods' processes: run it as root." >&2
    exit 2
fi
[ "${1:-}" != --may-run ] || exit 0
exec .venv/bin/orlop up ${STATE:+--state "$STATE"}
