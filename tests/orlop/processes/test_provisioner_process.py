"""`orlop provisioner` as people run it: beside a driver, with an API server, flags and signals."""

from __future__ import annotations

import signal
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

from orlop.binding import claim_state_rules as state
from orlop.kube import objects
from orlop.kube.api_errors import NotFound
from orlop.kube.client import MergePatch, Selection
from orlop.kube.kinds import LEASE, PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, STORAGE_CLASS
from orlop.kube.lease_rules import holder_of
from orlop.kube.objects import Object, ObjectName
from orlop.records.provision_journal import ANNOTATION, DRIVER_LABEL
from orlop.sidecars.provisioner.volume_object_rules import FINALIZER
from support.attaching.attacher_places import Place, place
from support.processes.orlop_process import Running, running
from support.waiting import eventually_answered

NEVER_SET = frozenset({"", "Pending"})
"""Phases of a volume that the API server itself gives."""


def provisioner(the: Place, *more: str) -> AbstractContextManager[Running]:
    # The driver has topology, and no node has it registered.
    return running(the.folder, "provisioner", *the.flags(), "--immediate-topology=false", *more)


async def make_class(the: Place) -> None:
    await the.client.create(STORAGE_CLASS, {"metadata": {"name": the.named("fast")}, "provisioner": the.driver_name})


async def make_claim(the: Place) -> str:
    """Create a claim that is marked for the driver; return the name of the volume it will get."""
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
        "storageClassName": the.named("fast"),
    }
    marks = {state.STORAGE_PROVISIONER: the.driver_name}
    metadata = {"namespace": "default", "generateName": the.named("data-"), "annotations": marks}
    claim = await the.client.create(PERSISTENT_VOLUME_CLAIM, {"metadata": metadata, "spec": spec})
    return f"pvc-{claim['metadata']['uid']}"


async def journal(the: Place) -> list[Object]:
    """The pages of the driver's journal."""
    selection = Selection("default", labels=f"{DRIVER_LABEL}={the.driver_name}")
    return (await the.client.list(LEASE, selection)).items


async def volume(the: Place, name: str) -> Any:
    try:
        return await the.client.get(PERSISTENT_VOLUME, ObjectName(None, name))
    except NotFound:
        return None


async def delete_claim(the: Place, volume_name: str) -> None:
    """Delete the claim of a volume. Where nothing protects claims that are in use, nothing removes the finalizer."""
    reference = (await volume(the, volume_name))["spec"]["claimRef"]
    key = ObjectName(reference["namespace"], reference["name"])
    await the.client.delete(PERSISTENT_VOLUME_CLAIM, key)
    with suppress(NotFound):
        await the.client.patch(PERSISTENT_VOLUME_CLAIM, key, MergePatch({"metadata": {"finalizers": None}}))


async def release_unless_a_binder_does(the: Place, name: str) -> None:
    """Set the phase of a volume that no binder has ever set: a controller manager's own is left to it."""
    found = await volume(the, name)
    if found is None or state.phase(found) not in NEVER_SET:
        return
    key, released = ObjectName(None, name), MergePatch({"status": {"phase": "Released"}})
    with suppress(NotFound):
        await the.client.patch(PERSISTENT_VOLUME, key, MergePatch({"metadata": {"finalizers": [FINALIZER]}}))
        await the.client.patch(PERSISTENT_VOLUME, key, released, subresource="status")


async def test_a_claim_is_provisioned_and_its_released_volume_deleted(short_folder: Path, api_kubeconfig: Path):
    async with place(short_folder, api_kubeconfig) as the:
        await make_class(the)
        name = await make_claim(the)
        with the.driver(), provisioner(the, "--leader-election", "--extra-create-metadata") as process:
            found = await eventually_answered(lambda: volume(the, name))
            assert found["spec"]["csi"]["driver"] == the.driver_name
            assert found["metadata"]["annotations"][state.PROVISIONED_BY] == the.driver_name
            await delete_claim(the, name)

            async def is_gone() -> bool:
                await release_unless_a_binder_does(the, name)
                return await volume(the, name) is None

            await eventually_answered(is_gone)
            process.signal(signal.SIGTERM)
            assert await process.exit_code() == 0


async def test_a_provisioner_that_was_killed_during_a_call_is_followed_by_one_that_finishes_its_order(
    short_folder: Path, api_kubeconfig: Path
):
    async with place(short_folder, api_kubeconfig) as the:
        await make_class(the)
        with the.driver(script={"CreateVolume": [{"hang": True}]}), provisioner(the) as process:
            name = await make_claim(the)

            async def is_ordered() -> bool:
                return any(objects.annotations(page).get(ANNOTATION) for page in await journal(the))

            await eventually_answered(is_ordered)
            process.signal(signal.SIGKILL)
            await process.exit_code()
        with the.driver(), provisioner(the):
            await eventually_answered(lambda: volume(the, name))


async def test_a_second_provisioner_without_leader_election_ends_the_first_with_a_sentence(
    short_folder: Path, api_kubeconfig: Path
):
    async with place(short_folder, api_kubeconfig) as the:
        await make_class(the)
        with the.driver(), provisioner(the) as first:
            await eventually_answered(lambda: journal(the))
            (before,) = await journal(the)
            with provisioner(the) as second:

                async def is_taken_over() -> bool:
                    return holder_of((await journal(the))[0]) != holder_of(before)

                async def has_ended() -> bool:
                    await make_claim(the)
                    return first.ended()

                await eventually_answered(is_taken_over)
                await eventually_answered(has_ended)
                assert await first.exit_code() != 0
                assert "another provisioner of" in first.logged()
                assert "Traceback" not in first.logged()
                name = await make_claim(the)
                await eventually_answered(lambda: volume(the, name))
                assert not second.ended()
