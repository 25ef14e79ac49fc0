"""`orlop up --driver … --sidecars …` with a driver that attaches: whole processes, kubectl, and a pod with a volume."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from onenode.kubelet.volumes.volume_values import attachment_name
from support.places import REPOSITORY
from support.processes.kubectl_commands import KUBECTL
from support.processes.orlop_process import run_here, running
from support.processes.up_process import Up, up_folder
from support.waiting import eventually_there

NAME = "attaching.example.com"
VOLUME = f"kubernetes.io/csi/{NAME}^h1"
OBJECTS = f"""
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {{name: {NAME}}}
spec: {{attachRequired: true}}
---
apiVersion: v1
kind: PersistentVolume
metadata: {{name: pv1}}
spec:
  capacity: {{storage: 1Gi}}
  accessModes: [ReadWriteOnce]
  storageClassName: none
  claimRef: {{namespace: default, name: c}}
  csi: {{driver: {NAME}, volumeHandle: h1}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: c}}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: none
  volumeName: pv1
  resources: {{requests: {{storage: 1Gi}}}}
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  terminationGracePeriodSeconds: 1
  containers:
    - {name: main, image: busybox, command: [sleep, "100000"], volumeMounts: [{name: data, mountPath: /data}]}
  volumes: [{name: data, persistentVolumeClaim: {claimName: c}}]
