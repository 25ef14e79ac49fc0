"""Claims and volumes of an `orlop provisioner` that runs as a process on a `Place`, and the binder's part for them.

The embedded API server runs no binder, so these functions do its part: they mark claims for the driver, bind them, and
release volumes. In a real cluster, whose controller manager does this, they do only what it has not done yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from typing import Any

from orlop.binding import claim_state_rules as state
from orlop.kube import objects
from orlop.kube.api_errors import NotFound
from orlop.kube.client import MergePatch, Selection
from orlop.kube.kinds import EVENT, LEASE, PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, STORAGE_CLASS
from orlop.kube.objects import Object, ObjectName
from orlop.records.provision_journal import DRIVER_LABEL
from orlop.sidecars.provisioner.volume_object_rules import FINALIZER
from support.attaching.attacher_places import Place
from support.processes.orlop_process import Running, running

NAMESPACE = "default"
"""That of the claims."""
NEVER_SET = frozenset({"", "Pending"})
"""Phases of a volume that the API server itself sets."""
BOUND_HERE = "test.orlop.dev/bound"
"""Marks a volume that was bound here, since no binder did it."""


def provisioner(the: Place, *more: str) -> AbstractContextManager[Running]:
    """Run a provisioner beside a driver that has topology, but is registered on no node."""
    return running(the.folder, "provisioner", *the.flags(), "--immediate-topology=false", *more)


async def make_class(the: Place, name: str = "fast", parameters: Mapping[str, str] | None = None) -> None:
    body = {"metadata": {"name": the.named(name)}, "provisioner": the.driver_name}
    await the.client.create(STORAGE_CLASS, {**body, "parameters": dict(parameters or {})})


async def make_claim(the: Place, storage_class: str = "fast", **spec: Any) -> str:
    """Create a claim that is marked for the driver; return the name of the volume it will get."""
    body = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
        "storageClassName": the.named(storage_class),
        **spec,
    }
    marks = {state.STORAGE_PROVISIONER: the.driver_name}
    metadata = {"namespace": NAMESPACE, "generateName": the.named("data-"), "annotations": marks}
    claim = await the.client.create(PERSISTENT_VOLUME_CLAIM, {"metadata": metadata, "spec": body})
    return f"pvc-{claim['metadata']['uid']}"


async def claim_of(the: Place, volume_name: str) -> Object:
    claims = (await the.client.list(PERSISTENT_VOLUME_CLAIM, Selection(NAMESPACE))).items
    (claim,) = (claim for claim in claims if f"pvc-{objects.uid(claim)}" == volume_name)
    return claim


async def events_of(the: Place, volume_name: str) -> dict[str, str]:
    """Return the notes of the claim's events, by reason."""
    events = (await the.client.list(EVENT)).items
    about = [event for event in events if f"pvc-{event['regarding'].get('uid')}" == volume_name]
    return {event["reason"]: event["note"] for event in about}


async def journal(the: Place, namespace: str = "default") -> list[Object]:
    """Return the pages of the driver's journal."""
    selection = Selection(namespace, labels=f"{DRIVER_LABEL}={the.driver_name}")
    return (await the.client.list(LEASE, selection)).items


async def volume(the: Place, name: str) -> Any:
    try:
        return await the.client.get(PERSISTENT_VOLUME, ObjectName(None, name))
    except NotFound:
        return None


async def bind_unless_a_binder_does(the: Place, volume_name: str) -> None:
    if state.phase(await volume(the, volume_name)) not in NEVER_SET:
        return
    claim, of_volume = objects.name_of(await claim_of(the, volume_name)), ObjectName(None, volume_name)
    bound = MergePatch({"status": {"phase": "Bound"}})
    await the.client.patch(PERSISTENT_VOLUME, of_volume, MergePatch({"metadata": {"annotations": {BOUND_HERE: ""}}}))
    await the.client.patch(PERSISTENT_VOLUME, of_volume, bound, subresource="status")
    await the.client.patch(PERSISTENT_VOLUME_CLAIM, claim, MergePatch({"spec": {"volumeName": volume_name}}))
    await the.client.patch(PERSISTENT_VOLUME_CLAIM, claim, bound, subresource="status")


async def delete_claim(the: Place, volume_name: str) -> None:
    """Delete the claim of a volume. Where nothing protects claims that are in use, nothing removes the finalizer."""
    key = objects.name_of(await claim_of(the, volume_name))
    await the.client.delete(PERSISTENT_VOLUME_CLAIM, key)
    with suppress(NotFound):
        await the.client.patch(PERSISTENT_VOLUME_CLAIM, key, MergePatch({"metadata": {"finalizers": None}}))


async def release_unless_a_binder_does(the: Place, name: str) -> None:
    """Set the phase of a volume if no binder has ever set it: a controller manager's own is left to it."""
    found = await volume(the, name)
    if found is None or state.phase(found) not in (
        {"Bound"} if BOUND_HERE in objects.annotations(found) else NEVER_SET
    ):
        return
    key, released = ObjectName(None, name), MergePatch({"status": {"phase": "Released"}})
    with suppress(NotFound):
        await the.client.patch(PERSISTENT_VOLUME, key, MergePatch({"metadata": {"finalizers": [FINALIZER]}}))
        await the.client.patch(PERSISTENT_VOLUME, key, released, subresource="status")
