from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onenode.apiserver.answers.pod_table_rules import pod_status
from onenode.apiserver.answers.table_columns import age_text, duration_text
from onenode.apiserver.answers.table_rules import SHAPES, column_definitions, table_shape
from orlop.kube import kinds

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
CREATED = "2026-01-01T11:59:15Z"


def cells(kind: kinds.Kind, obj: dict[str, Any]) -> dict[str, Any]:
    shape = table_shape(kind)
    obj.setdefault("metadata", {}).setdefault("name", "x")
    obj["metadata"].setdefault("creationTimestamp", CREATED)
    return dict(zip((one.name for one in shape.columns), shape.cells(obj, NOW), strict=True))


AGES = [
    (0, "0s"), (119, "119s"), (120, "2m"), (200, "3m20s"), (599, "9m59s"), (600, "10m"), (10799, "179m"),
    (10800, "3h"), (12000, "3h20m"), (28799, "7h59m"), (28800, "8h"), (172799, "47h"), (172800, "2d"),
    (180000, "2d2h"), (691199, "7d23h"), (691200, "8d"), (63071999, "729d"), (63072000, "2y"), (63158400, "2y1d"),
    (252288000, "8y"),
]  # fmt: skip


@pytest.mark.parametrize(("seconds", "text"), AGES)
def test_an_age_is_told_as_kubectl_tells_it(seconds: int, text: str):
    assert duration_text(seconds) == text


@given(st.integers(min_value=0, max_value=10**10))
def test_an_age_of_any_length_has_at_most_two_units(seconds: int):
    assert sum(not character.isdigit() for character in duration_text(seconds)) in {1, 2}


@pytest.mark.parametrize("wrong", [None, "", "yesterday", 5])
def test_what_is_no_time_has_no_age(wrong: object):
    assert age_text(wrong, NOW) == "<unknown>"


def test_a_moment_ahead_is_no_age_unless_clocks_differ_by_a_second():
    assert age_text("2026-01-01T12:00:01Z", NOW) == "0s"
    assert age_text("2026-01-01T12:00:05Z", NOW) == "<invalid>"


@pytest.mark.parametrize("kind", kinds.BUILT_IN, ids=lambda kind: kind.resource)
def test_every_kind_has_a_cell_for_each_column_even_of_an_empty_object(kind: kinds.Kind):
    shape = table_shape(kind)

    assert len(shape.cells({}, NOW)) == len(column_definitions(shape))


def test_every_shape_belongs_to_a_kind():
    assert set(SHAPES) <= {kind.resource for kind in kinds.BUILT_IN}


def test_a_kind_without_columns_of_its_own_has_name_and_age():
    drive = kinds.Kind("orlop.dev", "v1", "Drive", "drives", namespaced=False)

    assert cells(drive, {}) == {"Name": "x", "Age": "45s"}


def test_a_bound_claim_shows_its_volume():
    claim = {
        "spec": {"volumeName": "pv1", "storageClassName": "fast", "volumeMode": "Filesystem"},
        "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce", "ReadOnlyMany"]},
    }

    assert cells(kinds.PERSISTENT_VOLUME_CLAIM, claim) == {
        "Name": "x",
        "Status": "Bound",
        "Volume": "pv1",
        "Capacity": "1Gi",
        "Access Modes": "RWO,ROX",
        "StorageClass": "fast",
        "VolumeAttributesClass": "<unset>",
        "Age": "45s",
        "VolumeMode": "Filesystem",
    }


def test_a_claim_on_its_way_out_is_terminating():
    claim = {"metadata": {"deletionTimestamp": CREATED}, "status": {"phase": "Bound"}}

    assert cells(kinds.PERSISTENT_VOLUME_CLAIM, claim)["Status"] == "Terminating"


def test_the_default_class_is_marked():
    annotations = {"storageclass.kubernetes.io/is-default-class": "true"}

    shown = cells(kinds.STORAGE_CLASS, {"metadata": {"annotations": annotations}, "provisioner": "csi.orlop.dev"})

    assert shown["Name"] == "x (default)"
    assert shown["AllowVolumeExpansion"] is False


def test_a_node_shows_its_roles_and_whether_it_takes_pods():
    node = {
        "metadata": {"labels": {"node-role.kubernetes.io/worker": "", "node-role.kubernetes.io/control-plane": ""}},
        "spec": {"unschedulable": True},
        "status": {"conditions": [{"type": "Ready", "status": "True"}], "nodeInfo": {"kubeletVersion": "v1.37.0"}},
    }

    shown = cells(kinds.NODE, node)

    assert (shown["Status"], shown["Roles"]) == ("Ready,SchedulingDisabled", "control-plane,worker")


def waiting(reason: str) -> dict[str, Any]:
    return {"state": {"waiting": {"reason": reason}}}


def ended(code: int, reason: str = "") -> dict[str, Any]:
    return {"state": {"terminated": {"exitCode": code, "reason": reason}}}


STATUSES = [
    ({"status": {"phase": "Running"}}, "Running"),
    ({"status": {"phase": "Failed", "reason": "Evicted"}}, "Evicted"),
    ({"status": {"phase": "Pending", "containerStatuses": [waiting("ContainerCreating")]}}, "ContainerCreating"),
    ({"status": {"phase": "Failed", "containerStatuses": [ended(1, "Error")]}}, "Error"),
    ({"status": {"phase": "Failed", "containerStatuses": [ended(3)]}}, "ExitCode:3"),
    ({"metadata": {"deletionTimestamp": CREATED}, "status": {"phase": "Running"}}, "Terminating"),
    ({"metadata": {"deletionTimestamp": CREATED}, "status": {"phase": "Succeeded"}}, "Succeeded"),
    (
        {
            "spec": {"initContainers": [{}, {}]},
            "status": {"phase": "Pending", "initContainerStatuses": [ended(0), {"state": {"running": {}}}]},
        },
        "Init:1/2",
    ),
    (
        {
            "spec": {"initContainers": [{}]},
            "status": {"phase": "Pending", "initContainerStatuses": [ended(1, "Error")]},
        },
        "Init:Error",
    ),
]


@pytest.mark.parametrize(("pod", "status"), STATUSES, ids=[status for _, status in STATUSES])
def test_a_pod_s_status_is_one_word(pod: dict[str, Any], status: str):
    assert pod_status(pod) == status


def test_restarts_tell_when_the_last_one_was():
    finished = (NOW - timedelta(minutes=5)).strftime("%Y-%m-%dT%H:%M:%SZ")
    container = {"restartCount": 3, "ready": True, "lastState": {"terminated": {"finishedAt": finished}}}
    pod = {"spec": {"containers": [{}, {}]}, "status": {"phase": "Running", "containerStatuses": [container]}}

    shown = cells(kinds.POD, pod)

    assert (shown["Ready"], shown["Restarts"]) == ("1/2", "3 (5m ago)")
