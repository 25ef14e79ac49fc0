"""How far the containers of a pod are, and what is to be done next with them. Pure.

Init containers run one after the other, each to its end; then all the others, in parallel. What has ended is started
again as the pod's restart policy says, after kubelet's back-off: the first restart is immediate; after it 10 seconds
must pass from each end to the next start, doubled each time, at most five minutes. A container that ran for more than
ten minutes since its last restart begins anew. Values are frozen: each change makes a new one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from orlop.kube.objects import metadata, read_time

FIRST_BACKOFF_SECONDS: Final = 10.0
LONGEST_BACKOFF_SECONDS: Final = 300.0
BACKOFF_FORGOTTEN_SECONDS: Final = 2 * LONGEST_BACKOFF_SECONDS


@dataclass(frozen=True, slots=True)
class CrashBackoff:
    """`seconds` must pass from an end to the next start; `since` is when the last restart was allowed."""

    seconds: float
    since: float


@dataclass(frozen=True, slots=True)
class RestartNow:
    """And remember this for the next time."""

    backoff: CrashBackoff


@dataclass(frozen=True, slots=True)
class RestartLater:
    until: float
    backoff_seconds: float


def restart_decision(backoff: CrashBackoff | None, ended: float, now: float) -> RestartNow | RestartLater:
    """Instants are those of a clock that never goes back."""
    if backoff is None or ended - backoff.since > BACKOFF_FORGOTTEN_SECONDS:
        return RestartNow(CrashBackoff(FIRST_BACKOFF_SECONDS, now))
    if now < ended + backoff.seconds:
        return RestartLater(ended + backoff.seconds, backoff.seconds)
    return RestartNow(CrashBackoff(min(LONGEST_BACKOFF_SECONDS, backoff.seconds * 2), now))


LOST_CODE: Final = 255
LOST_REASON: Final = "Unknown"
"""What container runtimes say of a container that a reboot ended; its end is when they found it so."""
LOST_MESSAGE: Final = (
    "The container ended with the node's process, which could not see how: the time is that of the next start."
)
START_ERROR_CODE: Final = 128
FINAL_PHASES: Final = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class Waiting:
    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class Running:
    since: datetime


@dataclass(frozen=True, slots=True)
class Terminated:
    code: int
    reason: str
    began: datetime | None
    ended: datetime
    message: str = ""
    container_id: str = ""


@dataclass(frozen=True, slots=True)
class ContainerLife:
    """One container through all its attempts. `attempt` is the number of the latest one, -1 before the first."""

    name: str
    state: Waiting | Running | Terminated
    attempt: int = -1
    ended: Terminated | None = None
    """How the latest attempt that has ended did so."""
    ended_instant: float = 0.0
    backoff: CrashBackoff | None = None
    not_before: float = 0.0
    """When it may be tried again to start it; infinite where nothing but another spec would help."""


@dataclass(frozen=True, slots=True)
class PodLife:
    restart_policy: str
    init: tuple[ContainerLife, ...]
    main: tuple[ContainerLife, ...]

    def container(self, name: str) -> ContainerLife:
        return next(one for one in (*self.init, *self.main) if one.name == name)

    def changed(self, name: str, **changes: Any) -> PodLife:
        def each(lives: tuple[ContainerLife, ...]) -> tuple[ContainerLife, ...]:
            return tuple(replace(one, **changes) if one.name == name else one for one in lives)

        return replace(self, init=each(self.init), main=each(self.main))


@dataclass(frozen=True, slots=True)
class Start:
    """This container, as this attempt."""

    name: str
    attempt: int
    backoff: CrashBackoff | None


@dataclass(frozen=True, slots=True)
class Rest:
    """Nothing can be done before something ends, or before the instant; who backs off until then, and how long."""

    until: float | None = None
    backing_off: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    """Nothing of it will ever run again."""

    succeeded: bool


Step = Start | Rest | Finished


# ---- what comes next -------------------------------------------------------------------------------------------------


def next_step(life: PodLife, now: float) -> Step:
    for one in life.init:
        if is_done(one):
            continue
        if is_failed(one) and life.restart_policy == "Never":
            return Finished(succeeded=False)
        return _step_of_all((_step_of(one, restarts=True, now=now),))
    if all(_is_over(one, life.restart_policy) for one in life.main):
        return Finished(succeeded=all(is_done(one) for one in life.main))
    steps = (_step_of(one, restarts=not _is_over(one, life.restart_policy), now=now) for one in life.main)
    return _step_of_all(steps)


def _step_of_all(steps: Iterable[Start | Rest]) -> Step:
    rests = []
    for step in steps:
        if isinstance(step, Start):
            return step
        rests.append(step)
    instants = [rest.until for rest in rests if rest.until is not None]
    return Rest(min(instants, default=None), tuple(who for rest in rests for who in rest.backing_off))


def _step_of(one: ContainerLife, *, restarts: bool, now: float) -> Start | Rest:
    if isinstance(one.state, Running):
        return Rest()
    if now < one.not_before:
        return Rest(one.not_before if one.not_before < math.inf else None)
    if one.ended is None:
        return Start(one.name, one.attempt + 1, one.backoff)
    if not restarts:
        return Rest()
    match restart_decision(one.backoff, one.ended_instant, now):
        case RestartNow(backoff):
            return Start(one.name, one.attempt + 1, backoff)
        case RestartLater(until, seconds):
            return Rest(until, ((one.name, seconds),))


def is_done(one: ContainerLife) -> bool:
    """It has ended well, and nothing came after that."""
    return isinstance(one.state, Terminated) and one.state.code == 0


def is_failed(one: ContainerLife) -> bool:
    return not isinstance(one.state, Running) and one.ended is not None and one.ended.code != 0


def _is_over(one: ContainerLife, policy: str) -> bool:
    """It has ended, and is not started again."""
    if isinstance(one.state, Running) or one.ended is None or policy == "Always":
        return False
    return policy == "Never" or one.ended.code == 0


# ---- what happened ---------------------------------------------------------------------------------------------------


def with_started(life: PodLife, start: Start, now: datetime) -> PodLife:
    return life.changed(start.name, state=Running(now), attempt=start.attempt, backoff=start.backoff)


def with_ended(life: PodLife, name: str, how: Terminated, instant: float) -> PodLife:
    return life.changed(name, state=how, ended=how, ended_instant=instant)


def with_not_startable(life: PodLife, name: str, why: Waiting, not_before: float) -> PodLife:
    return life.changed(name, state=why, not_before=not_before)


def with_backoff_shown(life: PodLife, name: str, message: str) -> PodLife:
    return life.changed(name, state=Waiting("CrashLoopBackOff", message))


def exit_reason(code: int) -> str:
    return "Completed" if code == 0 else "Error"


# ---- from a pod's object ---------------------------------------------------------------------------------------------


def life_of(pod: Mapping[str, Any], now: datetime, instant: float) -> PodLife:
    """Return the life of a new pod, or of one that an earlier process of ours left: that one is as after a reboot.

    What ran then has ended with the reason Unknown. Init containers run once more before the others, unless nothing of
    the pod is ever restarted.
    """
    spec, status = pod["spec"], pod.get("status") or {}
    first = Waiting("PodInitializing" if spec.get("initContainers") else "ContainerCreating")
    main = _lives(spec["containers"], status.get("containerStatuses"), first, (now, instant))
    init = _lives(spec.get("initContainers") or (), status.get("initContainerStatuses"), first, (now, instant))
    policy = spec.get("restartPolicy") or "Always"
    is_over = status.get("phase") in FINAL_PHASES or all(_is_over(one, policy) for one in main)
    # As kubelet after it lost a pod's sandbox: init containers run again only where a container is started after them.
    if policy != "Never" and not is_over:
        init = tuple(replace(one, state=Waiting("PodInitializing"), ended=None) for one in init)
    return PodLife(policy, init, main)


def _lives(
    specs: Iterable[Mapping[str, Any]],
    statuses: Iterable[Mapping[str, Any]] | None,
    first: Waiting,
    now: tuple[datetime, float],
) -> tuple[ContainerLife, ...]:
    known = {status["name"]: status for status in statuses or ()}
    return tuple(_life_of_one(spec["name"], known.get(spec["name"]), first, now) for spec in specs)


def _life_of_one(
    name: str, status: Mapping[str, Any] | None, first: Waiting, now: tuple[datetime, float]
) -> ContainerLife:
    if status is None or not _has_begun(status):
        return ContainerLife(name, first)
    ended = _latest_end(status, now[0])
    return ContainerLife(name, ended, int(status.get("restartCount") or 0), ended, now[1])


def _has_begun(status: Mapping[str, Any]) -> bool:
    state, last = status.get("state") or {}, status.get("lastState") or {}
    return bool(state.get("running") or state.get("terminated") or last.get("terminated"))


def _latest_end(status: Mapping[str, Any], now: datetime) -> Terminated:
    state, last = status.get("state") or {}, status.get("lastState") or {}
    if running := state.get("running"):
        began = _read(running.get("startedAt"))
        return Terminated(LOST_CODE, LOST_REASON, began, now, LOST_MESSAGE, status.get("containerID") or "")
    ended = state.get("terminated") or last["terminated"]
    return Terminated(
        code=int(ended.get("exitCode") or 0),
        reason=ended.get("reason") or "",
        began=_read(ended.get("startedAt")),
        ended=_read(ended.get("finishedAt")) or now,
        message=ended.get("message") or "",
        container_id=ended.get("containerID") or "",
    )


def _read(text: str | None) -> datetime | None:
    return read_time(text) if text else None


DEFAULT_GRACE_SECONDS: Final = 30
SHORTEST_GRACE_SECONDS: Final = 1
"""kubelet's: also who is deleted without any grace is asked first."""


def grace_seconds(pod: Mapping[str, Any]) -> int:
    """Return the grace period of the deletion, else that of the pod."""
    seconds = metadata(pod).get("deletionGracePeriodSeconds")
    if seconds is None:
        seconds = pod["spec"].get("terminationGracePeriodSeconds")
    return max(SHORTEST_GRACE_SECONDS, DEFAULT_GRACE_SECONDS if seconds is None else int(seconds))
