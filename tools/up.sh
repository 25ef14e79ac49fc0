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
flags=(--endpoint "unix://$STATE/csi.sock" --nodeid "$(hostname)")
if [ "$(id -u)" != 0 ]; then
    echo "make up: volumes are mounts, which only root can make: this driver says who it is, and serves no volumes." >&2
    exec .venv/bin/orlop driver "${flags[@]}" --workdir=
fi

# What kubelet's folder is on a node: where volumes are mounted, and seen by others.
mkdir -p -m 0700 -- "$STATE/ephemeral" "$STATE/kubelet"
if ! findmnt -no PROPAGATION -T "$STATE/kubelet" | tail -1 | grep -q shared; then
    { mount --bind "$STATE/kubelet" "$STATE/kubelet" && mount --make-shared "$STATE/kubelet"; } ||
        fail "$STATE/kubelet cannot be made a shared mount: see above."
fi
.venv/bin/orlop driver "${flags[@]}" --workdir "$STATE/ephemeral" --kubelet-dir "$STATE/kubelet" \
    --adminsocket "$STATE/admin.sock" &
driver=$!
trap 'kill -TERM $driver 2>/dev/null' TERM INT HUP
# A signal ends the waiting, and the driver only when it is through.
wait $driver || while kill -0 $driver 2>/dev/null; do wait $driver || true; done
code=0
wait $driver || code=$?  # bash remembers
# Where volumes are still mounted it stays, and is found again by the next `make up`.
! mountpoint -q "$STATE/kubelet" || umount "$STATE/kubelet" 2>/dev/null || true
exit "$code"
