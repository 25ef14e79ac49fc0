"""Which files a volume has, and where they may be: examples in kubelet's words, and properties over what is sent."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onenode.host.payload_files import FileKind, FolderPermissions
from onenode.kubelet.node.downward_rules import NoValue, field_value, resource_value
from onenode.kubelet.plain_volumes import plain_volumes_rules
from onenode.kubelet.plain_volumes.payload_rules import (
    NoPayload,
    PayloadObjects,
    References,
    TokenWish,
    payload_of,
    references_of,
)
from onenode.kubelet.plain_volumes.plain_volumes_rules import (
    HostPathStep,
    PlainKind,
    PlainVolume,
    PlainVolumeRefused,
    access_of,
    memory_limit,
    nested_mount_points,
    plain_volumes_of,
    user_of,
)
from onenode.kubelet.volumes.desired_volumes_rules import Unread

Object = dict[str, Any]
NODE = {"cpu": "4", "memory": "8Gi", "ephemeral-storage": "100Gi"}


def pod(**spec: Any) -> Object:
    metadata = {
        "name": "p",
        "namespace": "ns",
        "uid": "u1",
        "labels": {"b": "2", "a": 'x"\n'},
        "annotations": {"k": "v"},
    }
    return {"metadata": metadata, "spec": {"containers": [{"name": "main"}], **spec}}


def config_map(*items: Object, data: Object | None = None, **source: Any) -> tuple[PlainVolume, PayloadObjects]:
    volume = PlainVolume("v", PlainKind.CONFIG_MAP, {"name": "c", **({"items": items} if items else {}), **source})
    return volume, PayloadObjects({"c": {"data": data if data is not None else {"k": "text"}}})


def paths(of: Object, volume: PlainVolume, found: PayloadObjects) -> dict[str, bytes]:
    return {"/".join(names): file.content for names, file in payload_of(of, volume, found).items()}


# ---- paths -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("", 'must not be empty: ""'),
        ("/etc/passwd", "must be relative path: /etc/passwd"),
        ("../x", "must not contain '..': ../x"),
        ("a/../../x", "must not contain '..': a/../../x"),
        ("..data", "must not start with '..': ..data"),
        ("./..data/x", "must not start with '..': ./..data/x"),
        ("a" * 4097, "must be less than or equal to 4096 characters"),
    ],
)
def test_a_path_that_leads_elsewhere_is_refused_in_kubelets_words(path: str, why: str):
    volume, found = config_map({"key": "k", "path": path})

    with pytest.raises(NoPayload) as refused:
        payload_of(pod(), volume, found)
    assert str(refused.value) == f"invalid path: {why}"


@given(st.lists(st.sampled_from(["..", ".", "", "a", "..a", "b..", "..data", "c"]), max_size=6).map("/".join))
def test_whatever_path_is_asked_for_names_stay_below_the_volume_and_are_none_of_ours(path: str):
    volume, found = config_map({"key": "k", "path": path})
    try:
        (names,) = payload_of(pod(), volume, found)
    except NoPayload:
        return

    assert names
    assert not names[0].startswith("..")
    assert not {"", ".", ".."} & set(names)
    assert "/".join(names) == "/".join(part for part in path.split("/") if part not in {"", "."})


# ---- ConfigMaps and Secrets ------------------------------------------------------------------------------------------

KEYS = st.text("abc-._", min_size=1, max_size=6).filter(lambda key: not key.startswith("..") and key != ".")


@given(st.dictionaries(KEYS, st.text(max_size=10)), st.dictionaries(KEYS, st.binary(max_size=10)))
def test_without_items_every_key_is_a_file(texts: dict[str, str], binaries: dict[str, bytes]):
    volume, _ = config_map()
    encoded = {key: base64.b64encode(value).decode() for key, value in binaries.items()}
    found = PayloadObjects({"c": {"data": texts, "binaryData": encoded}})

    expected = {**binaries, **{key: value.encode() for key, value in texts.items()}}
    assert paths(pod(), volume, found) == expected


@given(st.lists(KEYS, unique=True, min_size=1), st.booleans(), st.data())
def test_with_items_only_those_are_there_or_the_missing_key_is_named(keys: list[str], optional: Any, data: Any):
    wanted = data.draw(st.lists(st.sampled_from([*keys, "nope"]), unique=True, min_size=1))
    items = [{"key": key, "path": f"d/{number}"} for number, key in enumerate(wanted)]
    volume = PlainVolume("v", PlainKind.SECRET, {"secretName": "s", "items": items, "optional": optional})
    found = PayloadObjects(secrets={"s": {"data": {key: base64.b64encode(key.encode()).decode() for key in keys}}})
    if "nope" in wanted and not optional:
        with pytest.raises(NoPayload, match=r"^references non-existent secret key: nope$"):
            payload_of(pod(), volume, found)
        return

    expected = {f"d/{number}": key.encode() for number, key in enumerate(wanted) if key != "nope"}
    assert paths(pod(), volume, found) == expected


def test_modes_are_the_items_own_or_the_volumes():
    volume, found = config_map(
        {"key": "a", "path": "a", "mode": 0o400}, {"key": "b", "path": "b"}, data={"a": "", "b": ""}, defaultMode=0o755
    )
    files = payload_of(pod(), volume, found)

    assert [files[name,].mode for name in "ab"] == [0o400, 0o755]


def test_what_is_optional_may_be_missing_but_not_unreadable():
    volume, _ = config_map(optional=True)

    assert paths(pod(), volume, PayloadObjects({"c": None})) == {}
    with pytest.raises(NoPayload, match="the server is away"):
        payload_of(pod(), volume, PayloadObjects({"c": Unread("the server is away")}))


def test_contents_are_in_no_representation():
    volume = PlainVolume("v", PlainKind.SECRET, {"secretName": "s"})
    found = PayloadObjects(secrets={"s": {"data": {"k": base64.b64encode(b"canary").decode()}}})

    shown = repr(payload_of(pod(), volume, found)) + repr(found)
    assert "canary" not in shown
    assert base64.b64encode(b"canary").decode() not in shown


# ---- projected -------------------------------------------------------------------------------------------------------

SOURCES: list[Object] = [
    {"serviceAccountToken": {"path": "token", "audience": "vault", "expirationSeconds": 600}},
    {"configMap": {"name": "c"}},
    {"secret": {"name": "s", "optional": True}},
    {"downwardAPI": {"items": [{"path": "ns", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
]


def test_a_projected_volume_has_the_files_of_all_its_sources():
    volume = PlainVolume("v", PlainKind.PROJECTED, {"sources": SOURCES, "defaultMode": 0o640})
    wish = TokenWish("vault", 600)
    found = PayloadObjects({"c": {"data": {"k": "1"}}}, {"s": None}, {wish: "secret-token"})

    assert references_of(volume) == References(frozenset({"c"}), frozenset({"s"}), frozenset({wish}))
    assert paths(pod(), volume, found) == {"token": b"secret-token", "k": b"1", "ns": b"ns"}
    assert payload_of(pod(), volume, found)["token",].mode == 0o640


def test_all_that_is_missing_is_told_at_once():
    volume = PlainVolume("v", PlainKind.PROJECTED, {"sources": [*SOURCES, {"clusterTrustBundle": {"path": "x"}}]})
    found = PayloadObjects({"c": None}, {"s": None}, {TokenWish("vault", 600): Unread("forbidden")})

    with pytest.raises(NoPayload) as refused:
        payload_of(pod(), volume, found)
    assert str(refused.value) == (
        '[failed to fetch token: forbidden, configmap "c" not found, '
        "clusterTrustBundle is not supported here as a source of files: use another one]"
    )


@pytest.mark.parametrize(
    ("spec", "user"),
    [
        ({}, None),
        ({"securityContext": {"runAsUser": 5}}, 5),
        ({"securityContext": {"runAsUser": 5}, "containers": [{"securityContext": {"runAsUser": 6}}]}, 6),
        ({"containers": [{"securityContext": {"runAsUser": 6}}, {}]}, None),
        (
            {
                "containers": [{"securityContext": {"runAsUser": 6}}],
                "initContainers": [{"securityContext": {"runAsUser": 7}}],
            },
            None,
        ),
    ],
)
def test_a_token_is_given_to_the_one_user_of_all_containers(spec: Object, user: int | None):
    assert user_of(pod(**spec)) == user


# ---- what a pod learns of itself -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.name", "p"),
        ("metadata.namespace", "ns"),
        ("metadata.uid", "u1"),
        ("metadata.labels", 'a="x\\"\\n"\nb="2"'),
        ("metadata.annotations['k']", "v"),
        ("metadata.labels['none']", ""),
    ],
)
def test_fields_are_written_as_kubelet_does(path: str, value: str):
    assert field_value(pod(), path) == value


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("spec.nodeName", "unsupported fieldPath: spec.nodeName"),
        ("metadata.name['x']", "fieldPath \"metadata.name['x']\" does not support subscript"),
    ],
)
def test_other_fields_are_refused_in_kubelets_words(path: str, why: str):
    with pytest.raises(NoValue) as refused:
        field_value(pod(), path)
    assert str(refused.value) == why


@pytest.mark.parametrize(
    ("resource", "divisor", "value"),
    [
        ("limits.cpu", None, "2"),
        ("limits.cpu", "1m", "1500"),
        ("requests.cpu", "0", "1"),
        ("limits.memory", "1Mi", "64"),
        ("requests.memory", "1Mi", "0"),
        ("limits.ephemeral-storage", "1Gi", "100"),
    ],
)
def test_resources_are_rounded_up_and_limits_are_the_nodes_where_none_are_set(
    resource: str, divisor: str | None, value: str
):
    resources = {"limits": {"cpu": "1500m", "memory": "64Mi"}, "requests": {"cpu": "250m"}}
    reference = {"containerName": "main", "resource": resource, **({"divisor": divisor} if divisor else {})}
    of = pod(containers=[{"name": "main", "resources": resources}])

    assert resource_value(of, reference, NODE) == value


@pytest.mark.parametrize(
    ("reference", "why"),
    [
        ({"containerName": "other", "resource": "limits.cpu"}, "container other not found"),
        ({"containerName": "main", "resource": "limits.gpu"}, "unsupported container resource : limits.gpu"),
    ],
)
def test_a_resource_that_is_not_there_is_told_in_kubelets_words(reference: Object, why: str):
    with pytest.raises(NoValue) as refused:
        resource_value(pod(), reference, NODE)
    assert str(refused.value) == why


# ---- folders ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "group", "access"),
    [
        ({}, None, FolderPermissions(0o777)),
        ({"medium": "Memory"}, None, FolderPermissions(0o1777)),
        ({"mode": 0o700}, None, FolderPermissions(0o700)),
        ({}, 2000, FolderPermissions(0o2777, 2000)),
    ],
)
def test_an_empty_folder_is_everybodys_and_a_groups(source: Object, group: int | None, access: FolderPermissions):
    context = {} if group is None else {"securityContext": {"fsGroup": group}}

    assert access_of(pod(**context), PlainVolume("v", PlainKind.EMPTY_DIR, source)) == access


@pytest.mark.parametrize(
    ("source", "memory", "size"),
    [
        ({}, [None], 8 << 30),
        ({"sizeLimit": "1Mi"}, [None], 1 << 20),
        ({"sizeLimit": "1Gi"}, ["64Mi", "64Mi"], 128 << 20),
        ({"sizeLimit": "1Gi"}, ["64Mi", None], 1 << 30),
        ({"sizeLimit": "0"}, [None], 8 << 30),
    ],
)
def test_memory_is_limited_by_the_volume_its_pod_and_the_node(source: Object, memory: list[str | None], size: int):
    containers = [{"resources": {"limits": {"memory": each} if each else {}}} for each in memory]

    assert memory_limit(pod(containers=containers), PlainVolume("v", PlainKind.EMPTY_DIR, source), NODE) == size


def test_only_volumes_that_a_container_uses_are_had():
    volumes = [{"name": "a", "emptyDir": {}}, {"name": "b", "emptyDir": {}}, {"name": "c", "csi": {"driver": "d"}}]
    mounts = [{"name": "b", "mountPath": "/b"}, {"name": "c", "mountPath": "/c"}]
    of = pod(volumes=volumes, containers=[{"name": "main", "volumeMounts": mounts}])

    assert plain_volumes_of(of) == (PlainVolume("b", PlainKind.EMPTY_DIR, {}),)


def test_places_inside_a_volume_are_found_outermost_first_and_alone():
    mounts = [
        {"name": "v", "mountPath": "/etc/x"},
        {"name": "a", "mountPath": "/etc/x/b/c"},
        {"name": "b", "mountPath": "/etc/x/b"},
        {"name": "c", "mountPath": "/etc/xy"},
        {"name": "d", "mountPath": "/etc/x/../../root"},
    ]

    assert nested_mount_points(pod(containers=[{"volumeMounts": mounts}]), "v") == (("b",),)


@given(st.lists(st.text("ab./", max_size=8), max_size=5))
def test_no_place_inside_a_volume_leads_out_of_it(mount_paths: list[str]):
    mounts = [{"name": f"v{number % 2}", "mountPath": path} for number, path in enumerate(mount_paths)]
    found = nested_mount_points(pod(containers=[{"volumeMounts": mounts}]), "v0")

    assert all(names and not {"", ".", ".."} & set(names) for names in found)


# ---- paths of the machine --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expected", "found", "step"),
    [
        ("", None, HostPathStep.MAKE_FOLDER),
        ("", FileKind.OTHER, HostPathStep.NOTHING),
        ("Directory", FileKind.FOLDER, HostPathStep.NOTHING),
        ("DirectoryOrCreate", None, HostPathStep.MAKE_FOLDER),
        ("FileOrCreate", None, HostPathStep.MAKE_FILE),
        ("FileOrCreate", FileKind.FILE, HostPathStep.NOTHING),
        ("Socket", FileKind.SOCKET, HostPathStep.NOTHING),
        ("CharDevice", FileKind.CHARACTER_DEVICE, HostPathStep.NOTHING),
        ("BlockDevice", FileKind.BLOCK_DEVICE, HostPathStep.NOTHING),
    ],
)
def test_a_path_is_used_or_made(expected: str, found: FileKind | None, step: HostPathStep):
    assert plain_volumes_rules.host_path_step("/x", expected, found) is step


@pytest.mark.parametrize(
    ("path", "expected", "found", "why"),
    [
        ("/x", "Directory", None, "hostPath type check failed: /x is not a directory"),
        ("/x", "DirectoryOrCreate", FileKind.FILE, "hostPath type check failed: /x is not a directory"),
        ("/x", "FileOrCreate", FileKind.FOLDER, "hostPath type check failed: /x is not a file"),
        ("/x", "BlockDevice", FileKind.CHARACTER_DEVICE, "hostPath type check failed: /x is not a block device"),
        ("/x", "Other", None, "Other is an invalid volume type"),
        ("/x/../y", "", FileKind.FOLDER, "invalid HostPath `/x/../y`: must not contain '..'"),
        ("x", "", FileKind.FOLDER, "invalid HostPath `x`: must be an absolute path"),
    ],
)
def test_a_path_that_is_something_else_is_refused_in_kubelets_words(
    path: str, expected: str, found: FileKind | None, why: str
):
    with pytest.raises(PlainVolumeRefused) as refused:
        plain_volumes_rules.host_path_step(path, expected, found)
    assert str(refused.value) == why
