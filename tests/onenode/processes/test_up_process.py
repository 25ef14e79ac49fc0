"""`orlop up` as people use it: the real program, the real kubectl, pods that run, and what is left of them."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from onenode.cli import down as down_verb
from onenode.cli import kubectl as kubectl_verb
from onenode.processes import up as up_role
from orlop.admin import up_state
from orlop.admin.up_state import SeveralRun, UpState, held, recorded
from support.places import REPOSITORY
from support.processes.kubectl_commands import Kubectl
from support.processes.orlop_process import ORLOP, run, run_here, running
from support.processes.up_process import Up, up_folder
from support.waiting import eventually_there

FOLDERS = ["api", "kubelet", "scratch", "drives", "folders", "credentials"]
LISTED = ["lock", "kubeconfig", *FOLDERS, "node.sock", "controller.sock"]


@pytest.fixture(scope="module")
def up() -> Iterator[Up]:
    with up_folder() as made:
        made.start()
        yield made
        assert made.end() == 0
        assert "Traceback" not in made.said(), made.said()


# ---- while it runs ---------------------------------------------------------------------------------------------------


def test_what_it_prints_to_try_works_as_it_is_printed(up: Up):
    first, _, second = (
        up.said()
        .partition("Try it in another terminal, as root: a pod with a scratch folder,")[2]
        .partition("and what it leaves when it is gone:")
    )
    # What follows is about persistent volumes, for which this machine has no drive.
    script = f"set -e\n{first}\n{second.partition('For persistent volumes')[0]}"
    ran = subprocess.run(
        ["bash", "-c", script], cwd=REPOSITORY, capture_output=True, text=True, timeout=200, check=False
    )

    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert [line for line in lines if line.startswith("pod/demo")] == ["pod/demo created", "pod/demo condition met"]
    assert any(line.startswith("demo ") for line in lines), ran.stdout
    assert "UTC" in lines[-1], ran.stdout


def test_the_state_folder_holds_what_is_documented(up: Up):
    eventually_there((up.state / "controller.sock").exists)  # it begins when all objects are stored
    names = os.listdir(up.state)  # noqa: PTH208 - names alone

    assert [name for name in LISTED if name not in names] == []
    assert [name for name in names if name not in LISTED and not name.endswith(".lock")] == []
    assert sorted(os.listdir(up.state / "kubelet"))[-3:] == ["plugins_registry", "pods", "processes"]  # noqa: PTH208
    assert oct(up.state.stat().st_mode & 0o777) == "0o700"
    assert (up.state / "kubeconfig").stat().st_mode & 0o077 == 0


def test_the_node_process_has_a_token_that_names_its_node(up: Up):
    kubectl = Kubectl(up.state / "credentials/orlop-node.kubeconfig", up.folder / "home")
    eventually_there(kubectl.kubeconfig.exists)
    asked = json.loads(kubectl.ok("auth", "whoami", "-o", "json"))["status"]["userInfo"]
    node = up.kubectl.ok("get", "nodes", "-o", "jsonpath={.items[0].metadata.name}")

    assert asked["username"] == "system:serviceaccount:orlop-system:orlop-node"
    assert asked["extra"]["authentication.kubernetes.io/node-name"] == [node]
    assert oct((up.state / "credentials").stat().st_mode & 0o777) == "0o700"


def test_the_node_process_may_write_about_its_own_node_and_read_no_secrets(up: Up):
    """Its role, and the policy that knows its node by the token."""
    kubectl = Kubectl(up.state / "credentials/orlop-node.kubeconfig", up.folder / "home")
    eventually_there(kubectl.kubeconfig.exists)
    own = up.kubectl.ok("get", "nodes", "-o", "jsonpath={.items[0].metadata.name}")
    eventually_there(lambda: up.kubectl.run("get", "nodedevices", own).returncode == 0)  # it wrote them itself
    refused = kubectl.run("create", "--dry-run=server", "-f", "-", stdin=json.dumps(devices_of("another")))

    assert f"the object is of the node another, and the token of the node {own}" in refused.stderr
    assert kubectl.run("auth", "can-i", "get", "secrets", "-A").stdout == "no\n"


def devices_of(node: str) -> dict:
    metadata = {"name": node}
    return {"apiVersion": "orlop.dev/v1", "kind": "NodeDevices", "metadata": metadata, "spec": {"nodeName": node}}


def test_the_kinds_of_drives_are_there_from_the_beginning(up: Up):
    found = up.kubectl.ok("get", "drives,volumes.orlop.dev,driverequests", "--ignore-not-found")
    assert found == ""
    assert "orlop (default)" in up.kubectl.ok("get", "storageclass")
    assert "allocations" in up.kubectl.ok("explain", "drive.spec")


def test_a_pods_folder_is_found_in_the_afterlife(up: Up):
    up.make("writer", "echo hello > /scratch/hello; sleep 100000")
    up.runs("writer")
    eventually_there((up.volume_of("writer") / "hello").exists)
    described = up.kubectl.ok("describe", "pod", "writer")
    template = '{range .items[?(@.involvedObject.name=="writer")]}{.reason} {.source.component} {.count}{"\\n"}{end}'
    by_time = up.kubectl.ok("get", "events", "--sort-by=.lastTimestamp", "-o", f"jsonpath={template}")
    up.delete("writer")
    listed = run("afterlife", "list", "--pod", "writer", f"--state={up.state}").stdout
    (volume,) = (word for word in listed.split() if word.startswith("csi-"))

    assert "Successfully assigned default/writer to" in described
    assert "Started container main" in described
    assert "Started kubelet 1" in by_time.splitlines()
    assert run("afterlife", "cat", f"--state={up.state}", volume, "hello").stdout == "hello\n"
    assert [path for path in up.mounts() if path != str(up.state)] == []
    assert list((up.state / "kubelet" / "pods").iterdir()) == []


def test_a_pod_sees_its_volume_and_nothing_of_the_state(up: Up):
    up.make("looks", f"ls {up.state} > /scratch/seen 2>&1; ls /scratch >> /scratch/seen; sleep 100000")
    up.runs("looks")
    seen = up.volume_of("looks") / "seen"
    eventually_there(lambda: seen.exists() and "seen" in seen.read_text())
    text = seen.read_text()
    up.delete("looks")

    assert "kubelet" not in text
    assert "api" not in text


def test_a_generic_ephemeral_claim_is_made_for_its_pod_and_goes_with_it(up: Up):
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}, "storageClassName": ""}
    volume = {"name": "data", "ephemeral": {"volumeClaimTemplate": {"metadata": {"labels": {"a": "b"}}, "spec": claim}}}
    spec = {"containers": [{"name": "main", "image": "none", "command": ["true"]}], "volumes": [volume]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "claimer"}, "spec": spec}
    up.kubectl.ok("create", "-f", "-", stdin=json.dumps(pod))
    up.kubectl.ok("wait", "pvc/claimer-data", "--for=create", "--timeout=60s")
    shown = up.kubectl.ok("get", "pvc", "-l", "a=b", "-o", "jsonpath={.items[*].metadata.ownerReferences[*].name}")

    up.kubectl.ok("delete", "pod", "claimer", "--timeout=60s")
    up.kubectl.ok("wait", "pvc/claimer-data", "--for=delete", "--timeout=60s")

    assert shown == "claimer"


def test_a_second_one_on_the_same_folder_is_told_who_holds_it(up: Up):
    assert up.process is not None
    second = run("up", f"--state={up.state}")

    assert second.returncode == 1
    told = second.stdout + second.stderr
    assert f"is used by process {up.process.pid} since 20" in told
    assert f"orlop down --state {up.state}" in told


def test_a_driver_that_dies_comes_back_and_pods_go_on(up: Up):
    up.make("goes-on")
    up.runs("goes-on")
    node = up.node_process()
    os.kill(node, signal.SIGKILL)
    up.says("killed by SIGKILL")
    up.make("after")
    up.runs("after")
    restarts = up.value("goes-on", "{.status.containerStatuses[0].restartCount}")
    content = (up.volume_of("goes-on") / "result").read_text()
    for name in ("goes-on", "after"):
        up.delete(name)

    assert (restarts, content) == ("0", "began\n")
    assert up.node_process() != node


def test_a_pod_that_the_node_may_not_have_waits_with_the_reason_on_it(up: Up):
    (node,) = up.kubectl.ok("get", "nodes", "-o", "name").split()
    up.kubectl.ok("cordon", node)
    up.make("waits")
    reason = "{.status.conditions[?(@.type=='PodScheduled')].message}"
    eventually_there(lambda: bool(up.value("waits", reason)))
    waiting = up.value("waits", reason)
    up.kubectl.ok("uncordon", node)
    up.runs("waits")
    up.delete("waits")

    assert waiting == "0/1 nodes are available: 1 node(s) were unschedulable."


@dataclass(frozen=True)
class Promise:
    pod: str
    phase: str
    path: str
    text: str
    """What is found at the path, in the afterlife."""


EXAMPLES = {
    "scratch-with-afterlife": Promise("trainer", "Running", "run.log", "epoch 1: loss 0.31\n"),
    "scratch-in-parts": Promise("parts", "Succeeded", "out/count", "3\n"),
    "what-a-failed-run-left": Promise("what-a-failed-run-left", "Failed", "progress", "step 1 of 2 done\n"),
}


def test_every_example_is_tried():
    """That of a claim on a drive is README's story (test_up_drives); that of a local disk is in test_up_static."""
    examples = {path.stem for path in (REPOSITORY / "examples").glob("*.yaml")}
    assert examples == {*EXAMPLES, "claim-on-a-drive", "claim-on-a-local-disk"}


