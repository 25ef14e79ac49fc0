"""Everything that can happen to one effect: a write to an API server, a call of a driver, or one that a scenario names.

    def connection_reset() -> int:
        raise OSError("connection reset")

    await carry_out(life, "rent room 7", lambda: rooms.rent(7), Ways(connection_reset))

- it happens normally;
- refused: no effect, and the caller gets an error, one of `Ways.refusals`;
- the reply is lost: it takes effect, and the caller gets an error;
- it is late: the caller waits, and other processes continue meanwhile;
- the reply is lost, and it is late: the caller gets an error, and the effect follows later;
- it dies after it: it takes effect, and the process dies. Dying before an effect equals dying after the previous one,
  so only the first effect of a life has both;
- it dies, and it lands late: the effect follows after the next life has begun;
- it loses its lease, and it lands late: the effect follows while another leader is active.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from orlop.testing.explorer.histories import AS_IT_SHOULD, Option
from orlop.testing.explorer.lives import Life
from orlop.testing.kill_points import Killed

T = TypeVar("T")

REPLY_LOST: Final = Option("the reply is lost")
LATE: Final = Option("it is late")
LOST_AND_LATE: Final = Option("the reply is lost, and it is late")
DIES_BEFORE: Final = Option("it dies before it")
DIES_AFTER: Final = Option("it dies after it")
DIES_AND_LATE: Final = Option("it dies, and it lands late")
LEASE_LOST: Final = Option("it loses its lease, and it lands late")
NAMES_IN_USE: Final = frozenset(
    option.name
    for option in (
        AS_IT_SHOULD, REPLY_LOST, LATE, LOST_AND_LATE, DIES_BEFORE, DIES_AFTER, DIES_AND_LATE, LEASE_LOST
    )
)  # fmt: skip


def _name_of_error(ending: object) -> str:
    return type(ending).__name__ if isinstance(ending, Exception) else ""


@dataclass(frozen=True, slots=True)
class Ways(Generic[T]):
    """How an effect can fail, as its caller sees it: each function returns a response, or raises."""

    lost: Callable[[], T]
    refusals: Mapping[str, Callable[[], T]] = field(default_factory=dict)
    late: float = 1.5
    """In seconds: longer than a life needs to start, shorter than an informer waits for a write."""
    overtaken: float = 1.0
    """In seconds: when an old leader's last effect lands, while it and its successor are both alive."""
    elsewhere: bool = False
    """Whether the effect runs in another process, which continues when the caller is dead or stops waiting."""
    breaks_while_running: bool = False
    """Whether the connection to that process may break while the effect is under way, which then happens late."""
    shown: Callable[[T | Exception], str] = _name_of_error
    """How a history shows what the caller got: empty for a plain success."""

    def __post_init__(self) -> None:
        if reserved := sorted(NAMES_IN_USE & self.refusals.keys()):
            raise ValueError(f"a refusal cannot be named {reserved[0]!r}: the name is reserved")


async def carry_out(
    life: Life,
    what: str,
    do: Callable[[], Awaitable[T]],
    ways: Ways[T],
    *,
    when_chosen: Callable[[int], object] = lambda _number: None,
) -> T:
    """Carry out an effect as chosen. `when_chosen` is called with the choice's number before anything happens."""
    life.begin(what)
    option = await life.stage.choose(what, _faults(life, ways))
    number = len(life.stage.trail)
    when_chosen(number)
    life.refuse_the_dead()
    try:
        answer = await _Effect(life, do, ways).happen(option)
    except Exception as error:  # any error: noted, and raised again
        if not life.dead:  # A dead process gets no response.
            life.stage.note_ending(number, ways.shown(error))
        raise
    life.stage.note_ending(number, ways.shown(answer))
    return answer


def _faults(life: Life, ways: Ways[T]) -> list[Option]:
    first = [DIES_BEFORE] if life.effects == 1 else []
    is_cut_off = ways.breaks_while_running or not ways.elsewhere
    lost = [REPLY_LOST, LATE, LOST_AND_LATE] if is_cut_off else [REPLY_LOST, LATE]
    return [*map(Option, ways.refusals), *first, *lost, DIES_AFTER, DIES_AND_LATE, LEASE_LOST]


class _Effect(Generic[T]):
    def __init__(self, life: Life, do: Callable[[], Awaitable[T]], ways: Ways[T]) -> None:
        self._life = life
        self._stage = life.stage
        self._do = do
        self._ways = ways

    async def happen(self, option: Option) -> T:
        if option.name in self._ways.refusals:
            self._stage.moved()
            return self._ways.refusals[option.name]()
        if option in (AS_IT_SHOULD, LATE):
            return await self._done(self._ways.late if option == LATE else 0.0)
        if option == LEASE_LOST:
            self._life.lose_lease()
            return await self._done(self._ways.overtaken)
        if option in (REPLY_LOST, DIES_AFTER):
            await self._done(0.0)
        elif option == LOST_AND_LATE or (option == DIES_AND_LATE and not self._ways.elsewhere):
            self._stage.later(self._ways.late, self._do)
        if option in (REPLY_LOST, LOST_AND_LATE):
            return self._ways.lost()
        self._life.die()
        if option == DIES_AND_LATE and self._ways.elsewhere:
            return await self._done(self._ways.late)
        raise Killed("the caller is dead")

    async def _done(self, seconds: float) -> T:
        if seconds:
            await self._stage.clock.sleep(seconds)
        answer = await self._stage.effect(self._do)
        self._stage.moved()
        self._life.refuse_the_dead()
        return answer
