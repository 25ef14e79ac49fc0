"""Classes and claims that no API server of today accepts, or that contradict each other: an Event, and no crash."""

from __future__ import annotations

from typing import Any

import pytest

from orlop.binding import claim_state_rules as state
from orlop.kube.kinds import PERSISTENT_VOLUME_CLAIM, STORAGE_CLASS
from support.provisioning.provisioner_worlds import CREATE, DRIVER, ProvisionerWorld, claim_object

pytestmark = pytest.mark.virtual_time
LATE = {"provisioner": DRIVER, "volumeBindingMode": "WaitForFirstConsumer"}
SIZES = "a volume has at least 1 and at most 9223372036854775807"


def requesting(size: object) -> dict[str, Any]:
    return {"resources": {"requests": {"storage": size}}}


TOO_MANY = [
    {"matchLabelExpressions": [{"key": key, "values": list(map(str, range(101)))} for key in ("zone", "rack")]},
]


BAD = {
    "class without provisioner": ({}, {}, "the StorageClass bad names no provisioner"),
    "request of zero": (LATE, requesting("0"), f"the claim requests 0 bytes; {SIZES}"),
    "request below zero": (LATE, requesting("-1Gi"), f"the claim requests -1073741824 bytes; {SIZES}"),
    "request of 2^63": (LATE, requesting(str(2**63)), f"the claim requests {2**63} bytes; {SIZES}"),
    "request that is not a quantity": (LATE, requesting("much"), "requests.storage is missing or not a quantity"),
    "request that is a number": (LATE, requesting({}), "requests.storage is missing or not a quantity"),
    "no request": (LATE, {"resources": {}}, "requests.storage is missing or not a quantity"),
    "allowedTopologies that combine to too many": (
        LATE | {"allowedTopologies": TOO_MANY},
        {},
        'StorageClass "bad": the class\'s allowedTopologies combine to 10201 topologies; at most 10000 are supported',
    ),
    "selector with late binding": (LATE, {"selector": {"matchLabels": {"a": "b"}}}, "claim Selector is not supported"),
}


@pytest.mark.parametrize("name", BAD)
async def test_a_bad_object_is_an_event_on_its_claim_and_the_next_claim_is_provisioned(name: str):
    storage_class, fields, reason = BAD[name]
    async with ProvisionerWorld() as world:
        selected = {state.SELECTED_NODE: "n0"}
        await world.put(STORAGE_CLASS, {"metadata": {"name": "bad"}, **storage_class})
        claim = claim_object("bad", annotations=selected, **{"storageClassName": "bad", **fields})
        await world.put(PERSISTENT_VOLUME_CLAIM, claim)
        async with world.provisioner():
            await world.until_event("ProvisioningFailed", reason)
            assert [event["regarding"]["name"] for event in await world.event_objects()] == ["bad"]
            assert world.calls() == []
            await world.make_class()
            await world.make_claim()
            (volume,) = await world.until_provisioned()
        assert volume["spec"]["claimRef"]["name"] == "data"
        assert world.calls() == [CREATE]
