"""A machine that runs containers, in memory and on any clock: for tests of pods without processes.

It knows the shell as far as a test of pods needs it: `sh -c` with `exit N`, `sleep S`, `echo WORDS`, `false` and
`trap '' TERM` (or `trap 'exit N' TERM`), joined by `;`. Other programs are not found. Killing the machine's owner ends
every container, as the real ones end with the process that started them.
"""

from __future__ import annotations

import asyncio
import shlex
from dataclasses import dataclass, field

from onenode.containers.container_request import Command
from onenode.kubelet.pods.container_runtime import ContainerRefused, Streams, WantedContainer
from orlop.foundation.clock import Clock

TERMINATED, KILLED, NOT_FOUND = 143, 137, 127


@dataclass(eq=False)
class FakeContainer:
    wanted: WantedContainer
    clock: Clock
    output: list[str]
    code: int | None = None
    on_term: int | None = TERMINATED
    """The exit code SIGTERM brings about; None where it is ignored."""
    over: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    @property
    def command(self) -> Command:
        return self.wanted.request.command

    @property
    def running(self) -> bool:
        return not self.over.is_set()

    async def ended(self) -> int:
        await self.over.wait()
        return self.code or 0

    def ask_to_end(self) -> None:
        if self.on_term is not None:
            self.end(self.on_term)

    def kill(self) -> None:
        self.end(KILLED)

    async def run_inside(self, command: Command, streams: Streams | None) -> FakeContainer:
        if streams is None:
            raise ContainerRefused("The model has no terminals: leave out -t (--tty).")
        if not self.running:
            raise ContainerRefused("The container is not running: no command can be run in it.")
        inside = FakeContainer(self.wanted, self.clock, self.output)
        inside.begin(statements_of(command.arguments))
        return inside

    def take_terminal(self) -> None:
        """It never has one."""

    def begin(self, statements: list[list[str]]) -> None:
        self.task = asyncio.get_running_loop().create_task(self._live(statements), name="fake container")

    def end(self, code: int) -> None:
        if self.over.is_set():
            return
        self.code = code
        self.over.set()
        if self.task is not None and self.task is not asyncio.current_task():
            self.task.cancel()

    async def _live(self, statements: list[list[str]]) -> None:
        code = 0
        for words in statements:
            match words:
                case ["sleep", seconds]:
                    await self.clock.sleep(float(seconds))
                    code = 0
                case ["exit", number]:
                    self.end(int(number))
                    return
                case ["trap", reaction, "TERM"]:
                    self.on_term = int(reaction.split()[1]) if reaction else None
                case _:
                    code = self._do(words)
        self.end(code)

    def _do(self, words: list[str]) -> int:
        match words:
            case ["echo", *text]:
                self.output.append(" ".join(text))
            case ["true"]:
                pass
            case ["false"]:
                return 1
            case _:
                return NOT_FOUND
        return 0


class FakeContainers:
    """`began` names every container that ever began, in order, as `pod/name#attempt`; `start_seconds` it takes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.start_seconds = 0.0
        self.all: list[FakeContainer] = []
        self.began: list[str] = []
        self.logs: dict[tuple[str, str, int], list[str]] = {}

    async def start(self, wanted: WantedContainer) -> FakeContainer:
        statements = statements_of(wanted.request.command.arguments)
        if self.start_seconds:
            await self._clock.sleep(self.start_seconds)
        output = self.logs.setdefault((wanted.pod_uid, wanted.name, wanted.attempt), [])
        container = FakeContainer(wanted, self._clock, output)
        self.all.append(container)
        self.began.append(f"{wanted.pod_uid}/{wanted.name}#{wanted.attempt}")
        container.begin(statements)
        return container

    async def end_all(self) -> None:
        for container in self.running():
            container.ask_to_end()
        for container in self.running():
            await container.ended()

    async def remembered_pods(self) -> frozenset[str]:
        return frozenset(pod_uid for pod_uid, _, _ in self.logs)

    async def forget_pod(self, pod_uid: str) -> None:
        self.logs = {key: lines for key, lines in self.logs.items() if key[0] != pod_uid}

    def running(self, pod_uid: str = "") -> list[FakeContainer]:
        return [one for one in self.all if one.running and (not pod_uid or one.wanted.pod_uid == pod_uid)]

    def die(self) -> None:
        """What happens to containers when the process that started them is killed."""
        for container in self.all:
            container.kill()


def statements_of(arguments: tuple[str, ...]) -> list[list[str]]:
    match arguments:
        case ("sh" | "/bin/sh", "-c", script):
            return [shlex.split(statement) for statement in script.split(";") if statement.strip()]
        case (("sleep" | "true" | "false" | "echo"), *_):
            return [list(arguments)]
        case _:
            raise ContainerRefused(f'exec: "{arguments[0]}": executable file not found in $PATH')
