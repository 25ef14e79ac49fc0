"""What comes next for a VolumeAttachment, rule by rule; and that the rules alone lead to the right end."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orlop.kube import objects
from orlop.kube.patch_application import PatchDoesNotApply, apply_json_patch
from orlop.kube.patches import JsonPatch
from orlop.processes.attacher import lease_of
from orlop.sidecars.attacher.attach_rules import (
    MARKED_ANNOTATION,
    NODE_ID_ANNOTATION,
    AttachmentFacts,
    MarkDetached,
    Nothing,
    ProtectAttachment,
    ProtectVolume,
    Publish,
    Refuse,
    Step,
    Unpublish,
    UnpublishFormer,
    attached_patch,
    detached_patch,
    failed_patch,
    is_attached,
    next_step,
)
from orlop.sidecars.attacher.finalizer_rules import finalizer_of, volume_release_patch

DRIVER = "disks.example.com"
OURS = finalizer_of(DRIVER)
THEIRS = "somebody/else"
DELETED = "2026-01-02T03:04:05Z"
Object = dict[str, Any]


def attachment(**changes: Any) -> Object:
    metadata = {"name": "csi-1", "uid": "u1", **changes.pop("metadata", {})}
    spec = {"attacher": DRIVER, "nodeName": "n1", "source": {"persistentVolumeName": "pv1"}, **changes.pop("spec", {})}
    return {"metadata": metadata, "spec": spec, "status": {"attached": False}, **changes}


def volume(*finalizers: str, deleted: bool = False, **csi: Any) -> Object:
    metadata: Object = {"name": "pv1", "uid": "v1"}
    if finalizers:
        metadata["finalizers"] = list(finalizers)
    if deleted:
        metadata["deletionTimestamp"] = DELETED
    source = {"driver": DRIVER, "volumeHandle": "h1", **csi}
    return {"metadata": metadata, "spec": {"csi": source, "accessModes": ["ReadWriteOnce"]}}


def prepared(node_id: str = "id-1", **changes: Any) -> Object:
    """With our finalizer and the node's id."""
    metadata = {"finalizers": [OURS], "annotations": {NODE_ID_ANNOTATION: node_id}, **changes.pop("metadata", {})}
    return attachment(metadata=metadata, **changes)


def step(
    found: Object, pv: Object | None = None, node_id: str | None = "id-1", *, published: bool | None = None
) -> Step:
    return next_step(AttachmentFacts(found, pv, node_id, DRIVER, OURS, published))


def patched(obj: Object, patch: JsonPatch) -> Object:
    return apply_json_patch(obj, patch.body())


# ---- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("driver", "finalizer"),
    [
        ("disks.example.com", "external-attacher/disks-example-com"),
        ("Disks_2", "external-attacher/Disks-2"),
        ("ends.", "external-attacher/ends-X"),
    ],
)
def test_finalizers_and_leases_are_named_as_upstreams(driver: str, finalizer: str):
    assert finalizer_of(driver) == finalizer
    assert lease_of(driver) == finalizer.replace("external-attacher/", "external-attacher-leader-")


# ---- attach, in its order --------------------------------------------------------------------------------------------


def test_what_is_for_another_driver_is_left_alone():
    assert isinstance(step(attachment(spec={"attacher": "other"}), volume()), Nothing)


def test_first_the_volume_is_protected():
    found = step(attachment(), volume(THEIRS))
    assert isinstance(found, ProtectVolume)
    assert objects.finalizers(patched(volume(THEIRS), found.patch)) == (THEIRS, OURS)


def test_then_the_attachment_with_the_nodes_id_in_one_patch():
    before = attachment(metadata={"finalizers": [THEIRS], "annotations": {"a": "b"}})
    found = step(before, volume(OURS))
    assert isinstance(found, ProtectAttachment)
    after = patched(before, found.patch)
    assert objects.finalizers(after) == (THEIRS, OURS)
    assert objects.annotations(after) == {"a": "b", NODE_ID_ANNOTATION: "id-1"}


def test_then_the_driver_is_asked_for_the_node_that_is_recorded():
    found = step(prepared(), volume(OURS))
    assert isinstance(found, Publish)
    assert (found.source.handle, found.node_id) == ("h1", "id-1")


