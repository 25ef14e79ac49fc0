"""Options and questions that several verbs have in common."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final

import click

FAILED: Final = 1
INTERRUPTED: Final = 130
LONGEST_SENTENCE: Final = 1000
"""A limit in characters that no first sentence reaches."""

VerbFunction = Callable[..., None]


def program_name(verb: str) -> str:
    """Return how the user started the verb, for help texts: kubectl runs `kubectl-orlop` for `kubectl orlop`."""
    is_plugin = sys.argv[0].rpartition("/")[2] == "kubectl-orlop"
    return f"kubectl orlop {verb}" if is_plugin else f"orlop {verb}"


CONTEXT_SETTINGS: Final = {"max_content_width": 100, "help_option_names": ["-h", "--help"]}
"""How click formats the help of every verb."""


class VerbGroup(click.Group):
    """A verb with commands. Its help shows the whole first sentence of each command; click would cut it to one line."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = [(name, self.commands[name]) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, each.get_short_help_str(limit=LONGEST_SENTENCE)) for name, each in commands])


def with_options(function: VerbFunction, *options: Callable[[VerbFunction], VerbFunction]) -> VerbFunction:
    """Add options to a verb, in the order in which its help lists them."""
    for option in reversed(options):
        function = option(function)
    return function


def output_option(*more: str) -> Callable[[VerbFunction], VerbFunction]:
    kinds = ["text", *more, "json", "yaml"]
    return click.option("-o", "--output", type=click.Choice(kinds), default="text", help="Output format.")


def dry_run_option(command: VerbFunction) -> VerbFunction:
    return click.option("--dry-run", is_flag=True, help="Only print what would be done.")(command)


def yes_option(command: VerbFunction) -> VerbFunction:
    return click.option("--yes", is_flag=True, help="Do not ask for confirmation.")(command)


def is_terminal() -> bool:
    return sys.stdin.isatty()


def confirm(question: str, otherwise: str) -> None:
    """Ask before something is destroyed. Unless the user agrees, print `otherwise` and end the process."""
    if not is_terminal():
        raise click.UsageError("Standard input is not a terminal: nobody can confirm. Repeat the command with --yes.")
    try:
        if click.confirm(question, err=True):
            return
        code = FAILED
    except click.Abort:
        code = INTERRUPTED
        click.echo(err=True)
    click.echo(otherwise, err=True)
    sys.exit(code)
