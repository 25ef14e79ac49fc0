"""How sizes, spans, names and tables are written."""

from __future__ import annotations

import json
import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orlop.cli.afterlife_format import (
    details,
    escaped,
    escaped_bytes,
    file_table,
    file_value,
    folder_table,
    folder_value,
    harmless,
    pod_text,
    size_text,
    span_text,
    time_text,
    usage_text,
    usage_value,
)
from orlop.records.afterlife_report import FileRow, FolderRow, NamespaceUsage, NextErase, UsageReport

HOSTILE = "\x1b[2J\u202eevil\nFAKE  shop  csi-1\r\x07\x9b31m"
SIZES = [
    (None, "…"),
    (0, "0"),
    (1023, "1023"),
    (1024, "1.0Ki"),
    (10_189, "9.9Ki"),
    (1_048_575, "1023Ki"),
    (1_288_490_189, "1.2Gi"),
    (2**63 - 1, "7.9Ei"),
]
SPANS = [(0, "0s"), (59.9, "59s"), (60, "1m"), (192, "3m12s"), (3600, "1h"), (11_520, "3h12m"), (90_061, "1d1h")]


@pytest.mark.parametrize(("count", "text"), SIZES)
def test_a_size_is_written_short(count: int | None, text: str):
    assert size_text(count) == text


@given(st.integers(0, 2**64))
def test_a_size_is_never_too_large_and_too_small_by_less_than_its_last_digit(count: int):
    number, suffix = re.fullmatch(r"([0-9.]+)([A-Z]?i?)", size_text(count)).groups()  # type: ignore[union-attr]
    unit = 1024 ** ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"].index(suffix)

    assert 0 <= count - Fraction(number) * unit < unit * (Fraction(1, 10) if "." in number else 1)
    assert len(number) <= 4


@pytest.mark.parametrize(("seconds", "text"), SPANS)
def test_a_span_is_written_by_its_two_largest_units(seconds: float, text: str):
    assert span_text(seconds) == text


@given(st.text())
def test_nothing_that_is_escaped_can_command_a_terminal(text: str):
    assert escaped(text).isprintable()
    assert harmless(text).isprintable()


@given(st.binary(), st.binary())
def test_two_names_are_never_written_the_same(one: bytes, other: bytes):
    assert escaped_bytes(one).isprintable()
    assert (escaped_bytes(one) == escaped_bytes(other)) == (one == other)


def row(**facts: object) -> FolderRow:
    usual = {"volume_id": "csi-1", "pod": "web-0", "namespace": "shop", "deleted_at": 0.0, "age_seconds": 60.0}
    return FolderRow(**{**usual, "lifespan_seconds": 120.0, "erased_in_seconds": 60.0, **facts})  # type: ignore[arg-type]


def test_a_hostile_pod_forges_no_line_in_any_form():
    names = {"pod": HOSTILE, "namespace": HOSTILE, "volume_name": HOSTILE}
    hostile = row(**names, pod_uid=HOSTILE, service_account=HOSTILE, mount_options=(HOSTILE,))
    usage = UsageReport(
        (NamespaceUsage(HOSTILE, 1, 1, 0),), 10, 5, 10, 5, 0.1, "as set", 1.0, 60.0, NextErase(hostile, "age")
    )
    for text in (
        folder_table([hostile], ["csi-1"]),
        folder_table([hostile], ["csi-1"], wide=True),
        details(hostile),
        usage_text(usage),
    ):
        assert all(line.isprintable() for line in text.split("\n"))
        assert not any(line.startswith("FAKE") for line in text.split("\n"))
    assert len(folder_table([hostile], ["csi-1"]).split("\n")) == 2


def test_where_a_folder_lies_is_shown_to_people_and_to_programs():
    """An admin of a node may want the files themselves; a hostile path forges no line."""
    of_folder = row(path="/var/lib/orlop/retained/csi-1")

    assert "Path:            /var/lib/orlop/retained/csi-1\n" in details(of_folder)
    assert folder_value(of_folder)["path"] == "/var/lib/orlop/retained/csi-1"
    assert "\nFAKE" not in details(row(path=HOSTILE))


