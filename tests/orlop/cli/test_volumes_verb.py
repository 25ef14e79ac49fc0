"""`orlop volumes …` as people type it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from orlop.admin.drives.adopted_object_rules import TO_MAKE
from orlop.kube.client import MergePatch
from orlop.kube.kinds import LEASE, PERSISTENT_VOLUME
from orlop.kube.objects import ObjectName
from orlop.records.provision_journal import ANNOTATION, DRIVER_LABEL, JournalEntry, encode_page
from orlop.records.volume import VOLUME
from orlop.records.volume_order import ClaimIdentity
from support.drives.typed_commands import GIB, Bench, bench, drive_id
from support.provisioning.volume_orders import order

V1, V2, V3 = "pvc-aaaaaaaa-1", "pvc-bbbbbbbb-2", "pvc-cccccccc-3"
POD = {"path": "/kubelet/p1", "podNamespace": "team", "podName": "web-0", "podUID": "u1"}


@pytest.fixture
def here() -> Iterator[Bench]:
    with bench() as made:
        yield made


def erased(here: Bench, name: str) -> bool:
    return bool(here.get(VOLUME, name)["spec"].get("erase"))


# ---- list and show ---------------------------------------------------------------------------------------------------


def three(here: Bench) -> None:
    here.drive(1)
    here.drive(2, "n2", state="Lost", message="Its disk is not there.")
    here.volume(V1, phase="Published", published=[POD], usedBytes=GIB // 2, used="512Mi")
    here.volume(V2, 2, "n2", claim="other/logs", phase="Staged", stagedPath="/kubelet/s")
    here.volume(V3, claim="team/old", spec={"erase": True}, phase="Pending")


def test_a_list_has_the_drive_the_claim_and_the_pod_of_each_volume(here: Bench):
    three(here)
    listed = here.typed("volumes", "list")
    assert listed.code == 0
    assert [line.split() for line in listed.out.splitlines()] == [
        ["VOLUME", "NODE", "DEVICE", "SIZE", "USED", "STATE", "CLAIM", "POD"],
        ["pvc-aaaaaaaa", "n1", "sdb", "1.0Gi", "512Mi", "Published", "team/data", "team/web-0"],
        ["pvc-cccccccc", "n1", "sdb", "1.0Gi", "-", "Pending,Deleting", "team/old", "-"],
        ["pvc-bbbbbbbb", "n2", "sdc", "1.0Gi", "-", "Lost", "other/logs", "-"],
    ]


def test_a_list_counts_the_volumes_on_drives_that_have_lost_their_objects(here: Bench):
    here.drive(1, unrecordedVolumes=[{"volume": V1, "bytes": GIB}, {"volume": V2, "bytes": GIB}])
    listed = here.typed("volumes", "list")
    assert listed.err.splitlines() == [
        "No volume matches.",
        "2 volumes on drives have lost their objects: `orlop adopt --dry-run` shows them.",
    ]
    assert here.typed("volumes", "list", "-o", "name").err == ""


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["--node", "n2"], {V2}),
        (["--drive", "n1/sdb"], {V1, V3}),
        (["--drive", drive_id(2)], {V2}),
        (["--pod", "web-*"], {V1}),
        (["--pod", "other/web-0"], set()),
        (["--claim", "team/data"], {V1}),
        (["--claim", "*"], {V1, V2, V3}),
        (["--claim", "logs"], {V2}),
        (["-n", "team"], {V1, V3}),
        (["--status", "deleting"], {V3}),
        (["--status", "Lost", "--status", "Published"], {V1, V2}),
        (["-A"], {V1, V2, V3}),
    ],
)
def test_a_list_is_filtered(here: Bench, options: list[str], names: set[str]):
    three(here)
    assert set(here.typed("volumes", "list", "-o", "name", *options).out.split()) == names


@pytest.mark.parametrize("word", ["pvc-b", V2, "other/logs"])
def test_a_volume_is_shown_with_how_its_drive_is(here: Bench, word: str):
    three(here)
    shown = here.typed("volumes", "show", word)
    assert shown.code == 0
    assert "its drive is Lost: Its disk is not there." in shown.out
    assert f"{drive_id(2)} (sdc, Lost)" in shown.out
    assert "/kubelet/s" in shown.out


@pytest.mark.parametrize(("word", "code"), [("pvc-", 2), ("nope", 3)])
def test_a_word_that_names_no_volume_or_several_has_its_own_exit_code(here: Bench, word: str, code: int):
    three(here)
    assert here.typed("volumes", "show", word).code == code


def test_programs_get_every_fact(here: Bench):
    three(here)
    row = here.typed("volumes", "show", V1, "-o", "json").json
    assert row["pods"] == ["team/web-0"]
    assert (row["state"], row["usedBytes"], row["drive"]) == (["Published"], GIB // 2, drive_id(1))


# ---- what is kept ----------------------------------------------------------------------------------------------------


def bound(here: Bench) -> dict[str, Any]:
    here.persistent_volume(V1, phase="Bound")
    return {}


def available(here: Bench) -> dict[str, Any]:
    here.persistent_volume("other-name", handle=V1, phase="Available")
    return {}


def two_volumes(here: Bench) -> dict[str, Any]:
    here.persistent_volume("a", handle=V1, phase="Released")
    here.persistent_volume("b", handle=V1, phase="Released")
    return {}


def deletes_itself(here: Bench) -> dict[str, Any]:
    here.persistent_volume(V1, phase="Released", persistentVolumeReclaimPolicy="Delete")
    return {}


def claim_came_back(here: Bench) -> dict[str, Any]:
    here.claim("new", volume=V1, phase="Lost")
    here.persistent_volume(V1, phase="Released", claimRef={"namespace": "team", "name": "data", "uid": "u-gone"})
    return {}


def claim_lives(here: Bench) -> dict[str, Any]:
    claim = here.claim(volume="something")
    reference = {"namespace": "team", "name": "data", "uid": claim["metadata"]["uid"]}
    here.persistent_volume(V1, phase="Released", claimRef=reference)
    return {}


def lost_claim(here: Bench) -> dict[str, Any]:
    here.claim(volume=V1, phase="Lost")
    return {}


def waiting_claim(here: Bench) -> dict[str, Any]:
    here.claim(phase="Pending")
    return {}


def published(_here: Bench) -> dict[str, Any]:
    return {"phase": "Published", "published": [POD]}


def staged(_here: Bench) -> dict[str, Any]:
    return {"stagedPath": "/kubelet/s"}


def deleted(_here: Bench) -> dict[str, Any]:
    return {"spec": {"erase": True}}


def reservation(_here: Bench) -> dict[str, Any]:
    return {"spec": {"reservation_only": True}}


def being_adopted(_here: Bench) -> dict[str, Any]:
    return {}


def journal(here: Bench, page: str) -> dict[str, Any]:
    metadata = {
        "name": "journal",
        "namespace": "default",
        "labels": {DRIVER_LABEL: "csi.orlop.dev"},
        "annotations": {ANNOTATION: page},
    }
    here.create(LEASE, {"metadata": metadata, "spec": {}})
    return {}


def ordered(here: Bench) -> dict[str, Any]:
    entry = JournalEntry(
        order(claim=ClaimIdentity("team", "data", "u"), volume_name=V1), deadline=0.0, call_seconds=1.0
    )
    return journal(here, encode_page([entry]))


def unreadable_journal(here: Bench) -> dict[str, Any]:
    return journal(here, "damaged")


def young(here: Bench) -> dict[str, Any]:
    here.clock.began = datetime.now(UTC) + timedelta(minutes=9)
    return {}


KEPT = [
    (bound, "its PersistentVolume pvc-aaaaaaaa-1 is Bound"),
    (available, "its PersistentVolume other-name is Available"),
    (two_volumes, "2 PersistentVolumes name it"),
    (deletes_itself, "has the policy Delete: its provisioner deletes it"),
    (claim_came_back, "the claim team/new names its PersistentVolume"),
    (claim_lives, "the claim team/data names its PersistentVolume"),
    (lost_claim, "the claim team/data names it: orlop adopt makes its PersistentVolume"),
    (waiting_claim, "the claim team/data waits for its volume"),
    (published, "it is in use by team/web-0"),
    (staged, "it is in use"),
    (deleted, "it is being deleted already"),
    (reservation, "its node decides"),
    (ordered, "a provisioner has an open request for it"),
    (unreadable_journal, "its journal cannot be read"),
    (being_adopted, "it is being adopted"),
    (young, "it is younger than 10 minutes"),
]


@pytest.mark.parametrize(("prepare", "why"), KEPT, ids=[prepare.__name__ for prepare, _ in KEPT])
def test_a_volume_that_something_may_need_is_kept_with_the_reason(
    here: Bench, prepare: Callable[[Bench], dict[str, Any]], why: str
):
    here.drive(1)
    here.volume(V1, **prepare(here))
    if prepare is being_adopted:
        mark = MergePatch({"metadata": {"annotations": {TO_MAKE: "{}"}}})
        here.do(lambda client: client.patch(VOLUME, ObjectName(None, V1), mark))
    before, volumes = here.get(VOLUME, V1), here.all(PERSISTENT_VOLUME)
    ended = here.typed("volumes", "clean", V1, "--yes")
    assert ended.code == 1
    assert why in ended.err
    assert (here.get(VOLUME, V1), here.all(PERSISTENT_VOLUME)) == (before, volumes)
    assert here.typed("volumes", "clean", "--yes").code == 0
    assert (here.get(VOLUME, V1), here.all(PERSISTENT_VOLUME)) == (before, volumes)


def test_a_claim_whose_uid_is_in_the_name_of_the_volume_keeps_it(here: Bench):
    here.drive(1)
    claim = here.claim("unrelated", phase="Pending")
    name = f"pvc-{claim['metadata']['uid']}"
    here.volume(name, claim="")
    assert "waits for its volume" in here.typed("volumes", "clean", name, "--yes").err
    assert not erased(here, name)


# ---- what is deleted -------------------------------------------------------------------------------------------------


def test_a_volume_that_nothing_names_is_marked_as_deleted_after_a_question(here: Bench):
    here.drive(1)
    here.volume(V1)
    here.volume(V2, phase="Published", published=[POD])
    done = here.typed("volumes", "clean", answer="y\n")
    assert done.code == 0
    assert "no claim team/data needs it, and it has no PersistentVolume" in done.out
    assert "The data of this volume will be erased." in done.err
    assert (erased(here, V1), erased(here, V2)) == (True, False)


def test_a_claim_of_the_name_that_has_another_volume_does_not_need_it(here: Bench):
    here.drive(1)
    here.volume(V1)
    here.claim(volume="pvc-other")
    assert here.typed("volumes", "clean", "--yes").code == 0
    assert erased(here, V1)


def test_a_released_volume_gets_the_policy_delete_and_is_left_to_its_provisioner(here: Bench):
    here.drive(1)
    here.volume(V1)
    here.persistent_volume(V1, phase="Released", claimRef={"namespace": "team", "name": "data", "uid": "u-gone"})
    assert here.typed("volumes", "clean", "--yes").code == 0
    assert here.get(PERSISTENT_VOLUME, V1)["spec"]["persistentVolumeReclaimPolicy"] == "Delete"
    assert not erased(here, V1)


@pytest.mark.parametrize(("words", "answer", "code"), [(["--dry-run"], None, 0), ([], "n\n", 1), ([], None, 2)])
def test_without_consent_nothing_is_written(here: Bench, words: list[str], answer: str | None, code: int):
    here.drive(1)
    here.volume(V1)
    before = here.get(VOLUME, V1)
    shown = here.typed("volumes", "clean", *words, answer=answer)
    assert shown.code == code
    assert V1 in shown.out
    assert here.get(VOLUME, V1) == before


def test_filters_limit_what_is_deleted(here: Bench):
    here.drive(1)
    here.drive(2, "n2")
    here.volume(V1)
    here.volume(V2, 2, "n2")
    assert here.typed("volumes", "clean", "--node", "n2", "--yes").code == 0
    assert (erased(here, V1), erased(here, V2)) == (False, True)


def test_what_has_changed_since_the_question_is_kept(here: Bench, monkeypatch: pytest.MonkeyPatch):
    here.drive(1)
    here.volume(V1)

    def restored_meanwhile(*_words: str) -> None:
        here.persistent_volume(V1, phase="Available")

    monkeypatch.setattr("orlop.cli.volumes.confirm", restored_meanwhile)
    ended = here.typed("volumes", "clean", answer="y\n")
    assert ended.code == 1
    assert "is kept: its PersistentVolume pvc-aaaaaaaa-1 is Available" in ended.err
    assert not erased(here, V1)


def test_a_volume_that_is_made_anew_under_its_name_is_kept(here: Bench, monkeypatch: pytest.MonkeyPatch):
    here.drive(1)
    here.volume(V1)

    def made_anew(*_words: str) -> None:
        name = ObjectName(None, V1)
        here.do(lambda client: client.patch(VOLUME, name, MergePatch({"metadata": {"finalizers": []}})))
        here.do(lambda client: client.delete(VOLUME, name))
        here.volume(V1)

    monkeypatch.setattr("orlop.cli.volumes.confirm", made_anew)
    assert "is kept: it does not exist any more" in here.typed("volumes", "clean", answer="y\n").err
    assert not erased(here, V1)


def test_a_plan_is_for_programs_too(here: Bench):
    here.drive(1)
    here.volume(V1)
    here.volume(V2, phase="Published", published=[POD])
    plans = {each["name"]: each for each in here.typed("volumes", "clean", "--dry-run", "-o", "json").json}
    assert (plans[V1]["clean"], plans[V2]["clean"]) == (True, False)
    assert plans[V2]["why"] == "it is in use by team/web-0"
