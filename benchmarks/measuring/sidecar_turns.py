"""Compare our sidecar with others by turns, in one run: rates, latency, CPU and memory, and the bars they have to meet.

The API server is `orlop apiserver`, a process of its own, or the one of `--kubeconfig`; the driver is the mock driver,
also a process of its own, whose work is counted to nobody. Each `--beside 'COMMAND'` is another sidecar for the same
work, with `{kubeconfig}` and `{socket}` in its command replaced. Figures are medians of the turns.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import os
import shlex
import statistics
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

import uvloop

from measuring.api_access import PATIENCE_SECONDS, api_server, client_of
from measuring.processes import ORLOP, mock_driver, running
from orlop.kube.api_errors import NotFound
from orlop.kube.client import KubeClient, MergePatch, Selection, WatchEvent
from orlop.kube.kinds import Kind
from orlop.kube.objects import ObjectName, name_of

OURS: Final = "ours"
AT_ONCE: Final = 20


async def at_once(do: Callable[[Any], Awaitable[object]], things: Sequence[Any]) -> None:
    waiting = iter(things)

    async def one_after_the_other() -> None:
        for thing in waiting:
            await do(thing)

    await asyncio.gather(*(one_after_the_other() for _ in range(AT_ONCE)))


# ---- the objects -----------------------------------------------------------------------------------------------------


class Objects(ABC):
    """Creates the objects that are worked on, and learns from one watch what became of them."""

    def __init__(self, client: KubeClient, prefix: str, kind: Kind, selection: Selection) -> None:
        """`kind` and `selection` are what is watched; `prefix` begins all names."""
        self.client = client
        self._names = (f"{prefix}-{os.getpid()}-{number:06d}" for number in itertools.count())
        self._kind = kind
        self._selection = selection
        self._changed = asyncio.Event()

    @asynccontextmanager
    async def prepared(self) -> AsyncIterator[None]:
        """Prepare what every turn needs; delete everything that is ours in the end."""
        await self.clean_up()
        await self.prepare()
        listening = asyncio.create_task(self._listen())
        try:
            yield
        finally:
            listening.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await listening
            await self.clean_up()

    @abstractmethod
    async def prepare(self) -> None: ...

    @abstractmethod
    async def clean_up(self) -> None: ...

    @abstractmethod
    def hear(self, event: WatchEvent) -> None: ...

    @abstractmethod
    async def make_ready(self, names: Sequence[str]) -> None:
        """Create what the sidecar only reads."""

    @abstractmethod
    async def want(self, names: Sequence[str]) -> None:
        """Create what the sidecar is to work on."""

    @abstractmethod
    def are_done(self, names: Sequence[str]) -> bool: ...

    @abstractmethod
    async def want_no_more(self, names: Sequence[str]) -> None:
        """Have the sidecar undo its work."""

    @abstractmethod
    def are_gone(self, names: Sequence[str]) -> bool: ...

    async def _listen(self) -> None:
        version = (await self.client.list(self._kind, self._selection)).version
        while True:
            async for event in self.client.watch(self._kind, self._selection, after=version):
                version = event.object["metadata"]["resourceVersion"]
                if event.type != "BOOKMARK":
                    self.hear(event)
                    self._changed.set()

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait until the watch has shown it."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not is_so():
                self._changed.clear()
                await self._changed.wait()

    async def done(self, names: Sequence[str]) -> None:
        await self.until(lambda: self.are_done(names))

    async def gone(self, names: Sequence[str]) -> None:
        await self.until(lambda: self.are_gone(names))

    async def new_names(self, count: int) -> list[str]:
        names = list(itertools.islice(self._names, count))
        await self.make_ready(names)
        return names

    async def free(self, kind: Kind, objects: Sequence[Mapping[str, Any]]) -> None:
        """Delete objects, also where somebody has left a finalizer: the mock driver remembers nothing."""
        await at_once(lambda each: self._free(kind, name_of(each)), objects)

    async def _free(self, kind: Kind, name: ObjectName) -> None:
        with contextlib.suppress(NotFound):
            await self.client.delete(kind, name)
            await self.client.patch(kind, name, MergePatch({"metadata": {"finalizers": None}}))


# ---- what is measured ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Turn:
    """The figures of one sidecar. Times in seconds, memory in megabytes."""

    start: float
    start_cpu: float
    single: float
    work: float
    """From the start of the process to the last one done."""
    work_cpu: float
    undo: float
    """Without a start of the process."""
    undo_cpu: float
    peak: float


async def singles(objects: Objects, command: str, log: Path, count: int) -> tuple[float, float, float]:
    """Return the time and CPU of a start for which one object waits, and the time of a single one when idle."""
    names = await objects.new_names(count + 1)
    await objects.want(names[:1])
    took = []
    with running(command, log) as sidecar:
        await objects.done(names[:1])
        start, cpu = time.perf_counter() - sidecar.began, await sidecar.cpu_when_quiet()
        for name in names[1:]:
            await asyncio.sleep(0.05)  # for all that follows the one before to end
            began = time.perf_counter()
            await objects.want([name])
            await objects.done([name])
            took.append(time.perf_counter() - began)
        await objects.want_no_more(names)
        await objects.gone(names)
    return start, cpu, statistics.median(took)


Row = Callable[[Turn, int], float]


@dataclass(frozen=True)
class Work:
    """What a kind of sidecar does, and what is printed of it."""

    sidecar: str
    one: str
    done: str
    undo_one: str
    undone: str
    script: str
    """Of the mock driver."""
    objects: Callable[[KubeClient], Any]
    turn: Callable[[Any, str, Path, argparse.Namespace], Awaitable[Turn]]
    """Measure one turn, with the objects, the sidecar's command, its log and the options."""
    bars: Mapping[str, str] = field(default_factory=dict)
    """What a row has to meet, by the row's name."""

    def rows(self) -> dict[str, Row]:
        return {
            f"{self.done} in a second, from the start": lambda turn, count: count / turn.work,
            f"{self.done} in a second, without it": lambda turn, count: count / max(turn.work - turn.start, 1e-9),
            f"{self.undone} in a second": lambda turn, count: count / turn.undo,
            f"start until the last is {self.done}, s": lambda turn, _: turn.work,
            f"start until a single one is {self.done}, s": lambda turn, _: turn.start,
            "one when idle, ms": lambda turn, _: turn.single * 1000,
            f"CPU of one {self.one}, ms": lambda turn, count: (turn.work_cpu - turn.start_cpu) / count * 1000,
            f"CPU of one {self.one} with the start, ms": lambda turn, count: turn.work_cpu / count * 1000,
            f"CPU of one {self.undo_one}, ms": lambda turn, count: turn.undo_cpu / count * 1000,
            "CPU of the start, s": lambda turn, _: turn.start_cpu,
            "peak of resident memory, MB": lambda turn, _: turn.peak,
        }