def test_columns_stand_under_their_heads():
    table = folder_table([row(), row(volume_id="csi-22", pod="a-long-name", bytes_used=5000)], ["csi-1", "csi-22"])
    head, *lines = table.split("\n")

    for title in ("NAMESPACE", "VOLUME", "NAME ", "SIZE", "DELETED", "ERASED"):
        assert all(line[head.index(title) - 1] == " " != line[head.index(title)] for line in lines)


def test_two_volumes_of_one_pod_are_told_apart_by_their_names_in_its_spec():
    rows = [row(volume_id="csi-1", volume_name="scratch"), row(volume_id="csi-2", volume_name="cache")]
    scratch, cache = folder_table(rows, ["csi-1", "csi-2"]).split("\n")[1:]

    assert (scratch.split()[2:4], cache.split()[2:4]) == (["csi-1", "scratch"], ["csi-2", "cache"])
    assert "Name:            cache" in details(rows[1]).split("\n")
    assert [folder_value(each)["volumeName"] for each in rows] == ["scratch", "cache"]


def test_a_volume_whose_name_was_never_recorded_has_none():
    assert folder_table([row()], ["csi-1"]).split("\n")[1].split()[3] == "-"


def test_a_usual_list_fits_into_eighty_columns():
    usual = row(volume_id="csi-7d9b3da1", pod="cart-5d8f-x2x", namespace="default", volume_name="scratch")
    assert max(map(len, folder_table([usual], ["csi-7d9b3da1"]).split("\n"))) <= 80


def test_what_is_beyond_its_time_is_overdue():
    assert folder_table([row(erased_in_seconds=0.0)], ["csi-1"]).endswith("overdue")


def test_a_pod_without_a_name_is_called_by_its_uid():
    assert pod_text(row()) == "shop/web-0"
    assert pod_text(row(pod="", namespace="", pod_uid="1234")) == "the pod 1234"
    assert pod_text(row(pod="", namespace="", pod_uid="")) == "an unknown pod"


def file(**facts: object) -> FileRow:
    usual = {"name": b"a", "kind": "a file", "mode": 0o644, "uid": 0, "gid": 0, "size": 5, "modified_ns": 0}
    return FileRow(**{**usual, **facts})  # type: ignore[arg-type]


def test_files_are_written_as_ls_does():
    rows = [
        file(name=b"sub", kind="a folder", mode=0o755),
        file(name=b"to", kind="a symbolic link", mode=0o777, link=b"\x1b/etc"),
        file(name=b"new\nline", size=12345, modified_ns=10**30),
        file(name=b"m", kind="a mount, which is not entered"),
    ]
    lines = file_table(rows).split("\n")

    assert lines[0] == "drwxr-xr-x  0:0      5  1970-01-01T00:00:00Z  sub"
    assert lines[1].endswith(r"to -> \x1b/etc")
    assert lines[2] == r"-rw-r--r--  0:0  12345  -                     new\nline"
    assert lines[3].startswith("?")


def test_for_programs_a_name_that_is_no_text_is_also_there_exactly():
    value = file_value(file(name=b"\xff", link=b"\xfe"))

    assert (value["name"], value["nameBase64"]) == ("\ufffd", "/w==")
    assert value["linkBase64"] == "/g=="
    assert "nameBase64" not in file_value(file())


def test_what_programs_get_is_json():
    usage = UsageReport((), 10, 5, 0, 0, 0.1, "as set", 0.5, 60.0, NextErase(row(), "pressure"))

    assert json.loads(json.dumps(usage_value(usage)))["next"]["reason"] == "pressure"
    assert json.loads(json.dumps(folder_value(row())))["bytes"] is None
    assert "0.50: less is free than the headroom" in usage_text(usage)
    assert usage_text(usage).endswith("No folder is retained.")


def test_a_time_that_no_calendar_has_is_the_last_one_that_has():
    assert time_text(1e15) == "9999-12-31T23:59:59Z"