def test_an_attached_one_is_left_alone():
    assert isinstance(step(prepared(status={"attached": True}), volume(OURS)), Nothing)


def test_one_that_says_it_is_attached_without_our_finalizer_is_attached_in_earnest():
    told = attachment(status={"attached": True})
    first = step(told, volume(OURS))
    assert isinstance(first, MarkDetached)
    assert isinstance(step(patched(told, first.patch), volume(OURS)), ProtectAttachment)


@pytest.mark.parametrize(
    ("node_id", "then"), [("id-1", Publish), ("id-2", UnpublishFormer), (None, Refuse)], ids=["it", "another", "none"]
)
def test_one_that_the_driver_does_not_have_published_is_told_so_before_it_is_attached_again(
    node_id: str | None, then: type
):
    found = prepared(status={"attached": True, "attachmentMetadata": {"device": "/dev/a"}})
    told = step(found, volume(OURS), node_id, published=False)
    assert isinstance(told, MarkDetached)
    taken_back = patched(found, told.patch)
    assert taken_back["status"] == {"attached": False}
    assert isinstance(step(taken_back, volume(OURS), node_id, published=False), then)


def test_a_volume_that_is_being_deleted_is_not_attached():
    found = step(attachment(), volume(OURS, deleted=True))
    assert isinstance(found, Refuse)
    assert "pv1 is being deleted" in found.sentence


def test_a_node_that_nobody_knows_is_told_and_nothing_is_written():
    found = step(attachment(), volume(OURS), node_id=None)
    assert isinstance(found, Refuse)
    assert "'n1'" in found.sentence
    assert "registered" in found.sentence


def test_an_attempt_for_a_node_that_was_called_otherwise_is_taken_back_first():
    before = prepared("id-old")
    found = step(before, volume(OURS))
    assert isinstance(found, UnpublishFormer)
    assert found.node_id == "id-old"
    assert objects.annotations(patched(before, found.then)) == {NODE_ID_ANNOTATION: "id-1"}


def test_an_id_that_was_left_without_our_finalizer_is_replaced_and_nothing_is_unpublished_from_it():
    """No attempt of ours can have reached the driver; another object may have attached the volume there."""
    left = attachment(metadata={"annotations": {NODE_ID_ANNOTATION: "old"}})
    found = step(left, volume(OURS))
    assert isinstance(found, ProtectAttachment)
    after = patched(left, found.patch)
    assert (objects.annotations(after)[NODE_ID_ANNOTATION], objects.finalizers(after)) == ("id-1", (OURS,))


def test_a_volume_that_the_attachment_holds_itself_needs_no_object():
    inline = {"persistentVolumeName": None, "inlineVolumeSpec": volume()["spec"]}
    found = step(prepared(spec={"source": inline}))
    assert isinstance(found, Publish)
    assert (found.source.volume_name, found.source.handle) == ("", "h1")


# ---- detach ----------------------------------------------------------------------------------------------------------


def deleted(**changes: Any) -> Object:
    return prepared(metadata={"deletionTimestamp": DELETED}, **changes)


def test_what_may_be_published_is_unpublished_also_where_attaching_never_succeeded():
    found = step(deleted(), volume(OURS))
    assert isinstance(found, Unpublish)
    assert (found.source.handle, found.node_id) == ("h1", "id-1")


def test_it_is_detached_from_the_node_that_was_recorded_whatever_it_is_called_now():
    found = step(deleted(), volume(OURS), node_id="id-new")
    assert isinstance(found, Unpublish)
    assert found.node_id == "id-1"


def test_a_node_that_is_gone_hinders_no_detaching():
    assert isinstance(step(deleted(), volume(OURS), node_id=None), Unpublish)


def test_a_volume_that_is_being_deleted_is_detached():
    assert isinstance(step(deleted(), volume(OURS, deleted=True)), Unpublish)


def test_without_any_id_nothing_is_taken_from_all_nodes():
    unknown = deleted()
    unknown["metadata"]["annotations"] = {}
    found = step(unknown, volume(OURS), node_id=None)
    assert isinstance(found, Refuse)
    assert NODE_ID_ANNOTATION in found.sentence


def test_a_volume_that_is_gone_is_told_with_what_to_do():
    found = step(deleted(), None)
    assert isinstance(found, Refuse)
    assert "Detach the volume with the storage system's own tools" in found.sentence


