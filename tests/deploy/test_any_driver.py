"""deploy/manifests/any-driver: rendered by kubectl it is the layout of the CSI design, and its command lines work."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.api.api_variants import embedded_process
from support.places import REPOSITORY
from support.processes.kubectl_commands import Kubectl
from support.processes.kubectl_local import KUBECTL
from support.processes.limited_kubeconfigs import account_token, limited_kubeconfig
from support.processes.orlop_process import run_here, running
from support.waiting import eventually

FOLDER = REPOSITORY / "deploy" / "manifests" / "any-driver"
NAME, IMAGE = "zfs.example.org", "registry.example/zfs-driver:2"
SOCKETS = "/var/lib/csi/sockets/pluginproxy"
Object = dict[str, Any]


def rendered(folder: Path) -> list[Object]:
    copy = folder / "any-driver"
    shutil.copytree(FOLDER, copy)
    names = (copy / "names.yaml").read_text()
    names = names.replace("driver.example.com", NAME).replace("your-driver:1.0", IMAGE)
    (copy / "names.yaml").write_text(names)
    text = subprocess.run(
        [KUBECTL, "kustomize", copy], capture_output=True, text=True, check=True, env={"HOME": str(folder)}
    ).stdout
    return list(yaml.safe_load_all(text))


@pytest.fixture
def objects(tmp_path: Path) -> dict[str, Object]:
    return {each["kind"]: each for each in rendered(tmp_path)}


def containers(workload: Object) -> dict[str, Object]:
    return {each["name"]: each for each in workload["spec"]["template"]["spec"]["containers"]}


def test_only_names_have_to_be_written(objects: dict[str, Object]):
    text = yaml.safe_dump_all(objects.values())

    assert objects["CSIDriver"]["metadata"]["name"] == NAME
    assert {containers(objects[kind])["driver"]["image"] for kind in ("StatefulSet", "DaemonSet")} == {IMAGE}
    assert "driver.example.com" not in text
    assert "your-driver" not in text


def test_one_pod_has_the_driver_the_attacher_and_the_provisioner_and_they_share_a_folder(objects: dict[str, Object]):
    spec = objects["StatefulSet"]["spec"]
    mounts = [mount for each in containers(objects["StatefulSet"]).values() for mount in each["volumeMounts"]]

    assert spec["replicas"] == 1
    assert sorted(containers(objects["StatefulSet"])) == ["attacher", "driver", "provisioner"]
    assert spec["template"]["spec"]["volumes"] == [{"name": "sockets", "emptyDir": {}}]
    assert mounts == [{"name": "sockets", "mountPath": SOCKETS}] * 3


def test_every_node_has_the_driver_and_the_registrar_with_the_paths_of_the_host(objects: dict[str, Object]):
    spec = objects["DaemonSet"]["spec"]["template"]["spec"]
    hosts = {volume["name"]: volume["hostPath"] for volume in spec["volumes"]}
    (kubelet,) = (
        mount for mount in containers(objects["DaemonSet"])["driver"]["volumeMounts"] if mount["name"] == "kubelet"
    )

    assert sorted(containers(objects["DaemonSet"])) == ["driver", "registrar"]
    assert hosts["plugin"] == {"path": f"/var/lib/kubelet/plugins/{NAME}", "type": "DirectoryOrCreate"}
    assert kubelet == {"name": "kubelet", "mountPath": "/var/lib/kubelet", "mountPropagation": "Bidirectional"}


def test_an_api_server_takes_it_and_its_command_lines_serve_a_driver_with_the_rights_of_its_account(short_folder: Path):
    """The containers' own arguments, with the folders of this test in the place of those of the pods."""
    found = {each["kind"]: each for each in rendered(short_folder)}
    controller, node = containers(found["StatefulSet"]), containers(found["DaemonSet"])
    sockets, plugin, registration = (short_folder / name for name in ("sockets", "plugin", "registry"))
    for folder in (sockets, plugin, registration):
        folder.mkdir()
    moved = {SOCKETS: str(sockets), "/csi/": f"{plugin}/", f"/var/lib/kubelet/plugins/{NAME}": str(plugin)}

    def words(container: Object) -> list[str]:
        text = "\n".join(container["args"])
        for before, after in moved.items():
            text = text.replace(before, after)
        # Ports of this machine may be taken.
        return re.sub(r"--http-endpoint=:\d+", "--http-endpoint=127.0.0.1:0", text).splitlines()

    script = short_folder / "script.yaml"
    script.write_text(f"driver: {{name: {NAME}}}\n")
    driver = ("testing", "mock-driver", "--script", str(script))
    with embedded_process(short_folder) as state:
        kubectl = Kubectl(state / "kubeconfig", short_folder / "home")
        kubectl.ok("apply", "--validate=strict", "-k", str(short_folder / "any-driver"))
        token = account_token(kubectl, "any-driver-controller")
        kubeconfig = f"--kubeconfig={limited_kubeconfig(kubectl, short_folder, f'--token={token}')}"
        with (
            running(short_folder, *driver, *words(controller["driver"])) as of_controller,
            running(short_folder, *driver, *words(node["driver"])) as of_node,
            running(short_folder, *words(controller["provisioner"]), kubeconfig) as provisioner,
            running(short_folder, *words(controller["attacher"]), kubeconfig) as attacher,
            running(short_folder, *words(node["registrar"]), f"--plugin-registration-path={registration}") as registrar,
        ):
            processes = (of_controller, of_node, provisioner, attacher, registrar)
            kubectl.ok("apply", "-f", "-", stdin=CLAIM)
            asyncio.run(eventually((registration / f"{NAME}-reg.sock").exists))
            response = run_here("csi", "NodeGetInfo", "--endpoint", f"unix://{plugin}/csi.sock")
            assert response.returncode == 0, response.stderr
            kubectl.ok("apply", "-f", "-", stdin=node_objects(json.loads(response.stdout)))
            asyncio.run(eventually(lambda: drivers_of_volumes(kubectl) or provisioner.ended()))
            asyncio.run(attacher.says("attaching"))

            assert drivers_of_volumes(kubectl) == NAME
            assert not any(each.ended() for each in processes)
            assert "forbidden" not in (provisioner.logged() + attacher.logged()).lower()


def drivers_of_volumes(kubectl: Kubectl) -> str:
    return kubectl.ok("get", "pv", "-o", "jsonpath={.items[*].spec.csi.driver}")


# What kubelet, which is absent here, writes once the registrar's socket is there. The mock driver has topology, and the
# provisioner does not call such a driver while it is registered on no node.
def node_objects(node_info: Object) -> str:
    topology = node_info["accessibleTopology"]["segments"]
    driver = {"name": NAME, "nodeID": node_info["nodeId"], "topologyKeys": sorted(topology)}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1", "labels": topology}}
    csi_node = {"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": "node-1"}}
    return yaml.safe_dump_all([node, {**csi_node, "spec": {"drivers": [driver]}}])


CLAIM = f"""
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {{name: zfs}}
provisioner: {NAME}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: data
  annotations: {{volume.kubernetes.io/storage-provisioner: {NAME}}}
spec:
  storageClassName: zfs
  accessModes: [ReadWriteOnce]
  resources: {{requests: {{storage: 1Gi}}}}
"""
