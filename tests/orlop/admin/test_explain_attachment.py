"""A VolumeAttachment in words: each thing it can wait for."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from orlop.admin.explain_attachment import AttachmentSeen, explain
from orlop.admin.explanation import Unreadable
from orlop.kube.kinds import CSI_DRIVER, CSI_NODE, NODE, PERSISTENT_VOLUME
from orlop.sidecars.attacher.attach_rules import MARKED_ANNOTATION, NODE_ID_ANNOTATION
from orlop.sidecars.attacher.finalizer_rules import finalizer_of

DRIVER = "disks.example.com"
OURS = finalizer_of(DRIVER)
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
Object = dict[str, Any]


def attachment(*, ours: bool = False, node_id: str = "", deleted: bool = False, **status: Any) -> Object:
    metadata: Object = {"name": "csi-1", "uid": "u", "creationTimestamp": "2026-01-02T03:00:05Z"}
    if ours:
        metadata["finalizers"] = [OURS]
    if node_id:
        metadata["annotations"] = {NODE_ID_ANNOTATION: node_id}
    if deleted:
        metadata["deletionTimestamp"] = "2026-01-02T03:03:55Z"
    spec = {"attacher": DRIVER, "nodeName": "n1", "source": {"persistentVolumeName": "pv1"}}
    return {"metadata": metadata, "spec": spec, "status": {"attached": False, **status}}


def volume(*finalizers: str) -> Object:
    csi = {"driver": DRIVER, "volumeHandle": "h1"}
    spec = {"csi": csi, "accessModes": ["ReadWriteOnce"]}
    return {"metadata": {"name": "pv1", "uid": "v", "finalizers": list(finalizers)}, "spec": spec}


CASES: list[tuple[str, Object, Object | None, str | None, str]] = [
    ("fresh", attachment(), volume(), "id-1", "adds its finalizer to the PersistentVolume pv1"),
    ("volume protected", attachment(), volume(OURS), "id-1", "adds its finalizer and the node's id"),
    (
        "all protected",
        attachment(ours=True, node_id="id-1"),
        volume(OURS),
        "id-1",
        "ControllerPublishVolume of h1 to id-1",
    ),
    (
        "attached",
        attachment(ours=True, node_id="id-1", attached=True),
        volume(OURS),
        "id-1",
        "Nothing to do: it waits for nothing.",
    ),
    ("no volume", attachment(), None, "id-1", "until an admin fixes it: there is no PersistentVolume pv1"),
    ("no node", attachment(), volume(OURS), None, "registered with kubelet"),
    ("another id", attachment(ours=True, node_id="old"), volume(OURS), "id-1", "has the id id-1 now: h1 is detached"),
    (
        "going",
        attachment(ours=True, node_id="id-1", deleted=True, attached=True),
        volume(OURS),
        None,
        "ControllerUnpublishVolume of h1 from id-1",
    ),
    (
        "said by somebody else",
        attachment(attached=True),
        volume(OURS),
        "id-1",
        "resets `attached`, since its finalizer is missing, and then attaches",
    ),
]


@pytest.mark.parametrize(("found", "pv", "node_id", "words"), [row[1:] for row in CASES], ids=[row[0] for row in CASES])
def test_what_comes_next_is_told(found: Object, pv: Object | None, node_id: str | None, words: str):
    assert words in explain(AttachmentSeen(found, pv, node_id), NOW).next


def test_one_that_was_only_marked_attached_is_explained_for_both_kinds_of_driver():
    marked = attachment(ours=True, node_id="id-1", attached=True)
    marked["metadata"]["annotations"][MARKED_ANNOTATION] = "true"
    told = explain(AttachmentSeen(marked, volume(OURS), "id-1"), NOW)
    assert "resets `attached`, since the driver could not attach when it was set, and then attaches." in told.next
    assert told.next.endswith("If it cannot: it is as it should be.")
    assert told.fields["driverAttaches"] is None


ANY_DRIVER = f"No object shows whether {DRIVER} can publish volumes (PUBLISH_UNPUBLISH_VOLUME)"
NOT_REQUIRED = "its CSIDriver has attachRequired: false"
NO_FINALIZER = "it is attached without an attacher's finalizer"
ONLY_TOLD = "If it cannot: its attacher marks it attached, and does nothing else."
EITHER_WAY: list[tuple[str, Object, Object | None, bool | None, list[str], str]] = [
    (
        "fresh",
        attachment(),
        volume(),
        None,
        [f"{ANY_DRIVER}. If it can: The attacher of {DRIVER} adds its finalizer to the PersistentVolume", ONLY_TOLD],
        "MarkAttached",
    ),
    (
        "fresh, and no pod waits for it",
        attachment(),
        volume(),
        False,
        [f"{ANY_DRIVER}: most likely it cannot, as {NOT_REQUIRED}.", "If it can: ", ONLY_TOLD],
        "MarkAttached",
    ),
    (
        "fresh, and pods wait for it",
        attachment(),
        volume(),
        True,
        [f"{ANY_DRIVER}. If it can: ", ONLY_TOLD],
        "MarkAttached",
    ),
    (
        "no volume",
        attachment(),
        None,
        None,
        ["If it can: Nothing, until an admin fixes it: there is no PersistentVolume pv1.", ONLY_TOLD],
        "MarkAttached",
    ),
    (
        "attached",
        attachment(attached=True),
        volume(),
        None,
        [
            f"{ANY_DRIVER}: most likely it cannot, as {NO_FINALIZER}.",
            "resets `attached`, since its finalizer is missing, and then attaches.",
            "If that does not happen, none is running. If it cannot: ",
            "If it cannot: it is as it should be.",
        ],
        "Nothing",
    ),
    (
        "attached, and no pod waits for it",
        attachment(attached=True),
        volume(),
        False,
        [f"{ANY_DRIVER}: most likely it cannot, as {NOT_REQUIRED} and {NO_FINALIZER}."],
        "Nothing",
    ),
    (
        "going",
        attachment(attached=True, deleted=True),
        volume(),
        None,
        [
            f"is missing. No attacher of {DRIVER} has touched it for 10s: if that does not change, none is running.",
            "If it cannot: its attacher does nothing.",
        ],
        "Nothing",
    ),
]


@pytest.mark.parametrize(
    ("found", "pv", "required", "words", "otherwise"),
    [row[1:] for row in EITHER_WAY],
    ids=[row[0] for row in EITHER_WAY],
)
def test_where_nothing_says_whether_the_driver_attaches_both_are_told(
    found: Object,
    pv: Object | None,
    required: bool | None,  # noqa: FBT001 - a fact, not a switch
    words: list[str],
    otherwise: str,
):
    told = explain(AttachmentSeen(found, pv, "id-1", attach_required=required), NOW)

    assert [each for each in words if each not in told.next] == []
    assert told.fields["driverAttaches"] is None
    assert told.fields["attachRequired"] is required
    assert told.fields["nextStepWhereItDoesNot"] == otherwise


@pytest.mark.parametrize(
    ("found", "pv"),
    [
        (attachment(), volume(OURS)),
        (attachment(ours=True), volume()),
        (attachment(attached=True), volume(OURS)),
        (attachment(attachError={"message": "no slot"}), volume()),
    ],
    ids=["finalizer of the volume", "finalizer of the attachment", "attached by somebody else", "an error"],
)
def test_what_only_an_attacher_that_asks_the_driver_writes_says_that_the_driver_attaches(found: Object, pv: Object):
    told = explain(AttachmentSeen(found, pv, "id-1", attach_required=False), NOW)

    assert told.next.startswith(f"The attacher of {DRIVER} ")
    assert told.fields["driverAttaches"] is True
    assert told.fields["nextStepWhereItDoesNot"] is None


def test_what_it_is_and_what_was_tried_is_told():
    error = {"message": "no slot", "time": "2026-01-02T03:03:35Z", "errorCode": 8}
    told = explain(AttachmentSeen(attachment(attachError=error), volume(), "id-1"), NOW)

    assert told.what == (
        "The VolumeAttachment csi-1, created 4m ago, requests that the PersistentVolume pv1 be attached to the node n1 "
        "by disks.example.com."
    )
    assert told.state == "Pending for 4m: the volume is not attached yet."
    assert told.fields["state"] == "AttachFails"
    assert told.tried == ("Attaching failed 30s ago (RESOURCE_EXHAUSTED, code 8): no slot",)


def test_one_that_goes_is_told_as_such():
    told = explain(AttachmentSeen(attachment(ours=True, node_id="i", deleted=True, attached=True), volume(), "i"), NOW)

    assert told.what.startswith("The VolumeAttachment csi-1, created 4m ago, requests that the PersistentVolume pv1 be")
    assert told.state == "Being deleted for 10s: the volume is to be detached, and is still attached."
    assert (told.fields["state"], told.fields["since"]) == ("Detaching", "2026-01-02T03:03:55Z")


@pytest.mark.parametrize(
    ("found", "word"),
    [
        (attachment(), "Attaching"),
        (attachment(ours=True, node_id="i", attached=True), "Attached"),
        (attachment(attachError={"message": "no slot"}), "AttachFails"),
        (attachment(ours=True, node_id="i", deleted=True, detachError={"message": "busy"}), "DetachFails"),
    ],
)
def test_programs_get_the_state_in_one_word_as_for_claims_and_volumes(found: Object, word: str):
    assert explain(AttachmentSeen(found, volume(OURS), "i"), NOW).fields["state"] == word


def test_the_state_is_unknown_if_the_next_step_depends_on_what_may_not_be_read():
    seen = AttachmentSeen(attachment(), None, "i", (Unreadable(PERSISTENT_VOLUME, "pv1"),))
    assert explain(seen, NOW).fields["state"] == "Unknown"


def test_what_others_keep_is_named():
    kept = attachment(deleted=True)
    kept["metadata"]["finalizers"] = ["somebody/else"]

    assert (
        explain(AttachmentSeen(kept, volume(), None), NOW).next
        == "It is detached; other finalizers keep it: somebody/else."
    )


def test_what_failed_is_told_to_be_tried_again_and_what_was_never_tried_is_not():
    error = {"message": "no slot", "time": "2026-01-02T03:03:35Z", "errorCode": 8}
    failed = attachment(ours=True, node_id="id-1", attachError=error)

    assert "is called again, with growing delays" in explain(AttachmentSeen(failed, volume(OURS), "id-1"), NOW).next
    fresh = attachment(ours=True, node_id="id-1")
    assert "is called: ControllerPublishVolume" in explain(AttachmentSeen(fresh, volume(OURS), "id-1"), NOW).next


def test_what_failed_in_attaching_says_nothing_of_detaching_and_is_told_as_what_was_tried():
    error = {"message": "no slot", "time": "2026-01-02T03:03:35Z", "errorCode": 8}
    going = attachment(ours=True, node_id="id-1", deleted=True, attachError=error)
    told = explain(AttachmentSeen(going, volume(OURS), "id-1"), NOW)

    assert told.next.startswith("The driver is called: ControllerUnpublishVolume of h1 from id-1. No result has been")
    assert told.tried == ("Attaching failed 30s ago (RESOURCE_EXHAUSTED, code 8): no slot",)
    stuck = attachment(
        ours=True, node_id="id-1", deleted=True, attachError=error, detachError={"message": "stuck", "errorCode": 13}
    )
    assert "is called again, with growing delays" in explain(AttachmentSeen(stuck, volume(OURS), "id-1"), NOW).next


@pytest.mark.parametrize("deleted", [False, True], ids=["attaching", "detaching"])
def test_what_the_driver_may_never_have_been_asked_is_not_told_as_asked_again(*, deleted: bool):
    error = {"message": "the secret default/s cannot be read: not found", "time": "2026-01-02T03:04:00Z"}
    failed = {"detachError" if deleted else "attachError": error}
    found = attachment(ours=True, node_id="id-1", deleted=deleted, **failed)
    call = "ControllerUnpublishVolume of h1 from id-1" if deleted else "ControllerPublishVolume of h1 to id-1"

    assert explain(AttachmentSeen(found, volume(OURS), "id-1"), NOW).next == (
        "It is retried with growing delays, by default of five minutes at most; once that is fixed, "
        f"the driver is called: {call}."
    )


def test_what_has_been_told_as_an_error_is_not_told_word_by_word_again():
    wrong = "there is no PersistentVolume pv1"
    fresh = explain(AttachmentSeen(attachment(ours=True), None, "id-1"), NOW)
    told = explain(AttachmentSeen(attachment(ours=True, attachError={"message": wrong}), None, "id-1"), NOW)
    other = explain(AttachmentSeen(attachment(ours=True, attachError={"message": "no slot"}), None, "id-1"), NOW)

    assert fresh.next == other.next == f"Nothing, until an admin fixes it: {wrong}."
    assert told.next == "Nothing, until an admin fixes the cause of that failure."


NONE_OR_SILENT = f"if that does not change, no attacher of {DRIVER} is running, or the driver does not respond."
QUIET: list[tuple[str, Object, str]] = [
    (
        "fresh",
        attachment(),
        f"No attacher of {DRIVER} has touched it for 4m: if that does not change, none is running.",
    ),
    (
        "failed",
        attachment(attachError={"message": "no", "time": "2026-01-02T03:04:00Z"}),
        "It is retried with growing delays, by default of five minutes at most.",
    ),
    (
        "to be published",
        attachment(ours=True, node_id="id-1"),
        f"No result has been recorded for 4m: {NONE_OR_SILENT}",
    ),
    (
        "to be detached",
        attachment(ours=True, node_id="id-1", deleted=True, attached=True),
        f"No result has been recorded for 10s: {NONE_OR_SILENT}",
    ),
]


@pytest.mark.parametrize(("found", "words"), [row[1:] for row in QUIET], ids=[row[0] for row in QUIET])
def test_how_long_nobody_has_touched_it_is_told_with_what_that_means(found: Object, words: str):
    protected = volume(OURS)

    assert explain(AttachmentSeen(found, protected, "id-1"), NOW).next.endswith(words)


def test_without_a_time_it_is_told_what_it_means_that_nothing_happens():
    timeless = attachment()
    del timeless["metadata"]["creationTimestamp"]
    ready = attachment(ours=True, node_id="id-1")
    del ready["metadata"]["creationTimestamp"]

    assert explain(AttachmentSeen(timeless, volume(OURS), "id-1"), NOW).next.endswith(
        "and then attaches. If that does not happen, none is running."
    )
    assert "If no result is recorded, no attacher" in explain(AttachmentSeen(ready, volume(OURS), "id-1"), NOW).next


def test_a_code_that_nobody_knows_is_told_as_its_number():
    told = explain(AttachmentSeen(attachment(attachError={"message": "m", "errorCode": 99}), volume(), "id-1"), NOW)

    assert told.tried == ("Attaching failed (code 99): m",)


VOLUME_UNREAD = Unreadable(PERSISTENT_VOLUME, "pv1")
CSI_NODE_UNREAD = Unreadable(CSI_NODE, "n1")
NOT_TOLD: list[tuple[str, Object, Object | None, tuple[Unreadable, ...], str]] = [
    ("attaching, no volume", attachment(ours=True), None, (VOLUME_UNREAD,), "the PersistentVolume pv1 may not be read"),
    (
        "detaching, no volume",
        attachment(ours=True, node_id="id-1", deleted=True),
        None,
        (VOLUME_UNREAD,),
        "the PersistentVolume pv1 may not be read",
    ),
    ("attaching, no node", attachment(ours=True), volume(OURS), (CSI_NODE_UNREAD,), "the CSINode n1 may not be read"),
    (
        "attaching, perhaps to another id",
        attachment(ours=True, node_id="id-1"),
        volume(OURS),
        (CSI_NODE_UNREAD,),
        "the CSINode n1 may not be read",
    ),
    (
        "detaching, no id recorded",
        attachment(ours=True, deleted=True),
        volume(OURS),
        (CSI_NODE_UNREAD,),
        "the CSINode n1 may not be read",
    ),
    (
        "neither",
        attachment(ours=True),
        None,
        (VOLUME_UNREAD, CSI_NODE_UNREAD),
        "the PersistentVolume pv1 and the CSINode n1 may not be read",
    ),
]


@pytest.mark.parametrize(
    ("found", "pv", "unread", "words"), [row[1:] for row in NOT_TOLD], ids=[r[0] for r in NOT_TOLD]
)
def test_what_depends_on_something_that_may_not_be_read_is_not_told(
    found: Object, pv: Object | None, unread: tuple[Unreadable, ...], words: str
):
    told = explain(AttachmentSeen(found, pv, None, unread), NOW)

    assert told.next == f"Unknown: {words} with these credentials, and the next step depends on that."
    assert told.fields["nextStep"] is None
    assert told.fields["unreadable"] == [str(each) for each in unread]


TOLD: list[tuple[str, Object, Object | None, tuple[Unreadable, ...], str]] = [
    ("attached", attachment(ours=True, node_id="i", attached=True), None, (VOLUME_UNREAD, CSI_NODE_UNREAD), "Nothing"),
    ("no finalizer yet", attachment(ours=True), volume(), (CSI_NODE_UNREAD,), "ProtectVolume"),
    ("an id is recorded", attachment(ours=True, node_id="i", deleted=True), volume(), (CSI_NODE_UNREAD,), "Unpublish"),
]


@pytest.mark.parametrize(("found", "pv", "unread", "step"), [row[1:] for row in TOLD], ids=[row[0] for row in TOLD])
def test_what_depends_on_nothing_that_may_not_be_read_is_told(
    found: Object, pv: Object | None, unread: tuple[Unreadable, ...], step: str
):
    told = explain(AttachmentSeen(found, pv, None, unread), NOW)

    assert "cannot be told" not in told.next
    assert told.fields["nextStep"] == step


def test_a_csi_driver_that_may_not_be_read_leaves_both_possible():
    unread = (Unreadable(CSI_DRIVER, DRIVER),)
    told = explain(AttachmentSeen(attachment(), volume(), "id-1", unread), NOW)

    assert told.next.startswith(f"No object that may be read shows whether {DRIVER} can publish volumes")
    assert told.fields["nextStep"] == "ProtectVolume"
    neither = explain(AttachmentSeen(attachment(ours=True), None, "id-1", (VOLUME_UNREAD, *unread)), NOW)
    assert neither.next.startswith("Unknown: the PersistentVolume pv1 may not be read")
    assert neither.fields["unreadable"] == ["PersistentVolume pv1", f"CSIDriver {DRIVER}"]


def test_that_a_volume_is_refused_is_told_whatever_its_node_is_called():
    going = volume(OURS)
    going["metadata"]["deletionTimestamp"] = "2026-01-02T03:03:55Z"
    for unread in (CSI_NODE_UNREAD, Unreadable(NODE, "n1")):
        told = explain(AttachmentSeen(attachment(ours=True), going, None, (unread,)), NOW)

        assert told.next.endswith("the PersistentVolume pv1 is being deleted, so it is not attached.")
        assert told.fields["nextStep"] == "Refuse"


def test_a_node_that_may_not_be_read_could_still_say_what_the_driver_calls_it():
    told = explain(AttachmentSeen(attachment(ours=True), volume(OURS), None, (Unreadable(NODE, "n1"),)), NOW)

    assert told.next.endswith(
        "registered with kubelet. Unless the Node n1 has it, in its annotation csi.volume.kubernetes.io/nodeid: "
        "that may not be read with these credentials."
    )
    assert told.fields["unreadable"] == ["Node n1"]


def test_programs_are_told_the_same_in_fields():
    error = {"message": "no slot", "time": "2026-01-02T03:03:05Z", "errorCode": 8}
    found = attachment(ours=True, node_id="id-1", attachError=error)
    told = explain(AttachmentSeen(found, volume(OURS), "id-1"), NOW).fields
    assert told == {
        "name": "csi-1",
        "state": "AttachFails",
        "since": "2026-01-02T03:00:05Z",
        "driver": DRIVER,
        "node": "n1",
        "nodeId": "id-1",
        "persistentVolume": "pv1",
        "attached": False,
        "created": "2026-01-02T03:00:05Z",
        "deleted": None,
        "errors": [{"of": "Attaching", **error}],
        "nextStep": "Publish",
        "attachRequired": None,
        "driverAttaches": True,
        "nextStepWhereItDoesNot": None,
        "unreadable": [],
    }
