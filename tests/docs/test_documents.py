"""What the documents say is tried: examples run, links lead somewhere, commands exist."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest

from onenode.kubelet.volumes.steps import event_texts
from orlop.__main__ import ROLES, VERBS
from orlop.cli import adopt as adopt_verb
from orlop.cli import drives as drives_verb
from orlop.cli import volumes as volumes_verb
from orlop.cli.durations import DurationType
from orlop.csi.error_codes import Code
from orlop.csi.proto import csi_pb2, rpc
from orlop.foundation.clock import SystemClock
from orlop.processes.mock_driver import RecordFile
from orlop.sidecars.attacher.volume_source_rules import MIGRATED
from orlop.testing.call_record import CallRecord
from orlop.testing.driver_script import script_from_yaml
from orlop.testing.explorer import explore
from support.places import REPOSITORY
from support.processes.orlop_process import run_here

MOCK_DRIVER = REPOSITORY / "docs" / "mock-driver.md"
EXPLORER = REPOSITORY / "docs" / "explorer.md"
DOCUMENTS = sorted(
    [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md"), *(REPOSITORY / "deploy").rglob("*.md")]
)


def blocks(document: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", document.read_text(), re.DOTALL)


def ids(document: Path) -> str:
    return str(document.relative_to(REPOSITORY))


@pytest.mark.parametrize("document", DOCUMENTS, ids=ids)
def test_every_link_leads_to_a_file(document: Path):
    links = [link for link in re.findall(r"\]\(([^)#]+)", document.read_text()) if "://" not in link]

    assert [link for link in links if not (document.parent / link).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=ids)
def test_every_path_of_the_repository_that_is_written_exists(document: Path):
    """A path may end with a function's name, `file.py:name`, or be a pattern."""
    written = re.findall(r"`((?:src|tests|benchmarks|deploy|docs|examples|tools)/[\w./*-]+)", document.read_text())

    assert [path for path in written if not list(REPOSITORY.glob(path.removesuffix("/")))] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=ids)
def test_every_orlop_command_that_is_written_exists(document: Path):
    written = re.findall(r"(?:^ +|`)(?:\.venv/bin/)?orlop ([a-z][^`\n]*)", document.read_text(), re.MULTILINE)
    known = {*ROLES, *VERBS, "up", "down", "kubectl", "node", "controller", "attacher", "apiserver", "static-worker"}

    assert [line for line in written if not any(line.startswith(name) for name in known)] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=ids)
