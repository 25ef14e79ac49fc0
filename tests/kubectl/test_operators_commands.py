"""What operators type at kubectl beyond the everyday: every kind described, nodes drained, events read, all waits.

The everyday commands are in tests/onenode/cli/test_kubectl.py. One server for all; each test has a home, and with
it a cache of discovery, of its own.
"""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from orlop.kube import kinds
from orlop.kube.kinds import Kind
from orlop.records.api_record import new_object
from orlop.records.drive import DRIVE, DriveSpec
from orlop.records.drive_record import DriveType
from orlop.records.node_devices import NODE_DEVICES, NodeDevicesSpec
from orlop.records.volume import VOLUME, DriveVolumeSpec, VolumeClaim
from support.api.api_objects import SMALLEST, STORED, attachment, core_event, csi_node, lease, pod, volume, workload
from support.api.api_variants import embedded_process
from support.api.custom_resources import definition, disk, version
from support.places import REPOSITORY
from support.processes.kubectl_commands import KUBECTL, Kubectl
from support.waiting import eventually

NUMBERS = itertools.count()
SCALE = {"specReplicasPath": ".spec.weight", "statusReplicasPath": ".status.used"}
DEFINITION = definition("example.com", version(subresources={"status": {}, "scale": SCALE}))


@dataclass(frozen=True)
class Shell:
    """kubectl in a namespace and a home that no other test uses."""

    kubectl: Kubectl
    namespace: str
    home: Path

    def ok(self, *arguments: str, stdin: str | None = None) -> str:
        return self.kubectl.ok("-n", self.namespace, *arguments, stdin=stdin)

    def fails(self, *arguments: str, stdin: str | None = None) -> str:
        ran = self.kubectl.run("-n", self.namespace, *arguments, stdin=stdin)
        assert ran.returncode != 0, ran.stdout
        return ran.stderr

    def create(self, kind: Kind, *objects: dict) -> None:
        self.create_all([(kind, each) for each in objects])

    def create_all(self, objects: Iterable[tuple[Kind, dict]]) -> None:
        whole = [{"apiVersion": kind.api_version, "kind": kind.kind, **each} for kind, each in objects]
        self.ok("create", "-f", "-", stdin="\n---\n".join(json.dumps(each) for each in whole))

    def value(self, what: str, path: str) -> str:
        return self.ok("get", what, "-o", f"jsonpath={path}")

    def start(self, *arguments: str, output: Path) -> subprocess.Popen[str]:
        command = [KUBECTL, "--kubeconfig", self.kubectl.kubeconfig, "-n", self.namespace, *arguments]
        with output.open("w") as stream:
            return subprocess.Popen(command, stdout=stream, text=True, env={"HOME": str(self.home)})


@pytest.fixture(scope="module")
def state() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="o-", dir="/tmp"))
    with embedded_process(folder) as state:
        yield state
    shutil.rmtree(folder)


@pytest.fixture
def shell(state: Path, tmp_path: Path) -> Shell:
    kubectl = Kubectl(state / "kubeconfig", tmp_path)
    namespace = f"test-{next(NUMBERS)}"
    kubectl.ok("create", "namespace", namespace)
    return Shell(kubectl, namespace, tmp_path)


def test_one_of_each_kind_is_created_listed_described_and_deleted(shell: Shell):
    stored = [kind for kind in STORED if kind not in {kinds.EVENT, kinds.NAMESPACE}]
    shell.create_all((kind, SMALLEST[kind]("each", shell.namespace)) for kind in stored)
    names = ",".join(kind.resource for kind in stored)

    listed = shell.ok("get", names, "-o", "name")
    for kind in stored:
        assert f"{kind.singular}{'.' + kind.group if kind.group else ''}/each\n" in listed, kind
    shown = shell.ok("get", names)
    assert "AGE" in shown
    assert shell.ok("describe", names).count("Name:") >= len(stored)
    removed = shell.ok("delete", *(f"{kind.resource}/each" for kind in stored), "--timeout=150s")
    assert removed.count("deleted") == len(stored)


@pytest.mark.parametrize("kind", [kinds.LEASE, kinds.CSI_DRIVER, kinds.STATEFUL_SET, kinds.CLUSTER_ROLE], ids=str)
def test_a_kind_of_each_group_is_explained(shell: Shell, kind: Kind):
    assert f"KIND:       {kind.kind}" in shell.ok("explain", kind.resource)


