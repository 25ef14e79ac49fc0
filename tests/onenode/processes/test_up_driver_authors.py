"""README's story for authors of CSI drivers, as it is typed there, and `orlop up --sidecars all` beside a driver."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from orlop.records.provision_journal import ANNOTATION
from support.places import REPOSITORY
from support.processes.orlop_process import run_here, running
from support.processes.up_process import Up, up_folder
from support.waiting import eventually_there

ACTIVATE = ". .venv/bin/activate"
COMMENT = re.compile(r"\s+# ")
CALL = re.compile(r"call served.* method=\w+\.(\w+) .*code=(\w+)")
LIFE_OF_A_VOLUME = [
    *("CreateVolume", "ControllerPublishVolume", "NodeStageVolume", "NodePublishVolume"),
    *("NodeUnpublishVolume", "NodeUnstageVolume", "ControllerUnpublishVolume", "DeleteVolume"),
]


# ---- the story -------------------------------------------------------------------------------------------------------


def blocks_of_the_story(up: Up) -> list[list[str]]:
    """Return the lines of each terminal, with the folders of this test in the place of those in /tmp."""
    heading = "## Your own CSI driver, through the whole life of a volume\n"
    section = (REPOSITORY / "README.md").read_text().partition(heading)[2].partition("\n## ")[0]
    text = section.replace("/tmp/bench", str(up.state)).replace("/tmp/mock.sock", str(up.folder / "mock.sock"))
    assert "/tmp/" not in text.replace(str(up.folder), "")
    blocks = [block for block in text.split("\n\n") if block.startswith("    ")]
    return [[line.strip() for line in block.splitlines()] for block in blocks]


def environment(up: Up) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key != "KUBECONFIG"}
    return {**kept, "HOME": str(up.folder), "PYTHONWARNINGS": "error"}


@contextmanager
def first_terminal(up: Up, lines: list[str]) -> Iterator[subprocess.Popen[str]]:
    with up.output.open("w") as stream:
        up.process = terminal = subprocess.Popen(
            ["bash", "-ec", "\n".join([ACTIVATE, *lines])],
            cwd=REPOSITORY,
            env=environment(up),
            start_new_session=True,
            stderr=stream,
            stdout=stream,
            text=True,
        )
    try:
        yield terminal
    finally:
        # The driver, which runs in the background, outlives the shell.
        with suppress(ProcessLookupError):
            os.killpg(terminal.pid, signal.SIGKILL)


def second_terminal(up: Up, lines: list[str]) -> dict[str, str]:
    """Run the commands in one shell, without their comments, and return what each printed; each must succeed."""
    commands = [COMMENT.split(line)[0] for line in lines]
    script = "\n".join(f"echo; echo '>>> {number}'\n{command}" for number, command in enumerate(commands))
    ran = subprocess.run(
        ["bash", "-ec", f"exec 2>&1\n{ACTIVATE}\n{script}"],
        capture_output=True,
        check=False,
        cwd=REPOSITORY,
        env=environment(up),
        text=True,
        timeout=200,
    )
    assert ran.returncode == 0, ran.stdout
    printed = re.split(r"^>>> \d+\n", ran.stdout, flags=re.MULTILINE)[1:]
    return {command: text.strip() for command, text in zip(commands, printed, strict=True)}


def calls(up: Up) -> list[str]:
    """Return the calls that change a volume, from the driver's log."""
    matches = [CALL.search(line) for line in up.said().splitlines()]
    return [
        each[1] if each[2] == "OK" else f"{each[1]} {each[2]}"
        for each in matches
        if each and each[1] in LIFE_OF_A_VOLUME
    ]


