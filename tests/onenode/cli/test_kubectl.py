"""The real kubectl drives `orlop apiserver`: what people type, and what they read."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.processes.kubectl_commands import KUBECTL, Kubectl
from support.processes.orlop_process import running
from support.waiting import eventually

POD = """
apiVersion: v1
kind: Pod
metadata: {name: p, labels: {app: web}}
spec:
  containers: [{name: c, image: busybox:1, command: [sleep, "1"]}]
  volumes: [{name: scratch, emptyDir: {}}]
"""
CLAIM = """
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {accessModes: [ReadWriteOnce], storageClassName: fast, resources: {requests: {storage: 1Gi}}}
"""
DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers: [{name: c, image: busybox:1}]
      volumes: [{name: v, emptyDir: {}}]
"""


@dataclass(frozen=True)
class InNamespace:
    """kubectl in a namespace that no other test uses."""

    kubectl: Kubectl
    namespace: str
    folder: Path

    def ok(self, *arguments: str, stdin: str | None = None, **env: str) -> str:
        return self.kubectl.ok("-n", self.namespace, *arguments, stdin=stdin, **env)

    def fails(self, *arguments: str, stdin: str | None = None) -> str:
        ran = self.kubectl.run("-n", self.namespace, *arguments, stdin=stdin)
        assert ran.returncode != 0, ran.stdout
        return ran.stderr

    def value(self, what: str, path: str) -> str:
        return self.ok("get", what, "-o", f"jsonpath={path}")


@pytest.fixture(scope="module")
def server() -> Iterator[Kubectl]:
    folder = Path(tempfile.mkdtemp(prefix="o-", dir="/tmp"))
    with running(folder, "apiserver", "--state", str(folder / "state")) as process:
        asyncio.run(process.says("use it with"))
        yield Kubectl(folder / "state" / "kubeconfig", folder / "home")
    shutil.rmtree(folder)


NUMBERS = itertools.count()


@pytest.fixture
def k(server: Kubectl, tmp_path: Path) -> InNamespace:
    namespace = f"test-{next(NUMBERS)}"
    server.ok("create", "namespace", namespace)
    return InNamespace(server, namespace, tmp_path)


def test_what_is_served_is_listed(k: InNamespace):
    listed = k.ok("api-resources")

    assert re.search(r"^persistentvolumeclaims +pvc +v1 ", listed, re.MULTILINE)
    assert "volumeattachments" in listed
    assert "storage.k8s.io/v1" in k.ok("api-versions")


def test_kinds_and_fields_are_explained(k: InNamespace):
    assert "volumes\t<[]Volume>" in k.ok("explain", "pod.spec")
    assert "provisioner\t<string> -required-" in k.ok("explain", "storageclass")
    assert "persistentVolumeReclaimPolicy\t<string>" in k.ok("explain", "pv.spec", "--recursive")
    assert 'field "nonsense" does not exist' in k.fails("explain", "pod.spec.nonsense")


def test_typed_commands_create_what_they_say(k: InNamespace):
    k.ok("create", "configmap", "c", "--from-literal=a=b")
    k.ok("create", "secret", "generic", "s", "--from-literal=p=q")
    k.ok("create", "serviceaccount", "robot")

    assert k.value("configmap/c", "{.data.a}") == "b"
    assert k.value("secret/s", "{.data.p}") == "cQ=="
    assert k.ok("get", "serviceaccounts", "-o", "name").split() == ["serviceaccount/default", "serviceaccount/robot"]


def test_a_wrong_object_is_refused_with_the_field(k: InNamespace):
    wrong = k.fails("create", "-f", "-", stdin=CLAIM.replace("ReadWriteOnce", "Sometimes"))
    unknown = k.fails("create", "-f", "-", stdin=CLAIM.replace("spec:", "nonsense: 1\nspec:"))

    assert 'spec.accessModes: Unsupported value: "Sometimes"' in wrong
    assert 'unknown field "nonsense"' in unknown


def test_apply_creates_then_changes_then_leaves_alone(k: InNamespace):
    assert k.ok("apply", "-f", "-", stdin=DEPLOYMENT) == "deployment.apps/web created\n"
    assert k.ok("apply", "-f", "-", stdin=DEPLOYMENT) == "deployment.apps/web unchanged\n"
    changed = DEPLOYMENT.replace("emptyDir: {}", "configMap: {name: c}")
    assert k.ok("apply", "-f", "-", stdin=changed) == "deployment.apps/web configured\n"

    volumes = json.loads(k.value("deployment/web", "{.spec.template.spec.volumes}"))
    assert volumes == [{"name": "v", "configMap": {"name": "c", "defaultMode": 420}}]


