"""What comes next in a pod's life, and what its status says of it, for all histories."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from onenode.kubelet.pods import pod_life_rules as rules
from onenode.kubelet.pods.pod_life_rules import (
    BACKOFF_FORGOTTEN_SECONDS,
    LONGEST_BACKOFF_SECONDS,
    CrashBackoff,
    Finished,
    PodLife,
    Rest,
    RestartLater,
    RestartNow,
    Running,
    Start,
    Terminated,
    Waiting,
    grace_seconds,
    restart_decision,
)
from onenode.kubelet.pods.pod_status_rules import StatusFacts, backoff_message, pod_phase, pod_status

START = datetime(2026, 1, 1, tzinfo=UTC)
POLICIES = ("Always", "OnFailure", "Never")


def pod(init: int = 0, main: int = 1, policy: str = "Always", **status: Any) -> dict[str, Any]:
    spec: dict[str, Any] = {"restartPolicy": policy, "containers": [{"name": f"c{n}"} for n in range(main)]}
    if init:
        spec["initContainers"] = [{"name": f"i{n}"} for n in range(init)]
    return {"metadata": {"name": "p", "namespace": "d", "uid": "u"}, "spec": spec, "status": status}


class History:
    """A pod through made-up exit codes, one step after the other, as a worker would do it."""

    def __init__(self, of: dict[str, Any], codes: list[int]) -> None:
        self.pod = of
        self.life = rules.life_of(of, START, 0.0)
        self.now = 0.0
        self.codes = codes
        self.started: list[Start] = []
        self.statuses: list[dict[str, Any]] = []

    def moment(self) -> datetime:
        return START + timedelta(seconds=self.now)

    def step(self) -> bool:
        """Whether there is more to come."""
        self.statuses.append(pod_status(self.pod, self.life, StatusFacts(self.moment(), "127.0.0.1", can_start=True)))
        match rules.next_step(self.life, self.now):
            case Start() as start:
                self.started.append(start)
                self.life = rules.with_started(self.life, start, self.moment())
            case Rest(until, backing_off):
                for name, seconds in backing_off:
                    self.life = rules.with_backoff_shown(self.life, name, backoff_message(self.pod, name, seconds))
                return self._wait(until)
            case Finished():
                return False
        return True

    def _wait(self, until: float | None) -> bool:
        running = [one for one in (*self.life.init, *self.life.main) if isinstance(one.state, Running)]
        if running and self.codes:
            self.now += 1.0
            code = self.codes.pop()
            ended = Terminated(code, rules.exit_reason(code), None, self.moment())
            self.life = rules.with_ended(self.life, running[0].name, ended, self.now)
            return True
        if until is None:
            return False
        assert until > self.now
        self.now = until
        return bool(self.codes)

    def lived(self) -> History:
        for _ in range(500):
            if not self.step():
                return self
        raise AssertionError("the history has no end")


pods = st.builds(
    pod, init=st.integers(0, 3), main=st.integers(1, 3), policy=st.sampled_from(POLICIES), phase=st.just("Pending")
)
codes = st.lists(st.sampled_from([0, 0, 0, 1, 137]), max_size=25)


@given(pods, codes)
def test_no_container_begins_before_the_init_containers_have_succeeded(of: dict[str, Any], given_codes: list[int]):
    history = History(of, given_codes).lived()
    names = [start.name for start in history.started]

    if "c0" in names:
        before = names[: names.index("c0")]
        assert list(dict.fromkeys(before)) == [f"i{n}" for n in range(len(of["spec"].get("initContainers", ())))]


@given(pods, codes)
def test_attempts_are_counted_one_by_one(of: dict[str, Any], given_codes: list[int]):
    history = History(of, given_codes).lived()

    for name in {start.name for start in history.started}:
        attempts = [start.attempt for start in history.started if start.name == name]
        assert attempts == list(range(len(attempts)))


@given(pods, codes)
def test_nothing_is_started_twice_where_nothing_is_ever_restarted(of: dict[str, Any], given_codes: list[int]):
    of["spec"]["restartPolicy"] = "Never"
    names = [start.name for start in History(of, given_codes).lived().started]

    assert len(names) == len(set(names))


@given(pods, codes)
def test_a_final_phase_comes_with_the_end_and_is_never_left(of: dict[str, Any], given_codes: list[int]):
    history = History(of, given_codes).lived()
    phases = [status["phase"] for status in history.statuses]
    finals = [phase for phase in phases if phase in rules.FINAL_PHASES]

    assert len(set(finals)) <= 1
    assert phases[len(phases) - len(finals) :] == finals
    match rules.next_step(history.life, history.now):
        case Finished(succeeded):
            assert pod_phase(history.life) == ("Succeeded" if succeeded else "Failed")
        case _:
            assert finals == []


@given(pods, codes)
def test_a_pod_that_always_restarts_never_finishes(of: dict[str, Any], given_codes: list[int]):
    of["spec"]["restartPolicy"] = "Always"

    assert not isinstance(rules.next_step(History(of, given_codes).lived().life, math.inf), Finished)


@given(pods, codes)
def test_a_pod_is_ready_exactly_while_all_its_containers_run(of: dict[str, Any], given_codes: list[int]):
    for status in History(of, given_codes).lived().statuses:
        ready = {one["type"]: one["status"] for one in status["conditions"]}["Ready"]
        assert (ready == "True") == all("running" in one["state"] for one in status["containerStatuses"])


@given(pods, codes)
def test_a_status_read_back_after_a_restart_knows_what_has_ended(of: dict[str, Any], given_codes: list[int]):
    history = History(of, given_codes).lived()
    again = rules.life_of({**of, "status": history.statuses[-1]}, history.moment(), 0.0)

    for before, after in zip(history.life.main, again.main, strict=True):
        assert before.attempt in {after.attempt, -1}
        assert not isinstance(after.state, Running)
        if isinstance(before.state, Running):
            assert isinstance(after.state, Terminated)
            assert (after.state.code, after.state.reason) == (255, "Unknown")
            assert "ended with the node's process" in after.state.message
        elif isinstance(before.state, Terminated):
            assert isinstance(after.state, Terminated)
            assert after.state.code == before.state.code


@given(pods, codes)
def test_a_finished_pod_stays_finished_after_a_restart_and_runs_no_init_container_again(
    of: dict[str, Any], given_codes: list[int]
):
    history = History(of, given_codes).lived()
    step = rules.next_step(history.life, history.now)
    assume(isinstance(step, Finished))
    # The process may have died between the end of the last container and the write of the final phase.
    for phase in (history.statuses[-1]["phase"], "Running"):
        status = {**history.statuses[-1], "phase": phase}
        again = rules.life_of({**of, "status": status}, history.moment(), 0.0)
        assert rules.next_step(again, 0.0) == step


@pytest.mark.parametrize("policy", POLICIES)
def test_init_containers_of_a_pod_that_others_have_failed_keep_their_end_after_a_restart(policy: str):
    """An eviction writes the phase while containers run."""
    history = History(pod(init=1, main=1, policy=policy, phase="Pending"), [0]).lived()
    status = {**history.statuses[-1], "phase": "Failed"}
    again = rules.life_of({**history.pod, "status": status}, history.moment(), 0.0)
    assert [one.state.code for one in again.init if isinstance(one.state, Terminated)] == [0]


# ---- back-off --------------------------------------------------------------------------------------------------------


def test_restarts_come_ever_later_as_kubelets_do():
    backoff, waits, now = None, [], 0.0
    for _ in range(8):
        ended = now
        decision = restart_decision(backoff, ended, now)
        if isinstance(decision, RestartLater):
            now = decision.until
            decision = restart_decision(backoff, ended, now)
        assert isinstance(decision, RestartNow)
        waits.append(now - ended)
        backoff = decision.backoff

    assert waits == [0, 10, 20, 40, 80, 160, 300, 300]


@given(st.floats(10, LONGEST_BACKOFF_SECONDS), st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e6))
def test_nobody_waits_longer_than_the_back_off(seconds: float, since: float, ran: float, later: float):
    decision = restart_decision(CrashBackoff(seconds, since), since + ran, since + ran + later)

    if isinstance(decision, RestartLater):
        assert later < seconds
        assert decision.until - (since + ran + later) <= LONGEST_BACKOFF_SECONDS + 1e-6
        assert ran <= BACKOFF_FORGOTTEN_SECONDS


def test_who_ran_for_ten_minutes_begins_anew():
    decision = restart_decision(CrashBackoff(300.0, 0.0), 601.0, 601.0)

    assert decision == RestartNow(CrashBackoff(10.0, 601.0))


# ---- examples --------------------------------------------------------------------------------------------------------


def test_what_cannot_be_started_now_is_waited_for():
    life = rules.life_of(pod(), START, 0.0)
    later = rules.with_not_startable(life, "c0", Waiting("CreateContainerConfigError"), 10.0)
    never = rules.with_not_startable(life, "c0", Waiting("CreateContainerError"), math.inf)

    assert rules.next_step(later, 5.0) == Rest(10.0)
    assert isinstance(rules.next_step(later, 10.0), Start)
    assert rules.next_step(never, 1e9) == Rest(None)


def test_a_back_off_is_told_in_kubelets_words():
    assert backoff_message(pod(), "c0", 80.0) == "back-off 1m20s restarting failed container=c0 pod=p_d(u)"


def test_a_pod_that_ran_before_stays_running_while_its_init_containers_run_again():
    ran = Terminated(255, "Unknown", START, START)
    life = rules.life_of(pod(init=1), START, 0.0).changed("c0", state=ran, ended=ran, attempt=0)

    assert pod_phase(life) == "Running"
    assert rules.next_step(life, 0.0) == Start("i0", 0, None)


def test_a_reason_that_no_longer_holds_leaves_the_condition():
    life = rules.life_of(pod(), START, 0.0)
    facts = StatusFacts(START, "127.0.0.1", can_start=True)
    before = pod_status(pod(), life, facts)
    running = life.changed("c0", state=Running(START), attempt=0)
    after = pod_status(pod(**before), running, facts)
    ready = next(one for one in after["conditions"] if one["type"] == "Ready")

    assert (ready["status"], "reason" in ready, "message" in ready) == ("True", False, False)


@pytest.mark.parametrize(
    ("told", "own", "expected"), [(None, None, 30), (None, 7, 7), (3, 7, 3), (0, 7, 1), (None, 0, 1)]
)
def test_the_grace_period_is_the_deletions_else_the_pods_and_at_least_a_second(
    told: int | None, own: int | None, expected: int
):
    made = pod()
    made["metadata"]["deletionGracePeriodSeconds"] = told
    made["spec"]["terminationGracePeriodSeconds"] = own

    assert grace_seconds(made) == expected


def test_a_life_is_a_value():
    life = rules.life_of(pod(), START, 0.0)

    assert replace(life) == life
    assert isinstance(life, PodLife)