def test_without_our_finalizer_nothing_is_detached_and_what_others_keep_is_told_as_it_is():
    others = attachment(
        metadata={"deletionTimestamp": DELETED, "finalizers": [THEIRS]}, status={"attached": True, "detachError": {}}
    )
    found = step(others, volume(OURS))
    assert isinstance(found, MarkDetached)
    assert patched(others, found.patch)["status"] == {"attached": False}
    assert isinstance(step(patched(others, found.patch), volume(OURS)), Nothing)


def test_what_the_driver_still_has_published_is_unpublished_without_our_finalizer_too():
    others = attachment(metadata={"deletionTimestamp": DELETED, "finalizers": [THEIRS]})
    assert isinstance(step(others, volume(), published=True), Unpublish)


# ---- what is told ----------------------------------------------------------------------------------------------------


def test_attached_is_told_with_what_the_driver_gave_and_the_error_goes():
    before = attachment(status={"attached": False, "attachError": {"message": "m"}, "detachError": {"message": "d"}})
    after = patched(before, attached_patch(before, {"disk": "sdb"}))
    assert after["status"] == {
        "attached": True,
        "attachmentMetadata": {"disk": "sdb"},
        "detachError": {"message": "d"},
    }


def test_what_an_earlier_attachment_told_does_not_stay():
    before = attachment(status={"attached": True, "attachmentMetadata": {"disk": "sdb", "old": "1"}})
    assert patched(before, attached_patch(before, {"disk": "sdc"}))["status"]["attachmentMetadata"] == {"disk": "sdc"}
    assert "attachmentMetadata" not in patched(before, attached_patch(before, {}))["status"]


def test_an_object_without_a_status_gets_one():
    before = attachment()
    del before["status"]
    failed = patched(before, failed_patch(before, "no", 13, DELETED))
    assert failed["status"] == {
        "attached": False,
        "attachError": {"message": "no", "time": DELETED, "errorCode": 13},
    }


def test_a_failure_is_told_as_that_of_what_was_tried_and_leaves_the_rest():
    before = deleted(status={"attached": True, "attachmentMetadata": {"disk": "sdb"}})
    after = patched(before, failed_patch(before, "busy", None, DELETED))
    assert after["status"] == {
        "attached": True,
        "attachmentMetadata": {"disk": "sdb"},
        "detachError": {"message": "busy", "time": DELETED},
    }


def test_a_patch_of_one_object_does_not_fit_another_of_its_name():
    patch = attached_patch(attachment(), {})
    other = attachment(metadata={"uid": "u2"})
    with pytest.raises(PatchDoesNotApply):
        patched(other, patch)


# ---- objects that were marked attached while the driver could not attach ---------------------------------------------


def marked(**changes: Any) -> Object:
    annotations = {NODE_ID_ANNOTATION: "id-1", MARKED_ANNOTATION: "true"}
    return prepared(metadata={"annotations": annotations}, **changes)


def test_one_that_was_only_marked_is_reset_and_its_mark_removed_before_the_driver_is_called():
    found = marked(status={"attached": True})
    reset = step(found, volume(OURS))
    assert isinstance(reset, MarkDetached)
    found = patched(found, reset.patch)
    protect = step(found, volume(OURS))
    assert isinstance(protect, ProtectAttachment)
    found = patched(found, protect.patch)
    assert objects.annotations(found) == {NODE_ID_ANNOTATION: "id-1"}
    assert isinstance(step(found, volume(OURS)), Publish)


def test_one_that_was_only_marked_is_detached_all_the_same_since_an_attempt_may_have_reached_the_driver():
    found = marked(status={"attached": True})
    found["metadata"]["deletionTimestamp"] = DELETED
    assert isinstance(step(found, volume(OURS)), Unpublish)


# ---- the volume's finalizer ------------------------------------------------------------------------------------------


def test_a_volume_keeps_our_finalizer_until_it_is_being_deleted():
    assert volume_release_patch(volume(OURS), [], OURS) is None


