"""Every file of examples/ runs, unchanged, on one machine: what it promises is found, also in the afterlife."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.orlop_process import run
from support.up_process import Up, up_folder

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def up() -> Iterator[Up]:
    with up_folder() as made:
        made.start()
        yield made


def left_behind(up: Up, pod: str, path: str) -> str:
    (volume,) = run("afterlife", "list", f"--state={up.state}", f"--pod={pod}", "-o", "name").stdout.splitlines()
    return run("afterlife", "cat", f"--state={up.state}", volume, path).stdout


def applied(up: Up, name: str) -> str:
    up.kubectl.ok("apply", "-f", str(EXAMPLES / f"{name}.yaml"))
    return name


def test_every_example_has_a_test_here():
    tested = {"scratch-with-afterlife", "what-a-failed-run-left", "scratch-between-containers"}
    assert {path.stem for path in EXAMPLES.glob("*.yaml")} == tested


def test_scratch_with_afterlife(up: Up):
    pod = applied(up, "scratch-with-afterlife")
    up.runs(pod)
    up.delete(pod)

    assert left_behind(up, pod, "result") == f"written by {pod}\n"


def test_what_a_failed_run_left(up: Up):
    pod = applied(up, "what-a-failed-run-left")
    up.kubectl.ok("wait", "--for=jsonpath={.status.phase}=Failed", f"pod/{pod}", "--timeout=30s")
    assert up.value(pod, "{.status.containerStatuses[0].state.terminated.exitCode}") == "3"
    up.delete(pod)

    assert left_behind(up, pod, "progress") == "step 1 of 2 done\n"


def test_scratch_between_containers(up: Up):
    pod = applied(up, "scratch-between-containers")
    up.runs(pod)
    up.delete(pod)

    assert left_behind(up, pod, "shared/data") == left_behind(up, pod, "seen-by-works") == "prepared\n"
