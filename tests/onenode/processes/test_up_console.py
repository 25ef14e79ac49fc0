"""What `orlop up` shows: one line at the bottom of a terminal, or plain lines."""

from __future__ import annotations

import io
import shutil
import sys
from pathlib import Path

import pytest
import yaml

from onenode.processes.up_console import Console, greeting, state_line
from orlop.admin.up_state import DEFAULT_STATE
from support.places import REPOSITORY


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def shown(self) -> list[str]:
        """What one would see: a line that is cleared is gone."""
        return [line.rpartition("\r\x1b[K")[2] for line in self.getvalue().split("\n")]


def test_on_a_terminal_the_state_is_one_line_below_everything_else():
    terminal = Terminal()
    console = Console(terminal)
    console.say("begun")
    console.show_state("node ready")
    console.say("a warning")
    console.show_state("node ready | pods: 1 Running")
    console.show_state("node ready | pods: 1 Running")
    console.end()
    console.say("stopped")

    assert terminal.shown() == ["begun", "a warning", "node ready | pods: 1 Running", "stopped", ""]


def test_a_line_is_never_longer_than_the_terminal(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "20")
    terminal = Terminal()
    Console(terminal).show_state("x" * 100)

    assert terminal.shown() == ["x" * 18 + "…"]


def test_elsewhere_each_new_state_is_a_line():
    stream = io.StringIO()
    console = Console(stream)
    for line in ("a", "a", "b"):
        console.show_state(line)
    console.end()

    assert stream.getvalue() == "a\nb\n"


def test_the_state_names_what_is_missing():
    line = state_line("n1", is_ready=False, drivers={"csi.orlop.dev": False}, pods={"Running": 2, "Failed": 0})

    assert line == "node n1 not ready | driver csi.orlop.dev not there | pods: 2 Running"
    line = state_line("n1", is_ready=True, drivers={"csi.orlop.dev": True}, pods={})
    assert line == "node n1 ready | driver csi.orlop.dev registered | pods: none"
    assert state_line("n1", is_ready=True, drivers={}, pods={}) == "node n1 ready | pods: none"
    line = state_line("n1", is_ready=True, drivers={}, pods={}, awaited="unix:///run/theirs.sock")
    assert line == "node n1 ready | no driver answers at unix:///run/theirs.sock yet | pods: none"
    line = state_line("n1", is_ready=True, drivers={"d": True}, pods={}, awaited="unix:///run/theirs.sock")
    assert line == "node n1 ready | driver d registered | pods: none"


def test_commands_name_the_state_folder_only_where_it_is_needed():
    usual = greeting(DEFAULT_STATE, "n1", ("csi.orlop.dev",), is_ours=True)
    other = greeting(Path("/srv/my state"), "n1", ("csi.orlop.dev",), is_ours=True)

    assert "--state" not in usual
    assert "afterlife list --state '/srv/my state'" in other


@pytest.mark.parametrize(
    ("program", "called"),
    [
        ("/usr/local/bin/orlop", "orlop kubectl"),
        ("/srv/orlop/.venv/bin/orlop", "/srv/orlop/.venv/bin/orlop kubectl"),
    ],
)
def test_commands_can_be_typed_in_a_terminal_that_knows_nothing_of_this_one(
    program: str, called: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sys, "argv", [program])
    monkeypatch.setattr(shutil, "which", lambda _name: program)
    told = greeting(DEFAULT_STATE, "n1", ("csi.orlop.dev",), is_ours=True)
    assert f"\n{called} apply" in told


def test_the_claim_of_the_examples_can_be_tried_at_once():
    shown = greeting(Path("/srv/up"), "n1", ("csi.orlop.dev",), is_ours=True)
    example = (REPOSITORY / "examples/claim-on-a-drive.yaml").read_text()

    _, _, claim = shown.rpartition("kubectl --state /srv/up apply -f - <<'END'\n")
    manifest, _, commands = claim.partition("END\n")
    assert list(yaml.safe_load_all(manifest)) == list(yaml.safe_load_all(example))
    assert "kubectl --state /srv/up exec writer -- df -h /data\n" in commands
    assert "volumes list --state /srv/up\n" in commands


def test_without_a_drive_the_command_that_finds_disks_is_shown_and_no_claim():
    shown = greeting(Path("/srv/up"), "n1", ("csi.orlop.dev",), is_ours=True, has_drive=False)

    assert "drives discover --state /srv/up" in shown
    assert "PersistentVolumeClaim" not in shown


def test_a_driver_of_your_own_is_named_when_it_is_there_already():
    there = greeting(DEFAULT_STATE, "n1", ("other.example.com",), is_ours=False)
    not_yet = greeting(DEFAULT_STATE, "n1", (), is_ours=False)

    assert "The driver other.example.com is registered." in there
    assert "As soon as your driver answers, it will be registered." in not_yet


def test_for_a_driver_of_your_own_the_next_steps_are_printed_with_its_name():
    there = greeting(Path("/srv/bench"), "n1", ("other.example.com",), is_ours=False)

    assert "provisioner: other.example.com\n" in there
    assert "explain pvc --state /srv/bench demo\n" in there
    assert "apply its CSIDriver object too" in there
    assert "leaves volumes at the driver" in there
    assert "provisioner: YOUR.DRIVER\n" in greeting(DEFAULT_STATE, "n1", (), is_ours=False)
