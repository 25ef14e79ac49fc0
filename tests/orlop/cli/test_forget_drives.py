"""`orlop drives forget` as people type it, for a drive whose disk is gone for good."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from orlop.kube.kinds import NODE, PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, POD, SERVICE_ACCOUNT
from orlop.records.drive import ALLOCATIONS_FINALIZER, DRIVE, Allocation
from orlop.records.volume import VOLUME
from support.drives.typed_commands import GIB, Bench, bench, drive_id

D1, D2 = drive_id(1), drive_id(2)


@pytest.fixture
def here() -> Iterator[Bench]:
    with bench() as made:
        made.create(NODE, {"metadata": {"name": "n1"}})
        made.create(SERVICE_ACCOUNT, {"metadata": {"name": "default", "namespace": "team"}})
        yield made


def drive_with(here: Bench, *volumes: str, number: int = 1, **facts: Any) -> None:
    allocations = tuple(Allocation(volume=each, bytes=GIB) for each in volumes)
    here.drive(number, spec={"allocations": allocations}, finalizers=[ALLOCATIONS_FINALIZER] * bool(volumes), **facts)


def pod(here: Bench, name: str, claim: str = "data", phase: str = "Running") -> None:
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]
    spec = {"nodeName": "n1", "containers": [{"name": "c", "image": "i"}], "volumes": volumes}
    here.create(POD, {"metadata": {"name": name, "namespace": "team"}, "spec": spec}, phase=phase)


def used_volume(here: Bench, name: str = "v1", claim: str = "data") -> None:
    """Make the objects of a volume that a pod uses."""
    here.volume(name, claim=f"team/{claim}", phase="Published")
    here.claim(claim, volume=name)
    here.persistent_volume(name, claimRef={"namespace": "team", "name": claim}, persistentVolumeReclaimPolicy="Delete")
    pod(here, f"web-{claim}", claim)


def names(here: Bench, kind: Any) -> list[str]:
    return [each["metadata"]["name"] for each in here.all(kind)]


def test_a_lost_drive_is_forgotten_after_a_question_that_shows_what_is_lost(here: Bench):
    drive_with(here, "v1", "v2", state="Lost")
    used_volume(here)
    here.volume("v2", claim="team/old")
    done = here.typed("drives", "forget", "n1/sdb", answer="y\n")
    assert done.code == 0
    assert [line.split() for line in done.out.splitlines()[1:4]] == [
        ["VOLUME", "SIZE", "CLAIM", "PERSISTENT", "VOLUME", "PODS"],
        ["v1", "1.0Gi", "team/data", "v1", "team/web-data"],
        ["v2", "1.0Gi", "team/old", "(deleted)", "-", "-"],
    ]
    assert "Forget this drive, and give up the data of 2 volumes?" in done.err
    assert f"The drive {D1} (n1/sdb) is forgotten." in done.out
    assert (names(here, DRIVE), names(here, VOLUME)) == ([], [])
    assert (names(here, PERSISTENT_VOLUME), names(here, PERSISTENT_VOLUME_CLAIM)) == (["v1"], ["data"])
    assert done.err.splitlines()[-2:] == [
        "  kubectl delete persistentvolumeclaim data -n team --wait=false",
        "  kubectl delete pod web-data -n team",
    ]


@pytest.mark.parametrize(("answer", "code"), [("n\n", 1), ("", 130)])
def test_without_consent_nothing_is_forgotten(here: Bench, answer: str, code: int):
    drive_with(here, "v1", state="Lost")
    here.volume("v1")
    refused = here.typed("drives", "forget", D1, answer=answer)
    assert refused.code == code
    assert "Nothing was changed." in refused.err
    assert (names(here, DRIVE), names(here, VOLUME)) == ([D1], ["v1"])


def test_without_a_terminal_consent_is_an_option(here: Bench):
    drive_with(here, "v1", state="Lost")
    here.volume("v1")
    assert here.typed("drives", "forget", D1).code == 2
    assert names(here, DRIVE) == [D1]
    assert here.typed("drives", "forget", D1, "--yes").code == 0
    assert (names(here, DRIVE), names(here, VOLUME)) == ([], [])


def test_a_dry_run_shows_everything_and_writes_nothing(here: Bench):
    drive_with(here, "v1", state="Lost")
    used_volume(here)
    before = here.server.store.revision
    shown = here.typed("drives", "forget", D1, "--dry-run")
    assert (shown.code, here.server.store.revision) == (0, before)
    assert "team/web-data" in shown.out
    (value,) = here.typed("drives", "forget", D1, "--dry-run", "-o", "json").json
    assert value["volumes"][0] == {
        "name": "v1",
        "bytes": GIB,
        "claim": "team/data",
        "claimExists": True,
        "persistentVolumes": ["v1"],
        "pods": ["team/web-data"],
    }
    assert value["commands"][0] == "kubectl delete persistentvolumeclaim data -n team --wait=false"


@pytest.mark.parametrize("state", ["Ready", "Error", "Repairing", None])
def test_a_drive_that_its_node_can_reach_is_not_forgotten(here: Bench, state: str | None):
    drive_with(here, "v1", state=state)
    here.volume("v1")
    refused = here.typed("drives", "forget", D1, "--yes")
    assert refused.code == 1
    assert f"is reported as {state or 'Unknown'} by its node n1: only a drive that is Lost is forgotten" in refused.err
    assert (names(here, DRIVE), names(here, VOLUME)) == ([D1], ["v1"])
    assert here.typed("drives", "forget", D1, "--yes", "--force").code == 0
    assert (names(here, DRIVE), names(here, VOLUME)) == ([], [])


def test_one_refusal_among_several_drives_forgets_none(here: Bench):
    drive_with(here, "v1", state="Lost")
    drive_with(here, number=2)
    assert here.typed("drives", "forget", D1, D2, "--yes").code == 1
    assert names(here, DRIVE) == [D1, D2]
    assert here.typed("drives", "forget", D1, "ffff", "--yes").code == 3
    assert names(here, DRIVE) == [D1, D2]


def test_a_drive_of_a_node_that_was_deleted_is_forgotten_whatever_it_wrote_last(here: Bench):
    drive_with(here, "v1", number=2, node="gone", state="Ready")
    here.volume("v1", 2, "gone")
    assert here.typed("drives", "forget", D2, "--yes").code == 0
    assert (names(here, DRIVE), names(here, VOLUME)) == ([], [])


def test_volumes_that_are_being_erased_and_those_without_an_object_go_too(here: Bench):
    lost = [{"volume": "v3", "bytes": GIB, "claimNamespace": "team", "claimName": "third"}]
    drive_with(here, "v1", "v2", state="Lost", unrecordedVolumes=lost)
    here.volume("v1", spec={"erase": True}, phase="Erasing")
    shown = here.typed("drives", "forget", D1, "--yes")
    assert shown.code == 0
    assert [line.split()[0] for line in shown.out.splitlines()[2:5]] == ["v1", "v2", "v3"]
    assert (names(here, DRIVE), names(here, VOLUME)) == ([], [])


def test_volumes_of_other_drives_stay(here: Bench):
    drive_with(here, "v1", state="Lost")
    drive_with(here, "v2", number=2)
    here.volume("v1")
    here.volume("v2", 2)
    here.typed("drives", "forget", D1, "--yes")
    assert (names(here, DRIVE), names(here, VOLUME)) == ([D2], ["v2"])


def test_volumes_of_a_drive_whose_object_was_removed_by_force_are_given_up_by_its_name(here: Bench):
    here.volume("v1")
    assert here.typed("drives", "forget", D1[:8], "--yes").code == 0
    assert names(here, VOLUME) == []


def test_a_released_volume_that_nobody_deletes_is_named_in_the_commands(here: Bench):
    drive_with(here, "v1", state="Lost")
    here.volume("v1")
    here.persistent_volume("v1", phase="Released", claimRef={"namespace": "team", "name": "data", "uid": "old"})
    shown = here.typed("drives", "forget", D1, "--yes")
    assert shown.err.splitlines()[-1] == "  kubectl delete persistentvolume v1"


def test_a_claim_that_has_another_volume_by_now_is_not_deleted(here: Bench):
    drive_with(here, "v1", state="Lost")
    here.volume("v1")
    here.claim("data", volume="v9")
    pod(here, "web", "data")
    shown = here.typed("drives", "forget", D1, "--yes")
    assert (shown.code, "kubectl delete" in shown.err) == (0, False)


def test_the_removal_of_a_lost_drive_with_volumes_names_this_command(here: Bench):
    drive_with(here, "v1", state="Lost")
    refused = here.typed("drives", "remove", D1)
    assert refused.code == 1
    assert f"orlop drives forget {D1}" in refused.err
