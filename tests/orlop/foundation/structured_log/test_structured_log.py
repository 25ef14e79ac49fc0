"""Proves that one event is one line that can be parsed back, and that logging never hurts who logs."""

from __future__ import annotations

import io
import json
import os
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orlop.foundation.structured_log import (
    Level,
    Log,
    LogEntry,
    collecting_log,
    level_named,
    line_log,
    silent_log,
)

MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
STYLES: list[Literal["text", "json"]] = ["text", "json"]


def log_into(lines: list[str], style: Literal["text", "json"] = "text", **options: Any) -> Log:
    return line_log(lines.append, now=lambda: MOMENT, style=style, **options)


def one_line(style: Literal["text", "json"], message: str = "m", /, **fields: object) -> str:
    lines: list[str] = []
    log_into(lines, style).info(message, **fields)
    assert len(lines) == 1
    return lines[0]


HEAD = re.compile(r"(?P<ts>\S+) (?P<level>[a-z]+) ")
BARE = re.compile(r"[A-Za-z/_][^\s\"=]*")


def parse_text(line: str) -> dict[str, Any]:
    """Reads a line of the text style as its docstring describes it."""
    head = HEAD.match(line)
    assert head
    message, position = json.JSONDecoder().raw_decode(line, head.end())
    found = {**head.groupdict(), "msg": message}
    while line[position] != "\n":
        assert line[position] == " "
        key, position = parse_word(line, position + 1)
        assert line[position] == "="
        found[key], position = parse_word(line, position + 1)
    assert position == len(line) - 1
    return found


def parse_word(line: str, position: int) -> tuple[Any, int]:
    bare = BARE.match(line, position)
    if bare and bare[0] not in {"true", "false", "null"}:
        return bare[0], bare.end()
    return json.JSONDecoder().raw_decode(line, position)


def parsed(style: Literal["text", "json"], line: str) -> dict[str, Any]:
    return json.loads(line) if style == "json" else parse_text(line)


def test_a_text_line_has_the_time_the_level_the_message_and_the_fields_in_order():
    line = one_line("text", "volume published", volume="v1", path="/mnt/a b", size=5, staged=True, error=None)
    assert line == (
        '2026-01-02T03:04:05.000678Z info "volume published" '
        'volume=v1 path="/mnt/a b" size=5 staged=true error=null\n'
    )  # fmt: skip


def test_a_json_line_has_the_same_as_members():
    assert one_line("json", "volume published", volume="v1", took=0.5) == (
        '{"ts":"2026-01-02T03:04:05.000678Z","level":"info","msg":"volume published","volume":"v1","took":0.5}\n'
    )


def test_the_time_is_written_in_utc_whatever_zone_it_was_given_in():
    lines: list[str] = []
    line_log(lines.append, now=lambda: MOMENT.astimezone(timezone(timedelta(hours=5)))).info("m")
    assert lines[0].startswith("2026-01-02T03:04:05.000678Z ")


def test_events_below_the_level_are_not_written():
    lines: list[str] = []
    log = log_into(lines, level=Level.WARNING)
    log.debug("d")
    log.info("i")
    log.warning("w")
    log.error("e")
    assert [parse_text(line)["level"] for line in lines] == ["warning", "error"]
    assert [log.enabled(level) for level in Level] == [False, False, True, True]


def test_bound_fields_are_in_every_event_and_the_parent_does_not_get_them():
    entries: list[LogEntry] = []
    parent = collecting_log(entries)
    child = parent.bind(node="n1").bind(volume="v1")
    child.info("a", volume="v2")
    parent.debug("b")
    assert entries == [
        LogEntry(Level.INFO, "a", {"node": "n1", "volume": "v2"}),
        LogEntry(Level.DEBUG, "b", {}),
    ]


def test_fields_may_be_called_like_the_parameters_of_the_log():
    assert parse_text(one_line("text", "m", message="a", self="b", level="c"))["message"] == "a"


def test_a_json_field_never_takes_the_place_of_time_level_or_message():
    found = json.loads(one_line("json", "m", msg="forged", level="error", ts="0"))
    assert (found["msg"], found["level"], found["ts"]) == ("m", "info", "2026-01-02T03:04:05.000678Z")
    assert (found["msg_"], found["level_"], found["ts_"]) == ("forged", "error", "0")


