"""The cases of Kubernetes' own tests of its PersistentVolume controller, by their numbers, with the same results.

Where Kubernetes deletes or recycles with an in-tree plugin, there is none here: those cases end as it does without one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from support.provisioning.binder_model import BinderModel
from support.provisioning.binding_objects import (
    BETA_CLASS,
    BIND_COMPLETED,
    BOUND_BY_CONTROLLER,
    DRIVER,
    MIGRATED_TO,
    PROVISIONED_BY,
    ROX,
    RWO,
    RWX,
    SELECTED_NODE,
    STORAGE_PROVISIONER,
    bound_claim,
    bound_volume,
    claim,
    storage_class,
    user,
    volume,
)

Object = dict[str, Any]
SHORT = {BIND_COMPLETED: "completed", BOUND_BY_CONTROLLER: "by-controller", STORAGE_PROVISIONER: "marked"}
BOUND = ["c Bound v completed by-controller", "v Bound c/uid-c by-controller"]
NAMED = ["c Bound v completed", "v Bound c/uid-c by-controller"]
BOTH_NAMED = ["c Bound v completed", "v Bound c/uid-c"]
LATE, FAST = storage_class("late", late=True), storage_class("fast")
PENDING = "c Pending -"
NOT_BOUND = "PVC Normal FailedBinding"
MISMATCH = "PVC Warning VolumeMismatch"
OF_MINE, OF_OTHER = ("c", "uid-c"), ("c", "uid-of-another")
STALE = {"accessModes": [RWO], "capacity": {"storage": "1Gi"}}
LOCAL = {"local": {"path": "/mnt/a"}}
PROVISIONED = {PROVISIONED_BY: DRIVER}


@dataclass(frozen=True)
class Case:
    """`sync` is what is synced: the claim, the volume, or all until nothing changes."""

    claims: list[Object]
    volumes: list[Object]
    objects: list[str]
    events: list[str] = field(default_factory=list)
    sync: str = "claim"
    classes: list[Object] = field(default_factory=list)
    pods: list[Object] = field(default_factory=list)
    in_api: list[Object] = field(default_factory=list)
    refused: bool = False


def on_volume(claims: list[Object], found: Object, after: str, *events: str, **more: Any) -> Case:
    return Case(claims, [found], [after], list(events), sync="volume", **more)


SEARCH = {
    "1-1 a volume that fits is bound": Case([claim()], [volume()], BOUND),
    "1-2 a volume that is too small is not": Case(
        [claim(size="10Gi")], [volume()], [PENDING, "v Available -"], [NOT_BOUND]
    ),
    "1-3 a claim that says Bound and never was falls back": Case(
        [claim(phase="Bound", status=STALE)], [], [PENDING], [NOT_BOUND]
    ),
    "1-4 the smallest that fits is bound": Case(
        [claim()],
        [volume("large", size="10Gi"), volume("v", size="1Gi"), volume("little", size="1Mi")],
        [BOUND[0], "large Available -", "little Available -", BOUND[1]],
    ),
    "1-5 one reserved by name beats a smaller one": Case(
        [claim()],
        [volume(size="10Gi", reserved=("c", "")), volume("small")],
        [BOUND[0], "small Available -", BOTH_NAMED[1]],
    ),
    "1-6 one reserved by uid beats a smaller one": Case(
        [claim()],
        [volume(size="10Gi", reserved=OF_MINE), volume("small")],
        [BOUND[0], "small Available -", BOTH_NAMED[1]],
    ),
    "1-7 one reserved for a former claim of the name is not ours": Case(
        [claim()], [volume(reserved=OF_OTHER)], [PENDING, "v Available c/uid-of-another"], [NOT_BOUND]
    ),
    "1-8 continued after the volume's spec": Case(
        [claim()], [volume(reserved=OF_MINE, keys=(BOUND_BY_CONTROLLER,))], BOUND
    ),
    "1-9 continued after the volume's status": Case([claim()], [bound_volume()], BOUND),
    "1-10 continued after the claim's spec": Case(
        [claim(names="v", keys=(BIND_COMPLETED, BOUND_BY_CONTROLLER))], [bound_volume()], BOUND
    ),
    "1-11 the selector chooses": Case(
        [claim(selector={"matchLabels": {"tier": "a"}})],
        [volume("small"), volume(size="9Gi", labels={"tier": "a"})],
        [BOUND[0], "small Available -", BOUND[1]],
    ),
    "1-12 the selector refuses": Case(
        [claim(selector={"matchLabels": {"tier": "b"}})],
        [volume(labels={"tier": "a"})],
        [PENDING, "v Available -"],
        [NOT_BOUND],
    ),
    "1-13 late binding leaves a free volume alone": Case(
        [claim(of_class="late")],
        [volume(of_class="late")],
        [PENDING, "v Available -"],
        ["PVC Normal WaitForFirstConsumer"],
        classes=[LATE],
    ),
    "1-14 late binding takes a reserved volume at once": Case(
        [claim(of_class="late")], [volume(of_class="late", reserved=OF_MINE)], [BOUND[0], BOTH_NAMED[1]], classes=[LATE]
    ),
    "1-15 the named volume though a smaller one exists": Case(
        [claim(names="v")], [volume(size="10Gi"), volume("small")], [NAMED[0], "small Available -", NAMED[1]]
    ),
    "1-16 the named volume without the access mode is refused": Case(
        [claim(names="v", modes=(RWX,))], [volume()], ["c Pending v", "v Available -"], [MISMATCH]
    ),
    "1-17 only available volumes are searched": Case(
        [claim()],
        [volume(phase, phase=phase) for phase in ("Failed", "Pending", "Released")] + [volume("v", phase="")],
        [PENDING, "Failed Failed -", "Pending Pending -", "Released Released -", "v  -"],
        [NOT_BOUND],
    ),
    "1-18 a provisioned volume has no mark of the binder": Case(
        [claim(of_class="fast")],
        [volume(of_class="fast", reserved=OF_MINE, annotations=PROVISIONED)],
        [BOUND[0], BOTH_NAMED[1]],
        classes=[FAST],
    ),
    "TestFindingVolumeWithDifferentAccessModes: the fewest extra modes win over the smaller size": Case(
        [claim()],
        [volume("small", modes=(RWO, RWX)), volume(size="9Gi")],
        [BOUND[0], "small Available -", BOUND[1]],
    ),
    "TestFindingPreboundVolumes: one that is too small is passed over": Case(
        [claim(size="5Gi")],
        [volume("small", size="1Gi", reserved=("c", "")), volume(size="5Gi")],
        [BOUND[0], "small Available c", BOUND[1]],
    ),
    "TestFindingPreboundVolumes: one without the access mode is passed over": Case(
        [claim()],
        [volume("other", modes=(ROX,), reserved=("c", "")), volume()],
        [BOUND[0], "other Available c", BOUND[1]],
    ),
}
NAMES_A_VOLUME = {
    "2-1 a missing volume is waited for silently": Case([claim(names="v")], [], ["c Pending v"]),
    "2-2 the same with a stale status": Case([claim(names="v", phase="Bound", status=STALE)], [], ["c Pending v"]),
    "2-3 a free volume: its mark, none on the claim": Case([claim(names="v")], [volume()], NAMED),
    "2-4 reserved by name: no marks of the binder": Case([claim(names="v")], [volume(reserved=("c", ""))], BOTH_NAMED),
    "2-5 reserved by uid: no marks of the binder": Case([claim(names="v")], [volume(reserved=OF_MINE)], BOTH_NAMED),
    "2-6 taken by another: falls back": Case(
        [claim(names="v", phase="Bound", status=STALE)],
        [volume(reserved=("d", "uid-d"))],
        ["c Pending v", "v Available d/uid-d"],
        ["PVC Warning FailedBinding"],
    ),
    "2-7 taken by another though the binder had bound it: an error": Case(
        [claim(names="v", keys=(BOUND_BY_CONTROLLER,), phase="Bound", status=STALE)],
        [volume(reserved=("d", "uid-d"))],
        ["c Bound v by-controller", "v Available d/uid-d"],
        refused=True,
    ),
    "2-8 the selector does not count": Case(
        [claim(names="v", selector={"matchLabels": {"tier": "b"}})], [volume(labels={"tier": "a"})], NAMED
    ),
    "2-9 too small": Case([claim(names="v", size="9Gi")], [volume()], ["c Pending v", "v Available -"], [MISMATCH]),
    "2-10 another class": Case(
        [claim(names="v", of_class="fast")], [volume()], ["c Pending v", "v Available -"], [MISMATCH], classes=[FAST]
    ),
    "2-11 another class of attributes": Case(
        [claim(names="v", volumeAttributesClassName="x")],
        [volume(volumeAttributesClassName="y")],
        ["c Pending v", "v Available -"],
        [MISMATCH],
    ),
    "2-12 the same class of attributes": Case(
        [claim(names="v", volumeAttributesClassName="x")],
        [volume(volumeAttributesClassName="x")],
        ["c Bound v completed attributes=x", NAMED[1]],
    ),
}
WAS_BOUND = {
    "3-1 without its volume's name": Case(
        [bound_claim(names="")], [], ["c Lost - completed by-controller"], ["PVC Warning ClaimLost"]
    ),
    "3-2 without its volume": Case(
        [bound_claim()], [], ["c Lost v completed by-controller"], ["PVC Warning ClaimLost"]
    ),
    "3-3 a volume that lost its claim's reference": Case([bound_claim()], [volume(phase="Released")], BOUND),
    "3-4 a volume of another uid": Case(
        [bound_claim()],
        [bound_volume(reserved=OF_OTHER)],
        ["c Lost v completed by-controller", "v Bound c/uid-of-another by-controller"],
        ["PVC Warning ClaimMisbound"],
    ),
    "3-5 a pair that is whole": Case([bound_claim()], [bound_volume()], BOUND),
    "3-6 a volume without a uid": Case(
        [bound_claim()],
        [bound_volume(reserved=("c", ""))],
        ["c Lost v completed by-controller", "v Bound c by-controller"],
        ["PVC Warning ClaimMisbound"],
    ),
    "3-7 the selector does not count": Case(
        [bound_claim(selector={"matchLabels": {"tier": "b"}})], [bound_volume(labels={"tier": "a"})], BOUND
    ),
}
VOLUMES = {
    "4-1 nobody's": on_volume([], volume(phase="Pending"), "v Available -"),
    "4-2 reserved by name": on_volume([], volume(phase="Pending", reserved=("c", "")), "v Available c"),
    "4-3 the claim is gone": on_volume([], bound_volume(), "v Released c/uid-c by-controller"),
    "4-4 the claim is another": on_volume(
        [claim(uid="uid-of-another")], bound_volume(), "v Released c/uid-c by-controller"
    ),
    "4-5 the claim does not know yet": on_volume(
        [claim()], bound_volume(phase="Pending"), "v Pending c/uid-c by-controller"
    ),
    "4-6 the claim's own": on_volume([bound_claim()], bound_volume(phase="Available"), BOUND[1]),
    "4-7 rolled back, chosen by the binder": on_volume([bound_claim(volume="w")], bound_volume(), "v Available -"),
    "4-8 rolled back, reserved by its owner": on_volume(
        [bound_claim(volume="w")], bound_volume(keys=()), "v Available c"
    ),
    "4-10 Delete without a plugin": on_volume(
        [],
        bound_volume(policy="Delete", source=LOCAL, keys=()),
        'v Failed c/uid-c (error getting deleter volume plugin for volume "v": no volume plugin matched)',
        "PV Warning VolumeFailedDelete",
    ),
    "4-11 the claim is only in the API": on_volume([], bound_volume(), BOUND[1], in_api=[bound_claim()]),
    "4-12 the claim is newer in the API": on_volume(
        [bound_claim(uid="uid-of-another")], bound_volume(), BOUND[1], in_api=[bound_claim()]
    ),
    "6-3 Recycle without a plugin": on_volume(
        [],
        volume(policy="Recycle", reserved=OF_MINE, phase="Bound"),
        "v Failed c/uid-c (No recycler plugin found for the volume!)",
        "PV Warning VolumeFailedRecycle",
    ),
    "6-9 Recycle with a new claim of the name": on_volume(
        [claim(uid="uid-of-another")],
        volume(policy="Recycle", reserved=OF_MINE, phase="Released"),
        "v Failed c/uid-c (No recycler plugin found for the volume!)",
        "PV Warning VolumeFailedRecycle",
    ),
    "6-11 Recycle, used by a pod": on_volume(
        [],
        volume(policy="Recycle", reserved=OF_MINE, phase="Bound"),
        "v Released c/uid-c",
        "PV Normal VolumeFailedRecycle",
        pods=[user(node="n1", phase="Running")],
    ),
    "6-14 Recycle, seemingly used by a pod": on_volume(
        [],
        volume(policy="Recycle", reserved=OF_MINE, phase="Bound"),
        "v Failed c/uid-c (No recycler plugin found for the volume!)",
        "PV Warning VolumeFailedRecycle",
        pods=[user(node="n1", phase="Succeeded"), user("q", "another", node="n1", phase="Running")],
    ),
    "8-7 Delete, bound again before": on_volume(
        [bound_claim()], bound_volume(policy="Delete", source=LOCAL, phase="Released"), BOUND[1]
    ),
    "8-10-1 Delete, of an external provisioner": on_volume(
        [], bound_volume(policy="Delete", source=LOCAL, keys=(), annotations=PROVISIONED), "v Released c/uid-c"
    ),
    "8-10-2 Delete, a CSI volume that its owner made": on_volume(
        [], bound_volume(policy="Delete", keys=()), "v Released c/uid-c"
    ),
    "8-10-3 Delete, migrated": on_volume(
        [],
        bound_volume(policy="Delete", source=LOCAL, keys=(), annotations={MIGRATED_TO: "x.csi"}),
        "v Released c/uid-c",
    ),
    "8-13 Delete, being deleted": on_volume(
        [], bound_volume(policy="Delete", dying=True, keys=()), "v Released c/uid-c"
    ),
}
PROVISIONING = {
    "11-14 the class is missing": Case([claim(of_class="fast")], [], [PENDING], ["PVC Warning ProvisioningFailed"]),
    "11-15 no class is wanted": Case([claim()], [], [PENDING], [NOT_BOUND], classes=[FAST]),
    "11-16 no class is stated": Case([claim(of_class=None)], [], [PENDING], [NOT_BOUND], classes=[FAST]),
    "11-17 both keys and one event": Case(
        [claim(of_class="fast")], [], ["c Pending - marked"], ["PVC Normal ExternalProvisioning"], classes=[FAST]
    ),
    "11-18 an in-tree name that nobody knows": Case(
        [claim(of_class="fast")],
        [],
        [PENDING],
        ["PVC Warning ProvisioningFailed"],
        classes=[storage_class("fast", provisioner="kubernetes.io/gone")],
    ),
    "11-22 an available volume: no provisioning": Case(
        [claim(of_class="fast")], [volume(of_class="fast")], BOUND, classes=[FAST]
    ),
    "11-24 a selected node goes past a free volume": Case(
        [claim(of_class="late", annotations={SELECTED_NODE: "n1"})],
        [volume(of_class="late")],
        ["c Pending - marked", "v Available -"],
        ["PVC Normal ExternalProvisioning"],
        classes=[LATE],
    ),
    "12-2 late and a selected node": Case(
        [claim(of_class="late", annotations={SELECTED_NODE: "n1"})],
        [],
        ["c Pending - marked"],
        ["PVC Normal ExternalProvisioning"],
        classes=[LATE],
    ),
    "12-4 the provisioned volume is bound": Case(
        [claim(of_class="late", annotations={SELECTED_NODE: "n1"})],
        [volume(of_class="late", reserved=OF_MINE, annotations=PROVISIONED, phase="Pending")],
        [BOUND[0], BOTH_NAMED[1]],
        classes=[LATE],
    ),
}
CLASSES = {
    "13-1 the class comes before the size": Case(
        [claim(of_class="gold")],
        [volume("small", of_class="silver"), volume(size="9Gi", of_class="gold")],
        [BOUND[0], "small Available -", BOUND[1]],
    ),
    "13-2 no class is not any class": Case(
        [claim()], [volume(of_class="gold")], [PENDING, "v Available -"], [NOT_BOUND]
    ),
    "13-3 a class is not no class": Case(
        [claim(of_class="gold")], [volume()], [PENDING, "v Available -"], ["PVC Warning ProvisioningFailed"]
    ),
    "13-4 a reserved volume whatever its class": Case(
        [claim(of_class="gold")], [volume(reserved=("c", ""))], [BOUND[0], BOTH_NAMED[1]]
    ),
    "13-5 no class stated is no class": Case([claim(of_class=None)], [volume()], BOUND),
    "14-3 another mode is not bound": Case(
        [claim(volumeMode="Block")], [volume()], [PENDING, "v Available -"], [NOT_BOUND]
    ),
    "14-8-1 a reserved volume of another mode: both are warned": Case(
        [claim(volumeMode="Block")],
        [volume(reserved=OF_MINE)],
        ["v Available c/uid-c"],
        ["PV Warning VolumeMismatch", MISMATCH],
        sync="volume",
    ),
    "14-13 a named volume of another mode": Case(
        [claim(names="v", volumeMode="Block")], [volume()], ["c Pending v", "v Available -"], [MISMATCH]
    ),
    "15-1 no default class": Case([claim(of_class=None)], [], [PENDING], [NOT_BOUND], classes=[FAST]),
    "15-2 a default class": Case(
        [claim(of_class=None)],
        [],
        ["c Pending - marked class=std"],
        ["PVC Normal ExternalProvisioning"],
        classes=[FAST, storage_class("std", default=True)],
    ),
    "15-3 two default classes of one age": Case(
        [claim(of_class=None)],
        [],
        ["c Pending - marked class=a"],
        ["PVC Normal ExternalProvisioning"],
        classes=[storage_class("b", default=True), storage_class("a", default=True)],
    ),
    "15-4 bound": Case(
        [bound_claim(of_class=None)], [bound_volume()], BOUND, classes=[storage_class("std", default=True)]
    ),
    "15-5 a class is set": Case(
        [claim(of_class="fast")],
        [],
        ["c Pending - marked class=fast"],
        ["PVC Normal ExternalProvisioning"],
        classes=[FAST, storage_class("std", default=True)],
    ),
    "15-6 no class is set": Case([claim()], [], [PENDING], [NOT_BOUND], classes=[storage_class("std", default=True)]),
    "15-7 the beta key is set": Case(
        [claim(of_class=None, annotations={BETA_CLASS: ""})],
        [],
        [PENDING],
        [NOT_BOUND],
        classes=[storage_class("std", default=True)],
    ),
}
TOGETHER = {
    "8-12 two provisioned volumes for one claim": Case(
        [claim(of_class="fast")],
        [volume(name, of_class="fast", policy="Delete", reserved=OF_MINE, annotations=PROVISIONED) for name in "vw"],
        [BOUND[0], "v Bound c/uid-c", "w Released c/uid-c"],
        sync="all",
        classes=[FAST],
    ),
    "10-2 two volumes reserved for one claim: one rolls back": Case(
        [claim()],
        [volume(name, reserved=OF_MINE, keys=(BOUND_BY_CONTROLLER,)) for name in "vw"],
        [*BOUND, "w Available -"],
        sync="all",
    ),
}
CASES = {**SEARCH, **NAMES_A_VOLUME, **WAS_BOUND, **VOLUMES, **PROVISIONING, **CLASSES, **TOGETHER}


def summary(model: BinderModel, case: Case) -> list[str]:
    claims = [_claim(one, case) for _, one in sorted(model.claims.items())] if case.sync != "volume" else []
    return claims + [_volume(one) for _, one in sorted(model.volumes.items())]


def _claim(obj: Object, case: Case) -> str:
    marks = [short for key, short in SHORT.items() if key in obj["metadata"].get("annotations", {})]
    given = {one["metadata"]["name"]: one for one in case.claims}[obj["metadata"]["name"]]
    name = obj["spec"].get("storageClassName")
    if (name is not None and len(case.classes) > 1) or name != given["spec"].get("storageClassName"):
        marks += [f"class={name}"]
    if attributes := obj["status"].get("currentVolumeAttributesClassName"):
        marks += [f"attributes={attributes}"]
    has_fields = {"accessModes", "capacity"} <= obj["status"].keys()
    assert has_fields == (obj["status"]["phase"] == "Bound"), "only a bound claim says what it has"
    return " ".join([obj["metadata"]["name"], obj["status"]["phase"], obj["spec"].get("volumeName") or "-", *marks])


def _volume(obj: Object) -> str:
    reference = obj["spec"].get("claimRef") or {"name": "-"}
    of = f"{reference['name']}/{reference['uid']}" if "uid" in reference else reference["name"]
    marks = [short for key, short in SHORT.items() if key in obj["metadata"].get("annotations", {})]
    message = [f"({obj['status']['message']})"] if "message" in obj["status"] else []
    return " ".join([obj["metadata"]["name"], obj["status"]["phase"], of, *marks, *message])


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_case_ends_as_in_kubernetes(case: Case):
    model = BinderModel(
        claims=case.claims, volumes=case.volumes, classes=case.classes, pods=case.pods, in_api=case.in_api
    )
    {"claim": model.sync_claim, "volume": model.sync_volume, "all": model.settle}[case.sync]()

    assert summary(model, case) == case.objects
    assert [event.partition(":")[0] for event in model.events] == case.events
    assert bool(model.refused) == case.refused


def test_5_2_3_the_size_from_before_an_expansion_wins():
    model = BinderModel(
        claims=[claim()],
        volumes=[volume(size="2Gi", annotations={"volume.alpha.kubernetes.io/pre-resize-capacity": "1Gi"})],
    )
    model.sync_claim()

    assert model.claims["c"]["status"]["capacity"] == {"storage": "1Gi"}


def test_5_3_and_5_4_a_deletion_reaches_the_partner():
    without_claim = BinderModel(claims=[bound_claim()], volumes=[bound_volume()])
    del without_claim.claims["c"]
    without_claim.settle()
    without_volume = BinderModel(claims=[bound_claim()], volumes=[bound_volume()])
    del without_volume.volumes["v"]
    without_volume.settle()

    assert without_claim.volumes["v"]["status"]["phase"] == "Released"
    assert without_volume.claims["c"]["status"]["phase"] == "Lost"


def test_5_7_the_volume_is_deleted_first_and_then_its_claim():
    """The volume is Terminating and still bound; when its claim goes, it is released at once."""
    model = BinderModel(claims=[bound_claim()], volumes=[bound_volume(dying=True)])
    model.settle()
    between = (model.claims["c"]["status"]["phase"], model.volumes["v"]["status"]["phase"])
    del model.claims["c"]
    model.settle()

    assert between == ("Bound", "Bound")
    assert model.volumes["v"]["status"]["phase"] == "Released"
    assert model.events == []


def test_setdefault_the_newer_of_two_default_classes_wins():
    older, newer = storage_class("a", default=True), storage_class("b", default=True)
    newer["metadata"]["creationTimestamp"] = "2026-08-02T12:00:00Z"
    model = BinderModel(claims=[claim(of_class=None)], classes=[older, newer])
    model.sync_claim()

    assert model.claims["c"]["spec"]["storageClassName"] == "b"