@pytest.mark.parametrize("example", sorted(EXAMPLES))
def test_an_example_runs_as_it_is_and_leaves_what_it_promises(up: Up, example: str):
    promise, file = EXAMPLES[example], str(REPOSITORY / f"examples/{example}.yaml")
    up.kubectl.ok("apply", "-f", file)
    up.kubectl.ok("wait", f"--for=jsonpath={{.status.phase}}={promise.phase}", f"pod/{promise.pod}", "--timeout=150s")
    up.kubectl.ok("delete", "-f", file)

    # A pod that has ended is deleted at once, and nobody waits for its volumes, as in Kubernetes.
    eventually_there(lambda: _left_behind(up, promise) == promise.text)


def _left_behind(up: Up, promise: Promise) -> str:
    listed = run_here("afterlife", "list", f"--state={up.state}", f"--pod={promise.pod}", "-o", "name").stdout
    return run_here("afterlife", "cat", f"--state={up.state}", listed.strip(), promise.path).stdout if listed else ""


def test_kubectl_reads_logs_runs_commands_and_sees_how_full_volumes_are(up: Up):
    up.make("talker", "echo hello; sleep 100000")
    up.runs("talker")
    (node,) = up.kubectl.ok("get", "nodes", "-o", "name").split()
    ran = up.kubectl.run(
        "exec", "-i", "talker", "--", "sh", "-c", "cat > /scratch/x; wc -c < /scratch/x; exit 3", stdin="typed"
    )
    summary = json.loads(
        up.kubectl.ok("get", "--raw", f"/api/v1/{node.replace('node/', 'nodes/')}/proxy/stats/summary")
    )
    (pod,) = (one for one in summary["pods"] if one["podRef"]["name"] == "talker")

    assert up.kubectl.ok("logs", "talker") == "hello\n"
    assert (ran.returncode, ran.stdout.strip()) == (3, "5")
    assert summary["node"]["fs"]["capacityBytes"] > 0
    assert [volume["name"] for volume in pod["volume"]] == ["scratch"]
    assert pod["volume"][0]["usedBytes"] > 0
    up.delete("talker")