@pytest.mark.parametrize("style", STYLES)
def test_a_newline_in_message_key_or_value_does_not_begin_another_line(style: Literal["text", "json"]):
    forged = '\n2026-01-02T03:04:05Z error "disk erased"\r\n'
    line = one_line(style, f"m{forged}", **{f"key{forged}": f"value{forged}"})
    assert line.count("\n") == 1
    assert parsed(style, line)[f"key{forged}"] == f"value{forged}"


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    "character", ["\x1b", "\x9b", "\x7f", "\x00", "\x85", "\u2028", "\u202e", "\ud800", "\U000e0001"]
)
def test_characters_that_steer_terminals_or_readers_are_escaped(character: str, style: Literal["text", "json"]):
    line = one_line(style, "m", value=f"a{character}b")
    assert character not in line
    assert line[:-1].isprintable()
    assert parsed(style, line)["value"] == f"a{character}b"


def test_letters_of_other_scripts_stay_readable():
    assert '"Größe 大小"' in one_line("text", "Größe 大小")


@pytest.mark.parametrize("value", ["1", "-5", "true", "null", "", "a=b", '"', "a b", "\\", "0x5", "NaN", "{}"])
def test_text_that_could_be_taken_for_something_else_is_quoted(value: str):
    assert parse_text(one_line("text", "m", value=value))["value"] == value


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**39), 10**39)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=6,
)


# Each example is a large one: a long run takes fewer of them, to stay within the time of a test.
@settings(max_examples=min(settings.default.max_examples, 2_000))
@pytest.mark.parametrize("style", STYLES)
@given(
    message=st.text(),
    fields=st.dictionaries(st.text(min_size=1).filter(lambda key: key not in {"ts", "level", "msg"}), VALUES),
)
def test_every_event_is_one_printable_line_that_can_be_parsed_back(
    style: Literal["text", "json"], message: str, fields: dict[str, Any]
):
    lines: list[str] = []
    log_into(lines, style)._destination(Level.INFO, message, fields)
    (line,) = lines
    assert line.endswith("\n")
    assert line[:-1].isprintable()
    assert parsed(style, line) == {
        "ts": "2026-01-02T03:04:05.000678Z", "level": "info", "msg": message, **fields,
    }  # fmt: skip


class Colour(Enum):
    RED = "red"


@dataclass(frozen=True)
class Drive:
    name: str


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__


LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (Path("/mnt/d"), "/mnt/d"),
        (Drive("d1"), "Drive(name='d1')"),
        (Colour.RED, "Colour.RED"),
        (b"\xff\n", "b'\\xff\\n'"),
        (ValueError("bad"), "ValueError: bad"),
        (float("nan"), "nan"),
        (10**5000, None),
        (Unprintable(), "<Unprintable that cannot be shown: RuntimeError>"),
        ([Unprintable()], ["<Unprintable that cannot be shown: RuntimeError>"]),
        ({"b", "a"}, ["a", "b"]),
        (("a", 1), ["a", 1]),
        ({1: {"x": None}}, {"1": {"x": None}}),
        (LOOP, [[[["[[...]]"]]]]),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("style", STYLES)
def test_any_object_is_shown_somehow(style: Literal["text", "json"], value: object, shown: object):
    found = parsed(style, one_line(style, "m", value=value))["value"]
    assert found == shown or (shown is None and found.startswith("0x"))


@pytest.mark.parametrize("style", STYLES)
def test_a_long_value_keeps_its_ends_and_says_how_much_is_left_out(style: Literal["text", "json"]):
    lines: list[str] = []
    log_into(lines, style, value_limit=10).info("m", value="a" * 50 + "b" * 50)
    assert parsed(style, lines[0])["value"] == "aaaaa…(90 characters left out)…bbbbb"


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    "value", [list(range(100_000)), dict.fromkeys(range(100_000)), ["x" * 4000] * 50], ids=["list", "map", "texts"]
)
def test_a_long_container_is_cut_too(style: Literal["text", "json"], value: object):
    assert len(one_line(style, "m", value=value)) < 9000


