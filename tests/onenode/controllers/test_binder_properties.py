"""Whatever claims and volumes there are, and in whatever order they are stepped: pairs are exclusive and stay."""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from orlop.binding import claim_state_rules as state
from support.provisioning.binder_model import BinderModel
from support.provisioning.binding_objects import (
    BOUND_BY_CONTROLLER,
    DRIVER,
    PROVISIONED_BY,
    RWO,
    RWX,
    SELECTED_NODE,
    claim,
    storage_class,
    volume,
)

Object = dict[str, Any]
CLAIMS = ("c0", "c1", "c2")
VOLUMES = ("v0", "v1", "v2", "v3")
CLASSES = [storage_class("late", late=True), storage_class("std", default=True)]
SIZES = st.sampled_from(["1Gi", "2Gi", "3Gi"])
MODES = st.sampled_from([(RWO,), (RWO, RWX)])
OF_CLASS = st.sampled_from(["", "late", "std", "missing"])

claims = st.builds(
    claim,
    size=SIZES,
    modes=MODES,
    of_class=st.one_of(st.none(), OF_CLASS),
    names=st.sampled_from(["", "", *VOLUMES]),
    annotations=st.sampled_from([{}, {SELECTED_NODE: "n1"}]),
)
volumes = st.builds(
    volume,
    size=SIZES,
    modes=MODES,
    of_class=OF_CLASS,
    phase=st.sampled_from(["Pending", "Available"]),
    policy=st.sampled_from(["Retain", "Delete"]),
    # A uid in claimRef is the provisioner's or a restored one; "uid-former" is that of a claim that is gone.
    reserved=st.one_of(st.none(), st.tuples(st.sampled_from(CLAIMS), st.sampled_from(["", "uid-former"]))),
    annotations=st.sampled_from([{}, {PROVISIONED_BY: DRIVER}, {BOUND_BY_CONTROLLER: "yes"}]),
)
moves = st.one_of(
    st.tuples(st.just("step claim"), st.sampled_from(CLAIMS)),
    st.tuples(st.just("step volume"), st.sampled_from(VOLUMES)),
    st.tuples(st.just("make claim"), st.sampled_from(CLAIMS), claims),
    st.tuples(st.just("make volume"), st.sampled_from(VOLUMES), volumes),
    st.tuples(st.just("delete claim"), st.sampled_from(CLAIMS)),
    st.tuples(st.just("delete volume"), st.sampled_from(VOLUMES)),
    st.tuples(st.just("settle")),
)


class History:
    """`pairs` are the bound ones seen so far: the volume's uid by the claim's."""

    def __init__(self) -> None:
        self.model = BinderModel(classes=CLASSES)
        self.pairs: dict[str, str] = {}
        self.made = 0

    def take(self, what: str, *rest: Any) -> None:
        match (what, *rest):
            case "step claim", name if name in self.model.claims:
                self.model.step_claim(name)
            case "step volume", name if name in self.model.volumes:
                self.model.step_volume(name)
            case "make claim", name, made:
                self._make(self.model.claims, name, made)
            case "make volume", name, made:
                self._make(self.model.volumes, name, made)
            case "delete claim", name:
                self.model.claims.pop(name, None)
            case "delete volume", name:
                self.model.volumes.pop(name, None)
            case ("settle",):
                self.model.settle()
        self.check()

    def _make(self, held: dict[str, Object], name: str, made: Object) -> None:
        if name not in held:
            self.made += 1
            held[name] = {**made, "metadata": {**made["metadata"], "name": name, "uid": f"uid-{self.made}"}}

    def check(self) -> None:
        of_volume: dict[str, str] = {}
        for one in self.model.claims.values():
            held = self.model.volumes.get(state.volume_name(one))
            if state.is_bound(one) and state.phase(one) == "Bound" and held is not None:
                mine, its = one["metadata"]["uid"], held["metadata"]["uid"]
                assert of_volume.setdefault(its, mine) == mine, "two claims are bound to one volume"
                self._keeps(one, held)
        live = {one["metadata"]["uid"]: one for one in self.model.claims.values()}
        volume_uids = {one["metadata"]["uid"] for one in self.model.volumes.values()}
        for mine, its in self.pairs.items():
            if mine in live and its in volume_uids:
                assert state.phase(live[mine]) == "Bound", "a bound claim whose volume is there is not bound any more"
                assert of_volume.get(its) == mine, "a bound pair changed"

    def _keeps(self, one: Object, held: Object) -> None:
        """A volume that was deleted and made again under its name is another one: the claim may take it."""
        reference = held["spec"].get("claimRef") or {}
        if reference.get("uid") == one["metadata"]["uid"]:
            self.pairs[one["metadata"]["uid"]] = held["metadata"]["uid"]


@given(st.lists(moves, max_size=40))
def test_two_claims_never_have_one_volume_and_a_bound_pair_never_changes(steps: list[tuple[Any, ...]]):
    history = History()
    for step in steps:
        history.take(*step)
    history.take("settle")


@given(st.lists(claims, max_size=3), st.lists(volumes, max_size=4), st.randoms(use_true_random=False))
def test_who_gets_what_does_not_depend_on_the_order_in_which_volumes_and_classes_are_listed(
    made: list[Object], offered: list[Object], random: Random
):
    named_claims = [_called(one, name) for one, name in zip(made, CLAIMS, strict=False)]
    named_volumes = [_called(one, name) for one, name in zip(offered, VOLUMES, strict=False)]
    ends = []
    for _ in range(2):
        model = BinderModel(claims=named_claims, volumes=named_volumes, classes=CLASSES)
        model.settle()
        ends.append((model.claims, {name: model.volumes[name] for name in sorted(model.volumes)}))
        named_volumes = random.sample(named_volumes, len(named_volumes))

    assert ends[0] == ends[1]


@given(st.lists(claims, max_size=3), st.lists(volumes, max_size=4))
def test_what_has_come_to_rest_stays_as_it_is(made: list[Object], offered: list[Object]):
    model = BinderModel(
        claims=[_called(one, name) for one, name in zip(made, CLAIMS, strict=False)],
        volumes=[_called(one, name) for one, name in zip(offered, VOLUMES, strict=False)],
        classes=CLASSES,
    )
    model.settle()
    before = dict(model.claims), dict(model.volumes)
    model.settle()

    assert (model.claims, model.volumes) == before


def _called(obj: Object, name: str) -> Object:
    return {**obj, "metadata": {**obj["metadata"], "name": name, "uid": f"uid-{name}"}}