def test_a_custom_resource_is_known_to_every_command_at_once(shell: Shell):
    """Each command is the next one: discovery and OpenAPI have the kind as soon as its definition is created."""
    crd = json.dumps({**DEFINITION, "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"})
    shell.ok("apply", "-f", "-", stdin=crd)
    explained = shell.ok("explain", "disks.spec.allocations")
    shell.ok("wait", "--for=condition=Established", "crd/disks.example.com", "--timeout=100s")
    manifest = json.dumps({"apiVersion": "example.com/v1", "kind": "Disk", **disk("d", weight=5)})
    created = shell.ok("apply", "-f", "-", stdin=manifest)
    changed = shell.ok("apply", "-f", "-", stdin=manifest.replace("5", "6"))
    typo = shell.fails("apply", "-f", "-", stdin=manifest.replace("weight", "wait"))
    scaled = shell.ok("scale", "dk/d", "--current-replicas=6", "--replicas=7")

    assert "ALLOCATIONS" in explained.upper()
    assert "<integer>" in explained
    assert (created, changed) == ("disk.example.com/d created\n", "disk.example.com/d configured\n")
    assert 'unknown field "spec.wait"' in typo
    assert shell.ok("get", "dk", "--no-headers").split() == ["d", "n1"]
    assert scaled == "disk.example.com/d scaled\n"
    assert "7" in shell.ok("get", "disks", "-o", "wide")
    heads = shell.ok("get", "crd", "disks.example.com").splitlines()[0].split()
    assert heads == ["NAME", "SCOPE", "VERSIONS", "CREATED", "AT"]
    assert "deleted" in shell.ok("delete", "dk/d", "--timeout=100s")


POLICY = """
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: no-prod}
spec:
  matchConstraints:
    namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NAMESPACE}}
    resourceRules:
      - {apiGroups: [""], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [configmaps], scope: Namespaced}
  validations:
    - expression: object.metadata.name != 'prod'
      message: no prod here
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: no-prod}
spec: {policyName: no-prod, validationActions: [Deny]}
"""


def test_an_admission_policy_is_applied_shown_enforced_and_deleted(shell: Shell):
    manifest = POLICY.replace("NAMESPACE", shell.namespace)
    group = "admissionregistration.k8s.io"

    created = shell.ok("apply", "-f", "-", stdin=manifest)
    again = shell.ok("apply", "-f", "-", stdin=manifest)
    denied = shell.fails("create", "configmap", "prod")
    shell.ok("apply", "-f", "-", stdin=manifest.replace("'prod'", "'test'").replace("[Deny]", "[Warn]"))
    shell.ok("create", "configmap", "prod")
    warned = shell.kubectl.run("-n", shell.namespace, "create", "configmap", "test")
    typo = shell.fails("apply", "-f", "-", stdin=manifest.replace("!= 'prod'", "!= 'prod"))

    names = [f"validatingadmissionpolic{end}.{group}/no-prod" for end in ("y", "ybinding")]
    assert created.splitlines() == [f"{name} created" for name in names]
    assert again.splitlines() == [f"{name} unchanged" for name in names]
    why = "ValidatingAdmissionPolicy 'no-prod' with binding 'no-prod' denied request: no prod here"
    assert why in denied
    assert "Warning: Validation failed for ValidatingAdmissionPolicy 'no-prod' with binding 'no-prod'" in warned.stderr
    assert "spec.validations[0].expression: Invalid value:" in typo
    assert shell.ok("get", "validatingadmissionpolicies").split()[:6] == [
        *("NAME", "VALIDATIONS", "PARAMKIND", "AGE", "no-prod", "1"),
    ]
    assert shell.ok("get", "validatingadmissionpolicybindings").split()[:6] == [
        *("NAME", "POLICYNAME", "PARAMREF", "AGE", "no-prod", "no-prod"),
    ]
    assert "<[]Validation>" in shell.ok("explain", "validatingadmissionpolicy.spec")
    assert shell.ok("delete", "-f", "-", stdin=manifest).count("deleted") == 2


