"""`orlop provisioner` with the rights that deploy/ gives it, and not one more."""

from __future__ import annotations

import base64
import json
import re
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from orlop.kube import objects
from orlop.kube.kinds import CSI_NODE, LEASE, NODE, SECRET, VOLUME_ATTRIBUTES_CLASS
from orlop.kube.lease_rules import holder_of, lock_name
from orlop.kube.objects import ObjectName
from orlop.records.provision_journal import ANNOTATION
from orlop.sidecars.provisioner.clone_rules import CLONING_PROTECTION
from support.api.api_objects import csi_node, named
from support.attaching.attacher_places import FOREIGN, Place, place
from support.places import REPOSITORY
from support.processes.kubectl_commands import Kubectl
from support.processes.limited_kubeconfigs import NAMESPACE, account_token, also_permitted, limited_kubeconfig
from support.processes.orlop_process import running
from support.provisioning.provisioner_places import (
    bind_unless_a_binder_does,
    claim_of,
    delete_claim,
    events_of,
    journal,
    make_claim,
    make_class,
    release_unless_a_binder_does,
    volume,
)
from support.waiting import eventually_answered

MANIFESTS = REPOSITORY / "deploy" / "manifests"
RIGHTS = MANIFESTS / "provisioner" / "rbac.yaml"
OF_SECRETS = MANIFESTS / "optional" / "provisioner-secrets-rbac.yaml"
OF_ATTRIBUTES = MANIFESTS / "optional" / "provisioner-attributes-rbac.yaml"
TOPOLOGY = "mock.example.com/node"
SECRET_OF = "csi.storage.k8s.io/provisioner-secret"
NEW_EVENT_API = ("POST", "events")
"""The one refusal of every run: events.k8s.io is tried first; the role permits the core group, as upstream's."""
COUNTED = re.compile(r"apiserver_request_total\{([^}]*)\} (\S+)")


def kubectl_of(the: Place) -> Kubectl:
    return Kubectl(the.kubeconfig, the.folder / "home")


def kubeconfig_of_the_role(the: Place) -> Path:
    kubectl = kubectl_of(the)
    kubectl.run("create", "namespace", NAMESPACE)  # on a server of somebody else's it may be there
    kubectl.ok("apply", "-f", str(RIGHTS))
    return limited_kubeconfig(kubectl, the.folder, f"--token={account_token(kubectl, 'orlop-provisioner')}")


def requests(the: Place) -> Counter[tuple[str, str, str]]:
    """How often each verb, resource and code was counted by the API server."""
    counted: Counter[tuple[str, str, str]] = Counter()
    for labels, value in COUNTED.findall(kubectl_of(the).ok("get", "--raw", "/metrics")):
        label = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        counted[label["verb"], label["resource"], label["code"]] += int(float(value))
    return counted


def assert_refused(made: Counter[tuple[str, str, str]], *expected: tuple[str, str]) -> None:
    """kube-apiserver does not count what authorization refused: there, only the process's log can show it."""
    if not FOREIGN:
        assert {(verb, resource) for verb, resource, code in made if code == "403"} == set(expected)


@asynccontextmanager
async def prepared(the: Place) -> AsyncIterator[Path]:
    """The role's kubeconfig; beside it a node on which the driver is registered, a secret, and the classes."""
    kubeconfig = kubeconfig_of_the_role(the)
    node = named(the.named("n"))
    node["metadata"]["labels"] = {TOPOLOGY: "node-1"}
    await the.client.create(NODE, node)
    registered = {"name": the.driver_name, "nodeID": "node-1", "topologyKeys": [TOPOLOGY]}
    await the.client.create(CSI_NODE, csi_node(the.named("n"), registered))
    hidden = {"key": base64.b64encode(b"swordfish").decode()}
    await the.client.create(SECRET, {"metadata": {"name": the.named("secret"), "namespace": NAMESPACE}, "data": hidden})
    await make_classes(the)
    yield kubeconfig
    await the.client.delete(SECRET, ObjectName(NAMESPACE, the.named("secret")))
    await the.client.delete(NODE, ObjectName(None, the.named("n")))


async def make_classes(the: Place) -> None:
    """`fast`; `secret`, whose calls need the secret; and the VolumeAttributesClass `gold`."""
    await make_class(the)
    await make_class(the, "secret", {f"{SECRET_OF}-name": the.named("secret"), f"{SECRET_OF}-namespace": NAMESPACE})
    gold = {"metadata": {"name": the.named("gold")}, "driverName": the.driver_name, "parameters": {"iops": "100"}}
    await the.client.create(VOLUME_ATTRIBUTES_CLASS, gold)


