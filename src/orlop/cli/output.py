"""Answers for programs: JSON, in colours on a person's terminal, or YAML."""

from __future__ import annotations

import json
import sys
from typing import Any

import click


def show(value: Any, output: str) -> None:
    if output == "json" and sys.stdout.isatty():
        from rich.console import Console  # noqa: PLC0415 - only a person's terminal pays for colours

        Console().print_json(data=value, ensure_ascii=False)
    else:
        click.echo(rendered(value, output))


def rendered(value: Any, output: str) -> str:
    if output == "yaml":
        import yaml  # noqa: PLC0415 - only who asks for it pays for it

        return str(yaml.safe_dump(value, sort_keys=False)).rstrip()
    return json.dumps(value, indent=2, ensure_ascii=False)