def test_a_node_is_cordoned_tainted_and_drained(shell: Shell):
    node = f"node-{shell.namespace}"
    shell.create(kinds.NODE, {"metadata": {"name": node}})
    shell.create(kinds.POD, pod("p", nodeName=node))
    shell.ok("taint", "node", node, "key=value:NoSchedule")
    shell.ok("cordon", node)
    assert shell.value(f"node/{node}", "{.spec.unschedulable}") == "true"
    assert "key" in shell.value(f"node/{node}", "{.spec.taints[*].key}")

    told = shell.ok("drain", node, "--force", "--grace-period=0", "--timeout=150s")
    assert "evicted" in told or "deleted" in told
    assert shell.ok("get", "pods", "-o", "name") == ""
    shell.ok("uncordon", node)
    assert shell.value(f"node/{node}", "{.spec.unschedulable}") == ""


def test_a_deployment_is_scaled(shell: Shell):
    shell.create(kinds.DEPLOYMENT, workload("web"))
    shell.ok("scale", "deployment", "web", "--replicas=5")

    assert shell.value("deployment/web", "{.spec.replicas}") == "5"
    assert shell.ok("get", "deployment", "web").splitlines()[1].split()[:4] == ["web", "0/5", "0", "0"]
    assert "deployment.apps/web" in shell.ok("get", "all", "-o", "name")


def test_events_are_read_alone_and_with_what_they_are_about(shell: Shell):
    shell.create(kinds.POD, pod("p"))
    about = {"kind": "Pod", "namespace": shell.namespace, "name": "p", "apiVersion": "v1"}
    about["uid"] = shell.value("pod/p", "{.metadata.uid}")
    shell.create(kinds.CORE_EVENT, {**core_event("e", shell.namespace, count=2), "involvedObject": about})

    assert "it was tested" in shell.ok("get", "events")
    assert "it was tested" in shell.ok("events", "--for", "pod/p")
    assert "it was tested" in shell.ok("describe", "pod", "p")
    assert "e" in shell.ok("get", "events", "--field-selector", "involvedObject.name=p,type=Normal", "-o", "name")
    assert shell.ok("get", "events", "--field-selector", "type=Warning", "-o", "name") == ""
    assert shell.ok("get", "events.events.k8s.io", "-o", "jsonpath={.items[*].note}") == "it was tested"


async def test_waits_end_with_a_deletion_a_value_or_a_creation(shell: Shell):
    shell.create(kinds.CONFIG_MAP, {"metadata": {"name": "c"}, "data": {"a": "1"}})
    assert "condition met" in shell.ok("wait", "cm/c", "--for=jsonpath={.data.a}=1", "--timeout=150s")
    output = shell.home / "output"
    waiting = shell.start("wait", "cm/c", "--for=delete", "--timeout=150s", output=output)
    shell.ok("delete", "cm", "c")
    assert waiting.wait(150) == 0
    waiting = shell.start("wait", "cm/late", "--for=create", "--timeout=150s", output=output)
    shell.create(kinds.CONFIG_MAP, {"metadata": {"name": "late"}})
    assert waiting.wait(150) == 0
    assert "timed out" in shell.fails("wait", "cm/late", "--for=jsonpath={.data.b}=1", "--timeout=1s")


async def test_a_watched_table_shows_rows_as_they_come(shell: Shell):
    output = shell.home / "output"
    watching = shell.start("get", "leases", "--watch", output=output)
    try:
        shell.create(kinds.LEASE, lease("first"))
        await eventually(lambda: "first" in output.read_text())
        shell.ok("patch", "lease", "first", "--type=merge", "-p", '{"spec":{"holderIdentity":"other"}}')
        await eventually(lambda: "other" in output.read_text())
    finally:
        watching.kill()
        watching.wait()

    header, *rows = output.read_text().splitlines()
    assert header.split() == ["NAME", "HOLDER", "AGE"]
    assert [row.split()[:2] for row in rows] == [["first", "me"], ["first", "other"]]


