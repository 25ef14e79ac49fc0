"""Scenarios that hide what breaks them: nothing of it is lost, nothing hangs, and what is told can be played again."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from itertools import count
from random import Random

import pytest

from orlop.csi.client import CsiClient
from orlop.csi.error_codes import CsiError
from orlop.csi.in_process_transport import InProcessConnection
from orlop.csi.interceptor import CallInterceptor
from orlop.csi.proto import csi_pb2, rpc
from orlop.foundation.metrics import Metrics
from orlop.foundation.structured_log import silent_log
from orlop.kube.http.http_messages import HttpRequest
from orlop.testing.driver_model import DriverFacts, DriverModel
from orlop.testing.explorer import (
    Act,
    Broken,
    CannotBeEnded,
    DoesNotRepeatItself,
    EffectWithoutLease,
    EndedByItself,
    EndedUnheard,
    Life,
    LifeConnection,
    Stage,
    Ways,
    carry_out,
    explore,
    explored_methods,
    replay,
)
from orlop.testing.explorer.api_seam import is_event_or_lease
from orlop.testing.explorer.search import Scenario

FOR_EVER = 1e9


def broke() -> None:
    raise OSError("the connection broke")


async def nothing() -> None:
    """An effect that changes nothing."""


async def step(life: Life) -> None:
    await carry_out(life, "step", nothing, Ways(broke))


def found_in(scenario: Scenario) -> Broken:
    with pytest.raises(Broken) as found:
        explore(scenario)
    with pytest.raises(Broken) as again:
        replay(scenario, str(found.value).rpartition('replay(scenario, "')[2][:-2].replace('\\"', '"'))
    assert again.value.history == found.value.history
    return found.value


def test_what_an_effect_asserts_is_found_though_the_controller_takes_it_for_a_failure() -> None:
    async def scenario(stage: Stage) -> None:
        rented: list[str] = []

        async def rent() -> None:
            assert not rented, "rented twice"
            rented.append("room 7")

        async def controller(life: Life) -> None:
            for _ in range(2):
                try:
                    await carry_out(life, "rent", rent, Ways(broke))
                except Exception:  # noqa: BLE001, S112 - the bug
                    continue
                return

        stage.run("controller", controller)
        await stage.rest()

    assert str(found_in(scenario).error).startswith("rented twice")


def test_an_act_that_fails_before_its_time_is_found_and_its_error_is_not_the_controllers() -> None:
    async def scenario(stage: Stage) -> None:
        told: list[Exception] = []

        async def go() -> None:
            assert stage.clock.elapsed() > 30, "they went too early"

        async def controller(life: Life) -> None:
            try:
                await step(life)
            except OSError:
                return
            except Exception as error:  # noqa: BLE001 - what it should never see
                told.append(error)

        stage.run("controller", controller)
        await stage.acts(Act("they go", go))
        assert not told

    found = found_in(scenario)
    assert str(found.error).startswith("they went too early")
    assert [departure.option for departure in found.history] == ["before it: they go"]


def test_an_act_goes_on_when_the_process_that_it_came_before_loses_patience() -> None:
    async def scenario(stage: Stage) -> None:
        done: list[str] = []

        async def slow() -> None:
            await stage.clock.sleep(20)
            done.append("slow")

        async def controller(life: Life) -> None:
            try:
                async with stage.clock.timeout(5):
                    await step(life)
            except (OSError, TimeoutError):
                pass

        stage.run("controller", controller)
        await stage.acts(Act("slowly", slow))
        assert done == ["slow"]

    assert explore(scenario).by_option["before it: slowly"] > 0


def test_a_process_that_exits_is_a_finding_and_does_not_end_the_search() -> None:
    async def scenario(stage: Stage) -> None:
        async def controller(life: Life) -> None:
            try:
                await step(life)
            except OSError:
                sys.exit(3)

        stage.run("controller", controller)
        await stage.rest()

    assert isinstance(found_in(scenario).error, SystemExit)


def test_a_process_that_nobody_cancelled_and_that_ends_cancelled_is_a_finding() -> None:
    async def scenario(stage: Stage) -> None:
        async def controller(life: Life) -> None:
            try:
                await step(life)
            except OSError:
                raise asyncio.CancelledError from None

        stage.run("controller", controller)
        await stage.rest()

    assert isinstance(found_in(scenario).error, EndedByItself)


def test_an_error_that_kills_a_task_nobody_waits_for_is_a_finding() -> None:
    async def scenario(stage: Stage) -> None:
        async def controller(life: Life) -> None:
            asyncio.get_running_loop().create_task(step(life))  # the bug
            await stage.clock.sleep(FOR_EVER)

        stage.run("controller", controller)
        await stage.rest()

    assert isinstance(found_in(scenario).error, EndedUnheard)


def test_a_process_that_goes_on_however_often_it_is_cancelled_is_a_finding_and_hangs_nothing() -> None:
    async def scenario(stage: Stage) -> None:
        async def controller(_life: Life) -> None:
            while True:
                with suppress(asyncio.CancelledError):
                    await stage.clock.sleep(FOR_EVER)

        stage.run("controller", controller)
        await stage.rest()

    assert isinstance(found_in(scenario).error, CannotBeEnded)


def test_a_life_that_swallows_its_death_once_dies_all_the_same() -> None:
    async def scenario(stage: Stage) -> None:
        lives: list[str] = []

        async def controller(life: Life) -> None:
            lives.append(life.name)
            try:
                await step(life)
                await stage.clock.sleep(FOR_EVER)
            except OSError:
                return
            except BaseException:  # noqa: BLE001 - also its death
                await stage.clock.sleep(FOR_EVER)

        stage.run("controller", controller)
        await stage.rest(200)
        assert lives == [f"controller {number + 1}" for number in range(len(lives))]

    assert explore(scenario).by_option["it dies after it"] > 0


def test_a_call_to_a_driver_by_a_leader_that_lost_its_lease_is_a_finding() -> None:
    async def scenario(stage: Stage) -> None:
        model = DriverModel(DriverFacts(name="mock.example.com"), stage.clock)
        request = csi_pb2.CreateVolumeRequest(name="v1")

        async def controller(life: Life) -> None:
            csi = CsiClient(
                LifeConnection(life, InProcessConnection(driver)),
                log=silent_log(),
                metrics=Metrics("t", of_process=False),
                clock=stage.clock,
                random=Random(1),
            )
            for do in (lambda: step(life), lambda: csi.call(rpc.CREATE_VOLUME, request)):
                try:
                    await do()  # without asking whether it still leads
                except (OSError, CsiError):
                    return

        numbers = count()
        driver = CallInterceptor(
            explored_methods(stage.run("controller", controller), model.methods()),
            driver_name="mock.example.com",
            log=silent_log(),
            metrics=Metrics("t", of_process=False),
            clock=stage.clock,
            new_id=lambda: str(next(numbers)),
        )
        await stage.rest()

    assert isinstance(found_in(scenario).error, EffectWithoutLease)


def test_acts_may_have_semicolons_and_quotes_in_their_names() -> None:
    async def scenario(stage: Stage) -> None:
        done: list[str] = []

        async def act() -> None:
            done.append("act")

        async def look() -> None:
            assert not done, "too early"

        async def controller(life: Life) -> None:
            try:
                await carry_out(life, "look", look, Ways(broke))
            except OSError:
                return

        stage.run("controller", controller)
        await stage.acts(Act('it goes; it comes: "again"', act))

    assert str(found_in(scenario).error).startswith("too early")


def test_a_scenario_that_asks_otherwise_the_second_time_is_told_apart_by_what_it_asks() -> None:
    numbers = count()

    async def scenario(stage: Stage) -> None:
        async def controller(life: Life) -> None:
            try:
                await carry_out(life, f"step {next(numbers)}", nothing, Ways(broke))
            except OSError:
                return

        stage.run("controller", controller)
        await stage.rest()

    with pytest.raises(DoesNotRepeatItself, match="'step 0', has become choice 1"):
        explore(scenario)


def test_what_breaks_only_now_and_then_is_told_to_repeat_nothing() -> None:
    numbers = count()

    async def scenario(_stage: Stage) -> None:
        assert next(numbers), "the first time"

    with pytest.raises(DoesNotRepeatItself, match="replayed, the history breaks nothing"):
        explore(scenario)


def test_a_refusal_cannot_have_the_name_of_another_way() -> None:
    with pytest.raises(ValueError, match="a refusal cannot be named 'the reply is lost'"):
        Ways(broke, {"the reply is lost": broke})


@pytest.mark.parametrize(
    ("path", "spared"),
    [
        ("/api/v1/namespaces/default/events/e1", True),
        ("/apis/coordination.k8s.io/v1/namespaces/default/leases/l1", True),
        ("/api/v1/persistentvolumes/events-of-2026", False),
        ("/api/v1/namespaces/leases/configmaps/c1", False),
        ("/apis/example.com/v1/eventsources/e1", False),
    ],
)
def test_only_events_and_leases_themselves_are_spared(path: str, spared: bool) -> None:  # noqa: FBT001 - a row
    assert is_event_or_lease(HttpRequest("PATCH", path, (), {})) is spared
