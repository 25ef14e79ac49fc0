#!/bin/sh
# Python for one worker of the tests, in PID and mount namespaces of its own. When the worker ends, also by SIGKILL, the
# first process of the PID namespace ends, and the kernel kills every process that a test left behind.
# That first process is this shell, not Python: it has to reap the orphans.
exec unshare --pid --fork --kill-child --mount-proc sh -c '
    export ORLOP_TEST_MOUNTS=$(readlink /proc/self/ns/mnt)
    # Commands find a running orlop up there: each worker must find its own alone.
    mkdir -p /run/orlop && mount -t tmpfs tmpfs /run/orlop || true
    "$@"
    exit $?' sh .venv/bin/python "$@"