def test_lists_are_selected_widened_and_cut_to_columns(shell: Shell):
    shell.create(kinds.POD, pod("here", nodeName="n1"), pod("there", nodeName="n2"))
    shell.ok("label", "pod", "here", "team=red")

    assert shell.ok("get", "pods", "-l", "team=red", "-o", "name") == "pod/here\n"
    assert shell.ok("get", "pods", "-l", "team notin (red)", "-o", "name") == "pod/there\n"
    assert shell.ok("get", "pods", "--field-selector", "spec.nodeName=n2", "-o", "name") == "pod/there\n"
    wide = shell.ok("get", "pods", "-o", "wide").splitlines()
    assert wide[0].split()[-5:] == ["NODE", "NOMINATED", "NODE", "READINESS", "GATES"]
    columns = shell.ok("get", "pods", "-o", "custom-columns=N:.metadata.name,ON:.spec.nodeName", "--no-headers")
    assert [line.split() for line in columns.splitlines()] == [["here", "n1"], ["there", "n2"]]
    assert shell.ok("get", "pods", "--show-labels").splitlines()[1].endswith("team=red")


def test_deletions_by_selector_by_force_and_from_a_file(shell: Shell):
    shell.create(kinds.POD, pod("a", nodeName="n1"), pod("b", nodeName="n1"), pod("c"))
    shell.ok("label", "pod", "a", "go=1")
    shell.ok("delete", "pod", "-l", "go=1", "--force", "--grace-period=0")
    assert shell.ok("get", "pods", "-o", "name").split() == ["pod/b", "pod/c"]

    shell.ok("delete", "pod", "b", "--wait=false")
    assert shell.ok("get", "pod", "b").splitlines()[1].split()[2] == "Terminating"
    shell.ok("delete", "pod", "b", "--now", "--wait=false")
    assert shell.value("pod/b", "{.metadata.deletionGracePeriodSeconds}") == "1"
    shell.ok("delete", "-f", "-", stdin='{"apiVersion":"v1","kind":"Pod","metadata":{"name":"c"}}')
    assert shell.ok("get", "pods", "-o", "name") == "pod/b\n"


def test_a_pod_is_run_and_its_image_is_set(shell: Shell):
    shell.ok("run", "shop", "--image=busybox:1", "--labels=app=shop", "--port=80")
    shell.ok("set", "image", "pod/shop", "shop=busybox:2")

    assert shell.value("pod/shop", "{.spec.containers[0].image}") == "busybox:2"
    assert shell.value("pod/shop", "{.metadata.generation}") == "2"


def test_storage_objects_are_shown_as_people_know_them(shell: Shell):
    name = f"s-{shell.namespace}"
    shell.create(kinds.PERSISTENT_VOLUME, volume(name, accessModes=["ReadWriteOnce", "ReadOnlyMany"]))
    shell.create(kinds.VOLUME_ATTACHMENT, attachment(name))
    shell.create(kinds.CSI_NODE, csi_node(name, {"name": "d", "nodeID": "n"}))
    shell.ok("patch", "pv", name, "--subresource=status", "-p", '{"status":{"phase":"Available"}}')

    row = shell.ok("get", "pv", name).splitlines()[1].split()
    assert row[:5] == [name, "1Gi", "RWO,ROX", "Retain", "Available"]
    assert shell.ok("get", "volumeattachment", name).splitlines()[1].split()[1:5] == [
        *("csi.example.com", "pv1", "n1", "false")
    ]
    assert shell.ok("get", "csinode", name).splitlines()[1].split()[1] == "1"
    assert "Driver:            csi.example.com" in shell.ok("describe", "pv", name)


def test_a_replacement_by_force_is_another_object(shell: Shell):
    text = '{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c"},"data":{"a":"1"}}'
    shell.ok("create", "-f", "-", stdin=text)
    before = shell.value("cm/c", "{.metadata.uid}")
    shell.ok("replace", "--force", "-f", "-", stdin=text)

    assert shell.value("cm/c", "{.metadata.uid}") != before


def test_plain_paths_and_the_version_are_read(shell: Shell):
    assert shell.ok("get", "--raw", "/readyz") == "ok"
    assert "api/v1" in json.loads(shell.ok("get", "--raw", "/openapi/v3"))["paths"]
    assert json.loads(shell.ok("version", "-o", "json"))["serverVersion"]["minor"] == "37"


def test_whoever_one_acts_for_writes_with_his_own_rights(shell: Shell):
    shell.ok("create", "role", "writer", "--verb=create,get,patch", "--resource=configmaps")
    shell.ok("create", "rolebinding", "writes", "--role=writer", "--user=bob")
    text = '{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c"},"data":{"a":"1"}}'

    shell.ok(
        "apply",
        "--as",
        "bob",
        "-f",
        "-",
        stdin=text,
    )
    assert shell.value("cm/c", "{.data.a}") == "1"
    assert 'User "bob" cannot delete resource "configmaps"' in shell.fails("delete", "--as", "bob", "cm", "c")
    assert 'User "bob" cannot get resource "secrets"' in shell.fails("get", "--as", "bob", "secret", "s")