def test_diff_shows_what_apply_would_change_and_changes_nothing(k: InNamespace):
    k.ok("apply", "-f", "-", stdin=POD)
    before = k.value("pod/p", "{.metadata.resourceVersion}")
    shown = k.kubectl.run("-n", k.namespace, "diff", "-f", "-", stdin=POD.replace("app: web", "app: shop"))

    assert shown.returncode == 1
    assert "-    app: web\n+    app: shop\n" in shown.stdout
    assert k.value("pod/p", "{.metadata.resourceVersion}") == before


def test_objects_are_shown_as_tables_yaml_and_by_path(k: InNamespace):
    k.ok("create", "-f", "-", stdin=CLAIM)

    table = k.ok("get", "pvc")
    assert table.split("\n")[0].split() == [
        *("NAME", "STATUS", "VOLUME", "CAPACITY", "ACCESS", "MODES", "STORAGECLASS", "VOLUMEATTRIBUTESCLASS", "AGE")
    ]
    assert table.split("\n")[1].split()[:3] == ["data", "Pending", "fast"]
    assert "storageClassName: fast" in k.ok("get", "pvc", "data", "-o", "yaml")
    assert k.value("pvc/data", "{.spec.resources.requests.storage}") == "1Gi"
    assert k.ok("get", "pvc", "-l", "app=none").strip() == ""
    assert "data" in k.ok("get", "pvc", "--sort-by=.metadata.name")
    assert k.namespace in k.ok("get", "pvc", "-A")


def test_objects_are_described(k: InNamespace):
    k.ok("create", "-f", "-", stdin=CLAIM)
    k.ok("create", "-f", "-", stdin=POD)

    assert "Finalizers:    [kubernetes.io/pvc-protection]" in k.ok("describe", "pvc", "data")
    assert "Service Account:  default" in k.ok("describe", "pod", "p")
    assert "Phase:" in k.ok("describe", "ns", k.namespace) or "Status:" in k.ok("describe", "ns", k.namespace)


def test_labels_annotations_and_every_kind_of_patch(k: InNamespace):
    k.ok("create", "-f", "-", stdin=POD)
    k.ok("label", "pod", "p", "by=label")
    k.ok("annotate", "pod", "p", "by=annotate")
    k.ok("patch", "pod", "p", "-p", '{"metadata":{"labels":{"s":"1"}}}')
    k.ok("patch", "pod", "p", "--type=merge", "-p", '{"metadata":{"labels":{"m":"1"}}}')
    k.ok("patch", "pod", "p", "--type=json", "-p", '[{"op":"add","path":"/metadata/labels/j","value":"1"}]')

    assert json.loads(k.value("pod/p", "{.metadata.labels}")) == {
        "app": "web", "by": "label", "s": "1", "m": "1", "j": "1"
    }  # fmt: skip
    assert k.value("pod/p", "{.metadata.annotations.by}") == "annotate"


def test_edit_and_replace_write_what_the_editor_left(k: InNamespace):
    k.ok("create", "configmap", "c", "--from-literal=a=before")
    k.ok("edit", "configmap", "c", KUBE_EDITOR="sed -i s/before/after/")
    assert k.value("configmap/c", "{.data.a}") == "after"

    whole = k.ok("get", "configmap", "c", "-o", "yaml")
    k.ok("replace", "-f", "-", stdin=whole.replace("after", "replaced"))
    assert k.value("configmap/c", "{.data.a}") == "replaced"
    assert "the object has been modified" in k.fails("replace", "-f", "-", stdin=whole)


async def test_wait_returns_when_the_condition_comes_and_not_before(k: InNamespace):
    k.ok("create", "-f", "-", stdin=POD)
    assert "timed out" in k.fails("wait", "pod/p", "--for=condition=Ready", "--timeout=1s")
    waiting = _started(k, "wait", "pod/p", "--for=condition=Ready", "--timeout=150s")
    ready = '{"status":{"conditions":[{"type":"Ready","status":"True"}]}}'
    k.ok("patch", "pod", "p", "--subresource=status", "-p", ready)

    assert waiting.communicate(timeout=200)[0] == "pod/p condition met\n"
    assert waiting.returncode == 0


async def test_a_watch_shows_every_change(k: InNamespace):
    k.ok("create", "configmap", "c", "--from-literal=a=b")
    seen = k.folder / "seen"
    with seen.open("w") as output:
        watching = _started(k, "get", "configmap", "c", "-w", "-o", "jsonpath={.data.a}{' '}", stdout=output)
    await eventually(lambda: seen.read_text().startswith("b "))
    k.ok("patch", "configmap", "c", "-p", '{"data":{"a":"x"}}')
    k.ok("delete", "configmap", "c")
    await eventually(lambda: seen.read_text().startswith("b x "))
    watching.kill()
    watching.wait()


