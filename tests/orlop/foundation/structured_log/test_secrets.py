"""Plants secrets and looks for them in everything that can be printed."""

from __future__ import annotations

import base64
import copy
import gc
import inspect
import io
import json
import pickle
import pprint
import traceback
from dataclasses import asdict, astuple, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

import msgspec
import pytest
import yaml
from google.protobuf import text_format
from google.protobuf.wrappers_pb2 import StringValue
from hypothesis import given
from hypothesis import strategies as st

from orlop.foundation.structured_log import Secret, hide, line_log

if TYPE_CHECKING:
    from collections.abc import Callable

PLANTED = "hunter2-planted"
SECRETS: list[Secret[Any]] = [Secret(PLANTED), Secret(PLANTED.encode())]
each_secret = pytest.mark.parametrize("secret", SECRETS, ids=["text", "bytes"])


@dataclass(frozen=True)
class Credentials:
    user: str
    password: Secret[Any]


PRINTERS: dict[str, Callable[[Secret[Any]], object]] = {
    "repr": repr,
    "str": str,
    "ascii": ascii,
    "format": lambda secret: f"{secret} {secret!r} {secret!s} {secret:>20}",
    "percent": lambda secret: "%s %r" % (secret, secret),  # noqa: UP031 - this is what is tried
    "containers": lambda secret: str([secret, (secret,), {"k": secret}]),
    "pretty": lambda secret: pprint.pformat({"k": [secret] * 30}),
    "dataclass": lambda secret: repr(Credentials("u", secret)),
    "asdict": lambda secret: str(asdict(Credentials("u", secret))) + str(astuple(Credentials("u", secret))),
    "dir": lambda secret: str([(name, getattr(secret, name, None)) for name in dir(secret)]),
    "members": lambda secret: str(inspect.getmembers(secret)),
    "slots": lambda secret: str([getattr(secret, name) for name in type(secret).__slots__]),
    "referents": lambda secret: str(gc.get_referents(secret)),
    "methods": lambda secret: repr(secret.reveal) + repr(secret.__eq__),
    "copy": lambda secret: repr(copy.copy(secret)) + repr(copy.deepcopy([secret])),
    "exception": lambda secret: str(ValueError("wrong", secret)) + repr(KeyError(secret)),
    "json with default": lambda secret: json.dumps(secret, default=str),
}


@each_secret
@pytest.mark.parametrize("printer", PRINTERS.values(), ids=PRINTERS)
def test_no_way_of_printing_shows_a_secret(printer: Callable[[Secret[Any]], object], secret: Secret[Any]):
    assert PLANTED not in str(printer(secret))


REFUSALS: dict[str, Callable[[Any], object]] = {
    "json": json.dumps,
    "msgspec json": msgspec.json.encode,
    "msgspec msgpack": msgspec.msgpack.encode,
    "msgspec builtins": msgspec.to_builtins,
    "msgspec dataclass": lambda secret: msgspec.json.encode(Credentials("u", secret)),
    "pickle": pickle.dumps,
    "yaml": yaml.dump,
    "vars": vars,
    "hash": hash,
    "iteration": list,
    "length": len,
    "concatenation": lambda secret: "password=" + secret,
    "joining": lambda secret: "".join([secret]),  # noqa: FLY002 - this is what is tried
    "bytes": bytes,
    "bytes formatting": lambda secret: b"%s" % secret,
    "number formatting": lambda secret: "%d" % secret,  # noqa: UP031 - as above
}


@each_secret
@pytest.mark.parametrize("route", REFUSALS.values(), ids=REFUSALS)
def test_what_would_turn_a_secret_into_data_is_refused_without_showing_it(
    route: Callable[[Secret[Any]], object], secret: Secret[Any]
):
    with pytest.raises(TypeError) as refused:
        route(secret)
    assert PLANTED not in str(refused.value)


@each_secret
def test_a_secret_cannot_be_changed(secret: Secret[Any]):
    with pytest.raises(AttributeError, match="A secret cannot be changed"):
        secret._reveal = lambda: "other"
    with pytest.raises(AttributeError):
        secret.other = 1


@each_secret
def test_a_traceback_with_all_local_variables_does_not_show_a_secret(secret: Secret[Any]):
    def fail(password: Secret[Any]) -> None:
        held = {"password": password}
        raise RuntimeError("cannot log in", held)

    with pytest.raises(RuntimeError) as failed:
        fail(secret)
    lines = traceback.TracebackException.from_exception(failed.value, capture_locals=True).format()
    assert PLANTED not in "".join(lines)


@each_secret
@pytest.mark.parametrize("style", ["text", "json"])
def test_no_log_line_shows_a_secret(style: Literal["text", "json"], secret: Secret[Any]):
    stream = io.StringIO()
    log = line_log(stream, now=lambda: datetime.now(UTC), style=style).bind(bound=secret)
    log.info("m", secret=secret, listed=[secret], mapped={"k": secret, "d": Credentials("u", secret)})
    log.exception("m", ValueError("wrong", secret))
    assert PLANTED not in stream.getvalue()
    assert stream.getvalue().count("***") >= 5


