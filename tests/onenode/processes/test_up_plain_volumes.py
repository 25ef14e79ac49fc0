"""Volumes of Kubernetes' own kinds in pods that run under a real `orlop up`: on this kernel, with the real kubectl."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.processes.up_process import Up, up_folder
from support.waiting import eventually_there

Object = dict[str, Any]
CANARY = "canary-3f9a1c"


@pytest.fixture(scope="module")
def up() -> Iterator[Up]:
    with up_folder() as made:
        made.start()
        made.kubectl.ok("create", "configmap", "settings", "--from-literal=color=red", "--from-literal=size=7")
        made.kubectl.ok("create", "secret", "generic", "hidden", f"--from-literal=word={CANARY}")
        yield made
        assert made.end() == 0
        assert "Traceback" not in made.said(), made.said()


def apply(up: Up, name: str, script: str, *volumes: Object, mounts: list[Object] | None = None, **spec: Any) -> None:
    used = mounts or [{"name": one["name"], "mountPath": f"/mnt/{one['name']}"} for one in volumes]
    container = {"name": "main", "image": "x", "command": ["sh", "-c", script], "volumeMounts": used}
    body = {"containers": [container], "volumes": list(volumes), "terminationGracePeriodSeconds": 1, **spec}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"a": "b"}}, "spec": body}
    up.kubectl.ok("apply", "-f", "-", stdin=json.dumps(pod))


def result(up: Up, name: str) -> list[str]:
    """What a pod printed that has come to its end."""
    up.kubectl.ok("wait", "--for=jsonpath={.status.phase}=Succeeded", f"pod/{name}", "--timeout=150s")
    return up.kubectl.ok("logs", name).splitlines()


def nothing_is_left(up: Up) -> None:
    assert [path for path in up.mounts() if path != str(up.state)] == []
    assert list((up.state / "kubelet" / "pods").iterdir()) == []


def test_files_of_each_kind_are_read_in_a_pod_and_cannot_be_written(up: Up):
    script = """
        cat /mnt/cm/color /mnt/sec/word /mnt/down/name /mnt/all/sub/color; echo
        cat /mnt/down/labels; echo
        stat -L -c %a /mnt/cm/color /mnt/sec/word
        readlink /mnt/cm/color /mnt/cm/..data | cut -c1-12
        stat -f -c %T /mnt/sec /mnt/down /mnt/all
        for each in cm sec down all; do echo x > /mnt/$each/new || echo refused; done 2>/dev/null
    """
    items = [
        {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}},
        {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
    ]
    all_of_it = [{"configMap": {"name": "settings", "items": [{"key": "color", "path": "sub/color"}]}}]
    apply(
        up,
        "reads",
        script,
        {"name": "cm", "configMap": {"name": "settings"}},
        {"name": "sec", "secret": {"secretName": "hidden", "defaultMode": 0o400}},
        {"name": "down", "downwardAPI": {"items": items}},
        {"name": "all", "projected": {"sources": all_of_it}},
        restartPolicy="Never",
    )
    printed = result(up, "reads")
    up.delete("reads")

    assert printed[:4] == [f"red{CANARY}readsred", 'a="b"', "644", "400"]
    assert printed[4] == "..data/color"
    assert printed[5].startswith("..20")
    assert printed[6:] == ["tmpfs"] * 3 + ["refused"] * 4
    nothing_is_left(up)


def test_the_way_to_the_api_is_in_every_pod(up: Up):
    script = "cd /var/run/secrets/kubernetes.io/serviceaccount && cat namespace && echo && head -1 ca.crt && cat token"
    apply(up, "api", script, {"name": "unused", "emptyDir": {}}, restartPolicy="Never")
    namespace, certificate, token = result(up, "api")
    up.delete("api")

    assert namespace == "default"
    assert certificate == "-----BEGIN CERTIFICATE-----"
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
    answer = json.loads(up.kubectl.ok("create", "-o", "json", "-f", "-", stdin=json.dumps(review)))
    # It is bound to its pod, which is gone.
    assert not answer["status"].get("authenticated")
    nothing_is_left(up)


ASKS = """
import json, os, pathlib, ssl, urllib.error, urllib.request
files = pathlib.Path("/var/run/secrets/kubernetes.io/serviceaccount")
namespace, token = (files / "namespace").read_text(), (files / "token").read_text()
server = os.environ["KUBERNETES_SERVICE_HOST"] + ":" + os.environ["KUBERNETES_SERVICE_PORT"]
trusted = ssl.create_default_context(cafile=str(files / "ca.crt"))
for space in (namespace, "kube-system"):
    url = f"https://{server}/api/v1/namespaces/{space}/configmaps"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, context=trusted, timeout=20) as answer:
            print(*[one["metadata"]["name"] for one in json.load(answer)["items"]])
    except urllib.error.HTTPError as error:
        print(error.code, json.load(error)["message"])
