"""A list of any length is judged in about the time it takes to read it: nothing is compared with everything.

The lists here are so long that most tests would run into their time limit, or need gigabytes, if it were.
"""

from __future__ import annotations

from typing import Any

import pytest

from onenode.apiserver.kinds.container_validation_rules import mounts
from onenode.apiserver.kinds.workload_rules import with_claim_volumes
from onenode.apiserver.schema.field_rules import MOST_COMPARED_LINES, difference
from support.api.kube_rules import CONTAINER, STORAGE, stored, update, wrong, wrong_change

MANY = 50_000


def test_the_terms_of_a_topology_are_compared_with_all_before_them():
    terms = [{"matchLabelExpressions": [{"key": "k", "values": [f"v{number}"]}]} for number in range(MANY)]

    sentences = wrong(STORAGE, "StorageClass", {"provisioner": "p", "allowedTopologies": [*terms, terms[7]]})

    assert sentences == [f'allowedTopologies[{MANY}].matchLabelExpressions: Duplicate value: ""']


def test_two_terms_mean_the_same_in_any_order():
    one, other = {"key": "a", "values": ["x", "y"]}, {"key": "b", "values": ["z"]}
    terms = [{"matchLabelExpressions": [one, other]}, {"matchLabelExpressions": [other, {**one, "values": ["y", "x"]}]}]

    sentences = wrong(STORAGE, "StorageClass", {"provisioner": "p", "allowedTopologies": terms})

    assert sentences == ['allowedTopologies[1].matchLabelExpressions: Duplicate value: ""']


def test_the_values_of_a_term_are_compared_with_all_before_them():
    values = [f"v{number}" for number in range(MANY)]
    terms = [{"matchLabelExpressions": [{"key": "k", "values": [*values, "v7"]}]}]

    sentences = wrong(STORAGE, "StorageClass", {"provisioner": "p", "allowedTopologies": terms})

    path = f"allowedTopologies[0].matchLabelExpressions[0].values[{MANY}]"
    assert sentences == [f'{path}: Duplicate value: "v7"']


def test_the_topology_keys_of_a_node_are_compared_with_all_before_them():
    keys = [f"k{number}" for number in range(MANY)]
    drivers = [{"name": "d", "nodeID": "n", "topologyKeys": [*keys, "k7"]}]

    assert wrong(STORAGE, "CSINode", {"spec": {"drivers": drivers}}) == ['spec.drivers[0]: Duplicate value: "k7"']


def test_the_addresses_of_a_node_are_compared_with_all_before_them():
    node = stored("v1", "Node", {})
    addresses = [{"type": "InternalIP", "address": str(number)} for number in range(MANY)]

    sentences = wrong_change(node, "status", status={"addresses": [*addresses, addresses[7]]})

    assert sentences == [f'status.addresses[{MANY}]: Duplicate value: {{"address":"7","type":"InternalIP"}}']


def pod(**spec: Any) -> dict[str, Any]:
    return {"spec": {"containers": [CONTAINER], **spec}}


def test_the_mounts_of_a_container_are_compared_with_all_devices():
    names = [f"v{number}" for number in range(2 * MANY)]
    volumes = {name: {"name": name, "persistentVolumeClaim": {"claimName": "c"}} for name in [*names, "last"]}
    container = {
        "volumeMounts": [{"name": name, "mountPath": f"/m/{name}"} for name in names[:MANY]],
        "volumeDevices": [
            *({"name": name, "devicePath": f"/d/{name}"} for name in names[MANY:]),
            {"name": "last", "devicePath": "/m/v7"},
        ],
    }

    sentences = [str(cause) for cause in mounts(container, volumes, "c")]

    why = "must not already exist as a path in volumeDevices"
    assert sentences == [f'c.volumeMounts[7].mountPath: Invalid value: "/m/v7": {why}']


def test_the_tolerations_of_a_pod_are_compared_with_all_it_had():
    tolerations = [{"key": f"k{number}", "operator": "Exists"} for number in range(30_000)]
    old = stored("v1", "Pod", pod(tolerations=tolerations))
    kept = old["spec"]["tolerations"]

    assert update(old, {**old, "spec": {**old["spec"], "tolerations": kept[::-1]}}).causes == ()
    gone = update(old, {**old, "spec": {**old["spec"], "tolerations": kept[1:]}}).causes
    assert [cause.field for cause in gone] == ["spec.tolerations"]


def test_the_volumes_of_a_stateful_set_are_compared_with_all_its_claims():
    volumes = [{"name": f"v{number}"} for number in range(2 * MANY)]
    claims = [{"metadata": {"name": f"c{number}"}} for number in range(2 * MANY)]

    made = with_claim_volumes({"spec": {"template": {"spec": {"volumes": volumes}}, "volumeClaimTemplates": claims}})

    assert len(made["spec"]["template"]["spec"]["volumes"]) == 4 * MANY


def test_of_many_controllers_few_are_told():
    """Each is told with the whole list."""
    owners = [
        {"apiVersion": "v1", "kind": "Node", "name": f"n{number}", "uid": "u", "controller": True}
        for number in range(10_000)
    ]

    sentences = wrong("v1", "ConfigMap", {"metadata": {"ownerReferences": owners}})

    assert len(sentences) == 4
    assert sentences[0].endswith('Found "true" in references for Node/n0 and Node/n1')


def test_of_a_change_of_very_many_lines_the_first_are_shown():
    old = {"list": [f"a{number}" for number in range(MANY)]}
    new = {"list": [f"a{number}" for number in range(MANY, 0, -1)]}

    shown = difference(old, new).splitlines()

    assert shown[1] == '-    "a0",'
    assert len(shown) <= MOST_COMPARED_LINES


@pytest.mark.parametrize("length", [3, 5_000])
def test_a_change_is_shown_between_the_lines_around_it(length: int):
    old = [f"a{number}" for number in range(length)]

    assert difference(old, [*old[:-1], "new"]).splitlines() == [
        f'   "a{length - 2}",',
        f'-  "a{length - 1}"',
        '+  "new"',
        " ]",
    ]