"""


class Bench:
    def __init__(self, up: Up) -> None:
        self.up = up
        self.socket = up.folder / "csi.sock"
        self.record = up.folder / "calls.jsonl"

    @contextmanager
    def driver(self, name: str = NAME, **script: Any) -> Iterator[None]:
        path = self.up.folder / "script.yaml"
        played = {"driver": {"name": name}, "volumes": [{"id": "h1", "size": "1Gi"}], **script}
        path.write_text(json.dumps(played))
        flags = ["--endpoint", f"unix://{self.socket}", "--script", str(path), "--record", str(self.record)]
        with running(self.up.folder, "testing", "mock-driver", *flags, "--create-targets"):
            yield

    def make_bound_volume(self) -> None:
        self.up.kubectl.ok("apply", "-f", "-", stdin=OBJECTS)
        self.up.kubectl.ok("wait", "pvc/c", "--for=jsonpath={.status.phase}=Bound", "--timeout=150s")

    def calls(self) -> list[str]:
        lines = self.record.read_text().splitlines() if self.record.exists() else []
        changing = ("Publish", "Unpublish", "Stage", "Unstage")
        methods = [json.loads(line)["method"] for line in lines]
        return [name for name in methods if name.removeprefix("Controller").removeprefix("Node").startswith(changing)]

    def request(self, method: str) -> dict[str, Any]:
        found = [call for call in map(json.loads, self.record.read_text().splitlines()) if call["method"] == method]
        request = found[-1]["request"]
        assert isinstance(request, dict)
        return request

    def node(self) -> dict[str, Any]:
        (found,) = json.loads(self.up.kubectl.ok("get", "nodes", "-o", "json"))["items"]
        assert isinstance(found, dict)
        return found

    def attachments(self) -> list[dict[str, Any]]:
        found = json.loads(self.up.kubectl.ok("get", "volumeattachments", "-o", "json"))["items"]
        assert isinstance(found, list)
        return found

    def events(self) -> dict[str, str]:
        found = self.up.kubectl.ok("get", "events", "--field-selector=involvedObject.name=p", "-o", "json")
        return {event["reason"]: event["message"] for event in json.loads(found)["items"]}

    def attachers(self) -> list[int]:
        return [number for number, words in self.up.processes().items() if " orlop attacher " in words]


@contextmanager
def bench(*flags: str) -> Iterator[Bench]:
    with up_folder() as up:
        made = Bench(up)
        up.begin(f"--driver=unix://{made.socket}", *flags)
        up.says("Orlop is up")
        yield made
        assert up.end() == 0, up.said()
        assert "Traceback" not in up.said(), up.said()
        assert (up.processes(), made.up.mounts()) == ({}, [])


def test_a_pod_has_its_volume_attached_mounted_and_taken_back_by_a_driver_that_brings_nothing_but_itself():
    with bench() as b, b.driver():
        b.up.says(f"driver {NAME} registered")
        assert b.attachers() == [], "nothing has to be attached"
        b.make_bound_volume()
        b.up.kubectl.ok("apply", "-f", "-", stdin=POD)
        b.up.runs("p")
        (attachment,), node = b.attachments(), b.node()
        name = node["metadata"]["name"]

        assert b.calls() == ["ControllerPublishVolume", "NodeStageVolume", "NodePublishVolume"]
        assert attachment["metadata"]["name"] == attachment_name("h1", NAME, name)
        assert attachment["status"]["attached"] is True
        told = attachment["status"].get("attachmentMetadata") or {}
        assert told, "the driver tells something when it attaches"
        assert b.request("NodeStageVolume")["publishContext"] == told
        assert b.request("NodePublishVolume")["publishContext"] == told
        assert node["status"]["volumesAttached"] == [{"name": VOLUME, "devicePath": ""}]
        assert node["status"]["volumesInUse"] == [VOLUME]
        assert b.events()["SuccessfulAttachVolume"] == 'AttachVolume.Attach succeeded for volume "pv1" '

        b.up.delete("p")
        eventually_there(lambda: b.attachments() == [], every=0.1)
        assert b.calls()[3:] == ["NodeUnpublishVolume", "NodeUnstageVolume", "ControllerUnpublishVolume"]
        assert not b.node()["status"].get("volumesAttached")


def commands_of_the_walk() -> str:
    """Those of kubectl, as docs/mock-driver.md has them."""
    walk = (
        (REPOSITORY / "docs" / "mock-driver.md")
        .read_text()
        .partition("In the other one, ")[2]
        .partition("\nWhere its")[0]
    )
    return "\n".join(line.strip() for line in walk.splitlines() if line.startswith("    kubectl "))


def test_the_walk_of_the_documentation_leads_to_its_end_and_leaves_nothing():
    busy = {"ControllerUnpublishVolume": [{"error": {"code": "INTERNAL", "message": "the array is busy"}}]}
    not_yet = {"times": 2, "error": {"code": "UNAVAILABLE", "message": "not yet"}}
    script = {"ControllerPublishVolume": [not_yet], **busy}
    volumes = [{"id": "vol-1", "size": "1Gi"}]
    with bench() as b, b.driver("mock.example.com", volumes=volumes, script=script):
        b.up.says("driver mock.example.com registered")
        path = f"{KUBECTL.parent}:{os.environ['PATH']}"
        env = {**os.environ, "PATH": path, "KUBECONFIG": str(b.up.state / "kubeconfig")}
        walked = subprocess.run(
            ["bash", "-euc", commands_of_the_walk()],
            capture_output=True,
            check=False,
            cwd=REPOSITORY,
            env=env,
            text=True,
            timeout=200,
        )
        assert walked.returncode == 0, (walked.stdout, walked.stderr)
        assert "FailedAttachVolume" in walked.stdout
        assert "SuccessfulAttachVolume" in walked.stdout
        assert walked.stdout.rstrip().endswith('persistentvolume "data" deleted')
        assert b.calls().count("ControllerPublishVolume") == 3
        assert b.calls().count("ControllerUnpublishVolume") == 2
        assert b.attachments() == []


def test_without_sidecars_an_attachment_waits_for_the_drivers_own():
    with bench("--sidecars=none") as b, b.driver():
        b.up.says(f"driver {NAME} registered")
        b.make_bound_volume()
        b.up.kubectl.ok("apply", "-f", "-", stdin=POD)
        eventually_there(lambda: len(b.attachments()) == 1, every=0.1)
        assert (b.attachers(), b.calls()) == ([], [])
        b.up.delete("p")
        eventually_there(lambda: b.attachments() == [], every=0.1)


def test_an_attacher_that_dies_or_whose_driver_comes_back_under_another_name_is_started_again():
    with bench("--sidecars=attacher") as b:
        with b.driver():
            b.up.says(f"driver {NAME} registered")
            b.make_bound_volume()
            b.up.kubectl.ok("apply", "-f", "-", stdin=POD)
            b.up.runs("p")
            (first,) = b.attachers()
            os.kill(first, signal.SIGKILL)
            b.up.says("child ended, restarting", 'child="orlop attacher"')
            eventually_there(lambda: b.attachers() not in ([], [first]))
            b.up.delete("p")
            eventually_there(lambda: b.attachments() == [], every=0.1)
        (second,) = b.attachers()
        with b.driver("another.example.com"):
            eventually_there(lambda: b.attachers() not in ([], [second]))
            b.up.says("is now 'another.example.com'")


def test_an_attacher_needs_a_driver_of_ones_own():
    ended = run_here("up", "--sidecars=attacher")
    assert ended.returncode == 2
    assert "name its socket with --driver" in ended.stderr
