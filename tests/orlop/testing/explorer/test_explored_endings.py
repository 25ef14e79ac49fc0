"""A history shows what each caller was told, where that was no plain success."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from typing import Any

import pytest

from onenode.testing.api_server import api_server
from orlop.csi.client import CsiClient
from orlop.csi.error_codes import CsiError
from orlop.csi.proto import csi_pb2, rpc
from orlop.foundation.metrics import Metrics
from orlop.foundation.structured_log import silent_log
from orlop.kube.api_errors import ApiError
from orlop.kube.client import KubeClient, MergePatch
from orlop.kube.http.http_messages import HttpResponse
from orlop.kube.kinds import CONFIG_MAP
from orlop.kube.objects import ObjectName
from orlop.testing.explorer import (
    Broken,
    ExploredTransport,
    Life,
    LifeConnection,
    Stage,
    Ways,
    carry_out,
    explored_methods,
    replay,
)
from orlop.testing.explorer.api_answers import shown
from orlop.testing.explorer.search import Scenario
from orlop.testing.scripted_driver import in_process_driver

NAME = ObjectName("default", "one")
ONE = {"metadata": {"namespace": "default", "name": "one"}}
FOR_ONE_NODE = csi_pb2.VolumeCapability(
    mount=csi_pb2.VolumeCapability.MountVolume(),
    access_mode=csi_pb2.VolumeCapability.AccessMode(mode="SINGLE_NODE_WRITER"),
)
NOT_YET = {"error": {"code": "RESOURCE_EXHAUSTED", "message": "not yet"}}


def with_api_server(do: Callable[[KubeClient], Awaitable[object]]) -> Scenario:
    async def scenario(stage: Stage) -> None:
        async def live(life: Life) -> None:
            transport = ExploredTransport(life, server.transport())
            kube = KubeClient(transport, clock=stage.clock, random=Random(1), log=silent_log())
            try:
                await do(kube)
            except ApiError:
                """It was told."""

        async with api_server(stage.clock) as server:
            await server.client().create(CONFIG_MAP, ONE)
            stage.run("controller", live)
            await stage.rest()

    return scenario


def with_driver(*steps: dict[str, Any]) -> Scenario:
    async def scenario(stage: Stage) -> None:
        async def live(life: Life) -> None:
            metrics = Metrics("t", of_process=False)
            way = LifeConnection(life, connection)
            csi = CsiClient(way, log=silent_log(), metrics=metrics, clock=stage.clock, random=Random(1))
            try:
                await csi.call(
                    rpc.CREATE_VOLUME, csi_pb2.CreateVolumeRequest(name="v", volume_capabilities=[FOR_ONE_NODE])
                )
            except CsiError:
                """It was told."""

        process = stage.run("controller", live)
        script = {"script": {"CreateVolume": list(steps)}}
        _, connection = in_process_driver(script, stage.clock, around=partial(explored_methods, process))
        await stage.rest()

    return scenario


def first_ending(scenario: Scenario, history: str) -> str:
    return replay(scenario, history).trail[0].ending


async def patch_one(kube: KubeClient) -> None:
    await kube.patch(CONFIG_MAP, NAME, MergePatch({"data": {"a": "b"}}))


async def create_one(kube: KubeClient) -> None:
    await kube.create(CONFIG_MAP, ONE)


@pytest.mark.parametrize(
    ("do", "history", "ending"),
    [
        (patch_one, "", ""),
        (patch_one, "1: it is late", ""),
        (patch_one, "1: conflict", "409 Conflict"),
        (patch_one, "1: a server's error", "500 InternalError"),
        (patch_one, "1: the reply is lost", "lost"),
        (patch_one, "1: the reply is lost, and it is late", "lost"),
        (patch_one, "1: it dies after it", ""),
        (create_one, "", "409 AlreadyExists"),
    ],
)
def test_a_write_to_an_api_server_shows_its_answer(
    do: Callable[[KubeClient], Awaitable[object]], history: str, ending: str
) -> None:
    assert first_ending(with_api_server(do), history) == ending


@pytest.mark.parametrize(
    ("steps", "history", "ending"),
    [
        ([], "", ""),
        ([NOT_YET], "", "RESOURCE_EXHAUSTED"),
        ([], "1: a final error", "FAILED_PRECONDITION"),
        ([], "1: no connection", "UNAVAILABLE"),
        ([], "1: the reply is lost", "UNAVAILABLE"),
        ([], "1: it is late", "DEADLINE_EXCEEDED"),
        ([NOT_YET], "1: it is late", "DEADLINE_EXCEEDED"),
        ([{"delay": "20s"}], "", "DEADLINE_EXCEEDED"),
        ([], "1: it dies after it", ""),
        ([NOT_YET], "1: it dies, and it lands late", ""),
    ],
)
def test_a_call_of_a_driver_shows_the_code_that_its_caller_got(
    steps: list[dict[str, Any]], history: str, ending: str
) -> None:
    assert first_ending(with_driver(*steps), history) == ending


def test_an_effect_of_ones_own_shows_its_error_beside_the_departure_and_not_in_what_is_played_again() -> None:
    def broke() -> None:
        raise OSError("the connection broke")

    async def nothing() -> None:
        """It has no effect."""

    async def scenario(stage: Stage) -> None:
        async def live(life: Life) -> None:
            await carry_out(life, "add", nothing, Ways(broke))

        stage.run("controller", live)
        await stage.rest()

    with pytest.raises(Broken) as found:
        replay(scenario, "1: the reply is lost")
    assert "→   1      0.00 s  add: the reply is lost → OSError\n" in str(found.value)
    assert str(found.value).endswith('replay(scenario, "1: the reply is lost")')


def test_an_answer_of_somebody_between_is_told_by_its_code() -> None:
    assert shown(HttpResponse(502, {}, b"<html>")) == "502 Bad Gateway"
    assert shown(HttpResponse(599, {}, b"[]")) == "599"