@pytest.mark.parametrize("style", STYLES)
def test_an_exception_is_one_line_with_its_text_and_whole_traceback(style: Literal["text", "json"]):
    lines: list[str] = []
    try:
        raise_from_below("the disk\nis gone")
    except ValueError as error:
        log_into(lines, style).exception("cannot publish", error, volume="v1")
    (line,) = lines
    found = parsed(style, line)
    assert (line.count("\n"), found["level"], found["volume"]) == (1, "error", "v1")
    assert found["error"] == "ValueError: the disk\nis gone"
    assert "in raise_from_below" in found["traceback"]


def raise_from_below(text: str) -> None:
    raise ValueError(text)


def test_an_exception_whose_text_cannot_be_had_is_logged_all_the_same():
    class WithoutTextError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    lines: list[str] = []
    log_into(lines).exception("m", WithoutTextError())
    assert parse_text(lines[0])["error"] == "<WithoutTextError that cannot be shown: RuntimeError>"


class Stream(io.StringIO):
    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


def test_colours_appear_only_on_a_terminal_and_only_in_text():
    terminal, file, terminal_json = Stream(terminal=True), Stream(terminal=False), Stream(terminal=True)
    line_log(terminal, now=lambda: MOMENT).error("m")
    line_log(file, now=lambda: MOMENT).error("m")
    line_log(terminal_json, now=lambda: MOMENT, style="json").error("m")
    assert terminal.getvalue() == '2026-01-02T03:04:05.000678Z \x1b[31merror\x1b[0m "m"\n'
    assert "\x1b" not in file.getvalue() + terminal_json.getvalue()


def test_each_line_reaches_the_file_at_once(tmp_path: Path):
    with (tmp_path / "log").open("w", encoding="utf-8") as stream:
        line_log(stream, now=lambda: MOMENT).info("m")
        assert (tmp_path / "log").read_text() == '2026-01-02T03:04:05.000678Z info "m"\n'


@pytest.mark.parametrize("style", STYLES)
def test_a_stream_that_is_not_utf8_gets_escapes_instead_of_losing_the_line(
    tmp_path: Path, style: Literal["text", "json"]
):
    with (tmp_path / "log").open("w", encoding="ascii") as stream:
        line_log(stream, now=lambda: MOMENT, style=style).info("m", value="大 𝄞")
    assert parsed(style, (tmp_path / "log").read_text())["value"] == "大 𝄞"


def test_a_closed_stream_does_not_hurt_who_logs():
    stream = io.StringIO()
    log = line_log(stream, now=lambda: MOMENT)
    stream.close()
    log.info("lost")


def test_a_broken_pipe_does_not_hurt_who_logs():
    reader, writer = os.pipe()
    os.close(reader)
    stream = os.fdopen(writer, "w")
    log = line_log(stream, now=lambda: MOMENT)
    log.info("lost")
    log.info("lost too")
    with pytest.raises(BrokenPipeError):
        stream.close()


def test_a_full_disk_does_not_hurt_who_logs_and_a_later_line_is_not_prevented():
    stream = Path("/dev/full").open("w")  # noqa: SIM115 - closing it raises
    log = line_log(stream, now=lambda: MOMENT)
    for _ in range(3):
        log.info("lost", value="x" * 4000)
    with pytest.raises(OSError, match="No space left"):
        stream.close()


def test_a_function_that_fails_as_a_sink_does_not_hurt_who_logs():
    def fail(_line: str) -> None:
        raise OSError("gone")

    line_log(fail, now=lambda: MOMENT).info("lost")


def test_a_silent_log_takes_everything():
    log = silent_log().bind(a=1)
    log.error("m", b=object())
    assert not log.enabled(Level.WARNING)


def test_a_level_is_found_by_its_name_and_an_unknown_one_is_told_which_there_are():
    assert [level_named(name) for name in ("debug", "INFO", "Warning")] == [Level.DEBUG, Level.INFO, Level.WARNING]
    with pytest.raises(ValueError, match="allowed are debug, info, warning, error"):
        level_named("loud")