def test_orlop_kubectl_finds_the_right_one(up: Up):
    ran = run("kubectl", "--state", str(up.state), "get", "csidrivers", "-o", "name", env={"HOME": str(up.folder)})

    assert (ran.returncode, ran.stdout) == (0, "csidriver.storage.k8s.io/csi.orlop.dev\n"), ran.stderr


# ---- ends and beginnings ---------------------------------------------------------------------------------------------


def test_it_goes_on_where_it_was_after_every_kind_of_end_and_leaves_nothing_when_it_is_erased():
    with up_folder() as up:
        up.start()
        up.make("stays")
        up.runs("stays")
        volume = up.volume_of("stays")
        began = 1

        def runs_again() -> None:
            nonlocal began
            began += 1
            up.start()
            eventually_there(lambda: (volume / "result").exists() and lines() == began)
            up.runs("stays")

        def lines() -> int:
            return len((volume / "result").read_text().splitlines())

        eventually_there((volume / "result").exists)

        assert up.end(signal.SIGTERM) == 0
        assert up.processes() == {}
        assert str(volume) in up.mounts(), "as when a kubelet is stopped"
        runs_again()

        up.end(signal.SIGKILL)
        eventually_there(lambda: up.processes() == {})
        runs_again()

        up.end(signal.SIGKILL)
        eventually_there(lambda: up.processes() == {})
        subprocess.run(["umount", "--lazy", "--recursive", str(up.state)], check=True)  # as a reboot does
        runs_again()
        assert up.value("stays", "{.status.containerStatuses[0].restartCount}") == "3"

        assert run("down", f"--state={up.state}", "--erase").returncode == 2, "nobody can be asked"
        ended = run("down", f"--state={up.state}", "--erase", "--yes")
        assert ended.returncode == 0, ended.stderr
        assert f"Stopped process {up.process.pid if up.process else 0}, which had run since" in ended.stdout
        assert (up.state.exists(), up.mounts()) == (False, [])
        assert up.process is not None
        assert up.process.wait(20) == 0
        assert up.processes() == {}


