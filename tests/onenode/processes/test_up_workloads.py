"""Deployments and StatefulSets of a real `orlop up`, as people type them with kubectl; claims are another driver's."""

from __future__ import annotations

import json
from typing import Any

from support.processes.orlop_process import running
from support.processes.up_process import Up, up_folder
from support.waiting import eventually_there

WORKLOADS = """
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: mock}
provisioner: mock.example.com
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  replicas: 3
  serviceName: db
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
        - name: main
          image: busybox
          command: [sh, -c, "hostname >/data/who; sleep 100000"]
          volumeMounts: [{name: data, mountPath: /data}]
  volumeClaimTemplates:
    - metadata: {name: data}
      spec: {storageClassName: mock, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}
"""
WAIT = "--timeout=150s"
NAMES = ["db-0", "db-1", "db-2"]


def objects(up: Up, *words: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = json.loads(up.kubectl.ok("get", *words, "-o", "json"))["items"]
    return items


def claims(up: Up) -> dict[str, tuple[str, str]]:
    """Return the uid and the volume of each claim."""
    found = objects(up, "pvc")
    return {each["metadata"]["name"]: (each["metadata"]["uid"], each["spec"]["volumeName"]) for each in found}


def staying(up: Up, selector: str) -> list[dict[str, Any]]:
    """Return the pods that are not being deleted."""
    return [each for each in objects(up, "pods", "-l", selector) if "deletionTimestamp" not in each["metadata"]]


def uids(up: Up, selector: str) -> set[str]:
    return {each["metadata"]["uid"] for each in staying(up, selector)}


def test_stateful_sets_and_deployments_do_what_people_type():
    with up_folder() as up:
        socket = up.folder / "csi.sock"
        with running(up.folder, "testing", "mock-driver", "--create-targets", f"--endpoint=unix://{socket}"):
            up.begin(f"--driver=unix://{socket}")
            up.says("Orlop is up", "driver mock.example.com registered")
            _stateful_set(up)
            _deployment(up)
            assert up.end() == 0
        assert "Traceback" not in up.said()


def _stateful_set(up: Up) -> None:
    up.kubectl.ok("apply", "-f", "-", stdin=WORKLOADS)
    up.kubectl.ok("rollout", "status", "sts/db", WAIT)
    before = claims(up)
    assert [up.kubectl.ok("exec", name, "--", "cat", "/data/who").strip() for name in NAMES] == NAMES
    assert sorted(before) == [f"data-{name}" for name in NAMES]
    assert len({volume for _, volume in before.values()}) == 3

    first = uids(up, "app=db")
    up.kubectl.ok("delete", "sts", "db")
    up.kubectl.ok("wait", "--for=delete", "pod", "-l", "app=db", WAIT)
    up.kubectl.ok("apply", "-f", "-", stdin=WORKLOADS)
    up.kubectl.ok("rollout", "status", "sts/db", WAIT)
    assert claims(up) == before
    second = uids(up, "app=db")
    assert not first & second

    up.kubectl.ok("rollout", "restart", "sts/db")
    up.kubectl.ok("rollout", "status", "sts/db", WAIT)
    assert not second & uids(up, "app=db")
    assert len(up.kubectl.ok("rollout", "history", "sts/db").strip().splitlines()) == 4
    up.kubectl.ok("scale", "sts/db", "--replicas=0")
    eventually_there(lambda: not objects(up, "pods"))
    assert claims(up) == before


def _deployment(up: Up) -> None:
    created = up.kubectl.run(
        *("create", "deployment", "web", "--image=busybox:1", "--", "sh", "-c", "echo hello; sleep 100000")
    )
    assert (created.returncode, created.stderr) == (0, ""), "somebody runs it, so there is no warning"
    up.kubectl.ok("wait", "--for=condition=Available", "deploy/web", WAIT)
    assert up.kubectl.ok("logs", "deploy/web") == "hello\n"
    up.kubectl.ok("scale", "deploy/web", "--replicas=3")
    up.kubectl.ok("rollout", "status", "deploy/web", WAIT)
    first = uids(up, "app=web")
    up.kubectl.ok("set", "image", "deploy/web", "busybox=busybox:2")
    up.kubectl.ok("rollout", "status", "deploy/web", WAIT)
    assert _images(up) == {"busybox:2"}
    up.kubectl.ok("rollout", "undo", "deploy/web")
    up.kubectl.ok("rollout", "status", "deploy/web", WAIT)
    assert _images(up) == {"busybox:1"}
    assert not first & uids(up, "app=web")
    revisions = up.kubectl.ok("rollout", "history", "deploy/web").split()
    assert [word for word in revisions if word.isdecimal()] == ["2", "3"]
    up.kubectl.ok("delete", "deploy", "web", "--cascade=foreground")
    assert [*objects(up, "rs"), *objects(up, "pods")] == []


def _images(up: Up) -> set[str]:
    return {each["spec"]["containers"][0]["image"] for each in staying(up, "app=web")}
