"""The forms of names, labels and keys: each check gives Kubernetes' sentences about what is wrong, or none. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

LABEL_LENGTH: Final = 63
SUBDOMAIN_LENGTH: Final = 253
PORT_NAME_LENGTH: Final = 15
# No name is this long, and the time of a match grows with the square of the length.
LONGEST_MATCHED: Final = 4096

_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN: Final = rf"{_LABEL}(\.{_LABEL})*"
_KEY: Final = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_CONFIG_KEY: Final = "[-._a-zA-Z0-9]+"
_REASON: Final = "[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?"

NameCheck = Callable[[str], list[str]]


def _must_match(text: str, pattern: str, said: str, *examples: str) -> list[str]:
    if len(text) <= LONGEST_MATCHED and re.fullmatch(pattern, text):
        return []
    given = " or ".join(f"'{example}', " for example in examples)
    return [f"{said} ({f'e.g. {given}' if examples else ''}regex used for validation is '{pattern}')"]


def _at_most(text: str, length: int, unit: str = "characters") -> list[str]:
    return [f"must be no more than {length} {unit}"] if len(text.encode()) > length else []


def dns_subdomain(name: str) -> list[str]:
    said = (
        "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', "
        "and must start and end with an alphanumeric character"
    )
    return [*_at_most(name, SUBDOMAIN_LENGTH), *_must_match(name, _SUBDOMAIN, said, "example.com")]


def dns_label(name: str) -> list[str]:
    said = (
        "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', "
        "and must start and end with an alphanumeric character"
    )
    wrong = _must_match(name, _LABEL, said, "my-name", "123-abc")
    if wrong and re.fullmatch(_SUBDOMAIN, name):
        wrong = ["must not contain dots"]
    return [*_at_most(name, LABEL_LENGTH), *wrong]


def dns_1035_label(name: str) -> list[str]:
    said = (
        "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic "
        "character, and end with an alphanumeric character"
    )
    wrong = _must_match(name, "[a-z]([-a-z0-9]*[a-z0-9])?", said, "my-name", "abc-123")
    return [*_at_most(name, LABEL_LENGTH), *wrong]


def path_segment(name: str) -> list[str]:
    if name in {".", ".."}:
        return [f"may not be '{name}'"]
    return [f"may not contain '{part}'" for part in ("/", "%") if part in name]


def as_prefix(check: NameCheck) -> NameCheck:
    """For a name that something will be appended to: a dash at its end is fine."""
    if check is path_segment:
        return lambda prefix: [sentence for sentence in path_segment(prefix) if "contain" in sentence]
    return lambda prefix: check(f"{prefix[:-2]}a" if len(prefix) > 1 and prefix.endswith("-") else prefix)


def label_key(key: str) -> list[str]:
    """A name, or a DNS subdomain, a slash and a name; also the form of finalizers and of many other names."""
    prefix, slash, name = key.rpartition("/")
    said = (
        "must consist of alphanumeric characters, '-', '_' or '.', "
        "and must start and end with an alphanumeric character"
    )
    form = (_KEY, said, "MyName", "my.name", "123-abc")
    if "/" in prefix:
        whole = _must_match("/", *form)[0]
        return [f"a valid label key {whole} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"]
    wrong = []
    if slash and not prefix:
        wrong.append("prefix part must be non-empty")
    elif slash:
        wrong += [f"prefix part {sentence}" for sentence in dns_subdomain(prefix)]
    empty = [] if name else ["must be non-empty"]
    wrong += [f"name part {sentence}" for sentence in [*empty, *_at_most(name, LABEL_LENGTH, "bytes")]]
    return [*wrong, *(f"name part {sentence}" for sentence in _must_match(name, *form))]


def label_value(value: str) -> list[str]:
    said = (
        "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', "
        "and must start and end with an alphanumeric character"
    )
    wrong = _must_match(value, f"({_KEY})?", said, "MyValue", "my_value", "12345")
    return [*_at_most(value, LABEL_LENGTH, "bytes"), *wrong]


def config_key(key: str) -> list[str]:
    said = "a valid config key must consist of alphanumeric characters, '-', '_' or '.'"
    wrong = _must_match(key, _CONFIG_KEY, said, "key.name", "KEY_NAME", "key-name")
    if key in {".", ".."}:
        wrong.append(f"must not be '{key}'")
    elif key.startswith(".."):
        wrong.append("must not start with '..'")
    return [*_at_most(key, SUBDOMAIN_LENGTH), *wrong]


def port_name(name: str) -> list[str]:
    rules = [
        (
            bool(re.fullmatch("[-a-z0-9]+", name)),
            "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)",
        ),
        (bool(re.search("[a-z]", name)), "must contain at least one letter (a-z)"),
        ("--" not in name, "must not contain consecutive hyphens"),
        (not (name.startswith("-") or name.endswith("-")), "must not begin or end with a hyphen"),
    ]
    return [*_at_most(name, PORT_NAME_LENGTH), *(sentence for kept, sentence in rules if not kept)]


def port_number(port: int) -> list[str]:
    return in_range(port, 1, 65535)


def in_range(value: int, low: int, high: int) -> list[str]:
    return [] if low <= value <= high else [f"must be between {low} and {high}, inclusive"]


def environment_name(name: str) -> list[str]:
    if all(" " <= character <= "~" and character != "=" for character in name):
        return []
    return ["a valid environment variable name must consist only of printable ASCII characters other than '='"]


def condition_reason(reason: str) -> list[str]:
    said = (
        "a condition reason must start with alphabetic character, optionally followed by a string of alphanumeric "
        "characters or '_,:', and must end with an alphanumeric character or '_'"
    )
    return _must_match(reason, _REASON, said, "my_name", "MY_NAME", "MyName", "ReasonA,ReasonB", "ReasonA:ReasonB")


def percent(text: str) -> list[str]:
    said = "a valid percent string must be a numeric string followed by an ending '%'"
    return _must_match(text, "[0-9]+%", said, "1%", "93%")


def header_name(name: str) -> list[str]:
    said = "a valid HTTP header must consist of alphanumeric characters or '-'"
    return _must_match(name, "[-A-Za-z0-9]+", said, "X-Header-Name")


def driver_name(name: str) -> list[str]:
    """A CSI driver's name, in any case; how long it may be is a cause of its own."""
    return dns_subdomain(name.lower())
