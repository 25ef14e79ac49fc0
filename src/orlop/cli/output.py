"""Print values as JSON (in colours on a terminal) or YAML, and escape sentences.

Output may quote text that a tenant wrote: control characters in it must not reach the terminal.
"""

from __future__ import annotations

import json
import sys
from typing import Any, Final

import click

_SHORT_ESCAPES: Final = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


def show(value: Any, output: str) -> None:
    if output == "json" and sys.stdout.isatty():
        from rich.console import Console  # noqa: PLC0415 - import it only for colours: it is slow
        from rich.highlighter import JSONHighlighter  # noqa: PLC0415 - as above

        Console().print(JSONHighlighter()(rendered(value, output)), soft_wrap=True)
    else:
        click.echo(rendered(value, output))


def rendered(value: Any, output: str) -> str:
    if output == "yaml":
        import yaml  # noqa: PLC0415 - import it only for YAML output: it is slow

        return str(yaml.safe_dump(value, sort_keys=False)).rstrip()
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return "".join(each if each.isprintable() or each == "\n" else json.dumps(each)[1:-1] for each in text)


def harmless(text: str) -> str:
    """Return a text with backslash escapes for all characters that cannot be printed."""
    return text if text.isprintable() else "".join(map(_written, text))


def _written(character: str) -> str:
    if character.isprintable():
        return character
    if character in _SHORT_ESCAPES:
        return _SHORT_ESCAPES[character]
    number = ord(character)
    if 0xDC80 <= number <= 0xDCFF:  # noqa: PLR2004 - a surrogate: Python's code for a byte that is not UTF-8
        return f"\\x{number - 0xDC00:02x}"
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"  # noqa: PLR2004 - as it is written
