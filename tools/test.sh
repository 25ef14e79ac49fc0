#!/usr/bin/env bash
# Runs pytest in a mount namespace of its own, so that no test can leave a mount on this machine.
# Without root the namespace is a user's.
set -euo pipefail
cd "$(dirname "$0")/.."
namespace=(unshare --mount --propagation private)
if [ "$(id -u)" -ne 0 ]; then
    namespace+=(--map-root-user)
fi
# Large numbers take longer than a test usually may.
[ -z "${ORLOP_SOAK:-}" ] || set -- --timeout=2400 "$@"
exec "${namespace[@]}" .venv/bin/python -m pytest -n "${WORKERS:-2}" --dist worksteal "$@"
