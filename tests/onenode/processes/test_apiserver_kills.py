"""kill -9 of `orlop apiserver` in the middle of many writes: what it acknowledged is there afterwards."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest

from conftest import SOAK
from orlop.foundation.clock import SystemClock
from orlop.foundation.structured_log import silent_log
from orlop.kube.api_errors import ApiError
from orlop.kube.client import KubeClient, MergePatch, Object, Selection
from orlop.kube.config.cluster_access import over_unix_socket
from orlop.kube.http.http_transport import HttpTransport
from orlop.kube.kinds import CONFIG_MAP
from orlop.kube.objects import ObjectName
from support.processes.orlop_process import Running, running
from support.waiting import eventually

WRITERS = 1_000 if SOAK else 100
NAMESPACE = "default"


@asynccontextmanager
async def server(folder: Path) -> AsyncIterator[tuple[Running, KubeClient]]:
    with running(folder, "apiserver", "--state", str(folder / "state")) as process:
        await process.says("use it with")
        transport = HttpTransport(over_unix_socket(str(folder / "state" / "api.sock")))
        client = KubeClient(transport, clock=SystemClock(), random=Random(1), log=silent_log())
        try:
            yield process, client
        finally:
            await client.close()


async def write_for_ever(client: KubeClient, number: int, acknowledged: dict[str, Object]) -> None:
    """Creates one object, then changes it again and again, noting each answer, until the server is gone."""
    name = ObjectName(NAMESPACE, f"c{number}")
    made = {"metadata": {"name": name.name, "namespace": NAMESPACE}, "data": {"count": "0"}}
    try:
        acknowledged[name.name] = await client.create(CONFIG_MAP, made)
        count = 0
        while True:
            count += 1
            change = MergePatch({"data": {"count": str(count)}})
            acknowledged[name.name] = await client.patch(CONFIG_MAP, name, change)
    except ApiError:
        return


def answers(acknowledged: dict[str, Object]) -> int:
    return sum(1 + int(obj["data"]["count"]) for obj in acknowledged.values())


def version(obj: Object) -> int:
    return int(obj["metadata"]["resourceVersion"])


@pytest.mark.parametrize("share", [0.1, 1.0, 2.5] if SOAK else [1.0])
async def test_kill_9_among_many_writers_loses_nothing_that_was_acknowledged(short_folder: Path, share: float):
    """`share` of as many answers as there are writers, and the kill comes."""
    acknowledged: dict[str, Object] = {}
    async with server(short_folder) as (process, client):
        writers = [asyncio.ensure_future(write_for_ever(client, n, acknowledged)) for n in range(WRITERS)]
        await eventually(lambda: answers(acknowledged) >= WRITERS * share)
        process.signal(signal.SIGKILL)
        await process.exit_code()
        for writer in writers:
            writer.cancel()
        await asyncio.gather(*writers, return_exceptions=True)
        told = dict(acknowledged)
    async with server(short_folder) as (_, client):
        found = {obj["metadata"]["name"]: obj for obj in (await client.list(CONFIG_MAP, Selection(NAMESPACE))).items}
        later = await client.create(CONFIG_MAP, {"metadata": {"name": "later", "namespace": NAMESPACE}})

    assert len(told) >= WRITERS * min(share, 0.1) / 2
    for name, obj in told.items():
        assert found[name]["metadata"]["uid"] == obj["metadata"]["uid"]
        assert version(found[name]) >= version(obj)
        assert int(found[name]["data"]["count"]) >= int(obj["data"]["count"])
    assert version(later) > max(map(version, [*told.values(), *found.values()]))
