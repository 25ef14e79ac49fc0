"""Several `orlop attacher` for one driver: who leads, when he gives up, and what happens to the work under way."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest

from orlop.kube.client import MergePatch
from orlop.kube.kinds import LEASE
from support.attaching.attacher_places import Place, answer_of, place
from support.waiting import eventually_answered

SHORT = (
    "--leader-election-lease-duration=3s",
    "--leader-election-renew-deadline=2s",
    "--leader-election-retry-period=500ms",
)
NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a process a machine's name of its own")


async def is_led_by(the: Place, name: str) -> None:
    async def is_so() -> bool:
        return await the.holder() == name

    await eventually_answered(is_so)


async def is_attached(the: Place, number: int) -> None:
    async def is_so() -> bool:
        return await the.is_attached(number)

    await eventually_answered(is_so)


@NEEDS_ROOT
async def test_while_one_has_lost_its_driver_another_works_and_it_comes_back_only_when_its_driver_is_ready(
    short_folder: Path, api_kubeconfig: Path
):
    async with place(short_folder, api_kubeconfig) as the:
        await the.make(1)
        with the.replica("first", *SHORT) as first:
            with the.driver("first.sock"):
                await is_led_by(the, "first")
                await is_attached(the, 1)
            # Its driver is gone: after the renew deadline the lease is free.
            await first.says("driver lost")
            await is_led_by(the, "")
            with the.driver("second.sock"), the.replica("second", *SHORT) as second:
                await is_led_by(the, "second")
                await the.make(2)
                await is_attached(the, 2)
                second.signal(signal.SIGTERM)
                assert await second.exit_code() == 0
            assert await the.holder() == ""
            with the.driver("first.sock", driver={"name": the.driver_name, "ready": False}):
                await first.says("driver not ready")
                assert await the.holder() == "", "a driver that is not ready is no reason to lead"
            with the.driver("first.sock"):
                await the.make(3)
                await is_led_by(the, "first")
                await is_attached(the, 3)


@NEEDS_ROOT
async def test_whoever_waits_for_the_lease_does_nothing(short_folder: Path, api_kubeconfig: Path):
    async with place(short_folder, api_kubeconfig) as the:
        hanging = {"ControllerPublishVolume": [{"times": 0, "hang": True}]}
        with (
            the.driver("first.sock", script=hanging),
            the.driver("second.sock"),
            the.replica("first", *SHORT),
        ):
            await is_led_by(the, "first")
            with the.replica("second", "--http-endpoint=127.0.0.1:0", *SHORT) as second:
                await second.says('info "first_')
                await the.make()
                await eventually_answered(the.is_protected)
                assert answer_of(second, "/healthz/leader-election") == (200, "ok")
                assert answer_of(second, "/readyz")[0] == 200, "else no update of several could be rolled out"
                assert not await the.is_attached()


async def test_of_two_on_one_machine_one_leads(short_folder: Path, api_kubeconfig: Path):
    async with place(short_folder, api_kubeconfig) as the:
        with the.driver(), the.attacher("--leader-election", *SHORT) as first:
            await first.says("became leader")
            with the.attacher("--leader-election", *SHORT) as second:
                await second.says("leads")
                await the.make()
                await is_attached(the, 1)
                first.signal(signal.SIGTERM)
                assert await first.exit_code() == 0
                await second.says("became leader")
        assert the.record().read_text().count("ControllerPublishVolume") == 1


async def test_told_to_stop_it_ends_the_call_under_way_tells_what_came_of_it_and_frees_the_lease(
    short_folder: Path, api_kubeconfig: Path
):
    async with place(short_folder, api_kubeconfig) as the:
        await the.make()
        slow = {"ControllerPublishVolume": [{"delay": "3s"}]}
        with the.driver(script=slow), the.attacher("--leader-election", *SHORT) as attacher:
            await eventually_answered(the.is_protected)
            assert not await the.is_attached()
            attacher.signal(signal.SIGTERM)
            assert await attacher.exit_code() == 0
        assert await the.is_attached()
        assert await the.holder() == ""


async def test_told_to_stop_it_waits_for_no_call_longer_than_its_timeout(short_folder: Path, api_kubeconfig: Path):
    async with place(short_folder, api_kubeconfig) as the:
        await the.make()
        hanging = {"ControllerPublishVolume": [{"times": 0, "hang": True}]}
        with the.driver(script=hanging), the.attacher("--leader-election", "--timeout=2s", *SHORT) as attacher:
            await eventually_answered(the.is_protected)
            attacher.signal(signal.SIGTERM)
            assert await attacher.exit_code() == 0
        assert await the.holder() == ""
        assert await the.is_protected(), "the next one takes it from here"


async def test_the_lease_is_renewed_past_all_that_waits_for_its_turn_at_a_limited_rate(
    short_folder: Path, api_kubeconfig: Path
):
    async with place(short_folder, api_kubeconfig) as the:
        for number in range(1, 9):
            await the.make(number)
        # Eight writes wait at any time, for four seconds each: a lease that waits behind them is not renewed in time.
        limited = ("--kube-api-qps=2", "--kube-api-burst=8")
        with the.driver(), the.attacher("--leader-election", *limited, *SHORT) as attacher:
            await is_led_by(the, socket.gethostname())
            first = await the.renewed()

            async def is_renewed_long_after() -> bool:
                assert not attacher.ended()
                return (await the.renewed() - first).total_seconds() > 5

            await eventually_answered(is_renewed_long_after)
            attached = [await the.is_attached(number) for number in range(1, 9)]
            assert not all(attached), "there is still much to do"


async def test_one_whose_lease_was_taken_ends_with_a_sentence(short_folder: Path, api_kubeconfig: Path):
    async with place(short_folder, api_kubeconfig) as the:
        with the.driver(), the.attacher("--leader-election", *SHORT) as attacher:
            await attacher.says("became leader")
            await attacher.says("attaching")
            taken = MergePatch({"spec": {"holderIdentity": "somebody-else"}})
            await the.client.patch(LEASE, the.lease, taken)
            assert await attacher.exit_code() == 1
        assert "somebody-else holds the lease" in attacher.logged()
        assert "Traceback" not in attacher.logged()
        assert await the.holder() == "somebody-else"


async def test_the_lease_has_upstreams_name_and_the_labels_that_were_asked_for(
    short_folder: Path, api_kubeconfig: Path
):
    async with place(short_folder, api_kubeconfig) as the:
        flags = (
            "--leader-election",
            "--leader-election-labels=team:storage,tier:1",
            "--leader-election-namespace=default",
        )
        with the.driver(), the.attacher(*flags, "--http-endpoint=127.0.0.1:0") as attacher:
            await attacher.says("became leader")
            lease = await the.lease_object()
            assert lease is not None
            assert lease["metadata"]["name"] == f"external-attacher-leader-mock-{the.tag}-example-com"
            assert lease["metadata"]["labels"] == {"team": "storage", "tier": "1"}
            assert lease["spec"]["leaseDurationSeconds"] == 15
            assert answer_of(attacher, "/healthz/leader-election") == (200, "ok")


@NEEDS_ROOT
async def test_one_that_stood_still_while_another_took_the_lease_does_nothing_more_and_ends(
    short_folder: Path, api_kubeconfig: Path
):
    async with place(short_folder, api_kubeconfig) as the:
        await the.make(1)
        hanging = {"ControllerPublishVolume": [{"times": 0, "hang": True}]}
        with (
            the.driver("first.sock"),
            the.driver("second.sock", script=hanging),
            the.replica("first", *SHORT) as first,
        ):
            await is_attached(the, 1)
            first.signal(signal.SIGSTOP)
            with the.replica("second", *SHORT):
                await is_led_by(the, "second")
                await the.make(2)  # which the first finds waiting when it goes on
                await eventually_answered(lambda: the.is_protected(2))
                first.signal(signal.SIGCONT)
                assert await first.exit_code() == 1
                assert await the.holder() == "second"
        assert the.record("first.sock").read_text().count("ControllerPublishVolume") == 1
        assert "Traceback" not in first.logged()
