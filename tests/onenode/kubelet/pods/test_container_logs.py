"""What people see of a container's output: all of it, its end, what is new, and whose it is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onenode.containers.container_log import ContainerLog, last_part, log_lines
from onenode.containers.container_request import LogLimits
from onenode.kubelet.pods import container_log_rules
from onenode.kubelet.pods.container_log_rules import LogOptions, NoSuchLog, log_attempt
from onenode.kubelet.pods.container_logs import ContainerLogs
from orlop.foundation.clock import SystemClock
from orlop.host.threads import OwnThreads
from support.host.descriptors import folder_descriptor

EARLY, LATE = "2026-01-01T00:00:00.000000000Z", "2026-01-01T00:00:09.000000000Z"


def entry(text: str, moment: str = EARLY, stream: str = "stdout", tag: str = "F") -> bytes:
    return f"{moment} {stream} {tag} {text}\n".encode()


def seen(log: bytes, **how: Any) -> bytes:
    options = LogOptions(**how)
    log = log if options.tail_lines is None else container_log_rules.tail(log, options.tail_lines)
    return container_log_rules.shown(log, container_log_rules.beginning(options), options)[0]


# ---- what is shown ---------------------------------------------------------------------------------------------------

LOG = entry("one") + entry("tw", tag="P") + entry("o", tag="F") + entry("three", LATE, "stderr")


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({}, b"one\ntwo\nthree\n"),
        ({"tail_lines": 2}, b"two\nthree\n"),
        ({"tail_lines": 1}, b"three\n"),
        ({"tail_lines": 0}, b""),
        ({"tail_lines": 99}, b"one\ntwo\nthree\n"),
        ({"since": datetime(2026, 1, 1, 0, 0, 5, tzinfo=UTC)}, b"three\n"),
        ({"limit_bytes": 5}, b"one\nt"),
        ({"timestamps": True, "tail_lines": 2}, f"{EARLY} two\n{LATE} three\n".encode()),
        ({"streams": frozenset({"stderr"})}, b"three\n"),
    ],
)
def test_what_is_asked_for_is_shown(how: dict[str, Any], expected: bytes):
    assert seen(LOG, **how) == expected


def test_a_torn_line_is_passed_over():
    assert seen(entry("one") + b"2026-01-01T00\n" + entry("two")) == b"one\ntwo\n"


texts = st.lists(st.binary(max_size=20).map(lambda raw: raw.replace(b"a", b"\n")), max_size=6)


@given(texts, st.integers(1, 7), st.integers(1, 9))
def test_output_is_seen_as_it_was_printed_whatever_the_pieces(pieces: list[bytes], longest: int, cut: int):
    rest, log = b"", b""
    for piece in pieces:
        written = log_lines(rest + piece, "stdout", EARLY, longest)
        rest, log = written.rest, log + written.lines
    log += last_part(rest, "stdout", EARLY)
    at, text = container_log_rules.beginning(LogOptions()), b""
    for start in range(0, len(log), cut):
        more, at = container_log_rules.shown(log[start : start + cut], at, LogOptions())
        text += more
    whole = b"".join(pieces)

    assert text == (whole if not whole or whole.endswith(b"\n") else whole + b"\n")


@given(texts, st.integers(1, 7), st.integers(0, 9))
def test_the_tail_is_the_last_lines(pieces: list[bytes], longest: int, count: int):
    whole = b"".join(pieces) + b"\n"
    log = log_lines(whole, "stdout", EARLY, longest).lines
    lines = whole.split(b"\n")[:-1]

    assert seen(log, tail_lines=count) == b"".join(
        line + b"\n" for line in lines[len(lines) - min(count, len(lines)) :]
    )


# ---- whose log -------------------------------------------------------------------------------------------------------

ENDED = {"terminated": {"exitCode": 1}}


def pod(state: dict[str, Any], last: dict[str, Any] | None = None, count: int = 0) -> dict[str, Any]:
    status = {"name": "c", "state": state, "lastState": last or {}, "restartCount": count}
    spec = {"containers": [{"name": "c"}, {"name": "d"}]}
    return {"metadata": {"name": "p"}, "spec": spec, "status": {"containerStatuses": [status]}}


@pytest.mark.parametrize(
    ("given_pod", "previous", "attempt"),
    [
        (pod({"running": {}}), False, 0),
        (pod({"running": {}}, ENDED, 3), False, 3),
        (pod({"running": {}}, ENDED, 3), True, 2),
        (pod({"waiting": {"reason": "CrashLoopBackOff"}}, ENDED, 3), False, 3),
        (pod({"waiting": {"reason": "CrashLoopBackOff"}}, ENDED, 3), True, 3),
        (pod(ENDED, None, 1), False, 1),
    ],
)
def test_the_log_of_the_right_attempt_is_meant(given_pod: dict[str, Any], previous: bool, attempt: int):  # noqa: FBT001
    assert log_attempt(given_pod, "c", previous=previous) == attempt


@pytest.mark.parametrize(
    ("given_pod", "name", "previous", "sentence"),
    [
        (pod({"running": {}}), "x", False, "container x is not valid for pod p"),
        (pod({"running": {}}), "d", False, 'container "d" in pod "p" is waiting to start: ContainerCreating'),
        (pod({"running": {}}), "c", True, 'previous terminated container "c" in pod "p" not found'),
        (pod({"waiting": {"reason": "Sulking"}}), "c", False, 'container "c" in pod "p" is waiting to start: Sulking'),
    ],
)
def test_where_there_is_no_log_kubelets_words_say_so(given_pod: Any, name: str, previous: bool, sentence: str):  # noqa: FBT001
    with pytest.raises(NoSuchLog, match=sentence):
        log_attempt(given_pod, name, previous=previous)


# ---- reading ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "logs/u/c").mkdir(parents=True)
    opened = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield opened
    os.close(opened)


@contextmanager
def writer(tmp_path: Path, file_bytes: int) -> Iterator[ContainerLog]:
    with folder_descriptor(tmp_path / "logs/u/c") as opened:
        log = ContainerLog(opened, "0.log", LogLimits(file_bytes=file_bytes))
        yield log
        log.close()


async def test_a_log_is_read_with_the_file_before_it(folder: int, tmp_path: Path):
    with writer(tmp_path, file_bytes=100) as log:
        for line in (b"one\n", b"two\n", b"three\n"):
            log.write("stdout", line)
    logs = ContainerLogs(folder, OwnThreads(), SystemClock())
    text = b"".join([piece async for piece in logs.read("u", "c", 0, LogOptions())])

    assert (tmp_path / "logs/u/c/0.log.1").exists()
    assert text == b"one\ntwo\nthree\n"


async def test_following_sees_every_line_through_rotations_and_ends_with_the_container(folder: int, tmp_path: Path):
    lines: list[str] = []
    logs = ContainerLogs(folder, OwnThreads(), SystemClock())
    with writer(tmp_path, file_bytes=400) as log:
        log.write("stdout", b"line 0\n")
        async for piece in logs.read("u", "c", 0, LogOptions(), follow=lambda: len(lines) < 30):
            lines.extend(piece.decode().split("\n")[:-1])
            if len(lines) < 30:
                log.write("stdout", f"line {len(lines)}\n".encode())

    assert lines == [f"line {number}" for number in range(30)]


async def test_a_log_that_is_gone_is_a_sentence(folder: int):
    with pytest.raises(NoSuchLog, match='the log of container "c" is gone'):
        async for _ in ContainerLogs(folder, OwnThreads(), SystemClock()).read("u", "c", 5, LogOptions()):
            pass
