"""A sample of the journeys with the real program, the real kubectl, real mounts, loop devices and processes."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from onenode.kubelet.volumes.volume_values import attachment_name
from support.csi.mounting_drivers import NAME, MountingDriver
from support.host.remains import NOTHING, Remains, remains_of_up
from support.processes.up_process import Up, up_folder
from support.waiting import eventually_there

CANARIES = {"staging": "canary-of-staging-91ab", "publishing": "canary-of-publishing-91ab"}
VOLUME = f"kubernetes.io/csi/{NAME}^h1"
OBJECTS = f"""
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {{name: {NAME}}}
spec: {{attachRequired: true, podInfoOnMount: true, volumeLifecycleModes: [Persistent, Ephemeral]}}
---
apiVersion: v1
kind: Secret
metadata: {{name: staging}}
stringData: {{password: {CANARIES["staging"]}}}
---
apiVersion: v1
kind: Secret
metadata: {{name: publishing}}
stringData: {{password: {CANARIES["publishing"]}}}
---
apiVersion: v1
kind: PersistentVolume
metadata: {{name: pv1}}
spec:
  capacity: {{storage: 4Mi}}
  accessModes: [ReadWriteOnce]
  storageClassName: none
  claimRef: {{namespace: default, name: c}}
  csi:
    driver: {NAME}
    volumeHandle: h1
    fsType: ext4
    nodeStageSecretRef: {{name: staging, namespace: default}}
    nodePublishSecretRef: {{name: publishing, namespace: default}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: c}}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: none
  volumeName: pv1
  resources: {{requests: {{storage: 4Mi}}}}
"""
CLAIMED = "{name: data, persistentVolumeClaim: {claimName: c}}"
INLINE = f"{{name: data, csi: {{driver: {NAME}}}}}"
OURS = "{name: data, csi: {driver: csi.orlop.dev}}"
POD = """
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
    - name: main
      image: busybox
      command: [sh, -c, "echo began >> /data/result; sleep 100000"]
      volumeMounts: [{{name: data, mountPath: /data, {mount}}}]
  volumes: [{volume}]
"""


@dataclass
class Bench:
    up: Up
    driver: MountingDriver
    idle: list[str] = field(default_factory=list)

    def make(self, name: str, volume: str = INLINE, mount: str = "") -> None:
        self.up.kubectl.ok("apply", "-f", "-", stdin=POD.format(name=name, volume=volume, mount=mount))

    def object(self, *words: str) -> dict[str, Any]:
        found = json.loads(self.up.kubectl.ok("get", *words, "-o", "json"))
        assert isinstance(found, dict)
        return found

    def patch(self, kind: str, name: str, **status: Any) -> None:
        body = json.dumps({"status": status})
        self.up.kubectl.ok("patch", kind, name, "--subresource=status", "--type=merge", f"--patch={body}")

    def until(self, what: str, path: str, value: str) -> None:
        self.up.kubectl.ok("wait", what, f"--for=jsonpath={{{path}}}={value}", "--timeout=150s")

    def node(self) -> str:
        return self.up.kubectl.ok("get", "nodes", "-o", "name").strip().removeprefix("node/")

    def delete(self, *names: str) -> None:
        self.up.kubectl.ok("delete", "pod", *names, "--wait=false")

    def remains(self) -> Remains:
        return remains_of_up(self.up, self.idle)

    def becomes(self, condition: Callable[[], bool]) -> None:
        """Seldom looked at, since kubectl is not cheap."""
        eventually_there(condition, every=0.5)

    def is_clean(self) -> None:
        """Pods' objects are gone first; what is staged goes a moment later."""
        with suppress(AssertionError):
            eventually_there(lambda: self.remains() == NOTHING, every=0.1)
        assert self.remains() == NOTHING
        assert self.up.kubectl.ok("get", "pods", "-o", "name") == ""

    def target(self, name: str, volume: str = "data") -> Path:
        uid = self.up.value(name, "{.metadata.uid}")
        return self.up.state / f"kubelet/pods/{uid}/volumes/kubernetes.io~csi/{volume}/mount"

    def events(self, name: str) -> list[tuple[str, str]]:
        found = self.object("events", f"--field-selector=involvedObject.name={name}")["items"]
        return [(event["reason"], event["message"]) for event in found]


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("needs mkfs.ext4")
    with up_folder() as up:
        up.start("--log-level=debug")
        bench = Bench(up, MountingDriver(up))
        try:
            bench.driver.start()
            bench.idle = list(up.processes().values())
            up.kubectl.ok("apply", "-f", "-", stdin=OBJECTS)
            bench.until("pvc/c", ".status.phase", "Bound")
            yield bench
            assert "Traceback" not in up.said(), up.said()
        finally:
            bench.driver.kill()