def test_a_volume_that_is_being_deleted_is_let_go_when_nothing_of_ours_names_it():
    gone = volume(THEIRS, OURS, deleted=True)
    others = [attachment(spec={"attacher": "other"}), attachment(spec={"source": {"persistentVolumeName": "pv2"}})]
    assert volume_release_patch(gone, [*others, attachment()], OURS) is None
    patch = volume_release_patch(gone, others, OURS)
    assert patch is not None
    assert objects.finalizers(patched(gone, patch)) == (THEIRS,)


def test_a_volume_is_kept_while_an_attachment_that_is_being_deleted_names_it():
    """Detaching needs the volume's handle; whether the driver has detached it, only the end of the object shows."""
    gone = volume(OURS, deleted=True)
    for attached in (True, False):
        assert volume_release_patch(gone, [deleted(status={"attached": attached})], OURS) is None


def test_a_volume_is_kept_for_a_driver_whose_finalizer_has_the_same_name():
    theirs = attachment(spec={"attacher": DRIVER.replace(".", "-")})
    assert finalizer_of(DRIVER.replace(".", "-")) == OURS
    assert volume_release_patch(volume(OURS, deleted=True), [theirs], OURS) is None


# ---- the rules alone lead to the right end ---------------------------------------------------------------------------


class Model:
    """Does each step at once, as a perfect world would; and looks that no rule is broken on the way."""

    def __init__(self, found: Object, pv: Object) -> None:
        self.attachment: Object | None = found
        self.volume = pv
        self.published: set[str] = set()

    def run(self) -> Iterator[Step]:
        while self.attachment is not None:
            now = step(self.attachment, self.volume)
            yield now
            match now:
                case Nothing() | Refuse():
                    return
                case ProtectVolume(_, patch):
                    self.volume = patched(self.volume, patch)
                case ProtectAttachment(patch):
                    self.attachment = patched(self.attachment, patch)
                case Publish(_, node_id):
                    assert OURS in objects.finalizers(self.attachment)
                    assert OURS in objects.finalizers(self.volume)
                    assert not objects.is_being_deleted(self.volume)
                    self.published.add(node_id)
                    self.attachment = patched(self.attachment, attached_patch(self.attachment, {}))
                case UnpublishFormer(_, node_id, then):
                    self.published.discard(node_id)
                    self.attachment = patched(self.attachment, then)
                case Unpublish(_, node_id):
                    self.published.discard(node_id)
                    self._let_go()
                case MarkDetached(patch):
                    self.attachment = patched(self.attachment, patch)

    def _let_go(self) -> None:
        assert self.attachment is not None
        left = [one for one in objects.finalizers(self.attachment) if one != OURS]
        self.attachment = deepcopy(self.attachment)
        self.attachment["metadata"]["finalizers"] = left
        if left:
            self.attachment = patched(self.attachment, detached_patch(self.attachment))
        else:
            self.attachment = None


MAYBE = st.booleans()
FINALIZERS = st.lists(st.sampled_from([OURS, THEIRS]), unique=True)


@given(
    of_attachment=FINALIZERS,
    of_volume=FINALIZERS,
    told=MAYBE,
    going=MAYBE,
    volume_going=MAYBE,
    recorded=st.sampled_from([None, "id-1", "id-old"]),
)
def test_from_any_state_the_steps_end_and_what_is_told_is_what_the_driver_has(
    *,
    of_attachment: list[str],
    of_volume: list[str],
    told: bool,
    going: bool,
    volume_going: bool,
    recorded: str | None,
):
    metadata: Object = {"finalizers": of_attachment, "annotations": {NODE_ID_ANNOTATION: recorded} if recorded else {}}
    if going:
        metadata["deletionTimestamp"] = DELETED
    model = Model(attachment(metadata=metadata, status={"attached": told}), volume(*of_volume, deleted=volume_going))
    model.published = {recorded} if recorded and OURS in of_attachment else set()
    steps = list(zip(range(10), model.run(), strict=False))
    assert len(steps) < 10
    if model.attachment is not None and not isinstance(steps[-1][1], Refuse):
        was_attached_before = told and OURS in of_attachment and not going  # by us: the model began without it
        assert is_attached(model.attachment) == bool(model.published) or was_attached_before
    if going and not isinstance(steps[-1][1], Refuse):
        assert model.published == set()
        assert model.attachment is None or OURS not in objects.finalizers(model.attachment)
