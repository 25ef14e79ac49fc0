"""From a container's spec to what the machine is asked for, or to a sentence that says why not."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onenode.containers.container_request import Account, VolumePlace, decoded_request
from onenode.host.payload_files import HostPath
from onenode.kubelet.pods.container_rules import (
    ContainerInputs,
    DeviceSource,
    NotRunnable,
    VolumeSources,
    account_of,
    container_request,
    unsupported_fields,
)
from onenode.kubelet.pods.environment_rules import (
    EnvironmentSources,
    api_services,
    environment_of,
    expanded,
    names_needed,
)
from orlop.foundation.http_edge import ListenAddress

Object = dict[str, Any]


def made(container: Object | None = None, **spec: Any) -> tuple[Object, Object]:
    one = {"name": "main", "image": "busybox", "command": ["true"], **(container or {})}
    metadata = {"name": "p", "namespace": "d", "uid": "u", "labels": {"app": "x"}}
    return {"metadata": metadata, "spec": {"containers": [one], **spec}}, one


def request_for(container: Object | None = None, around: ContainerInputs | None = None, **spec: Any):
    pod, one = made(container, **spec)
    return container_request(pod, one, 2, around or ContainerInputs())


# ---- who and what ----------------------------------------------------------------------------------------------------


def test_command_and_arguments_are_one_line_with_variables_in_it():
    given = {"command": ["echo", "$(A)"], "args": ["$$(A)", "$(B)", "$(A)$(A)"], "env": [{"name": "A", "value": "1"}]}

    assert request_for(given).request.command.arguments == ("echo", "1", "$(A)", "$(B)", "11")


def test_the_log_is_named_by_the_attempt_and_the_host_by_the_pod():
    found = request_for().request

    assert (found.log_name, found.root.host_name) == ("2.log", "p")


def test_the_containers_user_goes_before_the_pods():
    of_pod = {"runAsUser": 1, "runAsGroup": 2, "supplementalGroups": [7, 8], "fsGroup": 9}
    pod, one = made({"securityContext": {"runAsUser": 5}}, securityContext=of_pod)

    assert account_of(pod, one) == Account(5, 2, (7, 8, 9))


@pytest.mark.parametrize(
    ("context", "sentence"),
    [
        ({"runAsNonRoot": True}, "container has runAsNonRoot and image will run as root"),
        ({"runAsNonRoot": True, "runAsUser": 0}, "container's runAsUser breaks non-root policy"),
    ],
)
def test_who_must_not_be_root_is_not(context: Object, sentence: str):
    with pytest.raises(NotRunnable, match=re.escape(f'{sentence} (pod: "p_d(u)", container: main)')):
        request_for({"securityContext": context})


def test_a_read_only_root_and_no_new_privileges_are_passed_on():
    found = request_for(
        {"securityContext": {"readOnlyRootFilesystem": True, "allowPrivilegeEscalation": False}}
    ).request

    assert found.root.read_only
    assert found.command.no_new_privileges


def test_the_room_for_writing_is_the_limit_on_ephemeral_storage():
    found = request_for({"resources": {"limits": {"ephemeral-storage": "5Mi"}}}).request

    assert found.root.writable_bytes == 5 << 20


@pytest.mark.parametrize("container", [{"command": []}, {"command": None, "args": ["x"]}])
def test_a_container_without_a_command_is_asked_for_one(container: Object):
    with pytest.raises(NotRunnable, match='Set "command" of container "main"') as raised:
        request_for(container)

    assert raised.value.reason == "CreateContainerError"


def test_who_gives_args_alone_is_told_how_kubectl_run_gives_a_command():
    with pytest.raises(NotRunnable, match=r'"args" alone are not enough: .* "--command -- sh"'):
        request_for({"command": None, "args": ["sh"]})
    with pytest.raises(NotRunnable) as without:
        request_for({"command": None})

    assert "args" not in str(without.value)


def test_a_volume_of_a_kind_that_is_not_served_is_refused_by_its_kind():
    mounts = {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}
    with pytest.raises(NotRunnable) as raised:
        request_for(mounts, volumes=[{"name": "v", "nfs": {"server": "s", "path": "/"}, "csi": None}])

    assert raised.value.reason == "CreateContainerConfigError"
    assert str(raised.value) == (
        'volumeMount "v" of container "main": volumes of the kind nfs are not served here. Served are csi, '
        "persistentVolumeClaim, ephemeral, emptyDir, configMap, secret, downwardAPI, projected, hostPath."
    )


def test_a_sidecar_is_refused():
    pod, _ = made(initContainers=[{"name": "s", "command": ["true"], "restartPolicy": "Always"}])

    with pytest.raises(NotRunnable, match="sidecars are not supported"):
        container_request(pod, pod["spec"]["initContainers"][0], 0, ContainerInputs())


# ---- volumes ---------------------------------------------------------------------------------------------------------


def test_volumes_are_at_their_mount_paths():
    mounts = [
        {"name": "v", "mountPath": "/data/", "readOnly": True},
        {"name": "v", "mountPath": "rel/./ative", "subPath": "x"},
    ]
    sources = VolumeSources({"v": ("pods", "u", "v")}, {("main", 1): ("pods", "u", "sub")})
    found = request_for({"volumeMounts": mounts}, ContainerInputs(volumes=sources))

    assert found.request.root.volumes == (VolumePlace("/data", read_only=True), VolumePlace("/rel/ative"))
    assert found.volumes == (("pods", "u", "v"), ("pods", "u", "sub"))


def test_a_volume_that_nobody_may_write_to_is_mounted_so_whatever_is_asked_for():
    mounts = [{"name": "v", "mountPath": "/v", "readOnly": False}, {"name": "h", "mountPath": "/h"}]
    sources = VolumeSources({"v": ("pods", "u", "v"), "h": HostPath("/srv")}, read_only=frozenset({"v"}))
    found = request_for({"volumeMounts": mounts}, ContainerInputs(volumes=sources))

    assert found.request.root.volumes == (VolumePlace("/v", read_only=True), VolumePlace("/h"))
    assert found.volumes == (("pods", "u", "v"), HostPath("/srv"))


@pytest.mark.parametrize("path", ["/..", "/a/../b", "..", "/", "", "/.", "a/\0b", "/a/.."])
def test_a_mount_path_that_leads_elsewhere_is_refused(path: str):
    sources = VolumeSources({"v": ("x",)})
    with pytest.raises(NotRunnable, match="must lead somewhere below /"):
        request_for({"volumeMounts": [{"name": "v", "mountPath": path}]}, ContainerInputs(volumes=sources))


@given(st.text(alphabet="ab./\0", max_size=12))
def test_whatever_the_mount_path_what_is_asked_for_is_below_the_root(path: str):
    sources = VolumeSources({"v": ("x",)})
    try:
        found = request_for({"volumeMounts": [{"name": "v", "mountPath": path}]}, ContainerInputs(volumes=sources))
    except NotRunnable:
        return
    (place,) = found.request.root.volumes
    names = place.path.split("/")[1:]

    assert place.path.startswith("/")
    assert all(name not in {"", ".", ".."} for name in names)


def device_container(path: str) -> Object:
    return {"volumeDevices": [{"name": "d", "devicePath": path}]}


DEVICES = ContainerInputs(volumes=VolumeSources(devices={"d": DeviceSource(("dev", "u"), read_only=True)}))


def test_devices_are_at_their_device_paths_after_the_mounts():
    main = {**device_container("/dev/xvda"), "volumeMounts": [{"name": "v", "mountPath": "/v"}]}
    around = ContainerInputs(volumes=replace(DEVICES.volumes, volumes={"v": ("x",)}))
    found = request_for(main, around)

    assert found.request.root.volumes == (
        VolumePlace("/v"),
        VolumePlace("/dev/xvda", read_only=True, is_device=True),
    )
    assert found.volumes == (("x",), ("dev", "u"))


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("dev/xvda", "error DevicePath `dev/xvda` must be an absolute path"),
        ("/dev/../etc/passwd", 'devicePath "/dev/../etc/passwd" of container "main" must lead somewhere below /'),
        ("/..", 'devicePath "/.." of container "main" must lead somewhere below /'),
        ("/", 'devicePath "/" of container "main" must lead somewhere below /'),
        ("/dev/a\0b", "must lead somewhere below /"),
    ],
)
def test_a_device_path_that_leads_elsewhere_is_refused(path: str, sentence: str):
    main = device_container(path)
    with pytest.raises(NotRunnable) as refused:
        request_for(main, DEVICES)

    assert sentence in str(refused.value)


@given(st.text(alphabet="/.ab\0 ", max_size=20))
def test_whatever_the_device_path_what_is_asked_for_is_below_the_root(path: str):
    main = device_container(path)
    try:
        found = request_for(main, DEVICES)
    except NotRunnable:
        return
    (place,) = found.request.root.volumes
    assert place.path.startswith("/")
    assert ".." not in place.path.split("/")


def test_a_device_that_nobody_maps_is_named_in_kubelets_words():
    main = device_container("/dev/xvda")
    with pytest.raises(NotRunnable, match='cannot find volume "d" to pass into container "main"'):
        request_for(main)


def test_a_volume_that_nobody_mounts_here_is_named():
    with pytest.raises(NotRunnable, match='volumeMount "v" of container "main"'):
        request_for({"volumeMounts": [{"name": "v", "mountPath": "/x"}]})


# ---- environment -----------------------------------------------------------------------------------------------------


def test_later_variables_win_and_may_use_earlier_ones():
    sources = EnvironmentSources({"c": {"data": {"A": "map", "B": "map"}}}, {"s": {"data": {"A": "aHVzaA=="}}})
    env = [{"name": "B", "value": "own"}, {"name": "C", "value": "$(B)-$(P_A)"}]
    env_from = [{"configMapRef": {"name": "c"}}, {"prefix": "P_", "secretRef": {"name": "s"}}]
    pod, one = made({"env": env, "envFrom": env_from})
    found = environment_of(pod, one, sources)

    assert (found["A"], found["B"], found["C"], found["HOSTNAME"]) == ("map", "own", "own-hush", "p")
    assert names_needed(one) == ({"c"}, {"s"})


def test_a_variable_may_tell_what_the_container_has_or_else_the_node():
    env = [
        {"name": name, "valueFrom": {"resourceFieldRef": {"resource": name, **more}}}
        for name, more in (("limits.memory", {"divisor": "1Mi"}), ("limits.cpu", {}), ("requests.memory", {}))
    ]
    pod, one = made({"env": env, "resources": {"limits": {"memory": "64Mi"}}})
    found = environment_of(pod, one, EnvironmentSources(allocatable={"cpu": "3"}))

    assert [found[each["name"]] for each in env] == ["64", "3", "0"]


@pytest.mark.parametrize(("host", "shown"), [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]")])
def test_the_way_to_the_api_is_told_as_of_the_service_kubernetes(host: str, shown: str):
    env = [{"name": "URL", "value": "https://$(KUBERNETES_SERVICE_HOST)"}, {"name": "KUBERNETES_PORT", "value": "own"}]
    pod, one = made({"env": env})
    found = environment_of(pod, one, EnvironmentSources(services=api_services(ListenAddress(host, 6443))))

    assert {name: value for name, value in found.items() if name not in {"HOSTNAME", "HOME"}} == {
        "KUBERNETES_SERVICE_HOST": host,
        "KUBERNETES_SERVICE_PORT": "6443",
        "KUBERNETES_SERVICE_PORT_HTTPS": "6443",
        "KUBERNETES_PORT_6443_TCP": f"tcp://{shown}:6443",
        "KUBERNETES_PORT_6443_TCP_PROTO": "tcp",
        "KUBERNETES_PORT_6443_TCP_PORT": "6443",
        "KUBERNETES_PORT_6443_TCP_ADDR": host,
        "KUBERNETES_PORT": "own",
        "URL": f"https://{host}",
    }


@pytest.mark.parametrize(
    ("origin", "sentence"),
    [
        ({"configMapKeyRef": {"name": "c", "key": "k"}}, 'configmap "c" not found'),
        ({"secretKeyRef": {"name": "s", "key": "k"}}, "couldn't find key k in Secret d/s"),
        ({"fieldRef": {"fieldPath": "spec.nonsense"}}, "unsupported fieldPath: spec.nonsense"),
        ({"resourceFieldRef": {"resource": "limits.gold"}}, "unsupported container resource : limits.gold"),
        ({"resourceFieldRef": {"resource": "limits.cpu", "containerName": "x"}}, "container x not found"),
        ({"fileKeyRef": {"path": "a", "key": "k", "volumeName": "v"}}, "fileKeyRef, which is not supported"),
    ],
)
def test_what_is_missing_is_told_in_kubelets_words(origin: Object, sentence: str):
    sources = EnvironmentSources({}, {"s": {"data": {"other": "aHVzaA=="}}})
    with pytest.raises(NotRunnable, match=re.escape(sentence)) as raised:
        request_for({"env": [{"name": "A", "valueFrom": origin}]}, ContainerInputs(environment=sources))

    assert raised.value.reason == "CreateContainerConfigError"
    assert "hush" not in str(raised.value)


def test_what_is_optional_may_be_missing():
    env = [
        {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k", "optional": True}}},
        {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k", "optional": True}}},
    ]
    env_from = [{"secretRef": {"name": "gone", "optional": True}}]
    found = dict(request_for({"env": env, "envFrom": env_from}).request.command.environment)

    assert "A" not in found
    assert "B" not in found


def test_fields_of_the_pod_can_be_variables():
    env = [{"name": "L", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}}]
    found = dict(request_for({"env": env}).request.command.environment)

    assert found["L"] == "x"


@given(st.text(alphabet="$()A", max_size=14))
def test_a_value_that_is_put_in_is_not_read_again(text: str):
    assert "$(A)" not in expanded(text.replace("$$", "-"), {"A": "x", "": "y"})


# ---- the rest --------------------------------------------------------------------------------------------------------


def test_what_is_asked_for_and_not_done_is_named_by_its_path():
    container = {
        "livenessProbe": {"x": 1},
        "resources": {"limits": {"cpu": "1", "ephemeral-storage": "1Gi"}},
        "tty": False,
    }
    pod, _ = made(
        {**container, "securityContext": {"privileged": True}}, hostPID=True, securityContext={"sysctls": [1]}
    )

    assert unsupported_fields(pod) == (
        "spec.hostPID",
        "spec.securityContext.sysctls",
        "spec.containers{main}.livenessProbe",
        "spec.containers{main}.securityContext.privileged",
        "spec.containers{main}.resources.limits.cpu",
    )


def test_a_request_arrives_as_it_was_sent():
    env = [{"name": "A", "value": "ä\n\ud800"}]
    sources = VolumeSources({"v": ("x",)})
    mounts = [{"name": "v", "mountPath": "/data", "readOnly": True}]
    request = request_for(
        {"env": env, "volumeMounts": mounts}, ContainerInputs(volumes=sources, hidden=("/h",))
    ).request

    assert decoded_request(request.encoded()) == request
