"""Rules of workloads in any state: bounds hold at each step, and from every state the end is reached."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from onenode.controllers.workloads import rollout_rules
from onenode.controllers.workloads import stateful_set_rules as rules
from onenode.controllers.workloads.revision_rules import CreateRevision, new_revision
from onenode.controllers.workloads.stateful_pod_rules import new_claim, new_member, ordinals
from orlop.kube.objects import ObjectName, name, name_of
from support.api.api_objects import stateful_set, workload

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MOST_STEPS = 60
SHARES = st.one_of(st.integers(0, 4), st.integers(0, 100).map(lambda number: f"{number}%"))
READY = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}


# ---- rollouts --------------------------------------------------------------------------------------------------------


def replica_set(label: str, replicas: int, available: int) -> dict[str, Any]:
    status = {"replicas": replicas, "availableReplicas": min(replicas, available)}
    return {"metadata": {"name": label}, "spec": {"replicas": replicas}, "status": status}


@st.composite
def rollouts(draw: st.DrawFn) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    rolling = {"maxSurge": draw(SHARES), "maxUnavailable": draw(SHARES)}
    strategy = {"type": "RollingUpdate", "rollingUpdate": rolling}
    deployment = workload(replicas=draw(st.integers(0, 8)), strategy=strategy)
    counts = draw(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=4))
    return deployment, [replica_set(f"r{number}", *each) for number, each in enumerate(counts)]


@given(rollouts())
def test_a_rollout_never_leaves_its_bounds_and_reaches_its_end(drawn: tuple[dict[str, Any], list[dict[str, Any]]]):
    deployment, sets = drawn
    wanted, bounds = deployment["spec"]["replicas"], rollout_rules.bounds(deployment)
    for _ in range(MOST_STEPS):
        *old, new = sets
        total = sum(each["spec"]["replicas"] for each in sets)
        available = sum(map(rollout_rules.available, sets))
        step = next(rollout_rules.scalings(deployment, new, old), None)
        if step is None:
            # Pods that were not available get so now; without any, nothing is left to be done.
            if all(each["status"]["availableReplicas"] == each["spec"]["replicas"] for each in sets):
                break
            sets = [replica_set(name(each), each["spec"]["replicas"], 100) for each in sets]
            continue
        place = sets.index(step.replica_set)
        sets[place] = replica_set(name(sets[place]), step.replicas, step.replica_set["status"]["availableReplicas"])
        after = sum(each["spec"]["replicas"] for each in sets)
        assert after <= max(total, bounds.most)
        assert sum(map(rollout_rules.available, sets)) >= min(available, bounds.least)
    assert [each["spec"]["replicas"] for each in sets] == [0] * (len(sets) - 1) + [wanted]


# ---- stateful sets ---------------------------------------------------------------------------------------------------


def with_uid(obj: dict[str, Any], uid: str, **more: Any) -> dict[str, Any]:
    return {**obj, "metadata": {"namespace": "default", "uid": uid, "resourceVersion": "1", **obj["metadata"]}, **more}


@st.composite
def set_views(draw: st.DrawFn) -> rules.SetView:
    """A set with pods of two revisions in any state, of which some are one too many."""
    claim = {"metadata": {"name": "data"}, "spec": {}}
    policy = draw(st.sampled_from(["OrderedReady", "Parallel"]))
    policies = {"whenDeleted": draw(st.sampled_from(["Retain", "Delete"])), "whenScaled": "Retain"}
    made = with_uid(
        stateful_set(
            replicas=draw(st.integers(0, 4)),
            podManagementPolicy=policy,
            volumeClaimTemplates=[claim],
            persistentVolumeClaimRetentionPolicy=policies,
            updateStrategy={"type": "RollingUpdate", "rollingUpdate": {"partition": draw(st.integers(0, 2))}},
        ),
        "set",
    )
    pods, claims = [], {}
    for ordinal in draw(st.sets(st.integers(0, 6))):
        pod = new_member(made, ordinal, made["spec"]["template"], draw(st.sampled_from(["w-old", "w-new"])))
        status = draw(st.sampled_from([READY, {"phase": "Pending"}, {"phase": "Failed"}]))
        pods.append(with_uid(pod, f"pod {ordinal}", status=status))
    for ordinal in draw(st.sets(st.integers(0, 6))):
        volume = ObjectName("default", f"data-w-{ordinal}")
        claims[volume] = with_uid(new_claim(made, "data", volume), f"claim {ordinal}")
    revision = with_uid(new_revision(made, 1), "revision")
    return rules.SetView(made, tuple(pods), (revision,), claims, NOW)


@given(set_views())
def test_a_set_in_any_state_reaches_its_end_and_loses_no_claim(view: rules.SetView):
    is_ordered = view.is_ordered
    for number in range(MOST_STEPS):
        step = rules.next_step(view)
        before = view
        match step:
            case rules.Wait() | rules.WriteStatus():
                unready = [pod for pod in view.pods if pod["status"] != READY]
                if not unready:
                    break
                # A kubelet starts them, in whatever order it likes.
                view = _with_pods(view, [{**pod, "status": READY} for pod in view.pods])
            case rules.CreateSetClaim(claim):
                view = _with_claim(view, with_uid(dict(claim), f"new claim {number}"))
            case rules.OwnSetClaim(claim, patch):
                owners = patch.changes["metadata"]["ownerReferences"]
                metadata = {**claim["metadata"], "ownerReferences": owners or []}
                view = _with_claim(view, {**claim, "metadata": metadata})
            case rules.CreateMember(pod):
                assert not is_ordered or all(each["status"] == READY for each in view.pods if _below(each, pod))
                made = with_uid(dict(pod), f"new pod {number}", status={"phase": "Pending"})
                view = _with_pods(view, [*view.pods, made])
            case rules.DeleteMember(pod):
                view = _with_pods(view, [each for each in view.pods if name(each) != name(pod)])
            case _:
                raise AssertionError(f"{step} was not expected")
        assert before.claims.keys() <= view.claims.keys()
    assert sorted(view.members) == list(ordinals(view.stateful_set))
    assert all(pod["status"] == READY for pod in view.pods)


def _below(pod: dict[str, Any], other: Any) -> bool:
    return int(name(pod).rpartition("-")[2]) < int(name(other).rpartition("-")[2])


def _with_pods(view: rules.SetView, pods: list[dict[str, Any]]) -> rules.SetView:
    return rules.SetView(view.stateful_set, tuple(pods), view.revisions, view.claims, NOW)


def _with_claim(view: rules.SetView, claim: dict[str, Any]) -> rules.SetView:
    return rules.SetView(view.stateful_set, view.pods, view.revisions, {**view.claims, name_of(claim): claim}, NOW)


def test_a_set_without_a_revision_gets_one_before_any_pod():
    made = with_uid(stateful_set(replicas=1), "set")

    assert isinstance(rules.next_step(rules.SetView(made, (), (), {}, NOW)), CreateRevision)
