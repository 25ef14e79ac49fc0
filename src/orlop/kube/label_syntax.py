"""The syntax of label keys and values, with the API server's messages for invalid ones. Pure.

The sentences are the API server's own: people search for them, and tests compare them.
"""

from __future__ import annotations

import json
import re
from typing import Final

LONGEST_NAME: Final = 63
LONGEST_VALUE: Final = 63
LONGEST_PREFIX: Final = 253

NAME: Final = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
VALUE: Final = f"({NAME})?"
DNS_LABEL: Final = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
DNS_SUBDOMAIN: Final = rf"{DNS_LABEL}(\.{DNS_LABEL})*"

_ALPHANUMERIC: Final = (
    "consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character"
)
_LIKE_A_NAME: Final = (
    f"must {_ALPHANUMERIC} (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '{NAME}')"
)
_LIKE_A_VALUE: Final = (
    f"a valid label must be an empty string or {_ALPHANUMERIC} "
    f"(e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '{VALUE}')"
)
_LIKE_A_SUBDOMAIN: Final = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', "
    "and must start and end with an alphanumeric character "
    f"(e.g. 'example.com', regex used for validation is '{DNS_SUBDOMAIN}')"
)
_WHOLE_KEY: Final = (
    f"a valid label key {_LIKE_A_NAME} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
)
_NAME_PATTERN: Final = re.compile(NAME)
_VALUE_PATTERN: Final = re.compile(VALUE)
_SUBDOMAIN_PATTERN: Final = re.compile(DNS_SUBDOMAIN)


def faults_of_label_key(key: str) -> tuple[str, ...]:
    """Return what is wrong with a key; empty if nothing. Annotation keys and finalizers have the same rule."""
    prefix, slash, name = key.rpartition("/")
    if "/" in prefix:
        return (_WHOLE_KEY,)
    return (*(_faults_of_prefix(prefix) if slash else ()), *_faults_of_name(name))


def faults_of_label_value(value: str) -> tuple[str, ...]:
    too_long = (_at_most(LONGEST_VALUE),) if _bytes(value) > LONGEST_VALUE else ()
    return (*too_long, *(() if _VALUE_PATTERN.fullmatch(value) else (_LIKE_A_VALUE,)))


def _faults_of_prefix(prefix: str) -> tuple[str, ...]:
    if not prefix:
        return ("prefix part must be non-empty",)
    too_long = (f"prefix part {_at_most(LONGEST_PREFIX)}",) if _bytes(prefix) > LONGEST_PREFIX else ()
    misshapen = () if _SUBDOMAIN_PATTERN.fullmatch(prefix) else (f"prefix part {_LIKE_A_SUBDOMAIN}",)
    return (*too_long, *misshapen)


def _faults_of_name(name: str) -> tuple[str, ...]:
    misshapen = () if _NAME_PATTERN.fullmatch(name) else (f"name part {_LIKE_A_NAME}",)
    if not name:
        return ("name part must be non-empty", *misshapen)
    too_long = (f"name part {_at_most(LONGEST_NAME)}",) if _bytes(name) > LONGEST_NAME else ()
    return (*too_long, *misshapen)


def _at_most(length: int) -> str:
    return f"must be no more than {length} bytes"


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def invalid_value(field: str, value: str, faults: tuple[str, ...]) -> str:
    """Format an error as the API server does: `spec.x: Invalid value: "a b": must …`."""
    return f"{field}: Invalid value: {json.dumps(value, ensure_ascii=False)}: {'; '.join(faults)}"
