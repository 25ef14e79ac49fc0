"""The cases of deletion that the upstream provisioner and its library test, by their names there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from orlop.binding import claim_state_rules as state
from orlop.kube import objects
from orlop.kube.kinds import PERSISTENT_VOLUME, VOLUME_ATTACHMENT
from orlop.sidecars.provisioner.volume_object_rules import DELETION_SECRET_NAME, DELETION_SECRET_NAMESPACE
from support.provisioning.provisioner_worlds import (
    DELETE,
    DRIVER,
    NAMESPACE,
    ProvisionerWorld,
)

pytestmark = pytest.mark.virtual_time
RESERVED = "csi.storage.k8s.io"
OF_CLASS = {f"{RESERVED}/provisioner-secret-name": "s", f"{RESERVED}/provisioner-secret-namespace": NAMESPACE}
MODIFIED = {f"{RESERVED}/provisioner-secret-name": "t", f"{RESERVED}/provisioner-secret-namespace": "elsewhere"}
UNSUPPORTED = {
    f"{RESERVED}/provisioner-secret-name": "static-${pv.name}-${pvc.annotations['akey']}",
    f"{RESERVED}/provisioner-secret-namespace": "${pvc.namespace}",
}
ATTACHED = {"attacher": DRIVER, "nodeName": "node", "source": {"persistentVolumeName": "pv"}}
OF_ANOTHER = {**ATTACHED, "source": {"persistentVolumeName": "another"}}


def secret(name: str, namespace: str = NAMESPACE) -> dict[str, str]:
    return {DELETION_SECRET_NAME: name, DELETION_SECRET_NAMESPACE: namespace if name else ""}


@dataclass(frozen=True)
class Case:
    part: str = ""
    """Of the event where the volume is not deleted; empty where it is, or where its deletion waits."""
    waits: bool = False
    """Not deleted, and no failure either: upstream records an event VolumeFailedDelete for such a volume."""
    annotations: Mapping[str, str] = field(default_factory=lambda: secret(""))
    parameters: Mapping[str, str] | None = None
    """Those of the class; None where it does not exist."""
    attachment: Mapping[str, Any] | None = None
    is_dying: bool = False
    """The attachment is being deleted."""
    secrets: Mapping[str, str] = field(default_factory=dict)
    """Of the request."""
    csi: Mapping[str, Any] | None = field(default_factory=lambda: {"driver": DRIVER, "volumeHandle": "vol-id-1"})


SENT = {"key": "value"}
CASES = {
    "fail - nil volume.Spec.CSI": Case("has no volumeHandle of the driver", csi=None),
    "fail - pvc.annotations not supported for Create/Delete Volume Secret": Case(
        "the claim has no annotation akey", annotations={}, parameters=UNSUPPORTED
    ),
    "fail - delete when attached to node": Case(waits=True, attachment=ATTACHED),
    "fail - delete when volumeattachment exists but not attached to node": Case(waits=True, attachment=ATTACHED),
    "fail - delete when volumeattachment exists with deletionTimestamp set": Case(
        waits=True, attachment=ATTACHED, is_dying=True
    ),
    "simple - valid case": Case(),
    "simple - valid case with existing volumeattachment on different pv": Case(attachment=OF_ANOTHER),
    "simple - valid case with ClaimRef set": Case(),
    "Empty provisioner secret is set as PV annotation and StorageClass exists": Case(parameters={}),
    "Empty provisioner secret is set as PV annotation and StorageClass doesn't exist on deletion": Case(),
    "Non-empty provisioner secret is set as PV annotation and StorageClass exists": Case(
        annotations=secret("s"), parameters=OF_CLASS, secrets=SENT
    ),
    "Non-empty provisioner secret is set as PV annotation and StorageClass doesn't exist": Case(
        annotations=secret("s"), secrets=SENT
    ),
    "Non-empty provisioner secret is set as PV annotation and modified StorageClass exists": Case(
        annotations=secret("s"), parameters=MODIFIED, secrets=SENT
    ),
    "Non-existent provisioner secret is set as PV annotation": Case(annotations=secret("none")),
    "Provisioner secret isn't set as PV annotation": Case(annotations={}, parameters=OF_CLASS, secrets=SENT),
}


async def prepare(world: ProvisionerWorld, case: Case) -> None:
    world.storage.add_volume("vol-id-1", 1 << 30)
    await world.make_secret("s", key="value")
    if case.parameters is not None:
        await world.make_class(parameters=dict(case.parameters))
    source = {"csi": dict(case.csi)} if case.csi is not None else {"hostPath": {"path": "/x"}}
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "fast",
        "persistentVolumeReclaimPolicy": "Delete",
        "claimRef": {"namespace": NAMESPACE, "name": "data", "uid": "gone"},
        **source,
    }
    annotations = {state.PROVISIONED_BY: DRIVER, **case.annotations}
    await world.client.create(PERSISTENT_VOLUME, {"metadata": {"name": "pv", "annotations": annotations}, "spec": spec})
    if case.attachment is not None:
        finalizers = ["example.com/held"] if case.is_dying else []
        metadata = {"name": "va", "finalizers": finalizers}
        made = await world.client.create(VOLUME_ATTACHMENT, {"metadata": metadata, "spec": dict(case.attachment)})
        if case.is_dying:
            await world.client.delete(VOLUME_ATTACHMENT, objects.name_of(made))
    await world.release("pv")


@pytest.mark.parametrize("name", CASES)
async def test_a_volume_is_deleted_or_its_deletion_refused(name: str):
    case = CASES[name]
    async with ProvisionerWorld() as world:
        await prepare(world, case)
        async with world.provisioner(retry_start=300.0):
            if case.waits:
                await world.clock.sleep(600)
                assert await world.events() == []
            elif case.part:
                await world.until_event("VolumeFailedDelete", case.part)
            else:
                await world.until_provisioned(0)
        is_deleted = not case.part and not case.waits
        assert world.names() == ([] if is_deleted else ["vol-id-1"])
        requests = world.requests(DELETE)
        assert len(requests) == is_deleted
        assert all(dict(request.secrets) == dict(case.secrets) for request in requests)
