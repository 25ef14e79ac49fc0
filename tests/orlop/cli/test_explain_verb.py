"""`orlop explain` as people type it, as far as it gets without a cluster."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from orlop.admin.up_state import UpState, held
from orlop.cli import in_cluster
from orlop.cli.explain import _table, kind_first
from orlop.cli.output import harmless
from orlop.sidecars.attacher.finalizer_rules import finalizer_of
from support.processes.orlop_process import run, run_here

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\r\nNext: Nothing: it is as it should be."
"""Commands a terminal in five ways, and forges a line."""
HOSTILE: dict[str, Any] = {
    "metadata": {"name": f"va1{EVIL}"},
    "spec": {"attacher": f"d{EVIL}", "nodeName": "../../n", "source": {"persistentVolumeName": f"../{EVIL}"}},
    "status": {"attached": False, "attachError": {"message": EVIL, "errorCode": EVIL, "time": EVIL}},
}


def kubeconfig(folder: Path, **plugin: object) -> str:
    """With a credential plugin, as those of most clouds have one."""
    exec_ = {"apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "IfAvailable", **plugin}
    path = folder / "config"
    path.write_text(
        json.dumps(
            {
                "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
                "users": [{"name": "u", "user": {"exec": exec_}}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "x",
            }
        )
    )
    return f"--kubeconfig={path}"


def test_a_credential_plugin_that_is_missing_is_told_with_how_to_get_it(tmp_path: Path):
    config = kubeconfig(tmp_path, command="no-such-plugin", installHint="get it from the cloud")
    ended = run("explain", "volumeattachment", "va1", config)
    assert ended.returncode == 1
    assert "the credential plugin no-such-plugin of" in ended.stderr
    assert "cannot be run: No such file or directory; get it from the cloud" in ended.stderr


def test_a_credential_plugin_that_fails_is_told_with_its_complaint(tmp_path: Path):
    config = kubeconfig(tmp_path, command="/bin/sh", args=["-c", "echo please log in >&2; exit 7"])
    ended = run_here("explain", "volumeattachment", "va1", config)
    assert ended.returncode == 1
    assert "ended with exit code 7: please log in" in ended.stderr


@contextmanager
def server(folder: Path, answer: Callable[[str], tuple[int, Any]]) -> Iterator[str]:
    """Answers what is asked for at a path."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            code, told = answer(self.path)
            body = json.dumps(told).encode()
            self.send_response(code)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    served = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield plain_kubeconfig(folder, served.server_address[1])
    served.shutdown()
    served.server_close()


def failure(code: int, message: str = "", reason: str = "") -> tuple[int, Any]:
    return code, {"kind": "Status", "status": "Failure", "message": message, "reason": reason, "code": code}


@pytest.fixture
def hostile_server(tmp_path: Path) -> Iterator[str]:
    """Answers with an object that no API server would take; and with an error as bad, for the one called `bad`."""
    with server(tmp_path, lambda path: failure(418, EVIL) if path.endswith("/bad") else (200, HOSTILE)) as config:
        yield config


def plain_kubeconfig(folder: Path, port: int) -> str:
    path = folder / "plain"
    cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}
    context = {"name": "x", "context": {"cluster": "c", "user": "u"}}
    users = [{"name": "u", "user": {}}]
    config = {"clusters": [cluster], "users": users, "contexts": [context], "current-context": "x"}
    path.write_text(json.dumps(config))
    return f"--kubeconfig={path}"


