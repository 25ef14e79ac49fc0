"""What people type against `orlop apiserver`: kubectl deletes owners and their dependents, and creates by command."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from conftest import folder_with_a_short_name
from support.processes.kubectl_commands import Kubectl
from support.processes.orlop_process import running
from support.waiting import eventually_there

GONE = "--timeout=60s"


@pytest.fixture(scope="module")
def kubectl() -> Iterator[Kubectl]:
    with (
        folder_with_a_short_name() as folder,
        running(folder, "apiserver", "--state", str(folder / "state")) as process,
    ):
        eventually_there(lambda: "use it with" in process.logged() or process.ended())
        yield Kubectl(folder / "state" / "kubeconfig", folder / "home")


class Namespace:
    def __init__(self, kubectl: Kubectl, name: str) -> None:
        self.name = name
        self._kubectl = kubectl
        self.ok("create", "namespace", name)

    def ok(self, *words: str, stdin: str | None = None) -> str:
        return self._kubectl.ok("--namespace", self.name, *words, stdin=stdin)

    def create(self, *objects: dict[str, Any]) -> list[str]:
        """Return the uids."""
        items = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        return self.ok("create", "-f", "-", "-o", 'jsonpath={.metadata.uid}{" "}', stdin=json.dumps(items)).split()

    def names(self) -> list[str]:
        listed = self.ok("get", "configmaps", "-o", "name").split()
        return [name for name in listed if name != "configmap/kube-root-ca.crt"]


def config(name: str, owner: str = "", uid: str = "", **reference: Any) -> dict[str, Any]:
    owned = {"apiVersion": "v1", "kind": "ConfigMap", "name": owner, "uid": uid, **reference}
    metadata = {"name": name, **({"ownerReferences": [owned]} if owner else {})}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}


def family(namespace: Namespace) -> None:
    """An owner, an object that blocks its deletion, one that it owns as well, and one that this one owns."""
    (uid,) = namespace.create(config("owner"))
    first, _ = namespace.create(
        config("blocking", "owner", uid, blockOwnerDeletion=True), config("other", "owner", uid)
    )
    namespace.create(config("grandchild", "blocking", first, blockOwnerDeletion=True))


def test_a_foreground_deletion_ends_when_all_dependents_are_gone(kubectl: Kubectl):
    namespace = Namespace(kubectl, "foreground")
    family(namespace)

    namespace.ok("delete", "configmap", "owner", "--cascade=foreground", GONE)

    left = namespace.names()
    assert "configmap/blocking" not in left
    namespace.ok("wait", "configmap", "--all", "--for=delete", "--field-selector=metadata.name!=kube-root-ca.crt", GONE)
    assert namespace.names() == []


def test_an_orphan_deletion_leaves_dependents_without_their_owner(kubectl: Kubectl):
    namespace = Namespace(kubectl, "orphan")
    family(namespace)

    namespace.ok("delete", "configmap", "owner", "--cascade=orphan", GONE)

    assert namespace.names() == ["configmap/blocking", "configmap/grandchild", "configmap/other"]
    owners = "jsonpath={.items[*].metadata.ownerReferences[*].name}"
    assert namespace.ok("get", "configmaps", "-o", owners) == "blocking"


def test_a_background_deletion_returns_and_dependents_follow(kubectl: Kubectl):
    namespace = Namespace(kubectl, "background")
    family(namespace)

    namespace.ok("delete", "configmap", "owner", GONE)

    namespace.ok("wait", "configmap/blocking", "configmap/other", "configmap/grandchild", "--for=delete", GONE)


def test_a_namespace_ends_with_objects_in_foreground_deletion(kubectl: Kubectl):
    namespace = Namespace(kubectl, "ending")
    family(namespace)

    namespace.ok("delete", "configmap", "owner", "--cascade=foreground", "--wait=false")
    kubectl.ok("delete", "namespace", "ending", GONE)

    assert kubectl.run("get", "namespace", "ending").returncode == 1


def test_owners_that_never_existed_or_have_another_uid_or_namespace_keep_nothing(kubectl: Kubectl):
    other, namespace = Namespace(kubectl, "other"), Namespace(kubectl, "dangling")
    (elsewhere,) = other.create(config("elsewhere"))
    namespace.create(config("owner"))

    namespace.create(
        config("of-nobody", "nobody", "8ebd5d6f-0d05-4b4c-9d5f-8a8d0c2f6a10"),
        config("of-another", "owner", "8ebd5d6f-0d05-4b4c-9d5f-8a8d0c2f6a11"),
        config("of-elsewhere", "elsewhere", elsewhere),
    )

    names = [f"configmap/of-{owner}" for owner in ("nobody", "another", "elsewhere")]
    namespace.ok("wait", *names, "--for=delete", GONE)
    assert namespace.names() == ["configmap/owner"]
    told = "jsonpath={.items[?(@.reason=='OwnerRefInvalidNamespace')].message}"
    eventually_there(lambda: namespace.ok("get", "events", "-o", told) != "")
    text = f"name: elsewhere, uid: {elsewhere}] does not exist in namespace"
    assert text in namespace.ok("get", "events", "-o", told)


CREATED = {
    "service clusterip web --tcp=80:8080": "service/web",
    "job once --image=i": "job.batch/once",
    "quota small --hard=pods=2": "resourcequota/small",
    "deployment web --image=i": "deployment.apps/web",
    "poddisruptionbudget calm --selector=a=b --min-available=1": "poddisruptionbudget.policy/calm",
}


def test_kinds_that_nobody_runs_are_created_by_command_with_a_warning(kubectl: Kubectl):
    namespace = Namespace(kubectl, "commands")
    for command, made in CREATED.items():
        ran = kubectl.run("--namespace", "commands", "create", *command.split())

        assert ran.stdout == f"{made} created\n", ran.stderr
        assert "are stored and watched here, and nothing acts on them" in ran.stderr
    assert namespace.ok("get", *CREATED.values(), "-o", "name").split() == list(CREATED.values())
