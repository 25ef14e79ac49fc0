"""deploy/manifests/drives: one kustomization that upgrades an installation for scratch space."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from orlop.records.cluster_objects import cluster_objects
from support.api.api_variants import embedded_process
from support.places import REPOSITORY
from support.processes.kubectl_commands import Kubectl
from support.processes.kubectl_local import KUBECTL
from support.processes.limited_kubeconfigs import NAMESPACE, limited_kubeconfig
from support.waiting import eventually

MANIFESTS = REPOSITORY / "deploy" / "manifests"
FOLDER = MANIFESTS / "drives"
Object = dict[str, Any]
MINE = "6355041d-f9c6-4bd6-9335-f2bccbe73929"


def read(path: Path) -> list[Object]:
    return list(yaml.safe_load_all(path.read_text()))


def key(obj: Object) -> str:
    return f"{obj['kind']}/{obj['metadata']['name']}"


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Object]:
    home = {"HOME": str(tmp_path_factory.mktemp("home"))}
    done = subprocess.run([KUBECTL, "kustomize", FOLDER], capture_output=True, text=True, check=True, env=home)
    assert done.stderr == ""
    return {key(each): each for each in yaml.safe_load_all(done.stdout)}


@pytest.fixture
def kubectl(short_folder: Path) -> Iterator[Kubectl]:
    with embedded_process(short_folder) as state:
        yield Kubectl(state / "kubeconfig", short_folder / "home")


def test_it_has_what_the_one_machine_kubernetes_applies_and_the_two_workloads(rendered: dict[str, Object]):
    workloads = {"DaemonSet/orlop-node", "Deployment/orlop-controller"}
    others = {name: obj for name, obj in rendered.items() if name not in workloads}

    assert workloads < rendered.keys()
    assert others == {key(each): each for each in cluster_objects()}


def daemon_set(path: Path) -> Object:
    (found,) = (each for each in read(path) if each["kind"] == "DaemonSet")
    return found


def without_its_drives(obj: Object) -> Object:
    """The DaemonSet less what drives add to it."""
    pod = obj["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    added = {"drives", "folder-root", "udev"}
    assert added <= {each["name"] for each in pod["volumes"]}
    pod["volumes"] = [each for each in pod["volumes"] if each["name"] not in added]
    container["volumeMounts"] = [each for each in container["volumeMounts"] if each["name"] not in added]
    ours = [each for each in container["args"] if each.startswith(("--drives-dir=", "--folder-root="))]
    assert len(ours) == 2
    container["args"] = [each for each in container["args"] if each not in ours]
    assert pod["automountServiceAccountToken"] is True
    pod["automountServiceAccountToken"] = False
    return obj


def test_the_daemon_set_is_that_of_scratch_space_and_what_drives_need():
    assert without_its_drives(daemon_set(FOLDER / "node.yaml")) == daemon_set(MANIFESTS / "node.yaml")


def test_the_csi_driver_and_the_namespace_are_those_of_scratch_space():
    for name in ("csidriver.yaml", "namespace.yaml"):
        assert read(FOLDER / name) == read(MANIFESTS / name)


def test_every_path_is_the_same_inside_and_outside():
    pod = daemon_set(FOLDER / "node.yaml")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    hosts = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"]}
    mounts = {mount["name"]: mount for mount in container["volumeMounts"]}

    assert {name: mount["mountPath"] for name, mount in mounts.items()} == hosts
    assert mounts["drives"]["mountPropagation"] == "Bidirectional"
    assert {
        f"--{name}={path}" for name, path in (("drives-dir", hosts["drives"]), ("folder-root", hosts["folder-root"]))
    } <= {*container["args"]}


def test_the_controller_has_none_of_the_powers_that_it_does_not_need(rendered: dict[str, Object]):
    pod = rendered["Deployment/orlop-controller"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]

    assert container["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "runAsGroup": 65532,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert pod["volumes"] == [{"name": "sockets", "emptyDir": {}}]
    assert "hostPID" not in pod


def test_the_name_of_the_image_is_written_once(rendered: dict[str, Object]):
    (image,) = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["images"]
    workloads = ("DaemonSet/orlop-node", "Deployment/orlop-controller")

    used = {
        container["image"]
        for name in workloads
        for container in rendered[name]["spec"]["template"]["spec"]["containers"]
    }

    assert used == {f"{image['newName']}:{image['newTag']}"}


def test_no_permission_is_for_everything_or_for_secrets(rendered: dict[str, Object]):
    rules = [rule for obj in rendered.values() if obj["kind"] in {"Role", "ClusterRole"} for rule in obj["rules"]]

    assert not any("*" in [*rule["verbs"], *rule["resources"], *rule["apiGroups"]] for rule in rules)
    assert not any("secrets" in rule["resources"] for rule in rules)


def test_applied_over_scratch_space_it_upgrades_it_and_a_second_time_changes_nothing(kubectl: Kubectl):
    kubectl.ok("apply", "-f", str(MANIFESTS / "namespace.yaml"))
    kubectl.ok("apply", "-f", str(MANIFESTS))

    first = kubectl.run("apply", "--validate=strict", "-k", str(FOLDER))
    again = kubectl.ok("apply", "-k", str(FOLDER))

    # The API server alone runs no workloads, and warns of that alone.
    warnings = {
        f"Warning: {kind} are stored and watched here, and nothing acts on them"
        for kind in ("daemonsets", "deployments")
    }
    assert first.returncode == 0, first.stderr
    assert {line for line in first.stderr.splitlines() if line} <= warnings
    assert "daemonset.apps/orlop-node configured" in first.stdout
    assert "csidriver.storage.k8s.io/csi.orlop.dev unchanged" in first.stdout
    assert [line for line in again.splitlines() if not line.endswith("unchanged")] == []


POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "orlop-node-1", "namespace": NAMESPACE},
    "spec": {"nodeName": "n1", "serviceAccountName": "orlop-node", "containers": [{"name": "c", "image": "orlop"}]},
}


def drive(node: str) -> str:
    metadata = {"name": MINE}
    spec = {"nodeName": node, "type": "Disk"}
    return json.dumps({"apiVersion": "orlop.dev/v1", "kind": "Drive", "metadata": metadata, "spec": spec})


def test_the_token_of_a_pod_of_the_daemon_set_writes_for_its_node_alone(kubectl: Kubectl, short_folder: Path):
    kubectl.ok("apply", "-k", str(FOLDER))
    kubectl.ok("apply", "-f", "-", stdin=json.dumps(POD))
    asyncio.run(eventually(lambda: kubectl.run("get", "drives").returncode == 0))
    bound = ("--bound-object-kind=Pod", "--bound-object-name=orlop-node-1")
    token = kubectl.ok("-n", NAMESPACE, "create", "token", "orlop-node", *bound).strip()
    unbound = kubectl.ok("-n", NAMESPACE, "create", "token", "orlop-node").strip()
    node = Kubectl(limited_kubeconfig(kubectl, short_folder, f"--token={token}"), kubectl.home)

    elsewhere = node.run("create", "-f", "-", stdin=drive("n2"))
    own = node.run("create", "-f", "-", stdin=drive("n1"))

    assert "the object is of the node n2, and the token of the node n1" in elsewhere.stderr
    assert own.returncode == 0, own.stderr
    nobody = Kubectl(limited_kubeconfig(kubectl, short_folder, f"--token={unbound}"), kubectl.home)
    assert "the token names no node" in nobody.run("create", "-f", "-", stdin=drive("n1")).stderr
