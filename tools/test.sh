#!/usr/bin/env bash
# Runs pytest in a mount namespace of its own, so that no test can leave a mount on this machine.
# Without root the namespace is a user's. Each worker has more namespaces of its own (tools/test_worker.sh).
set -euo pipefail
cd "$(dirname "$0")/.."
namespace=(unshare --mount --propagation private)
if [ "$(id -u)" -ne 0 ]; then
    namespace+=(--map-root-user)
fi
# Where this is set, pytest rewrites the assertions of every test file in every worker again: ten seconds of each run.
unset PYTHONDONTWRITEBYTECODE
# Large numbers take longer than a test usually may.
[ -z "${ORLOP_SOAK:-}" ] || set -- --timeout=2400 "$@"
# Four workers for two cores: tests of processes wait most of their time.
# Tests mount only where this variable names the mount namespace they are in.
exec "${namespace[@]}" sh -c 'export ORLOP_TEST_MOUNTS=$(readlink /proc/self/ns/mnt); exec "$@"' sh .venv/bin/python -m pytest \
    --tx "${WORKERS:-4}*popen//python=tools/test_worker.sh" --dist worksteal "$@"
