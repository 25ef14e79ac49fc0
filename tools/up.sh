#!/usr/bin/env bash
# Runs Orlop in the foreground with its state in $STATE; Ctrl-C ends it.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p "$STATE"
chmod 0700 "$STATE"
endpoint="unix://$STATE/csi.sock"
cat <<EOF
Orlop answers CSI calls on $endpoint. In another terminal:

    .venv/bin/orlop csi Identity.GetPluginInfo --endpoint $endpoint

EOF
exec .venv/bin/orlop driver --endpoint "$endpoint" --nodeid "$(hostname)"
