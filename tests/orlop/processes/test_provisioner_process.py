"""`orlop provisioner` as people run it: beside a driver, with an API server, flags and signals."""

from __future__ import annotations

import signal
from pathlib import Path

from orlop.binding import claim_state_rules as state
from orlop.kube import objects
from orlop.kube.lease_rules import holder_of
from orlop.records.provision_journal import ANNOTATION
from support.attaching.attacher_places import place
from support.provisioning.provisioner_places import (
    delete_claim,
    journal,
    make_claim,
    make_class,
    provisioner,
    release_unless_a_binder_does,
    volume,
)
from support.waiting import eventually_answered


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
