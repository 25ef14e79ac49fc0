"""Values as Go prints them inside Kubernetes' messages: quoted, as JSON, or as `map[a:1 b:[x y]]`. Pure."""

from __future__ import annotations

import json
from typing import Any, Final

_ESCAPES: Final = {
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
    '"': '\\"',
    "\\": "\\\\",
}
_LAST_ONE_BYTE: Final = 0x7F
_LAST_TWO_BYTES: Final = 0xFFFF
# Go's JSON is safe inside HTML.
_JSON_ESCAPES: Final = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})

_GO_TYPES: Final = {
    dict: "map[string]interface {}",
    list: "[]interface {}",
    str: "string",
    bool: "bool",
    int: "int64",
    float: "float64",
    type(None): "%!s(<nil>)",
}


def quoted(text: str) -> str:
    """As `%q`."""
    return f'"{"".join(_quoted_character(character) for character in text)}"'


def _quoted_character(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if character.isprintable():
        return character
    code = ord(character)
    if code <= _LAST_ONE_BYTE:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= _LAST_TWO_BYTES else f"\\U{code:08x}"


def as_json(value: Any) -> str:
    """As Go marshals it: compact, keys sorted, safe inside HTML."""
    text = json.dumps(value, separators=(",", ":"), sort_keys=True, ensure_ascii=False)
    return text.translate(_JSON_ESCAPES)


def printed(value: Any) -> str:
    """As `%v`."""
    if isinstance(value, dict):
        return f"map[{' '.join(f'{key}:{printed(value[key])}' for key in sorted(value))}]"
    if isinstance(value, list):
        return f"[{' '.join(printed(item) for item in value)}]"
    if value is None:
        return "<nil>"
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def go_type(value: Any) -> str:
    """The Go type of a decoded JSON value, as it appears in messages about patches."""
    return _GO_TYPES[type(value)]