def test_one_that_is_told_to_stop_while_it_starts_leaves_nothing():
    with up_folder() as up:
        up.begin()
        eventually_there((up.state / "kubeconfig").is_symlink)

        assert up.end() == 0
        assert (up.processes(), up.mounts()) == ({}, [])


CSI_DRIVER = """
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: other.example.com}
spec: {attachRequired: false, podInfoOnMount: true, volumeLifecycleModes: [Ephemeral]}
"""


def test_a_driver_of_somebody_else_stands_in_the_place_of_ours():
    with up_folder() as up:
        socket, workdir = up.folder / "csi.sock", up.folder / "work"
        workdir.mkdir()
        up.begin(f"--driver=unix://{socket}")
        up.says("As soon as your driver answers, it will be registered.", "no driver answers at")
        flags = [f"--kubelet-dir={up.state}/kubelet", f"--workdir={workdir}", f"--adminsocket={up.folder}/a.sock"]
        names = ["--drivername=other.example.com", "--nodeid=n1", f"--endpoint=unix://{socket}"]
        with running(up.folder, "driver", *names, *flags):
            up.says("driver other.example.com registered")
            up.kubectl.ok("apply", "-f", "-", stdin=CSI_DRIVER)
            up.make("theirs", driver="other.example.com")
            up.runs("theirs")
            eventually_there((up.volume_of("theirs") / "result").exists)
            listed = up.kubectl.ok("get", "csinodes", "-o", "jsonpath={.items[0].spec.drivers[*].name}")
            up.delete("theirs")
            asked = run_here("afterlife", "list", f"--state={up.state}")
            assert up.end() == 0

        assert listed == "other.example.com"
        assert asked.returncode == 1
        assert f"another driver, at unix://{socket}" in asked.stderr
        (kept,) = (workdir / "retained").iterdir()
        assert (kept / "result").read_text() == "began\n"