@pytest.fixture(autouse=True)
def clean(bench: Bench) -> Iterator[None]:
    """After each journey nothing is left, and the driver's script is the usual one."""
    bench.driver.forget_calls()
    yield
    bench.driver.play()
    bench.up.kubectl.ok("delete", "pods", "--all", "--wait=false")
    bench.is_clean()


# ---- the walkthrough -------------------------------------------------------------------------------------------------


def test_a_persistent_volume_is_attached_mounted_used_and_taken_back_and_its_secrets_are_seen_by_its_driver_alone(
    bench: Bench,
):
    node, kubelet, driver = bench.node(), bench.up.state / "kubelet", bench.driver
    (registered,) = (one for one in bench.object("csinode", node)["spec"]["drivers"] if one["name"] == NAME)
    assert registered["nodeID"] == "n"
    bench.make("p", CLAIMED)
    bench.until(f"node/{node}", ".status.volumesInUse[0]", VOLUME)
    assert driver.names() == []
    assert bench.up.value("p", "{.status.phase}") == "Pending"

    attachment = attachment_name("h1", NAME, node)
    spec = {"attacher": NAME, "nodeName": node, "source": {"persistentVolumeName": "pv1"}}
    assert bench.object("volumeattachment", attachment)["spec"] == spec
    bench.patch("volumeattachment", attachment, attached=True, attachmentMetadata={"disk": "sdb"})
    bench.up.runs("p")
    assert bench.object("node", node)["status"]["volumesAttached"] == [{"name": VOLUME, "devicePath": ""}]

    target, staging = bench.target("p", "pv1"), kubelet / STAGING
    bench.becomes((target / "result").exists)
    assert driver.names() == ["Stage", "Publish"]
    staged, published = driver.calls()
    assert staged["request"]["stagingTargetPath"] == published["request"]["stagingTargetPath"] == str(staging)
    assert staged["request"]["publishContext"] == {"disk": "sdb"}
    assert published["request"]["targetPath"] == str(target)
    assert [call["digests"] for call in (staged, published)] == [
        {"password": hashlib.sha256(CANARIES[place].encode()).hexdigest()} for place in ("staging", "publishing")
    ]
    assert json.loads((staging.parent / "vol_data.json").read_text()) == {"driverName": NAME, "volumeHandle": "h1"}
    assert json.loads((target.parent / "vol_data.json").read_text())["attachmentID"] == attachment
    assert bench.remains().mounts_of_drivers == (str(staging), str(target))
    assert len(bench.remains().loop_devices) == 1
    assert canaries_in(everything_shown(bench)) == []
    assert canaries_in(files_below(bench.up.state / "api")), "where they are kept they are found"

    bench.delete("p")
    bench.is_clean()
    assert driver.names() == ["Stage", "Publish", "Unpublish", "Unstage"]
    bench.becomes(lambda: not bench.object("volumeattachments")["items"])
    status = bench.object("node", node)["status"]
    assert (status.get("volumesInUse"), status.get("volumesAttached")) in ((None, None), (None, []))
    assert canaries_in(everything_shown(bench)) == []


STAGING = f"plugins/kubernetes.io/csi/{NAME}/{hashlib.sha256(b'h1').hexdigest()}/globalmount"


def everything_shown(bench: Bench) -> bytes:
    """All files but the API server's own store, all that was logged, and all objects but the secrets."""
    kinds = "pods,nodes,events,pv,pvc,csinodes,csidrivers,volumeattachments,leases,configmaps"
    told = bench.up.kubectl.ok("get", kinds, "--all-namespaces", "-o", "json") + bench.up.said()
    return told.encode() + files_below(bench.up.state, but="api") + files_below(bench.driver.folder)


def files_below(folder: Path, but: str = "") -> bytes:
    found = []
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if Path(place) != folder or name != but]
        found += [path.read_bytes() for name in files if (path := Path(place) / name).is_file()]
    return b"\n".join(found)


def canaries_in(shown: bytes) -> list[str]:
    forms = [form for value in CANARIES.values() for form in (value.encode(), base64.b64encode(value.encode()))]
    return [form.decode() for form in forms if form in shown]


