"""Keep secrets out of logs and errors: `Secret` wraps one, and `hide` removes them from texts of others.

Must not log, and must not keep a secret anywhere but in the `Secret` itself.
"""

from __future__ import annotations

import base64
import hmac
import json
from typing import TYPE_CHECKING, Final, Generic, NoReturn, TypeVar, final
from urllib.parse import quote_from_bytes

from orlop.foundation.structured_log.log_values import quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

HIDDEN = "***"
SHORTEST_LINE: Final = 6
"""Shorter lines of a secret with several lines are not hidden: hiding every `{` would hide the error itself."""

SecretValue = TypeVar("SecretValue", str, bytes)


@final
class Secret(Generic[SecretValue]):
    """A secret that only `reveal` returns.

    The value is in a closure, not in an attribute, so that code that walks over attributes (debuggers, error reporters,
    serialisers) finds a function.
    """

    __slots__ = ("_reveal",)
    __hash__ = None  # type: ignore[assignment] # The hash of a short secret can be guessed by trying.
    _reveal: Callable[[], SecretValue]

    def __init__(self, value: SecretValue) -> None:
        object.__setattr__(self, "_reveal", lambda: value)

    def reveal(self) -> SecretValue:
        return self._reveal()

    def __bool__(self) -> bool:
        return bool(self._reveal())

    def __eq__(self, other: object) -> bool:
        """Compare in constant time for secrets of one length."""
        if not isinstance(other, Secret):
            return NotImplemented
        mine, theirs = self._reveal(), other.reveal()
        return type(mine) is type(theirs) and hmac.compare_digest(_as_bytes(mine), _as_bytes(theirs))

    def __repr__(self) -> str:
        return HIDDEN

    def __format__(self, _spec: str) -> str:
        return HIDDEN

    def __setattr__(self, name: str, _value: object) -> NoReturn:
        raise AttributeError(f"A secret cannot be changed, so {name} cannot be set.")

    def __copy__(self) -> Secret[SecretValue]:
        return self

    def __deepcopy__(self, _memo: object) -> Secret[SecretValue]:
        return self

    def __reduce_ex__(self, _protocol: object) -> NoReturn:
        raise TypeError("A secret cannot be pickled: call reveal() where its value is needed.")


def _as_bytes(value: str | bytes) -> bytes:
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value


def hide(text: str, secrets: Iterable[str]) -> str:
    """Return the text with `***` in place of every secret, in any encoding.

    It finds the plain value, and its form in a Python repr, in JSON, in protobuf text, in base64 and in a URL; the same
    for the secret without surrounding white space (many end with an unintended newline), and for each longer line of a
    secret with several, because tracebacks indent them. Overlapping secrets are hidden as one.
    """
    places = sorted(place for needle in _spellings(secrets, len(text)) for place in _places(text, needle))
    if not places:
        return text
    parts: list[str] = []
    shown_to = 0
    for start, end in places:
        if start > shown_to or not parts:
            parts += [text[shown_to:start], HIDDEN]
        shown_to = max(shown_to, end)
    return "".join([*parts, text[shown_to:]])


def _places(text: str, needle: str) -> Iterator[tuple[int, int]]:
    start = text.find(needle)
    while start >= 0:
        end = _end_of_repetition(text, needle, start + len(needle))
        yield start, end
        start = text.find(needle, end - len(needle) + 1)


def _end_of_repetition(text: str, needle: str, end: int) -> int:
    """Return the end of a run of overlapping needles, each of which begins inside the one before.

    `aaaaaaa` contains `aaa` five times. Searching for each one would compare the whole needle at every step.
    """
    if not text.startswith(needle[-1], end):
        return end
    period = (needle + needle).find(needle, 1)
    while text.startswith(needle[-period:], end):
        end += period
    return end


def _spellings(secrets: Iterable[str], longest: int) -> set[str]:
    # No encoding is shorter than the secret: one longer than the text cannot be in it.
    parts = {part for secret in secrets for part in _parts_of(secret) if 0 < len(part) <= longest}
    return {spelling for part in parts for spelling in _spellings_of(part)}


def _parts_of(secret: str) -> Iterator[str]:
    yield secret
    yield secret.strip()
    yield from (line for line in map(str.strip, secret.splitlines()) if len(line) >= SHORTEST_LINE)


def _spellings_of(secret: str) -> Iterator[str]:
    encoded = _as_bytes(secret)
    yield secret
    yield repr(secret)[1:-1]
    yield repr(secret + "'\"")[1:-4]  # As inside a longer text with both kinds of quotes.
    yield repr(encoded)[2:-1]
    yield json.dumps(secret)[1:-1]
    yield json.dumps(secret, ensure_ascii=False)[1:-1]
    yield quoted(secret)[1:-1]
    yield _protobuf_text(encoded, printed=PRINTABLE_ASCII)
    yield _protobuf_text(encoded, printed=PRINTABLE_ASCII | OUTSIDE_ASCII)
    yield base64.b64encode(encoded).decode().rstrip("=")
    yield quote_from_bytes(encoded, safe="")
    yield quote_from_bytes(encoded)


PRINTABLE_ASCII: Final = frozenset(range(0x20, 0x7F))
OUTSIDE_ASCII: Final = frozenset(range(0x80, 0x100))
PROTOBUF_ESCAPES: Final = {9: b"\\t", 10: b"\\n", 13: b"\\r", 34: b'\\"', 39: b"\\'", 92: b"\\\\"}


def _protobuf_text(encoded: bytes, printed: frozenset[int]) -> str:
    """Encode as protobuf's text format: C escapes, and octal for other bytes that are not printed as they are."""
    parts = (PROTOBUF_ESCAPES.get(byte) or (bytes([byte]) if byte in printed else b"\\%03o" % byte) for byte in encoded)
    return b"".join(parts).decode("utf-8", "surrogatepass")
