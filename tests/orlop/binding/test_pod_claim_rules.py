"""Whether a pod's claims let it be scheduled, in kube-scheduler's words."""

from __future__ import annotations

from typing import Any

import pytest

from orlop.binding.pod_claim_rules import PodClaims, Refused, claims_used, pod_claims
from orlop.kube.objects import ObjectName, name_of
from support.scheduling.searched_nodes import bound_claim, claim, late_class, pod, volume

Object = dict[str, Any]
CLASSES = {"late": late_class(), "now": late_class("now", mode="Immediate")}
VOLUMES = {"v": volume()}


def decide(body: Object, *claims: Object) -> PodClaims | Refused:
    return pod_claims(body, {name_of(one): one for one in claims}, CLASSES, VOLUMES)


EPHEMERAL = {"volumes": [{"name": "data", "ephemeral": {"volumeClaimTemplate": {}}}]}
OWNED = "uid-of-p"
REFUSED: list[tuple[str, Object, list[Object]]] = [
    ('persistentvolumeclaim "c" not found', pod("p", "c"), []),
    (
        'persistentvolumeclaim "c" bound to non-existent persistentvolume "v"',
        pod("p", "c"),
        [bound_claim(deleted=True) | {"status": {"phase": "Lost"}}],
    ),
    ('persistentvolumeclaim "c" is being deleted', pod("p", "c"), [bound_claim(deleted=True)]),
    (
        'waiting for ephemeral volume controller to create the persistentvolumeclaim "p-data"',
        pod(**EPHEMERAL),
        [],
    ),
    (
        "PVC default/p-data was not created for pod default/p (pod is not owner)",
        pod(**EPHEMERAL),
        [claim("p-data", owner="another")],
    ),
    ("pod has unbound immediate PersistentVolumeClaims", pod("p", "c"), [claim(class_name="now")]),
    ("pod has unbound immediate PersistentVolumeClaims", pod("p", "c"), [claim(class_name="missing")]),
    ("pod has unbound immediate PersistentVolumeClaims", pod("p", "c"), [claim(volumeName="v")]),
    ("pod has unbound immediate PersistentVolumeClaims", pod("p", "c", "d"), [claim(), claim("d", class_name="now")]),
    ('persistentvolume "gone" not found', pod("p", "c"), [bound_claim(volume_name="gone")]),
]


@pytest.mark.parametrize(("reason", "body", "claims"), REFUSED, ids=[f"{n} {row[0]}" for n, row in enumerate(REFUSED)])
def test_a_pod_that_no_node_can_help_is_refused(reason: str, body: Object, claims: list[Object]):
    assert decide(body, *claims) == Refused(reason)


def test_claims_are_sorted_into_bound_ones_and_those_that_wait_for_the_node():
    bound, late = bound_claim(), claim("d")

    assert decide(pod("p", "c", "d"), bound, late) == PodClaims((bound,), (late,))


def test_a_claim_that_was_bound_by_hand_has_the_phase_alone():
    by_hand = claim(volumeName="v", phase="Bound")

    assert decide(pod("p", "c"), by_hand) == PodClaims((by_hand,))


def test_an_ephemeral_claim_may_be_bound_to_a_volume_that_is_gone():
    owned = bound_claim("p-data", "gone", owner=OWNED)

    assert decide(pod(**EPHEMERAL), owned) == PodClaims((owned,))


def test_a_claim_that_two_volumes_refer_to_counts_once():
    assert decide(pod("p", "c", "c"), claim()) == PodClaims((), (claim(),))


def test_a_pod_without_claims_asks_for_nothing():
    body = pod(volumes=[{"name": "e", "emptyDir": {}}, {"name": "i", "csi": {"driver": "d"}}])

    assert list(claims_used(body)) == []
    assert decide(body) == PodClaims()


def test_the_first_complaint_counts_in_the_order_of_the_pods_volumes():
    assert decide(pod("p", "a", "b"), claim("b", deleted=True)) == Refused('persistentvolumeclaim "a" not found')
    assert [use.claim for use in claims_used(pod("p", "a", "b"))] == [
        ObjectName("default", "a"),
        ObjectName("default", "b"),
    ]