def _started(k: InNamespace, *arguments: str, stdout=subprocess.PIPE) -> subprocess.Popen[str]:
    command = [str(KUBECTL), "--kubeconfig", str(k.kubectl.kubeconfig), "-n", k.namespace, *arguments]
    return subprocess.Popen(command, stdout=stdout, text=True, env={"HOME": str(k.kubectl.home)})


def test_delete_waits_until_it_is_gone(k: InNamespace):
    k.ok("create", "-f", "-", stdin=POD)
    k.ok("create", "configmap", "c")

    assert "deleted" in k.ok("delete", "pod", "p", "--timeout=150s")
    assert "deleted" in k.ok("delete", "configmap", "--all", "--timeout=150s")
    assert 'pods "p" not found' in k.fails("get", "pod", "p")


def test_a_namespace_goes_with_all_that_is_in_it(k: InNamespace):
    k.ok("create", "configmap", "c")
    k.ok("delete", "namespace", k.namespace, "--timeout=150s")

    assert f'namespaces "{k.namespace}" not found' in k.fails("get", "ns", k.namespace)


VOLUME = """
apiVersion: v1
kind: PersistentVolume
metadata: {name: NAME}
spec:
  accessModes: [ReadWriteOnce]
  capacity: {storage: 1Gi}
  csi: {driver: csi.example.com, volumeHandle: v1}
"""


def test_claims_and_volumes_that_nobody_uses_go_when_they_are_deleted(k: InNamespace):
    volume = f"of-{k.namespace}"
    k.ok("create", "-f", "-", stdin=CLAIM)
    k.ok("create", "-f", "-", stdin=VOLUME.replace("NAME", volume))

    assert "deleted" in k.ok("delete", "pvc", "data", "--timeout=150s")
    assert "deleted" in k.ok("delete", "pv", volume, "--timeout=150s")
    k.ok("create", "-f", "-", stdin=CLAIM)
    assert "deleted" in k.ok("delete", "namespace", k.namespace, "--timeout=150s")


def test_a_claim_that_is_deleted_stays_until_the_pod_that_uses_it_is_gone(k: InNamespace):
    using = POD.replace("emptyDir: {}", "persistentVolumeClaim: {claimName: data}")
    k.ok("create", "-f", "-", stdin=CLAIM)
    k.ok("create", "-f", "-", stdin=using.replace("spec:", "spec:\n  nodeName: somewhere"))
    assert "timed out" in k.fails("delete", "pvc", "data", "--timeout=1s")
    assert "Terminating" in k.ok("get", "pvc", "data")

    k.ok("delete", "pod", "p", "--force", "--grace-period=0", "--timeout=150s")
    k.ok("wait", "pvc/data", "--for=delete", "--timeout=150s")


def test_rights_are_asked_for_oneself_and_for_others(k: InNamespace):
    account = f"system:serviceaccount:{k.namespace}:robot"
    k.ok("create", "serviceaccount", "robot")
    k.ok("create", "role", "reader", "--verb=get,list", "--resource=pods")
    k.ok("create", "rolebinding", "robot-reads", "--role=reader", f"--serviceaccount={k.namespace}:robot")

    assert k.ok("auth", "can-i", "delete", "nodes") == "yes\n"
    assert k.ok("auth", "can-i", "list", "pods", "--as", account) == "yes\n"
    assert k.kubectl.run("-n", k.namespace, "auth", "can-i", "create", "pods", "--as", account).stdout == "no\n"
    assert "pods" in k.ok("auth", "can-i", "--list", "--as", account)
    assert "No resources found" in k.kubectl.run("-n", k.namespace, "get", "pods", "--as", account).stderr
    assert f'User "{account}" cannot list resource "secrets"' in k.fails("get", "secrets", "--as", account)


def test_whoami_knows_admins_service_accounts_and_whom_one_acts_for(k: InNamespace):
    k.ok("create", "serviceaccount", "robot")
    token = k.ok("create", "token", "robot").strip()

    assert "admin" in k.ok("auth", "whoami")
    assert "bob" in k.ok("auth", "whoami", "--as", "bob", "--as-group", "devs")
    bearer = Kubectl(_with_token(k, token), k.kubectl.home)
    assert f"system:serviceaccount:{k.namespace}:robot" in bearer.ok("auth", "whoami")
    k.ok("delete", "serviceaccount", "robot")
    ended = bearer.run("auth", "whoami")
    assert "Unauthorized" in ended.stderr or "must be logged in" in ended.stderr


def _with_token(k: InNamespace, token: str) -> Path:
    """The admin's kubeconfig with another token: kubectl prefers the file's over --token's."""
    lines = k.kubectl.kubeconfig.read_text().splitlines()
    path = k.folder / "kubeconfig"
    path.write_text("\n".join(f"    token: {token}" if line.strip().startswith("token:") else line for line in lines))
    return path