def median(turns: Sequence[Turn]) -> Turn:
    return Turn(*(statistics.median(getattr(each, column.name) for each in turns) for column in fields(Turn)))


def print_table(work: Work, turns: dict[str, Turn], count: int) -> None:
    others = [name for name in turns if name != OURS]
    print(f"{'':44} {OURS:>10}" + "".join(f"{name:>12} {'ours to it':>11}" for name in others))
    for what, figure in work.rows().items():
        ours = figure(turns[OURS], count)
        beside = [figure(turns[name], count) for name in others]
        ratios = "".join(f"{other:12.2f} {ours / other if other else float('nan'):11.2f}" for other in beside)
        bar = f"   (asked: {work.bars[what]})" if what in work.bars else ""
        print(f"{what:44} {ours:10.2f}{ratios}{bar}")


async def compare(work: Work, kubeconfig: Path, socket: Path, options: argparse.Namespace) -> None:
    ours = shlex.join([*ORLOP, work.sidecar]) + " --kubeconfig={kubeconfig} --csi-address={socket} --log-level=warning"
    commands = {OURS: ours, **{f"beside {number}": each for number, each in enumerate(options.beside, 1)}}
    commands = {name: each.format(kubeconfig=kubeconfig, socket=socket) for name, each in commands.items()}
    turns: dict[str, list[Turn]] = {name: [] for name in commands}
    log = socket.with_name("log")
    async with client_of(kubeconfig) as client:
        objects = work.objects(client)
        async with objects.prepared():
            for command in commands.values():
                await singles(objects, command, log, 1)  # which compiles, and fills caches
            for _, (name, command) in itertools.product(range(options.rounds), commands.items()):
                turns[name].append(await work.turn(objects, command, log, options))
            print_table(work, {name: median(each) for name, each in turns.items()}, options.volumes)


def run_by_turns(work: Work, description: str) -> None:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--volumes", type=int, default=1000, help="that wait at once")
    parser.add_argument("--singles", type=int, default=50, help="when nothing else is to be done")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kubeconfig", default="", help="of another API server than the embedded one")
    parser.add_argument("--beside", action="append", default=[], metavar="COMMAND", help=f"another {work.sidecar}")
    options = parser.parse_args()
    where = "the API server of --kubeconfig" if options.kubeconfig else "the embedded API server"
    print(f"{work.sidecar}: {options.volumes:,} at once on {where}, {os.cpu_count()} cores", flush=True)
    with tempfile.TemporaryDirectory(prefix="o-") as name, ExitStack() as stack:
        folder = Path(name)
        kubeconfig = stack.enter_context(api_server(options.kubeconfig, folder))
        socket = stack.enter_context(mock_driver(work.script, folder))
        uvloop.run(compare(work, kubeconfig, socket, options))
