"""deploy/manifests: an API server takes them as they are, and what they say is true of the program."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from orlop.foundation.go_flags import describe
from orlop.processes.attacher import AttacherFlags
from orlop.processes.node import NodeProcessSettings
from orlop.processes.provisioner import ProvisionerFlags
from support.places import REPOSITORY
from support.processes.kubectl_commands import Kubectl
from support.processes.orlop_process import running

MANIFESTS = REPOSITORY / "deploy" / "manifests"
ONE_REPLICA = MANIFESTS / "attacher" / "one-replica"
ANY_DRIVER = MANIFESTS / "any-driver"
DRIVES = MANIFESTS / "drives"
STATIC = MANIFESTS / "static"
"""Kustomizations, each with a test file of its own: their files are not applied as they are."""
FILES = sorted(file for file in MANIFESTS.rglob("*.yaml") if not {ANY_DRIVER, DRIVES, STATIC} & {*file.parents})
FOLDERS = sorted({str(file.parent) for file in FILES})
ALL = [word for folder in FOLDERS for word in ("-f", folder)]


def objects() -> dict[str, dict[str, Any]]:
    found = [each for file in FILES for each in yaml.safe_load_all(file.read_text())]
    return {f"{each['kind']}/{each['metadata']['name']}": each for each in found}


@pytest.fixture(scope="module")
def kubectl() -> Iterator[Kubectl]:
    folder = Path(tempfile.mkdtemp(prefix="o-", dir="/tmp"))
    with running(folder, "apiserver", "--state", str(folder / "state")) as process:
        asyncio.run(process.says("use it with"))
        yield Kubectl(folder / "state" / "kubeconfig", folder / "home")
    shutil.rmtree(folder)


def test_they_are_applied_as_the_documentation_says_and_a_second_time_change_nothing(kubectl: Kubectl):
    kubectl.ok("apply", "-f", str(MANIFESTS / "namespace.yaml"))
    kubectl.ok("apply", "-f", str(MANIFESTS))
    kubectl.ok("apply", "-f", str(MANIFESTS / "example"), "-f", str(MANIFESTS / "optional"))
    kubectl.ok("apply", "-f", str(MANIFESTS / "attacher"))
    kubectl.ok("apply", "-f", str(MANIFESTS / "attacher" / "rbac.yaml"), "-f", str(ONE_REPLICA))
    kubectl.ok("apply", "-f", str(MANIFESTS / "provisioner"))

    version = kubectl.ok("get", "pod", "scratch-example", "-o", "jsonpath={.metadata.resourceVersion}")

    again = kubectl.ok("apply", *ALL)

    # A pod got a volume for its token; kubectl then sends a patch that changes nothing, here as everywhere.
    assert [line for line in again.splitlines() if not line.endswith("unchanged")] == ["pod/scratch-example configured"]
    assert kubectl.ok("get", "pod", "scratch-example", "-o", "jsonpath={.metadata.resourceVersion}") == version
    assert len(again.splitlines()) == len(objects())


def test_no_field_of_them_is_unknown_to_kubernetes(kubectl: Kubectl):
    kubectl.ok("apply", "-f", str(MANIFESTS / "namespace.yaml"))

    applied = kubectl.run("apply", "--validate=strict", "--dry-run=server", *ALL)

    # The API server alone runs no workloads, and warns of that alone.
    kinds = ("daemonsets", "deployments", "statefulsets")
    warnings = {f"Warning: {kind} are stored and watched here, and nothing acts on them" for kind in kinds}
    assert (applied.returncode, set(applied.stderr.splitlines()) - warnings) == (0, set())


def test_what_cannot_be_changed_of_the_csi_driver_is_right_from_the_first_day():
    assert objects()["CSIDriver/csi.orlop.dev"]["spec"] == {
        "volumeLifecycleModes": ["Ephemeral", "Persistent"],
        "attachRequired": False,
        "podInfoOnMount": True,
        "fsGroupPolicy": "File",
        "seLinuxMount": False,
    }


def pod_spec() -> dict[str, Any]:
    spec: dict[str, Any] = objects()["DaemonSet/orlop-node"]["spec"]["template"]["spec"]
    return spec


def test_the_node_process_sees_every_mount_namespace_and_its_mounts_are_seen():
    (container,) = pod_spec()["containers"]
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}

    assert pod_spec()["hostPID"] is True
    assert mounts["/var/lib/kubelet"]["mountPropagation"] == "Bidirectional"
    assert container["securityContext"]["privileged"] is True


def test_every_path_is_the_same_inside_and_outside():
    (container,) = pod_spec()["containers"]
    hosts = {volume["name"]: volume["hostPath"]["path"] for volume in pod_spec()["volumes"]}

    assert {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]} == hosts


def test_every_flag_is_one_of_the_program():
    (container,) = pod_spec()["containers"]
    role, *flags = container["args"]
    table = describe(NodeProcessSettings)

    assert role == "node"
    assert [flag for flag in flags if table.find(flag.removeprefix("--").partition("=")[0]) is None] == []


def test_what_is_applied_as_one_folder_is_one_attacher():
    folder = MANIFESTS / "attacher"
    kinds = [each["kind"] for file in folder.glob("*.yaml") for each in yaml.safe_load_all(file.read_text())]

    assert [kind for kind in kinds if kind in ATTACHERS] == ["Deployment"]
    assert [each["kind"] for file in ONE_REPLICA.iterdir() for each in yaml.safe_load_all(file.read_text())] == [
        "StatefulSet"
    ]


ATTACHERS = ("Deployment", "StatefulSet")


def attacher_container(kind: str) -> dict[str, Any]:
    containers = objects()[f"{kind}/orlop-attacher"]["spec"]["template"]["spec"]["containers"]
    found: dict[str, Any] = next(one for one in containers if one["name"] == "attacher")
    return found


@pytest.mark.parametrize("kind", ATTACHERS)
def test_an_attacher_has_none_of_the_powers_that_it_does_not_need(kind: str):
    assert attacher_container(kind)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


@pytest.mark.parametrize(("kind", "path"), [("Deployment", "/healthz/leader-election"), ("StatefulSet", "/healthz")])
def test_an_attacher_is_asked_whether_it_lives_and_for_the_lease_only_where_it_has_one(kind: str, path: str):
    container = attacher_container(kind)
    (port,) = container["ports"]

    assert container["livenessProbe"]["httpGet"] == {"path": path, "port": port["name"]}
    assert f"--http-endpoint=:{port['containerPort']}" in container["args"]
    assert ("--leader-election" in container["args"]) == path.endswith("leader-election")


def test_replicas_of_an_attacher_are_on_different_nodes_where_there_are_some():
    spec = objects()["Deployment/orlop-attacher"]["spec"]
    (preferred,) = spec["template"]["spec"]["affinity"]["podAntiAffinity"].values()
    (term,) = (each["podAffinityTerm"] for each in preferred)

    assert term["topologyKey"] == "kubernetes.io/hostname"
    assert term["labelSelector"] == spec["selector"]


@pytest.mark.parametrize("kind", ATTACHERS)
def test_every_flag_of_an_attacher_is_one_of_the_program(kind: str):
    role, *flags = attacher_container(kind)["args"]
    table = describe(AttacherFlags)

    assert role == "attacher"
    assert [flag for flag in flags if table.find(flag.removeprefix("--").partition("=")[0]) is None] == []


Right = tuple[str, str, str, str]
"""The kind of the role that gives it, an API group, a resource and a verb."""


def rights(kind: str, group: str, resource: str, *verbs: str) -> set[Right]:
    return {(kind, group, resource, verb) for verb in verbs}


OF_UPSTREAMS_ATTACHER: set[Right] = {
    *rights("ClusterRole", "", "persistentvolumes", "get", "list", "watch", "patch"),
    *rights("ClusterRole", "storage.k8s.io", "csinodes", "get", "list", "watch"),
    *rights("ClusterRole", "storage.k8s.io", "volumeattachments", "get", "list", "watch", "patch"),
    *rights("ClusterRole", "storage.k8s.io", "volumeattachments/status", "patch"),
    *rights("Role", "coordination.k8s.io", "leases", "get", "watch", "list", "delete", "update", "create"),
}
OPTIONAL: set[Right] = rights("Role", "", "events", "create", "patch")


OF_AN_ATTACHER = (
    "attacher/rbac.yaml",
    "optional/attacher-node-id-rbac.yaml",
    "optional/attacher-secrets-rbac.yaml",
)


def granted(path: str) -> list[Right]:
    """By each role in a file; a rule for some names alone, or for paths, is none that is known here."""
    found = list(yaml.safe_load_all((MANIFESTS / path).read_text()))
    roles = [each for each in found if each["kind"] in {"Role", "ClusterRole"}]
    rules = [(role["kind"], rule) for role in roles for rule in role["rules"]]
    assert all(rule.keys() == {"apiGroups", "resources", "verbs"} for _, rule in rules)
    return [
        (kind, group, resource, verb)
        for kind, rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    ]


def test_an_attacher_may_do_what_upstreams_may_and_no_more():
    assert sorted(granted("attacher/rbac.yaml")) == sorted(OF_UPSTREAMS_ATTACHER | OPTIONAL)


def test_the_optional_rights_of_an_attacher_stand_behind_a_line_that_says_so():
    required, optional = (MANIFESTS / "attacher" / "rbac.yaml").read_text().split("# ---- optional ")

    assert "[events]" not in required
    assert not any(word in optional for word in ("kind: ClusterRole", "[leases]"))


def test_an_attacher_reads_secrets_only_where_that_is_asked_for():
    assert granted("optional/attacher-secrets-rbac.yaml") == [("Role", "", "secrets", "get")]


def test_an_attacher_reads_nodes_only_where_that_is_asked_for():
    assert granted("optional/attacher-node-id-rbac.yaml") == [("ClusterRole", "", "nodes", "get")]


OF_UPSTREAMS_PROVISIONER: set[Right] = {
    *rights("ClusterRole", "", "persistentvolumes", "get", "list", "watch", "create", "patch", "delete"),
    *rights("ClusterRole", "", "persistentvolumeclaims", "get", "list", "watch", "update"),
    *rights("ClusterRole", "storage.k8s.io", "storageclasses", "get", "list", "watch"),
    *rights("ClusterRole", "", "events", "list", "watch", "create", "update", "patch"),
    *rights("ClusterRole", "snapshot.storage.k8s.io", "volumesnapshots", "get", "list", "watch", "update"),
    *rights("ClusterRole", "snapshot.storage.k8s.io", "volumesnapshotcontents", "get", "list"),
    *rights("ClusterRole", "storage.k8s.io", "csinodes", "get", "list", "watch"),
    *rights("ClusterRole", "", "nodes", "get", "list", "watch"),
    *rights("ClusterRole", "storage.k8s.io", "volumeattachments", "get", "list", "watch"),
    *rights("Role", "coordination.k8s.io", "leases", "get", "watch", "list", "delete", "update", "create"),
    *rights("Role", "storage.k8s.io", "csistoragecapacities", *("get", "list", "watch", "create", "update", "patch")),
    *rights("Role", "storage.k8s.io", "csistoragecapacities", "delete"),
    *rights("Role", "", "pods", "get"),
    *rights("Role", "apps", "replicasets", "get"),
}
OF_UPSTREAMS_PROVISIONER_ALONE: set[Right] = {
    # Events are written, and counted with a patch; nothing reads them.
    *rights("ClusterRole", "", "events", "list", "watch", "update"),
    # Snapshots.
    *rights("ClusterRole", "snapshot.storage.k8s.io", "volumesnapshots", "get", "list", "watch", "update"),
    *rights("ClusterRole", "snapshot.storage.k8s.io", "volumesnapshotcontents", "get", "list"),
    # Capacity objects, and the workload that owns them.
    *rights("Role", "storage.k8s.io", "csistoragecapacities", *("get", "list", "watch", "create", "update", "patch")),
    *rights("Role", "storage.k8s.io", "csistoragecapacities", "delete"),
    *rights("Role", "", "pods", "get"),
    *rights("Role", "apps", "replicasets", "get"),
}
"""What ours does not need."""
OF_A_PROVISIONER = (
    "provisioner/rbac.yaml",
    "optional/provisioner-attributes-rbac.yaml",
    "optional/provisioner-secrets-rbac.yaml",
)
OF_ANY_DRIVER = "any-driver/rbac.yaml"


def test_a_provisioner_may_do_what_upstreams_may_without_snapshots_and_capacity_and_no_more():
    assert OF_UPSTREAMS_PROVISIONER_ALONE < OF_UPSTREAMS_PROVISIONER
    assert sorted(granted("provisioner/rbac.yaml")) == sorted(OF_UPSTREAMS_PROVISIONER - OF_UPSTREAMS_PROVISIONER_ALONE)


def test_the_account_for_any_driver_may_do_what_provisioner_and_attacher_may_together_and_no_more():
    together = {*granted("provisioner/rbac.yaml"), *OF_UPSTREAMS_ATTACHER}

    # The attacher's events are in the namespace `default`; the provisioner's are in all, and so in that one.
    assert {("ClusterRole", *permitted) for _, *permitted in OPTIONAL} <= together
    assert sorted(granted(OF_ANY_DRIVER)) == sorted(together)


def test_a_provisioner_reads_secrets_and_attributes_only_where_that_is_asked_for():
    assert granted("optional/provisioner-secrets-rbac.yaml") == [("Role", "", "secrets", "get")]
    assert granted("optional/provisioner-attributes-rbac.yaml") == [
        ("ClusterRole", "storage.k8s.io", "volumeattributesclasses", "get")
    ]


def test_every_flag_of_the_provisioner_is_one_of_the_program():
    containers = objects()["Deployment/orlop-provisioner"]["spec"]["template"]["spec"]["containers"]
    (container,) = (each for each in containers if each["name"] == "provisioner")
    role, *flags = container["args"]
    table = describe(ProvisionerFlags)

    assert role == "provisioner"
    assert [flag for flag in flags if table.find(flag.removeprefix("--").partition("=")[0]) is None] == []


def test_every_file_of_rights_is_one_that_is_compared_here():
    beside_processes = {"drives/access.yaml"}  # compared with what the processes use
    of_static = {"static/access.yaml", "optional/static-lost-claims-rbac.yaml"}  # compared in test_static
    others = {OF_ANY_DRIVER, "optional/node-annotation-rbac.yaml"}
    known = {*OF_AN_ATTACHER, *OF_A_PROVISIONER, *beside_processes, *of_static, *others}
    files = MANIFESTS.rglob("*.yaml")

    with_roles = {str(file.relative_to(MANIFESTS)) for file in files if "rbac.authorization.k8s.io" in file.read_text()}

    assert with_roles == known
    assert granted("optional/node-annotation-rbac.yaml") == [
        ("ClusterRole", "", "nodes", "get"),
        ("ClusterRole", "", "nodes", "patch"),
    ]


ACCOUNTS = {
    **dict.fromkeys(OF_AN_ATTACHER, "orlop-attacher"),
    **dict.fromkeys(OF_A_PROVISIONER, "orlop-provisioner"),
    OF_ANY_DRIVER: "any-driver-controller",
}


@pytest.mark.parametrize("path", ACCOUNTS)
def test_every_role_of_a_sidecar_is_given_to_its_account_and_to_nobody_else(path: str):
    found = list(yaml.safe_load_all((MANIFESTS / path).read_text()))
    roles = {(each["kind"], each["metadata"]["name"]) for each in found if each["kind"].endswith("Role")}
    bindings = [each for each in found if each["kind"].endswith("Binding")]
    account = {"kind": "ServiceAccount", "name": ACCOUNTS[path], "namespace": "orlop-system"}

    assert {(each["roleRef"]["kind"], each["roleRef"]["name"]) for each in bindings} == roles
    assert all(each["subjects"] == [account] for each in bindings)


def test_the_process_has_no_credentials():
    others = ("annotation", "attacher", "provisioner", "static")
    bindings = [name for name in objects() if "Role" in name and not any(other in name for other in others)]

    assert pod_spec()["automountServiceAccountToken"] is False
    assert bindings == []


def test_its_namespace_allows_what_it_needs():
    labels = objects()["Namespace/orlop-system"]["metadata"]["labels"]

    assert labels["pod-security.kubernetes.io/enforce"] == "privileged"


def test_a_registered_node_is_available_within_seconds_and_one_slow_answer_does_not_change_that():
    """kubelet registers a driver within two seconds; the probe must not make that ten."""
    (container,) = pod_spec()["containers"]
    probe = container["readinessProbe"]
    every = probe.get("periodSeconds", 10)

    assert probe["httpGet"]["path"] == "/readyz"
    assert every <= 2
    assert every * probe.get("failureThreshold", 3) >= 30


def test_no_probe_restarts_a_process_because_it_waits_for_something_else():
    containers = [
        container
        for found in objects().values()
        for container in found.get("spec", {}).get("template", {}).get("spec", {}).get("containers", [])
    ]
    probes = [
        container[name]["httpGet"]["path"]
        for container in containers
        for name in ("livenessProbe", "startupProbe")
        if name in container
    ]

    assert sorted(set(probes)) == ["/healthz", "/healthz/leader-election"]


def test_there_is_time_to_finish_calls_under_way():
    (grace,) = [row.default for row in describe(NodeProcessSettings).rows if row.name == "grace-period"]

    assert grace == "20s"
    assert pod_spec()["terminationGracePeriodSeconds"] > 20