def is_harmless(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


def test_what_an_object_says_cannot_command_a_terminal_nor_forge_a_line(hostile_server: str) -> None:
    ended = run_here("explain", "volumeattachment", "va1", hostile_server)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert is_harmless(ended.stdout)
    assert len(ended.stdout.splitlines()) == 4
    assert r"\x1b[2J\x9b31m\u202e\r\nNext:" in ended.stdout


HOSTILE_STORAGE: dict[str, Any] = {
    "metadata": {
        "name": f"data{EVIL}",
        "namespace": "team",
        "uid": "u",
        "deletionTimestamp": EVIL,
        "finalizers": [EVIL],
    },
    "spec": {
        "storageClassName": EVIL,
        "accessModes": [EVIL],
        "claimRef": {"namespace": EVIL, "name": EVIL, "uid": EVIL},
        "csi": {"driver": EVIL, "volumeHandle": EVIL},
        "holderIdentity": EVIL,
        "persistentVolumeReclaimPolicy": "Retain",
    },
    "status": {"phase": EVIL, "message": EVIL, "conditions": [{"type": EVIL, "status": "True", "message": EVIL}]},
    "type": "Warning",
    "reason": EVIL,
    "message": EVIL,
}


@pytest.mark.parametrize(("kind", "name"), [("pvc", "team/data"), ("pv", "pv1")])
def test_what_storage_objects_say_cannot_command_a_terminal_nor_forge_a_line(
    tmp_path: Path, kind: str, name: str
) -> None:
    def answer(path: str) -> tuple[int, Any]:
        one = path.endswith(("/data", "/pv1"))
        return 200, HOSTILE_STORAGE if one else {"metadata": {}, "items": [HOSTILE_STORAGE]}

    with server(tmp_path, answer) as config:
        ended = run_here("explain", kind, name, config)
        for_programs = run_here("explain", kind, name, config, "-o", "json")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert is_harmless(ended.stdout)
    assert is_harmless(for_programs.stdout)
    assert len([line for line in ended.stdout.splitlines() if line.startswith("Next: ")]) == 1
    assert r"\x1b[2J\x9b31m\u202e\r\nNext:" in ended.stdout


def test_columns_of_a_table_stay_aligned_below_hostile_text() -> None:
    lines = _table([{"claim": EVIL, "why": "too small"}, {"claim": "team/data", "why": "fits"}])
    assert [line.strip().partition("   ")[0].strip() for line in lines] == ["CLAIM", harmless(EVIL), "team/data"]
    assert {line.index(word) for line, word in zip(lines, ["WHY", "too small", "fits"], strict=True)} == {
        lines[0].index("WHY")
    }


@pytest.mark.parametrize(("form", "read"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_programs_are_told_all_of_it_and_a_terminal_of_theirs_no_command(
    hostile_server: str, form: str, read: Any
) -> None:
    ended = run_here("explain", "volumeattachment", "va1", hostile_server, "-o", form)
    assert ended.returncode == 0
    assert is_harmless(ended.stdout)
    assert EVIL in read(ended.stdout)["tried"][0]


def test_what_a_server_complains_of_cannot_command_a_terminal_either(hostile_server: str) -> None:
    ended = run_here("explain", "volumeattachment", "bad", hostile_server)
    assert ended.returncode == 1
    assert is_harmless(ended.stderr)


@pytest.mark.parametrize("name", ["", "..", "/b", "a%2fb"])
def test_a_name_that_no_object_can_have_is_wrong_use(hostile_server: str, name: str) -> None:
    ended = run_here("explain", "volumeattachment", hostile_server, "--", name)
    assert ended.returncode == 2
    assert ended.stderr == f'{name!r} cannot be a name: it may not be empty, ".", "..", nor hold "/" or "%"\n'


WAITING: dict[str, Any] = {
    "metadata": {"name": "va1", "finalizers": [finalizer_of("d.example.com")]},
    "spec": {"attacher": "d.example.com", "nodeName": "n1", "source": {"persistentVolumeName": "pv1"}},
    "status": {"attached": False},
}
VOLUME: dict[str, Any] = {
    "metadata": {"name": "pv1", "finalizers": [finalizer_of("d.example.com")]},
    "spec": {"csi": {"driver": "d.example.com", "volumeHandle": "h1"}, "accessModes": ["ReadWriteOnce"]},
}


def answering(there: dict[str, Any], forbidden: str = "") -> Callable[[str], tuple[int, Any]]:
    """One object of each kind, by the kind; of one kind it may read none."""

    def answer(path: str) -> tuple[int, Any]:
        kind = path.split("/")[-2]
        if kind == forbidden:
            return failure(403, f"{kind} is forbidden", "Forbidden")
        return (200, there[kind]) if kind in there else failure(404, "not found", "NotFound")

    return answer


def test_a_csi_driver_whose_volumes_no_pod_waits_for_is_told_as_one_that_may_attach_nothing(tmp_path: Path) -> None:
    fresh = {**WAITING, "metadata": {"name": "va1"}}
    for required in (True, False):
        there = {"volumeattachments": fresh, "csidrivers": {"spec": {"attachRequired": required}}}
        with server(tmp_path, answering(there)) as config:
            ended = run_here("explain", "volumeattachment", "va1", config)
            fields = json.loads(run_here("explain", "volumeattachment", "va1", config, "-o", "json").stdout)["fields"]
        assert ("as its CSIDriver has attachRequired: false" in ended.stdout) is not required
        assert (fields["attachRequired"], fields["nextStepWhereItDoesNot"]) == (required, "MarkAttached")


@pytest.mark.parametrize(
    ("forbidden", "words"),
    [("persistentvolumes", "PersistentVolume pv1"), ("csinodes", "CSINode n1"), ("nodes", "Node n1")],
)
def test_what_may_not_be_read_is_told_and_not_taken_for_missing(tmp_path: Path, forbidden: str, words: str) -> None:
    there = {"volumeattachments": WAITING, "persistentvolumes": VOLUME, "csinodes": {"metadata": {"name": "n1"}}}

    with server(tmp_path, answering(there, forbidden)) as config:
        ended = run_here("explain", "volumeattachment", "va1", config)
        fields = json.loads(run_here("explain", "volumeattachment", "va1", config, "-o", "json").stdout)["fields"]
    assert (ended.returncode, ended.stderr) == (0, "")
    assert words in ended.stdout.splitlines()[-1]
    assert "may not be read" in ended.stdout.splitlines()[-1]
    assert "there is no" not in ended.stdout
    assert fields["unreadable"] == [words]


@pytest.mark.timeout(60)
def test_a_server_that_is_not_there_is_told_at_once(tmp_path: Path) -> None:
    ended = run_here("explain", "volumeattachment", "va1", plain_kubeconfig(tmp_path, 1))
    assert ended.returncode == 1
    assert ended.stderr.startswith("http://127.0.0.1:1 cannot be reached: ")


def test_a_name_may_be_written_as_kubectl_prints_it(tmp_path: Path) -> None:
    config = kubeconfig(tmp_path, command="no-such-plugin")
    ended = run_here("explain", "volumeattachment", "volumeattachment.storage.k8s.io/va1", config)
    assert ended.returncode == 1
    assert "the credential plugin no-such-plugin" in ended.stderr  # so far it got: to the API server


def test_the_folder_of_an_orlop_up_stands_for_its_kubeconfig(tmp_path: Path) -> None:
    with held(UpState(tmp_path), "now"):
        pass
    UpState(tmp_path).lock.write_text("")
    ended = run_here("explain", "volumeattachment", "va1", f"--state={tmp_path}")
    assert ended.returncode == 1
    assert f"there is no kubeconfig file at {tmp_path}/kubeconfig" in ended.stderr


def test_where_there_is_no_kubeconfig_the_folder_of_an_orlop_up_is_named_as_another_way(tmp_path: Path) -> None:
    ended = run_here("explain", "volumeattachment", "va1", env={"KUBECONFIG": "", "HOME": str(tmp_path)})
    assert ended.returncode == 1
    assert "no API server is known" in ended.stderr
    assert "--state " in ended.stderr


def test_if_the_default_orlop_up_is_stopped_the_command_that_starts_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = UpState(tmp_path)
    monkeypatch.setattr(in_cluster, "DEFAULT_STATE", state.folder)
    with held(state, "now"):
        pass
    ended = run_here("explain", "va", "va1", env={"KUBECONFIG": "", "HOME": str(tmp_path)})
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"Nothing runs in {tmp_path}: start it with `orlop up --state {tmp_path}`. For a")


@pytest.mark.parametrize("chosen", ["nothing", "--kubeconfig", "KUBECONFIG"])
def test_beside_a_running_orlop_up_the_cluster_of_the_home_folder_has_to_be_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: str
) -> None:
    # An admin's machine: `orlop kubectl` uses the `orlop up`, and kubectl uses another cluster.
    up, home = UpState(tmp_path / "up"), tmp_path / ".kube" / "config"
    for folder, port in ((home.parent, 1), (up.folder, 2)):
        folder.mkdir()
        plain_kubeconfig(folder, port)
    (home.parent / "plain").rename(home)
    (up.folder / "plain").rename(up.kubeconfig)
    monkeypatch.setattr(in_cluster, "running_ups", lambda: [up])
    words = ["explain", "va", "va1", *([f"--kubeconfig={home}"] if chosen == "--kubeconfig" else [])]
    variable = str(home) if chosen == "KUBECONFIG" else ""
    ended = run_here(*words, env={"KUBECONFIG": variable, "HOME": str(tmp_path)})
    if chosen == "nothing":
        sentence = f"Two clusters could be meant: that of {home}, and the `orlop up` in {up.folder}."
        assert (ended.returncode, ended.stdout) == (2, "")
        assert ended.stderr.startswith(sentence)
    else:
        assert (ended.returncode, ended.stderr[:18]) == (1, "http://127.0.0.1:1")


def test_a_kubeconfig_in_the_home_folder_that_leads_to_the_running_orlop_up_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".kube").mkdir()
    plain_kubeconfig(tmp_path, 1)
    (tmp_path / "plain").rename(tmp_path / "kubeconfig")
    (tmp_path / ".kube" / "config").symlink_to(tmp_path / "kubeconfig")
    monkeypatch.setattr(in_cluster, "running_ups", lambda: [UpState(tmp_path)])
    ended = run_here("explain", "va", "va1", env={"KUBECONFIG": "", "HOME": str(tmp_path)})
    assert (ended.returncode, ended.stderr[:18]) == (1, "http://127.0.0.1:1")


