"""Output becomes log lines of which nothing is lost, whatever the pieces it comes in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from onenode.containers.container_log import last_part, log_lines, moment_text

MOMENT = "2026-01-02T03:04:05.000000006Z"


def logged(pieces: list[bytes], longest: int) -> bytes:
    rest, lines = b"", b""
    for piece in pieces:
        written = log_lines(rest + piece, "stdout", MOMENT, longest)
        rest, lines = written.rest, lines + written.lines
    return lines + last_part(rest, "stdout", MOMENT)


def read_back(log: bytes) -> list[bytes]:
    """The lines as a reader joins them: parts until the one that ends a line."""
    found, begun = [], b""
    for line in log.split(b"\n")[:-1]:
        moment, stream, tag, text = line.split(b" ", 3)
        assert (moment.decode(), stream) == (MOMENT, b"stdout")
        begun += text
        if tag == b"F":
            found.append(begun)
            begun = b""
    assert begun == b""
    return found


def test_a_line_is_written_as_container_runtimes_do():
    assert logged([b"hello\n"], 100) == b"2026-01-02T03:04:05.000000006Z stdout F hello\n"


def test_a_long_line_is_written_in_parts():
    prefix = f"{MOMENT} stdout ".encode()
    assert logged([b"abcdefgh\n"], 3) == prefix + b"P abc\n" + prefix + b"P def\n" + prefix + b"F gh\n"


def test_a_moment_has_nine_decimals():
    assert moment_text(1_000_000_042, "1970-01-01T00:00:01") == "1970-01-01T00:00:01.000000042Z"


outputs = st.lists(st.binary(max_size=40).map(lambda raw: raw.replace(b"a", b"\n")), max_size=8)


@given(outputs, st.integers(min_value=1, max_value=12))
def test_nothing_is_lost_and_nothing_added(pieces: list[bytes], longest: int):
    whole = b"".join(pieces)
    expected = whole.split(b"\n")
    if expected[-1] == b"":
        expected.pop()

    assert read_back(logged(pieces, longest)) == expected


@given(outputs, st.integers(min_value=1, max_value=12))
def test_no_part_is_longer_than_allowed(pieces: list[bytes], longest: int):
    lines = logged(pieces, longest).split(b"\n")[:-1]

    assert all(len(line.split(b" ", 3)[3]) <= longest for line in lines)