"""


def test_a_program_in_a_pod_finds_the_api_server_and_may_do_what_its_account_may(up: Up):
    python = os.path.realpath(sys.executable)  # what is below /tmp is not there
    container = {"name": "main", "image": "x", "command": [python, "-I", "-c", ASKS]}
    account = "system:serviceaccount:default:default"
    may_not = f'configmaps is forbidden: User "{account}" cannot list resource "configmaps" in API group "" in the'
    apply(up, "stranger", "", {"name": "unused", "emptyDir": {}}, restartPolicy="Never", containers=[container])
    before = result(up, "stranger")
    up.kubectl.ok("create", "rolebinding", "reads", "--clusterrole=view", "--serviceaccount=default:default")
    apply(up, "reader", "", {"name": "unused", "emptyDir": {}}, restartPolicy="Never", containers=[container])
    after = result(up, "reader")
    up.delete("stranger")
    up.delete("reader")

    assert before == [f'403 {may_not} namespace "{space}"' for space in ("default", "kube-system")]
    assert {"kube-root-ca.crt", "settings"} <= set(after[0].split()), "and what other tests have made"
    assert after[1:] == before[1:]
    nothing_is_left(up)


def test_empty_folders_are_anybodys_limited_in_memory_and_outlast_a_container(up: Up):
    script = """
        cd /mnt/disk; test -e second && { cat first; stat -c '%a %g' /mnt/disk /mnt/ram; exit 0; }
        test -e first && touch second || { ln -s /etc link; mkfifo fifo; mkdir -m 0 closed; }; echo kept > first
        head -c 3000000 /dev/zero > /mnt/ram/large 2>/dev/null || echo full
        stat -c %s /mnt/ram/large; exit 1
    """
    account = {"runAsUser": 1234, "runAsGroup": 1234, "fsGroup": 2000}
    apply(
        up,
        "empty",
        script,
        {"name": "disk", "emptyDir": {}},
        {"name": "ram", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        restartPolicy="OnFailure",
        securityContext=account,
    )
    up.kubectl.ok("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/empty", "--timeout=150s")
    last = up.kubectl.ok("logs", "empty").splitlines()
    before = up.kubectl.ok("logs", "empty", "--previous").splitlines()
    up.delete("empty")

    assert last == ["kept", "2777 2000", "3777 2000"]
    assert before == ["full", "1048576"]
    assert list(Path("/etc").iterdir())
    nothing_is_left(up)


def test_a_path_of_this_machine_is_shared_with_a_pod_and_stays(up: Up):
    folder = up.folder / "shared"
    folder.mkdir()
    (folder / "of-host").write_text("hello\n")
    script = (
        "cat /mnt/host/of-host; echo back > /mnt/host/of-pod; echo new > /mnt/part/x; test -c /mnt/null && echo device"
    )
    volumes: list[Object] = [
        {"name": "host", "hostPath": {"path": str(folder), "type": "Directory"}},
        {"name": "null", "hostPath": {"path": "/dev/null", "type": "CharDevice"}},
        {"name": "part", "hostPath": {"path": f"{folder}/made/deep", "type": "DirectoryOrCreate"}},
    ]
    mounts = [
        {"name": "host", "mountPath": "/mnt/host"},
        {"name": "null", "mountPath": "/mnt/null"},
        {"name": "part", "mountPath": "/mnt/part", "subPath": "sub"},
    ]
    apply(up, "host", script, *volumes, mounts=mounts, restartPolicy="Never")
    printed = result(up, "host")
    up.delete("host")

    assert printed == ["hello", "device"]
    assert (folder / "of-pod").read_text() == "back\n"
    assert (folder / "made/deep/sub/x").read_text() == "new\n"
    nothing_is_left(up)


def test_what_is_missing_is_told_and_the_pod_starts_when_it_comes(up: Up):
    apply(up, "waits", "cat /mnt/cm/k", {"name": "cm", "configMap": {"name": "later"}}, restartPolicy="Never")
    text = 'MountVolume.SetUp failed for volume "cm" : configmap "later" not found'
    eventually_there(lambda: text in up.kubectl.ok("describe", "pod", "waits"))
    up.kubectl.ok("create", "configmap", "later", "--from-literal=k=v")
    printed = result(up, "waits")
    up.delete("waits")

    assert printed == ["v"]
    nothing_is_left(up)


def test_secrets_are_on_no_disk(up: Up):
    apply(up, "holds", "sleep 1000", {"name": "sec", "secret": {"secretName": "hidden"}})
    up.runs("holds")
    pod = up.state / "kubelet/pods" / up.value("holds", "{.metadata.uid}")
    device = up.state.stat().st_dev
    found = [
        path
        for path in (Path(top, name) for top, _, names in os.walk(up.state) for name in names)
        if path.is_file() and os.lstat(path).st_dev == device and "/api/" not in str(path)
        if CANARY.encode() in path.read_bytes()
    ]
    in_memory = (pod / "volumes/kubernetes.io~secret/sec/word").read_text()
    up.delete("holds")

    assert in_memory == CANARY
    assert found == []
    assert CANARY not in up.said()
    nothing_is_left(up)


def test_what_a_killed_one_left_is_found_kept_and_removed():
    with up_folder() as up:
        up.start()
        volumes: list[Object] = [
            {"name": "disk", "emptyDir": {}},
            {"name": "ram", "emptyDir": {"medium": "Memory"}},
            {"name": "part", "emptyDir": {}},
        ]
        mounts = [
            {"name": "disk", "mountPath": "/mnt/disk"},
            {"name": "ram", "mountPath": "/mnt/ram"},
            {"name": "part", "mountPath": "/mnt/part", "subPath": "a/b"},
        ]
        script = "echo began >> /mnt/disk/lives; echo x > /mnt/ram/x; echo y > /mnt/part/y; sleep 100000"
        for name in ("stays", "goes"):
            apply(up, name, script, *volumes, mounts=mounts)
            up.runs(name)
        stays, goes = (
            up.state / "kubelet/pods" / up.value(name, "{.metadata.uid}") / "volumes/kubernetes.io~empty-dir"
            for name in ("stays", "goes")
        )
        eventually_there((goes / "part/a/b/y").exists)
        up.kubectl.ok("delete", "pod", "goes", "--wait=false")
        up.end(signal.SIGKILL)
        up.start()
        eventually_there(lambda: (stays / "disk/lives").read_text() == "began\nbegan\n")
        eventually_there(lambda: not goes.parent.parent.exists())
        up.delete("stays")

        nothing_is_left(up)
        assert up.end() == 0