@pytest.mark.parametrize("chosen", ["--state", "--kubeconfig", "KUBECONFIG"])
def test_of_an_orlop_up_that_is_stopped_it_is_told_how_to_start_it(tmp_path: Path, chosen: str) -> None:
    state = UpState(tmp_path)
    with held(state, "now"):
        plain_kubeconfig(tmp_path, 1)
        (tmp_path / "plain").rename(state.kubeconfig)
        running = run_here("explain", "va", "va1", f"--state={tmp_path}")
    flags = {"--state": [f"--state={tmp_path}"], "--kubeconfig": [f"--kubeconfig={state.kubeconfig}"]}
    ended = run_here("explain", "va", "va1", *flags.get(chosen, []), env={"KUBECONFIG": str(state.kubeconfig)})
    assert "cannot be reached" in running.stderr
    assert ended.returncode == 1
    assert ended.stderr == f"Nothing runs in {tmp_path}: start it with `orlop up --state {tmp_path}`.\n"


def test_a_folder_that_no_orlop_up_has_used_is_told_with_how_to_start_one_there(tmp_path: Path) -> None:
    missing = tmp_path / "nope"
    for words in (["explain", "pvc", "data"], ["afterlife", "list"]):
        ended = run_here(*words, f"--state={missing}")
        assert (ended.returncode, ended.stdout) == (1, "")
        assert f"No `orlop up` has used {missing}: start one there with `orlop up --state {missing}`" in ended.stderr


