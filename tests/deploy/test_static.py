"""deploy/manifests/static: one kustomization with workers, the master, and what each of them may do."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from orlop.foundation.go_flags import parse_flags
from orlop.processes.static_master import StaticMasterSettings
from orlop.processes.static_worker import StaticWorkerSettings
from orlop.records.definitions import definitions
from orlop.records.static_policy import MASTER_ACCOUNT, WORKER_ACCOUNT, static_cluster_objects
from orlop.records.static_policy import STATIC_NAMESPACE as NAMESPACE
from orlop.static_pv.configuration import StaticConfiguration, parse_configuration
from support.api.api_variants import embedded_process
from support.places import REPOSITORY
from support.processes.kubectl_commands import Kubectl
from support.processes.kubectl_local import KUBECTL
from support.processes.limited_kubeconfigs import limited_kubeconfig
from support.waiting import eventually

FOLDER = REPOSITORY / "deploy" / "manifests" / "static"
LOST_CLAIMS = FOLDER.parent / "optional" / "static-lost-claims-rbac.yaml"
WORKER, MASTER = "DaemonSet/orlop-static-worker", "Deployment/orlop-static-master"
TOKENS = "/var/run/secrets/kubernetes.io/serviceaccount"
Object = dict[str, Any]


def key(obj: Object) -> str:
    return f"{obj['kind']}/{obj['metadata']['name']}"


def by_key(objects: Sequence[Object]) -> dict[str, Object]:
    assert len({key(each) for each in objects}) == len(objects)
    return {key(each): each for each in objects}


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Object]:
    home = {"HOME": str(tmp_path_factory.mktemp("home"))}
    done = subprocess.run([KUBECTL, "kustomize", FOLDER], capture_output=True, text=True, check=True, env=home)
    assert done.stderr == ""
    return by_key(list(yaml.safe_load_all(done.stdout)))


@pytest.fixture
def kubectl(short_folder: Path) -> Iterator[Kubectl]:
    with embedded_process(short_folder) as state:
        yield Kubectl(state / "kubeconfig", short_folder / "home")


def pod_of(workload: Object) -> Object:
    pod: Object = workload["spec"]["template"]["spec"]
    return pod


def container_of(workload: Object) -> Object:
    (container,) = pod_of(workload)["containers"]
    return dict(container)


def configuration(rendered: dict[str, Object]) -> StaticConfiguration:
    return parse_configuration(rendered["ConfigMap/orlop-static"]["data"])


def test_everything_but_workloads_and_classes_is_made_of_the_records(rendered: dict[str, Object]):
    by_hand = {WORKER, MASTER, "ConfigMap/orlop-static", "StorageClass/local-disks"}
    definition = next(each for each in definitions() if each["spec"]["names"]["kind"] == "ProvisionerStatus")

    assert {name: obj for name, obj in rendered.items() if name not in by_hand} == by_key(
        [definition, *static_cluster_objects()]
    )
    assert by_hand < rendered.keys()


def test_everything_is_in_the_namespace_that_both_programs_use(rendered: dict[str, Object]):
    namespaced = [each for each in rendered.values() if "namespace" in each["metadata"]]

    assert {each["metadata"]["namespace"] for each in namespaced} == {NAMESPACE}
    assert {WORKER, MASTER, "ConfigMap/orlop-static"} <= {key(each) for each in namespaced}


def test_the_programs_accept_their_command_lines(rendered: dict[str, Object]):
    worker, master = (container_of(rendered[each])["args"] for each in (WORKER, MASTER))
    environment = {"MY_NODE_NAME": "n1"}

    of_worker = parse_flags(StaticWorkerSettings, worker[1:], program=worker[0], environment=environment)
    of_master = parse_flags(StaticMasterSettings, master[1:], program=master[0])

    assert (worker[0], master[0]) == ("static-worker", "static-master")
    assert of_worker.node_name == "n1"
    assert of_worker.disks.static_namespace == of_master.static.static_namespace == NAMESPACE
    assert of_master.leader.leader_election
    assert of_master.static.static_lost_claim_delay.nanoseconds == 0
    for settings, workload in ((of_worker, WORKER), (of_master, MASTER)):
        assert settings.http_endpoint is not None
        assert container_of(rendered[workload])["ports"] == [
            {"name": "http", "containerPort": settings.http_endpoint.port}
        ]


def test_both_read_the_configuration_from_where_it_is_mounted(rendered: dict[str, Object]):
    for name in (WORKER, MASTER):
        mounts = {each["name"]: each for each in container_of(rendered[name])["volumeMounts"]}
        volumes = {each["name"]: each for each in pod_of(rendered[name])["volumes"]}

        assert volumes["configuration"]["configMap"] == {"name": "orlop-static"}
        folder = mounts["configuration"]["mountPath"]
        assert f"--static-config={folder}" in container_of(rendered[name])["args"]


def test_the_worker_sees_the_folder_of_every_class_and_what_is_mounted_there_later(rendered: dict[str, Object]):
    mounts = {each["mountPath"]: each for each in container_of(rendered[WORKER])["volumeMounts"]}
    hosts = {
        each["name"]: each["hostPath"]["path"] for each in pod_of(rendered[WORKER])["volumes"] if "hostPath" in each
    }
    classes = configuration(rendered).classes

    assert classes
    for each in classes:
        assert mounts[each.mount_dir]["mountPropagation"] == "HostToContainer"
        assert hosts[mounts[each.mount_dir]["name"]] == each.host_dir
    assert hosts[mounts["/dev"]["name"]] == "/dev"
    assert pod_of(rendered[WORKER])["hostPID"] is True


def test_the_example_of_a_class_waits_for_its_pod_and_is_configured(rendered: dict[str, Object]):
    storage_class = rendered["StorageClass/local-disks"]

    assert storage_class["provisioner"] == "kubernetes.io/no-provisioner"
    assert storage_class["volumeBindingMode"] == "WaitForFirstConsumer"
    assert storage_class["reclaimPolicy"] == "Delete"
    assert [each.name for each in configuration(rendered).classes] == ["local-disks"]
    assert configuration(rendered).remarks == ()


def test_the_master_runs_on_the_control_plane_with_no_power_over_its_node(rendered: dict[str, Object]):
    pod, container = pod_of(rendered[MASTER]), container_of(rendered[MASTER])
    control_plane = "node-role.kubernetes.io/control-plane"

    assert pod["nodeSelector"][control_plane] == ""
    assert [(each["key"], each["effect"]) for each in pod["tolerations"]] == [(control_plane, "NoSchedule")]
    assert container["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "runAsGroup": 65532,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert {"hostPID", "hostNetwork", "hostIPC"} & pod.keys() == set()
    assert [each["name"] for each in pod["volumes"]] == ["configuration", "token"]


@pytest.mark.parametrize("name", [WORKER, MASTER])
def test_the_token_is_bound_to_the_pod_and_expires(rendered: dict[str, Object], name: str):
    pod = pod_of(rendered[name])
    mounts = {each["mountPath"]: each for each in container_of(rendered[name])["volumeMounts"]}
    (projected,) = (each["projected"] for each in pod["volumes"] if each["name"] == mounts[TOKENS]["name"])

    assert pod["automountServiceAccountToken"] is False
    assert mounts[TOKENS]["readOnly"] is True
    assert {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}} in projected["sources"]
    assert pod["serviceAccountName"] == {WORKER: WORKER_ACCOUNT, MASTER: MASTER_ACCOUNT}[name]


def test_the_name_of_the_image_is_written_once(rendered: dict[str, Object]):
    (image,) = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["images"]

    assert {container_of(rendered[each])["image"] for each in (WORKER, MASTER)} == {
        f"{image['newName']}:{image['newTag']}"
    }


def test_no_permission_is_for_everything_for_secrets_or_for_claims(rendered: dict[str, Object]):
    rules = [rule for obj in rendered.values() if obj["kind"] in {"Role", "ClusterRole"} for rule in obj["rules"]]

    assert not any("*" in [*rule["verbs"], *rule["resources"], *rule["apiGroups"]] for rule in rules)
    assert not any({"secrets", "persistentvolumeclaims"} & {*rule["resources"]} for rule in rules)


def test_the_rights_on_claims_are_those_of_the_master_alone():
    role, binding = yaml.safe_load_all(LOST_CLAIMS.read_text())

    assert role["rules"] == [{"apiGroups": [""], "resources": ["persistentvolumeclaims"], "verbs": ["get", "delete"]}]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": MASTER_ACCOUNT, "namespace": NAMESPACE}]


def test_it_is_applied_and_a_second_time_changes_nothing(kubectl: Kubectl):
    first = kubectl.run("apply", "--validate=strict", "-k", str(FOLDER))
    again = kubectl.ok("apply", "-k", str(FOLDER))

    # The API server alone runs no workloads, and warns of that alone.
    warnings = {
        f"Warning: {kind} are stored and watched here, and nothing acts on them"
        for kind in ("daemonsets", "deployments")
    }
    assert first.returncode == 0, first.stderr
    assert {line for line in first.stderr.splitlines() if line} <= warnings
    assert [line for line in again.splitlines() if not line.endswith("unchanged")] == []


def worker_pod(node: str) -> str:
    metadata = {"name": f"worker-{node}", "namespace": NAMESPACE}
    spec = {"nodeName": node, "serviceAccountName": WORKER_ACCOUNT, "containers": [{"name": "c", "image": "orlop"}]}
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


def status_object(node: str, **spec: Any) -> str:
    metadata = {"name": node, "namespace": NAMESPACE}
    obj = {"apiVersion": "orlop.dev/v1", "kind": "ProvisionerStatus", "metadata": metadata}
    return json.dumps(obj | {"spec": {"nodeName": node, **spec}})


def test_the_token_of_a_worker_writes_for_its_node_alone_and_requests_no_wipe(kubectl: Kubectl, short_folder: Path):
    kubectl.ok("apply", "-k", str(FOLDER))
    kubectl.ok("apply", "-f", "-", stdin=worker_pod("n1"))
    asyncio.run(eventually(lambda: kubectl.run("-n", NAMESPACE, "get", "provisionerstatuses").returncode == 0))
    bound = ("--bound-object-kind=Pod", "--bound-object-name=worker-n1")
    token, unbound = (
        kubectl.ok("-n", NAMESPACE, "create", "token", WORKER_ACCOUNT, *more).strip() for more in (bound, ())
    )
    worker = Kubectl(limited_kubeconfig(kubectl, short_folder, f"--token={token}"), kubectl.home)
    operation = {
        "uid": "u",
        "persistentVolume": "local-pv-1",
        "volume": "local-pv-1",
        "storageClass": "c",
        "entry": "d",
    }

    def refusal(*arguments: str, stdin: str | None = None) -> str:
        done = worker.run("-n", NAMESPACE, *arguments, stdin=stdin)
        assert done.returncode != 0, done.stdout
        return done.stderr

    assert "the object is of the node n2" in refusal("create", "-f", "-", stdin=status_object("n2"))
    assert "without operations" in refusal("create", "-f", "-", stdin=status_object("n1", deleteOperations=[operation]))
    created = worker.run("create", "-f", "-", stdin=status_object("n1"))
    assert created.returncode == 0, created.stderr
    assert "Forbidden" in refusal("delete", "provisionerstatus", "n1")
    assert "Forbidden" in refusal("patch", "provisionerstatus", "n1", "--type=merge", "-p", '{"spec":{}}')
    assert "Forbidden" in refusal("get", "persistentvolumes")
    assert "Forbidden" in refusal("get", "nodes")

    nobody = Kubectl(limited_kubeconfig(kubectl, short_folder, f"--token={unbound}"), kubectl.home)
    assert "the token names no node" in nobody.run("create", "-f", "-", stdin=status_object("n1")).stderr


def test_the_token_of_the_master_writes_no_status_and_reads_no_claims(kubectl: Kubectl, short_folder: Path):
    kubectl.ok("apply", "-k", str(FOLDER))
    asyncio.run(eventually(lambda: kubectl.run("-n", NAMESPACE, "get", "provisionerstatuses").returncode == 0))
    kubectl.ok("create", "-f", "-", stdin=status_object("n1"))
    token = kubectl.ok("-n", NAMESPACE, "create", "token", MASTER_ACCOUNT).strip()
    master = Kubectl(limited_kubeconfig(kubectl, short_folder, f"--token={token}"), kubectl.home)

    def may(*words: str) -> bool:
        return master.run("auth", "can-i", *words).stdout.strip() == "yes"

    assert may("create", "persistentvolumes")
    assert may("patch", "provisionerstatuses.orlop.dev", "-n", NAMESPACE)
    assert not may("patch", "provisionerstatuses.orlop.dev", "-n", "default")
    assert not may("patch", "provisionerstatuses.orlop.dev", "--subresource=status", "-n", NAMESPACE)
    assert not may("create", "provisionerstatuses.orlop.dev", "-n", NAMESPACE)
    assert not may("get", "persistentvolumeclaims")
    assert not may("patch", "nodes")
    status = json.dumps({"status": {"disks": 1}})
    done = master.run(
        *("-n", NAMESPACE, "patch", "provisionerstatus", "n1", "--subresource=status", "--type=merge", "-p", status)
    )
    assert "Forbidden" in done.stderr
    kubectl.ok("apply", "-f", str(LOST_CLAIMS))
    assert may("delete", "persistentvolumeclaims")