def test_what_it_prints_for_a_driver_of_your_own_works_with_the_provisioner_alone_and_an_erasure_names_its_volumes():
    with up_folder() as up:
        socket_path = up.folder / "csi.sock"
        with running(up.folder, "testing", "mock-driver", "--create-targets", f"--endpoint=unix://{socket_path}"):
            eventually_there(socket_path.is_socket)
            up.begin(f"--driver=unix://{socket_path}", "--sidecars=provisioner")
            up.says("The driver mock.example.com is registered.", "leaves volumes at the driver")
            eventually_there(lambda: up.children() == ["provisioner", "registrar"])
            script = up.said().partition("a StorageClass of your driver and a claim,\n")[2]
            apply, _, rest = script.partition("and what the claim waits for, until it is bound:\n")
            explain = rest.partition("If your driver")[0]
            ran = subprocess.run(
                ["bash", "-ec", apply + explain],
                cwd=REPOSITORY,
                capture_output=True,
                text=True,
                timeout=200,
                check=False,
            )
            assert ran.returncode == 0, ran.stderr
            assert "The PersistentVolumeClaim default/demo, created " in ran.stdout
            up.kubectl.ok("wait", "pvc/demo", "--for=jsonpath={.status.phase}=Bound", "--timeout=150s")
            name = up.kubectl.ok("get", "pvc", "demo", "-o", "jsonpath={.spec.volumeName}")
            assert up.children() == ["provisioner", "registrar"]
            ended = run("down", f"--state={up.state}", "--erase", "--yes")
            (report,) = [line for line in ended.stdout.splitlines() if line.startswith("1 volume stays at the driver ")]
            assert f"unix://{socket_path}: {name} (volume " in report
            command = shlex.split(report.partition("Delete with: orlop ")[2])
            assert run_here(*command).returncode == 0
            listed = run_here("csi", "ListVolumes", "--endpoint", f"unix://{socket_path}")
            assert json.loads(listed.stdout) == {}
            assert up.process is not None
            assert up.process.wait(20) == 0


# ---- what is refused -------------------------------------------------------------------------------------------------


