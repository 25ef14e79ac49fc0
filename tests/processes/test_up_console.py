"""What `orlop up` shows: one line at the bottom of a terminal, or plain lines."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from orlop.admin.up_state import DEFAULT_STATE
from orlop.processes.up_console import Console, greeting, state_line


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

    assert terminal.shown() == ["x" * 19]


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
    assert state_line("n1", is_ready=True, drivers={}, pods={}) == "node n1 ready | pods: none"


def test_commands_name_the_state_folder_only_where_it_is_needed():
    usual = greeting(DEFAULT_STATE, "n1", ("csi.orlop.dev",), is_ours=True)
    other = greeting(Path("/srv/my state"), "n1", ("csi.orlop.dev",), is_ours=True)

    assert "--state" not in usual
    assert "afterlife list --state '/srv/my state'" in other