# ---- what goes wrong on the way --------------------------------------------------------------------------------------

SLOW = "{NodePublishVolume: [{delay: 2s}]}"


def test_a_pod_that_is_deleted_while_its_volume_is_being_published_leaves_nothing(bench: Bench):
    bench.driver.play(SLOW)
    bench.make("p")
    bench.driver.is_called("NodePublishVolume")
    bench.delete("p")
    bench.is_clean()


def test_after_the_driver_the_kubelet_and_the_machine_died_in_the_midst_of_a_publishing_the_pods_run_again(
    bench: Bench,
):
    bench.driver.play(SLOW)
    bench.make("p")
    bench.driver.is_called("NodePublishVolume")
    bench.driver.kill()
    bench.driver.start(SLOW)
    bench.up.runs("p")

    bench.driver.kill()
    bench.driver.start(SLOW)
    bench.driver.forget_calls()
    bench.make("q")
    bench.driver.is_called("NodePublishVolume")
    bench.up.end(signal.SIGKILL)  # API server and kubelet
    bench.up.start("--log-level=debug")
    for name in ("p", "q"):
        bench.up.runs(name)
    assert len(bench.remains().mounts_of_drivers) == 2

    bench.up.end(signal.SIGKILL)
    bench.driver.kill()
    bench.becomes(lambda: bench.up.processes() == {})
    subprocess.run(["umount", "--lazy", "--recursive", str(bench.up.state)], check=True)  # as a reboot does
    bench.up.start("--log-level=debug")
    bench.driver.start()
    for name in ("p", "q"):
        bench.up.runs(name)
        assert bench.target(name).is_mount()


# ---- drivers and pods that mean harm ---------------------------------------------------------------------------------


def test_a_driver_that_never_answers_harms_no_pod_of_another_and_one_that_mounts_nothing_is_noticed(bench: Bench):
    bench.driver.play("{NodePublishVolume: [{times: 0, when: {volumeContext: {hang: 'yes'}}, hang: true}]}")
    attributes = "{{name: data, csi: {{driver: {name}, volumeAttributes: {{{what}}}}}}}"
    for number in range(3):
        bench.make(f"stuck-{number}", attributes.format(name=NAME, what="hang: 'yes'"))
    bench.make("nothing", attributes.format(name=NAME, what="makes: nothing"))
    bench.make("folder", attributes.format(name=NAME, what="makes: folder"))
    bench.make("ours", OURS)
    for name in ("ours", "folder"):
        bench.up.runs(name)

    assert "VolumeNotAMountPoint" in dict(bench.events("folder"))
    bench.becomes(lambda: "there is nothing at" in dict(bench.events("nothing")).get("FailedMount", ""))
    phases = bench.up.kubectl.ok("get", "pods", "-o", "jsonpath={.items[*].status.phase}").split()
    assert sorted(phases) == ["Pending"] * 4 + ["Running"] * 2


def test_of_two_processes_that_claim_one_name_the_first_keeps_it(bench: Bench):
    second = MountingDriver(bench.up, "second")
    try:
        second.start()
        second.says("Another driver with the same name is already registered")
        bench.make("p")
        bench.up.runs("p")
        assert bench.driver.names() == ["Publish"]
        assert second.calls() == []
    finally:
        second.kill()


@pytest.mark.parametrize("sub_path", ["..", "a/../../b", "/etc"])
def test_a_sub_path_that_leads_elsewhere_is_refused_by_the_api_server(bench: Bench, sub_path: str):
    body = POD.format(name="p", volume=OURS, mount=f"subPath: {sub_path}")
    refused = bench.up.kubectl.run("apply", "-f", "-", stdin=body)

    assert refused.returncode == 1
    assert "subPath" in refused.stderr


def test_a_sub_path_that_a_tenant_made_a_link_shows_nothing_of_the_machine(bench: Bench):
    link = "{name: link, image: x, command: [ln, -s, /etc, /data/evil], volumeMounts: [{name: data, mountPath: /data}]}"
    body = POD.format(name="p", volume=OURS, mount="subPath: evil")
    before = f"  initContainers: [{link}]\n  containers:"
    bench.up.kubectl.ok("apply", "-f", "-", stdin=body.replace("  containers:", before, 1))
    bench.until("pod/p", ".status.containerStatuses[0].state.waiting.reason", "CreateContainerConfigError")
    assert not [path for path in bench.up.mounts() if "volume-subpaths" in path]
