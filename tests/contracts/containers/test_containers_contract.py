"""What every machine that runs containers does, the real one and the model alike."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from onenode.kubelet.pods.container_runtime import ContainerRefused, ContainerRuntime
from onenode.testing.fake_containers import FakeContainers
from orlop.foundation.clock import SystemClock
from support.kubelet.machine_pods import kubelet_in, nothing_left, shell
from support.waiting import eventually

Machine = Callable[[], AbstractAsyncContextManager[ContainerRuntime]]


@pytest.fixture(params=["machine", "model"])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Machine:
    @asynccontextmanager
    async def real() -> AsyncIterator[ContainerRuntime]:
        with nothing_left(tmp_path):
            async with kubelet_in(tmp_path) as kubelet:
                yield kubelet.containers

    @asynccontextmanager
    async def model() -> AsyncIterator[ContainerRuntime]:
        containers = FakeContainers(SystemClock())
        yield containers
        containers.die()
        await asyncio.sleep(0)

    return real if request.param == "machine" else model


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 0), ("exit 3", 3), ("false", 1), ("echo x; exit 2", 2), ("no-such-thing", 127), ("sleep 0.01", 0)],
)
async def test_a_command_ends_with_its_code(machine: Machine, script: str, code: int):
    async with machine() as containers:
        container = await containers.start(shell(script))

        assert await container.ended() == code
        assert await container.ended() == code


async def test_an_unknown_program_is_refused(machine: Machine):
    async with machine() as containers:
        with pytest.raises(ContainerRefused, match="executable file not found"):
            await containers.start(shell("", arguments=("no-such-thing",)))


async def test_a_command_ends_when_it_is_asked_to(machine: Machine):
    async with machine() as containers:
        container = await containers.start(shell("", arguments=("sleep", "1000")))
        container.ask_to_end()

        assert await container.ended() == 143


async def test_all_can_be_asked_to_end_at_once(machine: Machine):
    async with machine() as containers:
        started = [await containers.start(shell("", arguments=("sleep", "1000"), pod=f"pod-{n}")) for n in range(2)]
        await containers.end_all()

        assert [await container.ended() for container in started] == [143, 143]


async def test_a_command_that_ignores_it_goes_on(machine: Machine, tmp_path: Path):
    async with machine() as containers:
        container = await containers.start(shell("trap '' TERM; echo ready; sleep 0.1; exit 6"))
        await eventually(lambda: "ready" in printed(containers, tmp_path))
        container.ask_to_end()

        assert await container.ended() == 6


async def test_a_command_that_ignores_everything_is_killed(machine: Machine):
    async with machine() as containers:
        container = await containers.start(shell("trap '' TERM; sleep 1000"))
        container.kill()

        assert await container.ended() == 137


async def test_what_has_ended_can_be_signalled_and_killed_in_vain(machine: Machine):
    async with machine() as containers:
        container = await containers.start(shell("exit 0"))
        await container.ended()
        container.ask_to_end()
        container.kill()

        assert await container.ended() == 0


async def test_many_run_side_by_side(machine: Machine):
    async with machine() as containers:
        wanted = [shell(f"sleep 0.05; exit {number}", pod=f"pod-{number}") for number in range(10)]
        running = await asyncio.gather(*(containers.start(each) for each in wanted))

        assert await asyncio.gather(*(each.ended() for each in running)) == list(range(10))


async def test_pods_are_remembered_until_they_are_forgotten(machine: Machine):
    async with machine() as containers:
        for pod in ("one", "two"):
            container = await containers.start(shell("exit 0", pod=pod))
            await container.ended()
        both = await containers.remembered_pods()
        await containers.forget_pod("one")
        await containers.forget_pod("never-there")

        assert both == {"one", "two"}
        assert await containers.remembered_pods() == {"two"}


async def test_a_start_that_is_given_up_leaves_nothing(machine: Machine):
    async with machine() as containers:
        starting = asyncio.create_task(containers.start(shell("sleep 1000")))
        await asyncio.sleep(0)
        starting.cancel()
        await asyncio.wait([starting])
        container = await containers.start(shell("exit 4", attempt=1))

        assert await container.ended() == 4


def printed(containers: ContainerRuntime, folder: Path) -> str:
    if isinstance(containers, FakeContainers):
        return "".join(line for lines in containers.logs.values() for line in lines)
    return "".join(log.read_text() for log in folder.glob("logs/*/*/*.log"))
