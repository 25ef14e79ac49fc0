"""Kill a program before and after each of its effects, one run after the other, and check the state after its restart.

Effects are counted at the seams through which a program changes the world, wherever the program calls them from: on
the event loop or in a thread. After the kill every further effect raises `Killed` too: a dead process has no more
effects, whatever its `finally` and `except` blocks try.

    def build() -> dict[str, str]:
        return {"draft": "hello"}

    async def publish(world: dict[str, str], points: KillPoints) -> None:
        if "draft" in world:
            async with points.effect("copy"):
                world["final"] = world["draft"]
            async with points.effect("remove the draft"):
                del world["draft"]

    def check(world: dict[str, str]) -> None:
        assert world == {"final": "hello"}

    await explore_kills(build, publish, check)    # a KillNotSurvived names every kill that ended otherwise

The same run has the same effects in the same order, so a reported kill can be repeated by its number. This module must
not choose kills by chance or by time, and must not know what the effects are.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from types import TracebackType

T = TypeVar("T")
World = TypeVar("World")


class KillMoment(Enum):
    BEFORE = "before"
    AFTER = "after"


@dataclass(frozen=True, slots=True)
class KillAt:
    """A kill before or after one effect; the effects of a run are numbered from 1."""

    number: int
    moment: KillMoment

    def __post_init__(self) -> None:
        if self.number < 1:
            raise ValueError(f"a kill at effect {self.number} never comes: the first effect has the number 1")

    def __str__(self) -> str:
        return f"killed {self.moment.value} effect {self.number}"


def every_kill(count: int) -> Iterator[KillAt]:
    """Yield every kill within this number of effects."""
    for number in range(1, count + 1):
        yield KillAt(number, KillMoment.BEFORE)
        yield KillAt(number, KillMoment.AFTER)


class Killed(BaseException):
    """The program is dead. Not an `Exception`: no `except Exception` of the program may catch its own death."""


class KillPoints:
    """Counts the effects of one run, and kills it at the chosen one."""

    def __init__(self, kill: KillAt | None = None) -> None:
        self.seen: list[str] = []  # the names of all effects that began while the program lived
        self.dead = False
        self.kill: Final = kill
        self._lock = threading.Condition()
        self._in_threads = 0
        self._on_death: list[Callable[[], object]] = []

    @property
    def fate(self) -> str:
        """Return what happened, such as `killed after effect 3 (rename folder)`."""
        if self.kill is None:
            return "not killed"
        return f"{self.kill} ({self.seen[self.kill.number - 1]})" if self.dead else f"not yet {self.kill}"

    def effect(self, name: str) -> Effect:
        """Return an effect, for `with` or `async with`."""
        return Effect(self, name)

    def wrap(self, target: T, *method_names: str, describe: Callable[..., str] | None = None) -> T:
        """Return a proxy of the target in which each call of these methods is an effect.

        The name of the effect is `Type.method`, or what `describe` returns for the arguments.
        """
        wrapped = {name: self._wrapped(target, name, describe) for name in method_names}
        return cast("T", _Proxy(target, wrapped))

    def when_dead(self, act: Callable[[], object]) -> None:
        """Call a function at the kill, in the thread of the kill."""
        self._on_death.append(act)

    def wait_for_threads(self) -> None:
        """Block until no `with` block of an effect is active: a thread cannot be killed, only waited for."""
        with self._lock:
            self._lock.wait_for(lambda: not self._in_threads)

    def _wrapped(self, target: object, name: str, describe: Callable[..., str] | None) -> Callable[..., Any]:
        method = getattr(target, name, None)
        full_name = f"{type(target).__name__}.{name}"
        if not callable(method):
            raise TypeError(f"there is no method {full_name} to kill at")
        if inspect.isasyncgenfunction(method) or inspect.isgeneratorfunction(method):
            raise TypeError(f"{full_name} is a generator: it has no single effect to kill at; wrap what it calls")
        wrap = self._wrap_async if inspect.iscoroutinefunction(method) else self._wrap_sync
        return wrap(method, describe or (lambda *_arguments, **_options: full_name))

    def _wrap_async(self, method: Callable[..., Any], describe: Callable[..., str]) -> Callable[..., Any]:
        @functools.wraps(method)
        async def call(*arguments: Any, **options: Any) -> Any:
            async with self.effect(describe(*arguments, **options)):
                return await method(*arguments, **options)

        return call

    def _wrap_sync(self, method: Callable[..., Any], describe: Callable[..., str]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(*arguments: Any, **options: Any) -> Any:
            with self.effect(describe(*arguments, **options)):
                return method(*arguments, **options)

        return call

    def _begin(self, name: str, in_thread: Literal[0, 1]) -> int:
        with self._lock:
            self._refuse_the_dead()
            self.seen.append(name)
            number = len(self.seen)
            self._die_at(KillAt(number, KillMoment.BEFORE))
            self._in_threads += in_thread
        return number

    def _end(self, number: int, in_thread: Literal[0, 1]) -> None:
        with self._lock:
            self._in_threads -= in_thread
            self._lock.notify_all()
            # A dead process gets no results either, not even of an effect that was active when it was killed.
            self._refuse_the_dead()
            self._die_at(KillAt(number, KillMoment.AFTER))

    def _refuse_the_dead(self) -> None:
        if self.dead:
            raise Killed(self.fate)

    def _die_at(self, here: KillAt) -> None:
        if here != self.kill:
            return
        self.dead = True
        for act in self._on_death:
            act()
        raise Killed(self.fate)


class Effect:
    """One effect: the block inside it. Created by `KillPoints.effect`, used once."""

    def __init__(self, points: KillPoints, name: str) -> None:
        self._points = points
        self._name = name
        self._number = 0

    def __enter__(self) -> None:
        self._number = self._points._begin(self._name, in_thread=1)  # noqa: SLF001 - two halves of one thing

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._points._end(self._number, in_thread=1)  # noqa: SLF001 - as above

    async def __aenter__(self) -> None:
        self._number = self._points._begin(self._name, in_thread=0)  # noqa: SLF001 - as above

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._points._end(self._number, in_thread=0)  # noqa: SLF001 - as above


class _Proxy:
    """Returns wrapped methods first, then attributes of the target."""

    __slots__ = ("_target", "_wrapped")

    def __init__(self, target: object, wrapped: dict[str, Callable[..., Any]]) -> None:
        object.__setattr__(self, "_target", target)
        object.__setattr__(self, "_wrapped", wrapped)

    def __getattr__(self, name: str) -> Any:
        if name in self._wrapped:
            return self._wrapped[name]
        return getattr(self._target, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._target, name, value)

    def __repr__(self) -> str:
        return f"{self._target!r} (calls of {', '.join(sorted(self._wrapped))} are effects)"


class KillNotSurvived(AssertionError):
    """The program did not recover from these kills; one sentence for each."""

    def __init__(self, failures: list[str]) -> None:
        self.failures = tuple(failures)
        super().__init__("\n".join(failures))


@dataclass(frozen=True, slots=True)
class KillReport:
    """The number of runs, and the effects of the run without a kill."""

    runs: int
    effects: tuple[str, ...]


async def explore_kills(
    build: Callable[[], Awaitable[World] | World],
    run: Callable[[World, KillPoints], Awaitable[object]],
    check: Callable[[World], Awaitable[None] | None],
    *,
    deaths: int = 1,
) -> KillReport:
    """Kill the run at each of its effects, restart it without a kill, and check the world; in a new world each time.

    `deaths=2` also kills each restart at each of *its* effects, and so on. A blocking program is run with
    `lambda world, points: asyncio.to_thread(program, world, points)`. Tasks that the
    run started and did not await live on, as other processes would.
    """
    return await _Exploration(build, run, check, deaths).explore()


class _Exploration(Generic[World]):
    def __init__(
        self,
        build: Callable[[], Awaitable[World] | World],
        run: Callable[[World, KillPoints], Awaitable[object]],
        check: Callable[[World], Awaitable[None] | None],
        deaths: int,
    ) -> None:
        self._build = build
        self._run = run
        self._check = check
        self._deaths = deaths
        self._runs = 0
        self._failures: list[str] = []

    async def explore(self) -> KillReport:
        effects = await self._explore_after(())
        if not effects:
            self._failures.append("the run had no effect, so nothing was killed: does it use the points it is given?")
        if self._failures:
            raise KillNotSurvived(self._failures)
        return KillReport(self._runs, effects)

    async def _explore_after(self, kills: tuple[KillAt, ...]) -> tuple[str, ...]:
        """Return the effects of the run after these kills; a world that is broken already is not explored further."""
        failures_before = len(self._failures)
        effects = await self._attempt(kills)
        if len(kills) < self._deaths and len(self._failures) == failures_before:
            for kill in every_kill(len(effects)):
                await self._explore_after((*kills, kill))
        return effects

    async def _attempt(self, kills: tuple[KillAt, ...]) -> tuple[str, ...]:
        self._runs += 1
        world = await _value(self._build())
        lives = [KillPoints(kill) for kill in (*kills, None)]
        life = lives[0]
        try:
            for life in lives:
                await self._live(world, life)
            await _value(self._check(world))
        except Exception as error:  # noqa: BLE001 - every failure is a finding, reported with its kill
            story = ", then ".join(each.fate for each in lives[: lives.index(life) + 1] if each.kill)
            self._failures.append(f"{story or 'with no kill at all'}: {_described(error)}")
        return tuple(lives[-1].seen)

    async def _live(self, world: World, life: KillPoints) -> None:
        await _run_until_dead(self._run(world, life), life)
        if life.kill is not None and not life.dead:
            raise DoesNotRepeatItself(f"the run ended with no such effect; it had {', '.join(life.seen) or 'none'}")


class DoesNotRepeatItself(Exception):
    """The program is not deterministic: with the same world and kills, a run had fewer effects than before."""


async def _run_until_dead(program: Awaitable[object], life: KillPoints) -> None:
    """Run a program until it ends or dies; ignore what a dead one raises or still waits for."""
    running = asyncio.ensure_future(program)
    loop = asyncio.get_running_loop()
    life.when_dead(lambda: loop.call_soon_threadsafe(running.cancel))
    try:
        await asyncio.wait([running])
    finally:
        running.cancel()  # of effect only if we were cancelled ourselves
    if not life.dead:
        running.result()
        return
    await asyncio.to_thread(life.wait_for_threads)
    if not running.cancelled():
        running.exception()  # marks it as seen


async def _value(result: Awaitable[T] | T) -> T:
    return await result if inspect.isawaitable(result) else result


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