async def until_gone(the: Place, *names: str) -> None:
    for name in names:
        await delete_claim(the, name)

    async def are_gone() -> bool:
        for name in names:
            await release_unless_a_binder_does(the, name)
        return not any([await volume(the, name) for name in names])

    await eventually_answered(are_gone)


def calls(the: Place, method: str) -> list[dict[str, Any]]:
    recorded = map(json.loads, the.record().read_text().splitlines())
    return [call["request"] for call in recorded if call["method"] == method]


async def test_through_the_whole_life_of_claims_it_needs_no_right_that_its_roles_do_not_give(
    short_folder: Path, api_kubeconfig: Path
):
    async with place(short_folder, api_kubeconfig) as the, prepared(the) as kubeconfig:
        flags = (f"--kubeconfig={kubeconfig}", "--leader-election", "--retry-interval-start=100ms")
        kubectl = kubectl_of(the)
        full = {"times": 2, "error": {"code": "INTERNAL", "message": "the array is full"}}
        before = requests(the)
        with (
            also_permitted(kubectl, OF_SECRETS),
            also_permitted(kubectl, OF_ATTRIBUTES),
            the.driver(script={"CreateVolume": [full]}),
            running(the.folder, "provisioner", *the.flags(), *flags) as process,
        ):
            source = await make_claim(the, "secret", volumeAttributesClassName=the.named("gold"))
            await eventually_answered(lambda: volume(the, source))
            assert "the array is full" in (await events_of(the, source))["ProvisioningFailed"]
            await bind_unless_a_binder_does(the, source)
            name = objects.name(await claim_of(the, source))
            clone = await make_claim(the, dataSource={"kind": "PersistentVolumeClaim", "name": name})
            await eventually_answered(lambda: volume(the, clone))
            await bind_unless_a_binder_does(the, clone)

            async def is_unprotected() -> bool:
                return not objects.has_finalizer(await claim_of(the, source), CLONING_PROTECTION)

            await eventually_answered(is_unprotected)
            await until_gone(the, source, clone)

            async def is_journal_empty() -> bool:
                return not any(objects.annotations(page).get(ANNOTATION) for page in await journal(the, NAMESPACE))

            await eventually_answered(is_journal_empty)
            process.signal(signal.SIGTERM)
            assert await process.exit_code() == 0
        (page,) = await journal(the, NAMESPACE)
        assert holder_of(page), "the journal was kept"
        lease = await the.client.get(LEASE, ObjectName(NAMESPACE, lock_name(the.driver_name)))
        assert not lease["spec"]["holderIdentity"]
        made = requests(the) - before
        assert_refused(made, NEW_EVENT_API)
        assert {verb for verb, resource, _ in made if resource == "leases"} >= {"POST", "PUT"}
        assert [each for each in made if each[:2] == ("PATCH", "leases")] == []
        assert ["secrets" in call for call in calls(the, "DeleteVolume")].count(True) == 1
        first, *_, cloned = calls(the, "CreateVolume")
        assert first["secrets"]
        assert first["mutableParameters"] == {"iops": "100"}
        assert "volumeContentSource" in cloned
        assert "forbidden" not in process.logged().lower()


async def test_without_the_optional_roles_only_claims_that_need_them_wait_and_an_event_names_what_they_lack(
    short_folder: Path, api_kubeconfig: Path
):
    async with place(short_folder, api_kubeconfig) as the, prepared(the) as kubeconfig:
        flags = (f"--kubeconfig={kubeconfig}", "--leader-election")
        before = requests(the)
        with the.driver(), running(the.folder, "provisioner", *the.flags(), *flags):
            with_secret, with_attributes, plain = (
                await make_claim(the, "secret"),
                await make_claim(the, volumeAttributesClassName=the.named("gold")),
                await make_claim(the),
            )
            await eventually_answered(lambda: volume(the, plain))
            for name, part in ((with_secret, f"secret {NAMESPACE}/{the.named('secret')}"), (with_attributes, "gold")):

                async def is_refused(name: str = name, part: str = part) -> bool:
                    return part in (await events_of(the, name)).get("ProvisioningFailed", "")

                await eventually_answered(is_refused)
            await until_gone(the, plain)
            assert len(calls(the, "CreateVolume")) == 1
            assert_refused(
                requests(the) - before, NEW_EVENT_API, ("GET", "secrets"), ("GET", "volumeattributesclasses")
            )
            with also_permitted(kubectl_of(the), OF_SECRETS), also_permitted(kubectl_of(the), OF_ATTRIBUTES):
                await eventually_answered(lambda: volume(the, with_secret))
                await eventually_answered(lambda: volume(the, with_attributes))
            await until_gone(the, with_secret, with_attributes)