def objects(up: Up, *kinds: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = json.loads(up.kubectl.ok("get", ",".join(kinds), "-o", "json"))["items"]
    return items


def has_empty_journal(up: Up) -> bool:
    pages = [each["metadata"].get("annotations", {}) for each in objects(up, "leases")]
    return any(ANNOTATION in page for page in pages) and not any(page.get(ANNOTATION) for page in pages)


def test_the_story_of_the_readme_works_as_it_is_typed_and_leaves_nothing():
    with up_folder() as up:
        first, second = blocks_of_the_story(up)
        (turn,) = (number for number, line in enumerate(second) if line.startswith("kubectl delete"))
        (export,) = (line for line in second if line.startswith("export "))
        with first_terminal(up, first) as terminal:
            up.says("Orlop is up", "driver mock.example.com registered")
            before_deletion = second_terminal(up, second[:turn])
            (node, claim, volume, attachment) = objects(up, "nodes", "pvc", "pv", "volumeattachments")
            after_deletion = second_terminal(up, [export, *second[turn:]])
            remaining = objects(up, "pods", "pvc", "pv", "volumeattachments")
            eventually_there(lambda: has_empty_journal(up))
            assert run_here("down", f"--state={up.state}").returncode == 0
            assert terminal.wait(200) == 0

        applied, ready, greeting, explained = list(before_deletion.values())[1:]
        assert applied.splitlines() == [
            "storageclass.storage.k8s.io/mock created",
            "persistentvolumeclaim/data created",
            "pod/writer created",
        ]
        assert ready == "pod/writer condition met"
        assert (greeting, comment_of(second, "kubectl exec")) == ("hello", "hello")
        assert f"it has the PersistentVolume {volume['metadata']['name']}. Pods that use it: writer on" in explained
        assert "Next: Nothing to do: it waits for nothing." in explained
        selected = claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"]
        assert selected == attachment["spec"]["nodeName"] == node["metadata"]["name"]
        assert volume["spec"]["claimRef"]["uid"] == claim["metadata"]["uid"]
        assert attachment["status"]["attached"] is True

        deleted, _, volumes, listed = list(after_deletion.values())[1:]
        assert [line.split(" deleted")[0] for line in deleted.splitlines()] == [
            'pod "writer"',
            'persistentvolumeclaim "data"',
        ]
        assert volumes == comment_of(second, "kubectl get pv") == "No resources found"
        assert (listed, comment_of(second, "orlop csi")) == ("{}", "{}: nothing is left at the driver")
        assert remaining == []
        assert calls(up) == LIFE_OF_A_VOLUME, "attached before it is used, and detached before it is deleted"
        assert "Traceback" not in up.said()
        assert (up.processes(), up.mounts()) == ({}, [])


def comment_of(lines: list[str], command: str) -> str:
    (line,) = (line for line in lines if line.startswith(command))
    return COMMENT.split(line)[1]


# ---- what runs beside the driver -------------------------------------------------------------------------------------

FULL_AND_BUSY = {
    "CreateVolume": [
        {
            "when": {"parameters": {"array": "full"}},
            "times": 0,
            "error": {"code": "INTERNAL", "message": "the array is full"},
        }
    ],
    "DeleteVolume": [{"times": 0, "error": {"code": "INTERNAL", "message": "the array is busy"}}],
}
CLAIM = """
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {{name: {name}}}
provisioner: mock.example.com
parameters: {{array: {name}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: {name}}}
spec: {{storageClassName: {name}, accessModes: [ReadWriteOnce], resources: {{requests: {{storage: 1Gi}}}}}}
"""


def test_all_sidecars_run_before_the_driver_does_and_explain_shows_its_errors():
    with up_folder() as up:
        socket = up.folder / "csi.sock"
        up.begin(f"--driver=unix://{socket}", "--sidecars=all")
        eventually_there(lambda: up.children() == ["attacher", "provisioner", "registrar"])
        script = up.folder / "script.yaml"
        script.write_text(json.dumps({"script": FULL_AND_BUSY}))
        flags = ("--create-targets", f"--endpoint=unix://{socket}", f"--script={script}")
        with running(up.folder, "testing", "mock-driver", *flags):
            up.says("Orlop is up", "driver mock.example.com registered")
            up.kubectl.ok("apply", "-f", "-", stdin=f"{CLAIM.format(name='fine')}---{CLAIM.format(name='full')}")
            up.kubectl.ok("wait", "pvc/fine", "--for=jsonpath={.status.phase}=Bound", "--timeout=150s")
            (volume,) = objects(up, "pv")
            name = volume["metadata"]["name"]
            up.kubectl.ok("delete", "pvc", "fine")

            eventually_there(lambda: "the array is full" in explained(up, "pvc", "full"), every=0.5)
            eventually_there(lambda: "the array is busy" in explained(up, "pv", name), every=0.5)
            assert "\nNext: " in explained(up, "pvc", "full")
            assert "\nNext: " in explained(up, "pv", name)
            assert up.end() == 0
        assert "Traceback" not in up.said()


def explained(up: Up, kind: str, name: str) -> str:
    return run_here("explain", kind, name, f"--state={up.state}").stdout