def test_without_root_it_says_so_in_one_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(os, "geteuid", lambda: 65534)

    assert up_role.main([]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("run it as root.")


def test_a_path_that_is_too_long_for_its_sockets_is_refused_before_anything_is_made(tmp_path: Path):
    folder = tmp_path / ("x" * 80)
    ended = run_here("up", f"--state={folder}")

    assert ended.returncode == 2
    assert "as it holds sockets" in ended.stderr
    assert not folder.exists()


def test_nothing_is_erased_that_no_orlop_up_has_used(tmp_path: Path):
    (tmp_path / "thesis.txt").write_text("ten years")
    never = run_here("down", f"--state={tmp_path}", "--erase", "--yes")

    assert never.returncode == 1
    assert "was never used by an `orlop up`" in never.stderr
    assert (tmp_path / "thesis.txt").read_text() == "ten years"


def test_what_somebody_else_put_into_the_folder_is_left_when_it_is_erased(tmp_path: Path):
    state = UpState(tmp_path / "state")
    state.folder.mkdir()
    with held(state, ""):
        state.scratch.mkdir()
    (state.folder / "thesis.txt").write_text("ten years")
    erased = run_here("down", f"--state={state.folder}", "--erase", "--yes")

    assert erased.returncode == 0, erased.stderr
    assert "it holds files that are not of an `orlop up`: thesis.txt" in erased.stdout
    assert [path.name for path in state.folder.iterdir()] == ["thesis.txt"]
    assert (state.folder / "thesis.txt").read_text() == "ten years"


@pytest.mark.parametrize("name", ["thesis.txt", "api"])
def test_a_folder_that_holds_what_is_not_its_own_is_refused_and_left_as_it_is(short_folder: Path, name: str):
    state = short_folder / "state"
    (state / name).mkdir(parents=True)
    refused = run("up", f"--state={state}")

    assert refused.returncode == 1
    assert f"holds what is not of an `orlop up`: {name}." in refused.stderr + refused.stdout
    assert [path.name for path in state.iterdir()] == [name]


def test_commands_without_a_state_folder_find_the_only_one_that_runs():
    """In a mount namespace of its own, so that no other one on this machine is found."""
    alone = ["unshare", "--mount", "--propagation", "private", "sh", "-ec"]
    script = 'mkdir -p /run/orlop; mount -t tmpfs tmpfs /run/orlop; exec "$@"'
    with up_folder() as up:
        with up.output.open("w") as stream:
            words = [*alone, script, "sh", *ORLOP, "up", f"--state={up.state}"]
            up.process = subprocess.Popen(words, stdout=stream, stderr=stream, text=True)
        up.says("Orlop is up", "driver csi.orlop.dev registered")
        inside = ["nsenter", f"--mount=/proc/{up.process.pid}/ns/mnt", *ORLOP]
        env = {key: value for key, value in os.environ.items() if key != "KUBECONFIG"} | {"HOME": str(up.folder)}

        def asked(*words: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run([*inside, *words], check=False, capture_output=True, text=True, env=env, timeout=60)

        nodes, listed = asked("kubectl", "get", "nodes", "-o", "name"), asked("afterlife", "list")
        explained, stopped = asked("explain", "va", "none"), asked("down")
        code = up.process.wait(40)

    assert nodes.stdout.startswith("node/"), nodes.stderr
    assert listed.returncode == 0, listed.stderr
    assert explained.returncode == 3
    assert explained.stderr.startswith("There is no VolumeAttachment none. ")
    assert stopped.stdout.startswith("Stopped process"), stopped.stderr
    assert code == 0


def test_stopping_what_does_not_run_is_no_failure(tmp_path: Path):
    missing, idle = run_here("down", f"--state={tmp_path}/none"), run_here("down", f"--state={tmp_path}")

    assert (missing.returncode, idle.returncode) == (0, 0)
    assert idle.stdout == f"Nothing runs in {tmp_path}.\n"


def test_whoever_is_asked_to_confirm_an_erasure_learns_that_another_drivers_volumes_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    state = UpState(tmp_path / "state")
    state.folder.mkdir()
    with held(state, "", "unix:///run/theirs.sock"):
        pass
    monkeypatch.setattr(down_verb, "_is_terminal", lambda: True)
    refused = CliRunner().invoke(down_verb.command, ["--erase", f"--state={state.folder}"], input="n\n")

    assert refused.exit_code == 1
    assert "Volumes at the driver unix:///run/theirs.sock are not deleted." in refused.output
    assert state.lock.exists()


def test_what_is_erased_is_never_guessed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    default, other = UpState(tmp_path / "default"), UpState(tmp_path / "other")
    monkeypatch.setattr(up_state, "RUNNING", tmp_path / "running")
    monkeypatch.setattr(up_state, "DEFAULT_STATE", default.folder)
    monkeypatch.setattr(down_verb, "DEFAULT_STATE", default.folder)
    for state in (default, other):
        state.folder.mkdir()
        with held(state, ""):
            pass
    with held(other, ""), recorded(other):
        refused = CliRunner().invoke(down_verb.command, ["--erase", "--yes"])

    assert refused.exit_code == 2
    assert f"in {other.folder}, {default.folder}: choose one with --state DIR" in " ".join(refused.output.split())
    assert default.lock.exists()
    assert other.lock.exists()


def test_orlop_kubectl_uses_the_one_that_kubeconfig_names_and_says_that_it_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    used: list[str] = []
    monkeypatch.setattr(kubectl_verb, "become", lambda _program, _words, env: used.append(env["KUBECONFIG"]))
    state = UpState(tmp_path)
    state.kubeconfig.write_text("")
    monkeypatch.setenv("KUBECONFIG", str(state.kubeconfig))
    with held(state, "now"):
        kubectl_verb.main(["get", "pods"])
    assert used == [str(state.kubeconfig)]

    assert kubectl_verb.main(["get", "pods"]) == 1
    assert f"nothing runs in {tmp_path}: start it with `orlop up --state {tmp_path}`" in capsys.readouterr().err


def test_the_help_of_kubectl_is_ours_where_nothing_runs_and_its_own_where_something_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    asked: list[list[str]] = []
    monkeypatch.setattr(kubectl_verb, "become", lambda _program, words, _env: asked.append(words))
    state = UpState(tmp_path)
    state.kubeconfig.write_text("")
    with held(state, "now"):
        kubectl_verb.main(["--state", str(tmp_path), "--help"])
    assert (asked, capsys.readouterr().out) == ([["--help"]], "")

    assert kubectl_verb.main(["--state", str(tmp_path), "--help"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("Usage: orlop kubectl ")
    assert f"nothing runs in {tmp_path}: start it with `orlop up --state {tmp_path}`" in told


def test_with_several_running_kubectl_still_explains_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def several() -> UpState:
        raise SeveralRun([UpState(Path("/a")), UpState(Path("/b"))])

    asked: list[list[str]] = []
    monkeypatch.setattr(kubectl_verb, "unnamed_state", several)
    monkeypatch.setattr(kubectl_verb, "become", lambda _program, words, _env: asked.append(words))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    assert kubectl_verb.main(["--help"]) == 0
    told = capsys.readouterr()
    assert told.out.startswith("Usage: orlop kubectl ")
    assert "There are several `orlop up` on this machine, in /a, /b: choose one with --state DIR." in told.out

    kubectl_verb.main(["get", "--help"])
    assert asked == [["get", "--help"]]

    for words in (["get", "pods"], ["exec", "web-0", "--", "ls", "--help"]):
        assert kubectl_verb.main(words) == 2
        assert "choose one with --state DIR" in capsys.readouterr().err


def test_a_flag_in_the_place_of_the_drivers_address_is_refused():
    for words in (["--driver", "--state", "/tmp/x"], ["--driver", "--state=/tmp/x"]):
        ended = run_here("up", *words)
        assert ended.returncode == 2
        assert "that is a flag, and an address must come before it: write unix:///path/csi.sock" in ended.stderr


def test_a_driver_that_is_no_socket_is_refused_without_proposing_what_is_refused_too():
    for wrong in ("relative.sock", "tcp://127.0.0.1:10000"):
        ended = run_here("up", f"--driver={wrong}")
        assert ended.returncode == 2
        assert f"{wrong!r} is no unix socket: write unix:///path/csi.sock." in ended.stderr


def test_a_port_that_is_in_use_is_told_as_such_and_not_as_the_folders_fault(short_folder: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ended = run("up", f"--state={short_folder}/state", f"--listen={address}")
    assert ended.returncode == 1
    assert f"orlop up: The address {address} is in use: give another one with --listen.\n" in ended.stderr


def test_orlop_kubectl_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    assert kubectl_verb.main(["--state", str(tmp_path), "get", "pods"]) == 1
    (tmp_path / "kubeconfig").write_text("")
    monkeypatch.setattr(kubectl_verb, "find_program", lambda *_args, **_options: None)
    assert kubectl_verb.main([f"--state={tmp_path}", "get", "pods"]) == 127
    assert kubectl_verb.main(["--state"]) == 2

    told = capsys.readouterr().err
    assert f"No `orlop up` has used {tmp_path}: start one there with `orlop up --state {tmp_path}`" in told
    assert "there is no kubectl on the PATH" in told