def test_every_make_target_that_is_written_exists(document: Path):
    targets = set(re.findall(r"^([a-z]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))

    written = set(re.findall(r"(?:`|^ +)make ([a-z]+)", document.read_text(), re.MULTILINE))

    assert written <= targets


def test_the_example_of_a_script_is_one():
    (example,) = blocks(MOCK_DRIVER, "yaml")

    assert script_from_yaml(example).facts.name == "mock.example.com"


def test_the_example_of_a_test_prints_what_is_written_there(capsys: pytest.CaptureFixture[str]):
    (example,) = blocks(MOCK_DRIVER, "python")
    (shown,) = blocks(MOCK_DRIVER, "text")

    exec(compile(example, "docs/mock-driver.md", "exec"), {})  # noqa: S102 - it is ours

    assert capsys.readouterr().out == shown


async def test_the_record_holds_what_is_written_and_its_probes_are_left_out_as_is_written(tmp_path: Path):
    text = MOCK_DRIVER.read_text()
    record = RecordFile(tmp_path / "calls.jsonl")
    calls = CallRecord(SystemClock(), record.add)
    for method, request in ((rpc.PROBE, csi_pb2.ProbeRequest()), (rpc.GET_PLUGIN_INFO, csi_pb2.GetPluginInfoRequest())):
        calls.end(calls.begin(method, request), Code.OK)
    record.close()
    written = re.search(r"grep -v '(.+)' calls.jsonl", text)
    assert written is not None

    kept = [line for line in (tmp_path / "calls.jsonl").read_text().splitlines() if written[1] not in line]

    (only,) = map(json.loads, kept)
    assert only["method"] == "GetPluginInfo"
    assert [name for name in only if f"`{name}`" not in text.partition("## What a script may say")[0]] == []


def test_the_commands_of_the_mock_driver_s_document_are_right():
    text = MOCK_DRIVER.read_text()
    commands = re.findall(r"^ +orlop testing mock-driver (.*)$", text, re.MULTILINE)
    words = [word for command in commands for word in shlex.split(command)]
    flags = [word.removeprefix("--") for word in words if word.startswith("--")]

    shown = run_here("testing", "mock-driver", "--help").stdout

    assert [flag for flag in flags if f"--{flag}" not in shown] == []


def test_every_kind_of_which_nobody_makes_pods_is_named_as_such():
    of_up = (REPOSITORY / "docs" / "up.md").read_text().partition("## What it does not do")[2]
    left_out = (
        (REPOSITORY / "docs" / "embedded-differences.md").read_text().partition("## Left out")[2].partition("\n## ")[0]
    )

    for plural in ("DaemonSets", "Jobs", "CronJobs", "ReplicationControllers"):
        assert plural in of_up
        assert plural in left_out


def test_every_event_on_volumes_that_is_not_kubelet_s_is_named_as_ours():
    differences = (REPOSITORY / "docs" / "embedded-differences.md").read_text()

    for reason in (event_texts.NOT_A_MOUNT, event_texts.NOT_UNMOUNTED):
        assert f"`{reason}`" in differences


def test_the_durations_that_documents_show_for_the_afterlife_are_taken():
    shown = re.findall(r"may begin with days: `(\w+)`, `(\w+)`", (REPOSITORY / "docs" / "afterlife.md").read_text())

    assert [DurationType().convert(text, None, None) for text in shown[0]] == [3 * 86400, 36 * 3600]


DRIVES = REPOSITORY / "docs" / "drives.md"
TYPED = sorted(set(re.findall(r"^ +\$ orlop ((?:drives|volumes|adopt)\b[^#\n]*)", DRIVES.read_text(), re.MULTILINE)))


@pytest.mark.parametrize("typed", TYPED)
def test_the_commands_about_drives_can_be_typed_as_they_are_written(typed: str):
    verb, *words = shlex.split(typed)
    command = {"drives": drives_verb.command, "volumes": volumes_verb.command, "adopt": adopt_verb.command}[verb]
    if isinstance(command, click.Group):
        assert words, "the verb alone"
        command = command.commands[words.pop(0)]

    assert command.make_context(verb, words) is not None


def test_make_help_lists_every_target_the_ground_promises():
    makefile = (REPOSITORY / "Makefile").read_text()

    for target in ("venv", "up", "test", "soak", "check", "format", "generate", "bench"):
        assert re.search(rf"^{target}:.*## .+", makefile, re.MULTILINE), target


def test_the_plugins_whose_volumes_the_attacher_refuses_are_listed_with_their_drivers():
    written = re.findall(
        r"^ +\| `(\w+)` \| `([\w.]+)` \|$", (REPOSITORY / "docs" / "attacher.md").read_text(), re.MULTILINE
    )

    assert dict(written) == MIGRATED


def test_it_is_written_that_the_attacher_stays_until_the_last_volume_is_gone():
    assert (
        "must stay until the driver's last PersistentVolume is gone"
        in (REPOSITORY / "docs" / "attacher.md").read_text()
    )


@pytest.mark.parametrize(
    "words",
    [
        "Detaching goes by the node's id that was recorded",
        "without its attacher's finalizer is reset and attached in earnest",
        "are events on the VolumeAttachment too",
        "stands on `detachError` too",
        "lease is released whenever the process ends by itself",
        "driver is probed while it works",
        "that upstream's has attached cannot be detached either",
    ],
)
def test_what_differs_from_upstreams_attacher_is_written(words: str):
    text = (REPOSITORY / "docs" / "attacher.md").read_text()
    section = text.partition("## Differences from upstream's")[2].partition("\n## ")[0]

    assert words in " ".join(section.split())


@pytest.mark.parametrize("number", range(len(blocks(EXPLORER, "text"))))
def test_an_example_of_the_explorer_prints_what_is_written_there(number: int, capsys: pytest.CaptureFixture[str]):
    example, shown = blocks(EXPLORER, "python")[number], blocks(EXPLORER, "text")[number]

    exec(compile(example, "docs/explorer.md", "exec"), {})  # noqa: S102 - it is ours

    assert capsys.readouterr().out == shown


def test_every_example_of_the_explorer_has_what_it_prints_beside_it():
    assert len(blocks(EXPLORER, "python")) == len(blocks(EXPLORER, "text"))


def test_the_explorer_s_controller_is_mended_by_what_is_written_there():
    _, example = blocks(EXPLORER, "python")
    written = re.search(r"With `(.+?)` as the name, .* none of (\d+) histories breaks it", EXPLORER.read_text())
    assert written is not None
    # What follows would play all histories a first time.
    controller, explores, _ = example.partition("\ntry:\n    explore(scenario)")
    mended = controller.replace('f"volume-{self.clock.elapsed():.0f}"', written[1])
    names: dict[str, Any] = {}

    exec(compile(mended, "docs/explorer.md", "exec"), names)  # noqa: S102 - it is ours

    assert explores
    assert written[1] in mended
    assert explore(names["scenario"]).histories == int(written[2])
