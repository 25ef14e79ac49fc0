"""What a pod may ask for with its scratch folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orlop.csi.error_codes import Code, CsiError, FailedPrecondition, InvalidArgument, OutOfRange
from orlop.csi.proto import csi_pb2
from orlop.driver.ephemeral.publish_request_rules import (
    AFTERLIFESPAN,
    EPHEMERAL,
    INODES,
    LONGEST_OF_KUBELET,
    MODE,
    MOUNT_OPTIONS,
    POD_NAME,
    POD_NAMESPACE,
    POD_UID,
    SERVICE_ACCOUNT,
    SIZE,
    AdminLimits,
    PublishOrder,
    publish_order,
    refuse_another_pod,
    refuse_beyond_limits,
)
from orlop.records.ephemeral_folder import FolderOptions, Owner

KUBELET = "/var/lib/kubelet"
UID = "6355041d-f9c6-4bd6-9335-f2c8cf1ea0c7"
TARGET = f"{KUBELET}/pods/{UID}/volumes/kubernetes.io~csi/scratch/mount"
ID = "csi-7d9b3da1c7e2ad5274a8651892defaffc2201d0bb15a061100ed84877ad6fdbe"
HOUR = 3600.0
LIMITS = AdminLimits(afterlifespan=12 * HOUR, max_afterlifespan=24 * HOUR, default_size=0, max_size=10 * 2**30)
KUBELETS_CONTEXT = {
    EPHEMERAL: "true",
    POD_NAME: "web-0",
    POD_NAMESPACE: "shop",
    POD_UID: UID,
    SERVICE_ACCOUNT: "default",
}
WRITER = csi_pb2.VolumeCapability.AccessMode.Mode.SINGLE_NODE_WRITER


def request(**changes: Any) -> csi_pb2.NodePublishVolumeRequest:
    """As kubelet sends it, with changes; `context` is added to what kubelet says."""
    context = {**KUBELETS_CONTEXT, **changes.pop("context", {})}
    fields: dict[str, Any] = {
        "volume_id": ID,
        "target_path": TARGET,
        "volume_capability": csi_pb2.VolumeCapability(
            mount=csi_pb2.VolumeCapability.MountVolume(mount_flags=changes.pop("mount_flags", ())),
            access_mode=csi_pb2.VolumeCapability.AccessMode(mode=WRITER),
        ),
        "volume_context": {key: value for key, value in context.items() if value is not None},
        **changes,
    }
    return csi_pb2.NodePublishVolumeRequest(**fields)


def order(**changes: Any) -> PublishOrder:
    """The order for a folder that does not exist yet."""
    accepted = publish_order(request(**changes), (KUBELET,), LIMITS)
    refuse_beyond_limits(accepted)
    return accepted


def test_what_kubelet_usually_sends_is_served():
    assert order() == PublishOrder(
        volume_id=ID,
        target=f"pods/{UID}/volumes/kubernetes.io~csi/scratch/mount",
        owner=Owner(UID, "web-0", "shop", "default", verified=True),
        options=FolderOptions(
            lifespan_seconds=12 * HOUR, own_lifespan=False, size_bytes=10 * 2**30, mount_options=("nosuid", "nodev")
        ),
        limited_by=("--max-size",),
        volume_name="scratch",
    )


def test_a_pod_chooses_within_the_admins_limits():
    context = {SIZE: "5Gi", INODES: "1000", AFTERLIFESPAN: "90m", MODE: "0750", MOUNT_OPTIONS: "noexec, noatime"}
    assert order(context=context, readonly=True).options == FolderOptions(
        lifespan_seconds=1.5 * HOUR,
        size_bytes=5 * 2**30,
        inodes=1000,
        mode=0o750,
        mount_options=("nosuid", "nodev", "noexec", "noatime"),
        read_only=True,
    )


def test_no_afterlife_at_all_can_be_chosen():
    assert order(context={AFTERLIFESPAN: "0s"}).options.lifespan_seconds == 0


def test_mount_options_of_the_request_and_of_the_attribute_are_joined():
    joined = order(mount_flags=["noexec,nosuid", "rw"], context={MOUNT_OPTIONS: "nodev,relatime"})
    assert joined.options.mount_options == ("nosuid", "nodev", "noexec", "relatime")


@pytest.mark.parametrize("changes", [{"mount_flags": ["ro"]}, {"context": {MOUNT_OPTIONS: "ro"}}, {"readonly": True}])
def test_read_only_can_be_asked_for_in_each_place(changes: dict[str, Any]):
    assert order(**changes).options.read_only
    assert "ro" not in order(**changes).options.mount_options


@pytest.mark.parametrize(
    ("limits", "context", "source"),
    [
        ((0, 0), {}, ()),
        ((2**30, 2**40), {}, ("--default-size",)),
        ((0, 2**40), {}, ("--max-size",)),
        ((2**30, 2**40), {SIZE: "1Gi"}, (SIZE,)),
        ((0, 0), {SIZE: "1Gi", INODES: "5"}, (SIZE, INODES)),
        ((2**30, 0), {INODES: "5"}, ("--default-size", INODES)),
    ],
)
def test_an_order_says_where_its_limits_come_from(limits, context: dict[str, str], source: tuple[str, ...]):
    served = publish_order(request(context=context), (KUBELET,), AdminLimits(HOUR, HOUR, *limits))
    assert served.limited_by == source
    assert bool(served.limited_by) == bool(served.options.size_bytes or served.options.inodes)


def test_the_default_size_of_the_admin_is_given_to_who_asks_for_none():
    limits = AdminLimits(HOUR, HOUR, default_size=2**30, max_size=2**40)
    assert publish_order(request(), (KUBELET,), limits).options.size_bytes == 2**30


def test_without_limits_of_the_admin_there_is_none():
    assert publish_order(request(), (KUBELET,), AdminLimits(HOUR, HOUR)).options.size_bytes == 0


def test_names_that_kubelet_did_not_vouch_for_are_marked():
    """Where podInfoOnMount is off, a tenant can write all of them but the uid, which nobody knows beforehand."""
    forged = order(context={POD_UID: None, POD_NAME: "forged", POD_NAMESPACE: "kube-system"}).owner
    assert forged == Owner(UID, "forged", "kube-system", "default", verified=False)


def test_a_target_of_another_shape_is_served_with_the_identity_the_context_gives():
    other = order(target_path=f"{KUBELET}/sanity/target")
    assert other.target == "sanity/target"
    assert other.owner == Owner(UID, "web-0", "shop", "default", verified=False)


def test_slashes_and_dots_that_mean_nothing_are_taken_out_of_a_target():
    assert order(target_path=f"{KUBELET}//sanity/./target/").target == "sanity/target"
    assert publish_order(request(), (KUBELET + "/",), LIMITS) == order()


BLOCK = csi_pb2.VolumeCapability(
    block=csi_pb2.VolumeCapability.BlockVolume(), access_mode=csi_pb2.VolumeCapability.AccessMode(mode=WRITER)
)
NO_ACCESS_TYPE = csi_pb2.VolumeCapability(access_mode=csi_pb2.VolumeCapability.AccessMode(mode=WRITER))
NO_ACCESS_MODE = csi_pb2.VolumeCapability(mount=csi_pb2.VolumeCapability.MountVolume())
OTHER_POD = f"{KUBELET}/pods/00000000-0000-0000-0000-000000000000/volumes/kubernetes.io~csi/scratch/mount"

WRONG: dict[str, dict[str, Any]] = {
    **{f"the volume id {bad!r}": {"volume_id": bad} for bad in ("", ".", "..", "../x", "a/b", "/", ".x", "-x", "a b")},
    **{
        f"the volume id {bad!r}": {"volume_id": bad}
        for bad in ("a\nb", "ä", "a\x00b", "~", "a:b", "a\\b", "*", "a\x7f")
    },
    "a volume id of 129 bytes": {"volume_id": "x" * 129},
    "no target": {"target_path": ""},
    "a relative target": {"target_path": f"pods/{UID}/volumes/kubernetes.io~csi/scratch/mount"},
    "kubelet's folder itself": {"target_path": KUBELET},
    "kubelet's folder itself, with a slash": {"target_path": KUBELET + "/"},
    "kubelet's folder itself, with dots": {"target_path": KUBELET + "/././"},
    "a target outside": {"target_path": "/etc"},
    "a target in a folder whose name only begins alike": {"target_path": KUBELET + "2/x"},
    "a target that climbs out": {"target_path": f"{KUBELET}/../../../etc"},
    "a target that climbs and comes back": {"target_path": f"{KUBELET}/pods/../x"},
    "a target that ends with ..": {"target_path": f"{KUBELET}/pods/x/.."},
    "a target with a NUL": {"target_path": f"{KUBELET}/a\x00b"},
    "a target longer than a path can be": {"target_path": f"{KUBELET}/{'x/' * 3000}"},
    "a target of the root": {"target_path": "/"},
    "no capability": {"volume_capability": None},
    "a block volume": {"volume_capability": BLOCK},
    "no access type": {"volume_capability": NO_ACCESS_TYPE},
    "no access mode": {"volume_capability": NO_ACCESS_MODE},
    "a volume that is not inline": {"context": {EPHEMERAL: "false"}},
    "a volume that says nothing of inline": {"context": {EPHEMERAL: None}},
    "inline in capitals": {"context": {EPHEMERAL: "True"}},
    "another pod's uid": {"target_path": OTHER_POD},
    "a forged uid": {"context": {POD_UID: "00000000-0000-0000-0000-000000000000"}},
    "an unknown attribute": {"context": {"size": "1Gi"}},
    "an unknown attribute of ours": {"context": {"orlop.dev/sizes": "1Gi"}},
    "an attribute of another driver": {"context": {"capacity": "1"}},
    "an attribute in capitals": {"context": {"orlop.dev/Size": "1Gi"}},
    "an attribute without a name": {"context": {"": "x"}},
    **{
        f"{key} of {longest + 1} characters": {"context": {key: "a" * (longest + 1)}}
        for key, longest in LONGEST_OF_KUBELET.items()
    },
    "a pod's name of 70,000 characters": {"context": {POD_NAME: "x" * 70_000}},
    **{f"the size {bad!r}": {"context": {SIZE: bad}} for bad in ("", "0", "-1", "-1Gi", "big", "1GB", "1 Gi", "NaN")},
    **{
        f"the inodes {bad!r}": {"context": {INODES: bad}} for bad in ("", "0", "-1", "1.5", "1k", "many", "9" * 19, "٣")
    },
    **{f"the lifespan {bad!r}": {"context": {AFTERLIFESPAN: bad}} for bad in ("", "1", "-1s", "1d", "forever", "1e3s")},
    **{
        f"the mode {bad!r}": {"context": {MODE: bad}}
        for bad in ("", "888", "1777", "4755", "01777", "rwx", "-1", "0o750")
    },
    **{
        f"the mount option {bad!r}": {"context": {MOUNT_OPTIONS: bad}}
        for bad in ("suid", "dev", "noexec,nonsense", "context=x", "remount", "noatime,relatime", "NOEXEC", "uid=0")
    },
    **{f"the mount flag {bad!r}": {"mount_flags": [bad]} for bad in ("suid", "loop", "--make-shared", "noexec nosuid")},
}


def test_a_lifespan_in_days_is_refused_with_how_to_write_it():
    with pytest.raises(InvalidArgument, match=f"{AFTERLIFESPAN}: '3d' .*days are written as hours: 72h"):
        order(context={AFTERLIFESPAN: "3d"})


OUT_OF_RANGE: dict[str, dict[str, Any]] = {
    "more than the largest size": {"context": {SIZE: "11Gi"}},
    "more than any disk holds": {"context": {SIZE: "1e99"}},
    "one byte more than the largest size": {"context": {SIZE: str(10 * 2**30 + 1)}},
    "more than the longest afterlife": {"context": {AFTERLIFESPAN: "24h1ns"}},
}


def code_of(ask: Callable[[], object]) -> tuple[Code, str]:
    with pytest.raises(CsiError) as raised:
        ask()
    return raised.value.code, raised.value.message


def test_the_tables_below_are_long():
    assert len(WRONG) + len(OUT_OF_RANGE) >= 60


@pytest.mark.parametrize("what", WRONG, ids=str)
def test_a_wrong_request_is_an_invalid_argument(what: str):
    code, message = code_of(lambda: order(**WRONG[what]))
    assert code is Code.INVALID_ARGUMENT
    assert len(message) > 20


@pytest.mark.parametrize("what", OUT_OF_RANGE, ids=str)
def test_more_than_the_admin_allows_is_out_of_range(what: str):
    code, message = code_of(lambda: order(**OUT_OF_RANGE[what]))
    assert code is Code.OUT_OF_RANGE
    assert "at most" in message


@pytest.mark.parametrize("context", [{SIZE: "11Gi"}, {AFTERLIFESPAN: "25h"}], ids=str)
def test_the_limits_of_today_are_no_part_of_reading_a_request(context: dict[str, str]):
    """The volume may have been published under other limits; only its record can tell."""
    read = publish_order(request(context=context), (KUBELET,), LIMITS)
    assert read.volume_id == ID
    with pytest.raises(OutOfRange, match="at most"):
        refuse_beyond_limits(read)


@pytest.mark.parametrize(("asks", "recorded"), [("u1", "u1"), ("u1", ""), ("", "u1"), ("", "")])
def test_a_pod_that_is_not_known_to_be_another_one_gets_its_folder(asks: str, recorded: str):
    refuse_another_pod(replace(order(), owner=Owner(asks)), Owner(recorded))


def test_a_pod_that_is_known_to_be_another_one_is_refused():
    with pytest.raises(FailedPrecondition, match="belongs to the pod u1, and the pod u2 asks for it"):
        refuse_another_pod(replace(order(), owner=Owner("u2")), Owner("u1"))


@pytest.mark.parametrize("key", LONGEST_OF_KUBELET)
def test_a_name_that_no_object_can_have_is_refused_in_one_short_sentence(key: str):
    code, message = code_of(lambda: order(context={key: "x" * 70_000}))
    assert code is Code.INVALID_ARGUMENT
    assert message.startswith(f"{key} cannot be 'xxx")
    assert len(message) < 300


def test_the_longest_names_that_objects_can_have_are_served():
    longest = {key: "a" * most for key, most in LONGEST_OF_KUBELET.items() if key != POD_UID}
    assert order(context=longest).owner == Owner(UID, "a" * 253, "a" * 63, "a" * 253, verified=True)


words = st.text(max_size=30)


@given(words, words, st.dictionaries(words, words, max_size=3), st.lists(words, max_size=2))
def test_any_request_is_served_within_its_root_or_refused(volume_id, target, context, flags):
    try:
        served = order(volume_id=volume_id, target_path=f"{KUBELET}/{target}", context=context, mount_flags=flags)
    except CsiError:
        return
    assert ".." not in served.target.split("/")
    assert "/" not in served.volume_id


@given(st.sampled_from([SIZE, INODES, AFTERLIFESPAN, MODE, MOUNT_OPTIONS]), words)
def test_any_attribute_is_within_limits_or_refused(attribute: str, value: str):
    try:
        options = order(context={attribute: value}).options
    except CsiError:
        return
    assert 0 < options.size_bytes <= LIMITS.max_size
    assert 0 <= options.lifespan_seconds <= LIMITS.max_afterlifespan
    assert 0 <= options.mode <= 0o777
    assert set(options.mount_options) >= {"nosuid", "nodev"}