def test_with_several_orlop_up_running_all_are_named_and_one_has_to_be_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_cluster, "running_ups", lambda: [UpState(Path("/a")), UpState(Path("/b"))])
    ended = run_here("explain", "va", "va1", env={"KUBECONFIG": "", "HOME": str(tmp_path)})
    sentence = "There are several `orlop up` on this machine, in /a, /b: choose one with --state DIR.\n"
    assert (ended.returncode, ended.stderr) == (2, sentence)


VA = ["volumeattachment", "volumeattachments", "va", "VA", "VolumeAttachment", "volumeattachment.storage.k8s.io"]


@pytest.mark.parametrize("words", [*([kind, "va1"] for kind in VA), *([f"{kind}/va1"] for kind in VA)], ids="-".join)
def test_a_kind_has_the_names_that_people_know_it_by(tmp_path: Path, words: list[str]) -> None:
    there = {"volumeattachments": WAITING, "persistentvolumes": VOLUME}
    with server(tmp_path, answering(there)) as config:
        ended = run_here("explain", *words, config)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("The VolumeAttachment va1 requests that the PersistentVolume pv1 be attached")


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("pvc/data", "pvc data"),
        ("pvc/team/data", "pvc team/data"),
        ("-n team pvc data -o json", "pvc -n team data -o json"),
        ("--namespace=team PVC/data", "pvc --namespace=team data"),
        ("-o json --state /x persistentvolumeclaim data", "pvc -o json --state /x data"),
        ("pvcs data", "pvc data"),
        ("PersistentVolume x", "pv x"),
        ("pv -o json x", "pv -o json x"),
        ("--help", "--help"),
        ("-n pvc", "-n pvc"),
        ("pod/x", "pod/x"),
        ("", ""),
    ],
)
def test_arguments_are_read_in_every_order_and_spelling_that_kubectl_accepts(typed: str, read: str) -> None:
    assert kind_first(typed.split()) == read.split()


def test_a_kind_that_cannot_be_explained_is_told_with_those_that_can() -> None:
    ended = run_here("explain", "pod/x")
    assert ended.returncode == 2
    assert "'pod/x' cannot be explained. Write pvc, pv or volumeattachment, and a name." in ended.stderr


def test_an_object_without_namespace_is_not_looked_for_in_one(tmp_path: Path) -> None:
    wrong = run_here("explain", "pv", "default/x")
    assert wrong.returncode == 2
    assert "default/x: a PersistentVolume is in no namespace. Write its name alone: x." in wrong.stderr
    with server(tmp_path, answering({"volumeattachments": WAITING, "persistentvolumes": VOLUME})) as config:
        assert run_here("explain", "-n", "team", "va/va1", config).returncode == 0


@pytest.mark.parametrize("verb", ["explain", "drives", "volumes", "afterlife", "static"])
def test_the_help_of_a_verb_cuts_no_sentence_short(verb: str) -> None:
    told = run_here(verb, "--help", env={"COLUMNS": "80"})
    assert told.returncode == 0
    assert "..." not in told.stdout.partition("\n")[2]  # the first line says how to call it


def test_its_help_has_the_exit_codes() -> None:
    told = run_here("explain", "--help", env={"COLUMNS": "80"})
    assert "3 no such object." in " ".join(told.stdout.split())
    assert "3 no such object." in " ".join(run_here("explain", "va", "-h").stdout.split())


def test_a_folder_and_a_kubeconfig_are_too_much(tmp_path: Path) -> None:
    ended = run_here("explain", "volumeattachment", "va1", f"--state={tmp_path}", "--kubeconfig=/other")
    assert ended.returncode == 2
    assert "use one of them" in ended.stderr