def test_reveal_gives_the_value():
    assert Secret("s").reveal() == "s"
    assert Secret(b"s").reveal() == b"s"


@given(st.text() | st.binary(), st.text() | st.binary())
def test_secrets_are_equal_when_their_values_and_types_are(one: Any, other: Any):
    assert (Secret(one) == Secret(other)) is (type(one) is type(other) and one == other)
    assert Secret(one) == Secret(one)
    assert Secret(one) != one


def test_an_empty_secret_is_false():
    assert not Secret("")
    assert Secret("s")


def test_hide_replaces_every_occurrence_of_every_secret():
    assert hide("a=s1 b=s2 c=s1", ["s1", "s2"]) == "a=*** b=*** c=***"


def test_hide_takes_the_longest_secret_when_one_begins_another():
    assert hide("password1 password", ["password", "password1"]) == "*** ***"


def test_hide_leaves_no_part_of_secrets_that_overlap():
    assert hide("xabcdex aaa", ["abc", "cde", "aa"]) == "x***x ***"


def test_hide_covers_the_whole_of_a_secret_that_holds_another():
    assert hide("xabcdefx", ["cd", "abcdef"]) == "x***x"


def test_a_secret_is_hidden_without_the_newline_that_nobody_meant():
    assert hide("the password hunter2 is wrong", ["hunter2\n"]) == "the password *** is wrong"


def test_each_line_of_a_secret_is_hidden_also_where_a_traceback_indents_it():
    secret = "-----BEGIN KEY-----\nMIIEowIBAAKCAQEA\n}\n"
    group = ExceptionGroup("keys", [ExceptionGroup("key", [ValueError(f"bad key: {secret}")])])

    hidden = hide("".join(traceback.format_exception(group)), [secret])

    assert "MIIEow" not in hidden
    assert "BEGIN" not in hidden
    assert "ValueError: bad key: ***" in hidden


@given(st.text("ab", max_size=20), st.text("ab", min_size=1, max_size=6))
def test_all_of_a_repetition_is_hidden_and_nothing_beside_it(text: str, secret: str):
    starts = [start for start in range(len(text)) if text.startswith(secret, start)]
    covered = {place for start in starts for place in range(start, start + len(secret))}
    shown = "".join(character for place, character in enumerate(text) if place not in covered)

    assert hide(text, [secret]).replace("***", "") == shown


def test_hide_ignores_empty_secrets():
    assert hide("text", [""]) == "text"


def test_hide_without_secrets_or_without_an_occurrence_gives_the_text_itself():
    text = "nothing to hide"
    assert hide(text, []) is text
    assert hide(text, ["s3cret"]) is text


def test_the_mark_itself_may_be_a_secret():
    assert hide("a*b", ["*"]) == "a***b"


def logged(secret: str) -> str:
    stream = io.StringIO()
    line_log(stream, now=lambda: datetime.now(UTC)).info("m", value=secret)
    return stream.getvalue()


ESCAPES: dict[str, Callable[[str], str]] = {
    "plain": str,
    "repr": repr,
    "repr in longer text": lambda secret: repr(f"""'"{secret}'" """),
    "repr of bytes": lambda secret: repr(secret.encode("utf-8", "surrogatepass")),
    "json": json.dumps,
    "json unicode": lambda secret: json.dumps(secret, ensure_ascii=False),
    "json by msgspec": lambda secret: msgspec.json.encode(secret).decode(),
    "protobuf": lambda secret: str(StringValue(value=secret)),
    "protobuf ascii": lambda secret: text_format.MessageToString(StringValue(value=secret), as_utf8=False),
    "protobuf unicode": lambda secret: text_format.MessageToString(StringValue(value=secret), as_utf8=True),
    "base64": lambda secret: base64.b64encode(secret.encode("utf-8", "surrogatepass")).decode(),
    "url": lambda secret: quote(secret, safe=""),
    "path of a url": quote,
    "log line": logged,
}


@pytest.mark.parametrize("escape", ESCAPES.values(), ids=ESCAPES)
@given(secret=st.text(st.characters(codec="utf-8"), min_size=8, max_size=20))
def test_a_secret_is_hidden_however_it_was_escaped(escape: Callable[[str], str], secret: str):
    planted = escape(secret)
    hidden = hide(planted, [secret])
    assert "***" in hidden
    assert secret not in hidden.replace("***", "")
    assert len(hidden) <= len(escape("x" * 8)), "some of the value is left beside the mark"


@given(st.text(), st.lists(st.text(min_size=4, max_size=6), max_size=3), st.text())
def test_no_secret_is_left_in_a_hidden_text(before: str, secrets: list[str], after: str):
    hidden = hide(before + "".join(secrets) + after, secrets)
    assert not any(secret in part for secret in secrets for part in hidden.split("***") if "*" not in secret)