def test_what_is_refused_is_told_in_kubernetes_words(shell: Shell):
    shell.create(kinds.CONFIG_MAP, {"metadata": {"name": "c"}})
    assert 'configmaps "c" already exists' in shell.fails("create", "configmap", "c")
    assert 'configmaps "ghost" not found' in shell.fails("get", "configmap", "ghost")
    wrong = shell.fails("label", "configmap", "c", "a=b c", "--overwrite")
    assert "a valid label must be" in wrong or "invalid" in wrong
    assert "the server doesn't have a resource type" in shell.fails("get", "ghosts")


def test_server_side_apply_is_refused_with_what_to_do_instead(shell: Shell):
    whole = json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}})
    refused = shell.fails("apply", "--server-side", "-f", "-", stdin=whole)

    assert refused.startswith("error: Server-side apply not available on the server: ")
    assert "use client-side apply (kubectl apply --server-side=false, " in refused
    assert shell.ok("apply", "--server-side=false", "-f", "-", stdin=whole) == "configmap/c created\n"


def test_workloads_are_created_by_their_own_commands(shell: Shell):
    shell.ok("create", "deployment", "web", "--image=i", "--replicas=2")

    assert shell.value("deployment/web", "{.spec.replicas} {.spec.template.spec.containers[0].image}") == "2 i"


def test_drives_and_volumes_are_listed_within_a_terminal_of_120_columns(shell: Shell):
    shell.ok("apply", "-k", str(REPOSITORY / "deploy" / "crds"))
    drive_id, handle = "6355041d-f9c6-4bd6-9335-f2bccbe73929", "pvc-6355041d-f9c6-4bd6-9335-f2bccbe73929"
    node = "worker-12.example.co"
    spec = DriveVolumeSpec(
        drive=drive_id,
        node_name="worker-12.examp",
        bytes=10 << 30,
        backing="image",
        file_system="xfs",
        volume_mode="Filesystem",
        claim=VolumeClaim(namespace="team", name="data-postgres-0"),
    )
    shell.create_all(
        [
            (DRIVE, new_object("Drive", drive_id, DriveSpec(node_name=node, type=DriveType.DISK))),
            (VOLUME, new_object("Volume", handle, spec)),
            (NODE_DEVICES, new_object("NodeDevices", node, NodeDevicesSpec(node_name=node))),
        ]
    )
    drive_status = {"state": "Repairing", "capacity": "3725Gi", "free": "3715Gi", "volumes": 1}
    volume_status = {"phase": "Published", "capacity": "10Gi", "used": "512Mi"}
    for name, status in ((f"drive/{drive_id}", drive_status), (f"ovol/{handle}", volume_status)):
        shell.ok("patch", name, "--subresource=status", "--type=merge", "-p", json.dumps({"status": status}))

    heads, drive = shell.ok("get", "odr").splitlines()
    assert heads.split() == ["NAME", "NODE", "STATE", "TIER", "CAPACITY", "FREE", "VOLUMES", "AGE"]
    assert drive.split()[:7] == [drive_id, node, "Repairing", "default", "3725Gi", "3715Gi", "1"]
    volume_heads, listed = shell.ok("get", "volumes.orlop.dev").splitlines()
    assert volume_heads.split() == ["NAME", "CLAIM", "NODE", "SIZE", "USED", "PHASE", "AGE"]
    assert listed.split()[1:6] == ["data-postgres-0", "worker-12.examp", "10Gi", "512Mi", "Published"]
    assert max(map(len, (heads, drive, volume_heads, listed))) <= 120
    assert "image" in shell.ok("get", "ovol", "-o", "wide")
    assert shell.ok("get", "orlop", "-o", "name").split() == [
        f"drive.orlop.dev/{drive_id}",
        f"nodedevices.orlop.dev/{node}",
        f"volume.orlop.dev/{handle}",
    ]
    assert "<int64>" in shell.ok("explain", "drive.spec.allocations", "--recursive").replace("integer", "int64")
