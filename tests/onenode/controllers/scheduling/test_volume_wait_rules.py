"""What follows for a pod whose node is chosen while its claims are not bound yet."""

from __future__ import annotations

from typing import Any

import pytest

from onenode.controllers.scheduling.volume_wait_rules import (
    AllBound,
    BindingFacts,
    BindingFailed,
    ProvisionFacts,
    Step,
    Wait,
    WaitFacts,
    WriteClaim,
    WriteVolume,
    next_step,
)
from orlop.kube.objects import ObjectName
from support.scheduling.searched_nodes import bound_claim, claim, claim_ref, volume

Object = dict[str, Any]
C = ObjectName("default", "c")
SELECTED = "volume.kubernetes.io/selected-node"
RESERVED = volume(claimRef=claim_ref(uid="c"))
OURS, THEIRS = {SELECTED: "n1"}, {SELECTED: "n2"}


def binding(pvc: Object | None, pv: Object | None, to_write: Object | None = None) -> BindingFacts:
    return BindingFacts(C, "v", to_write, pvc, pv)


def provision(pvc: Object | None, pv: Object | None = None, to_write: Object | None = None) -> ProvisionFacts:
    return ProvisionFacts(C, to_write, pvc, pv)


def step(*facts: BindingFacts | ProvisionFacts, labels: Object | None = None, waited: float = 0.0) -> Step:
    bindings = tuple(one for one in facts if isinstance(one, BindingFacts))
    provisions = tuple(one for one in facts if isinstance(one, ProvisionFacts))
    return next_step(WaitFacts("n1", {"host": "n1"} if labels is None else labels, bindings, provisions, waited))


STEPS: list[tuple[str, Step, Step]] = [
    ("nothing to wait for", step(), AllBound()),
    ("a volume is bound", step(binding(bound_claim(), RESERVED)), AllBound()),
    ("a volume is not bound yet", step(binding(claim(), RESERVED)), Wait(600)),
    (
        "the volume is gone",
        step(binding(claim(), None)),
        BindingFailed('failed to check binding: could not find v1.PersistentVolume "v"'),
    ),
    (
        "its claim is gone",
        step(binding(None, RESERVED)),
        BindingFailed('failed to check binding: could not find v1.PersistentVolumeClaim "default/c"'),
    ),
    ("binding-claimref-nil", step(binding(claim(), volume())), BindingFailed('ClaimRef got reset for pv "v"')),
    (
        "binding-claimref-uid-empty",
        step(binding(claim(), volume(claimRef=claim_ref()))),
        BindingFailed('ClaimRef got reset for pv "v"'),
    ),
    (
        "the node lost its label",
        step(binding(claim(), volume(on="n1", claimRef=claim_ref(uid="c"))), labels={}),
        BindingFailed('pv "v" node affinity doesn\'t match node "n1": no matching NodeSelectorTerms'),
    ),
    ("provisioning goes on", step(provision(claim(annotations=OURS))), Wait(600)),
    ("provisioned and bound", step(provision(bound_claim(annotations=OURS), volume(on="n1"))), AllBound()),
    (
        "tolerate-provisioning-pvc-bound-pv-not-found",
        step(provision(bound_claim(annotations=OURS))),
        Wait(600),
    ),
    (
        "provisioned and not bound yet",
        step(provision(claim(annotations=OURS, volumeName="v"), volume(on="n1"))),
        Wait(600),
    ),
    (
        "node-affinity-fails-dynamic-provisioning",
        step(provision(claim(annotations=OURS, volumeName="v"), volume(on="n2"))),
        BindingFailed('pv "v" node affinity doesn\'t match node "n1": no matching NodeSelectorTerms'),
    ),
    (
        "provisioning-pvc-selected-node-dropped",
        step(provision(claim(annotations={"a": "b"}))),
        BindingFailed('provisioning failed for PVC "c"'),
    ),
    (
        "provisioning-pvc-selected-node-wrong-node",
        step(provision(claim(annotations=THEIRS))),
        BindingFailed('provisioning failed for PVC "c"'),
    ),
    (
        "all annotations are gone",
        step(provision(claim())),
        BindingFailed('selectedNode annotation reset for PVC "c"'),
    ),
    (
        "the claim to provision is gone",
        step(provision(None)),
        BindingFailed('failed to check provisioning pvc: could not find v1.PersistentVolumeClaim "default/c"'),
    ),
    (
        "binding-times-out",
        step(provision(claim(annotations=OURS)), waited=600),
        BindingFailed("context deadline exceeded"),
    ),
    ("the time is not over", step(provision(claim(annotations=OURS)), waited=599.5), Wait(0.5)),
    (
        "bound in the last moment",
        step(provision(bound_claim(annotations=OURS), volume(on="n1")), waited=600),
        AllBound(),
    ),
    (
        "volumes are written before claims",
        step(provision(claim(), to_write=claim("w")), binding(claim(), volume(), volume("w"))),
        WriteVolume(volume("w")),
    ),
    (
        "claims are written before anything is waited for",
        step(provision(claim(), to_write=claim("w")), binding(claim(), RESERVED)),
        WriteClaim(claim("w")),
    ),
    (
        "one of two is not bound",
        step(binding(bound_claim(), RESERVED), provision(claim(annotations=OURS))),
        Wait(600),
    ),
]


@pytest.mark.parametrize(("found", "expected"), [row[1:] for row in STEPS], ids=[row[0] for row in STEPS])
def test_the_next_step_follows_from_what_became_of_claims_and_volumes(found: Step, expected: Step):
    assert found == expected


def test_a_node_that_is_gone_ends_the_wait():
    found = next_step(WaitFacts("n1", None, (binding(claim(), RESERVED),), (), 0.0))

    assert found == BindingFailed('failed to get node "n1": node "n1" not found')
