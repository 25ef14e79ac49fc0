"""Copy data from a node to a file, standard output or a folder, and show the progress.

Order for a file: write a temporary file beside it, 0600 → make it durable → rename it. So the file is either complete
or unchanged. A path that is no plain file (a device, a fifo) is written directly.
"""

from __future__ import annotations

import os
import signal
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import click

from orlop.admin.afterlife import Afterlife
from orlop.admin.node_socket import NodeError
from orlop.cli.afterlife_format import content_text, escaped_bytes
from orlop.cli.output import harmless
from orlop.records.afterlife_report import PathProblem, Progress, Restored

PIECE_BYTES: Final = 1 << 20
OWNER_ONLY: Final = 0o600
NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
STANDARD_OUTPUT: Final = "-"


def copy_file_to_output(descriptor: int) -> None:
    while piece := _read(descriptor):
        sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, PIECE_BYTES)
    except OSError as error:
        raise NodeError(
            f"The file cannot be read to its end: {error.strerror}. Check the kernel's log (dmesg) for disk errors."
        ) from None


@contextmanager
def archive_output(file: str | None) -> Iterator[Callable[[bytes], object]]:
    """Return a function that writes the archive. A file is created only if the block ends without an error."""
    if file is None and sys.stdout.isatty():
        raise click.UsageError("The archive is not written to a terminal: name a file with -o, or redirect the output.")
    if file is None or file == STANDARD_OUTPUT:
        yield sys.stdout.buffer.write
        sys.stdout.buffer.flush()
    elif _is_plain_or_missing(Path(file)):
        with _complete_file(Path(file)) as write:
            yield write
    else:
        with Path(file).open("wb") as existing:
            yield existing.write


def _is_plain_or_missing(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return True


@contextmanager
def _complete_file(path: Path) -> Iterator[Callable[[bytes], object]]:
    temporary = path.with_name(f".{path.name}.part-{os.getpid()}")
    with os.fdopen(os.open(temporary, NEW_FILE, OWNER_ONLY), "wb") as file:
        try:
            yield file.write
            # Durable before the rename: after a power loss the name must not lead to an empty or partial file.
            file.flush()
            os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise


def print_problems(problems: Sequence[PathProblem], count: int) -> None:
    for problem in problems:
        click.echo(f"{escaped_bytes(problem.path)}: {harmless(problem.sentence)}", err=True)
    if count > len(problems):
        click.echo(f"… and {count - len(problems)} more of this kind", err=True)


# ---- restoring -------------------------------------------------------------------------------------------------------


def restore_into(afterlife: Afterlife, volume_id: str, folder: Path, *, dry_run: bool) -> Restored:
    try:
        directory = os.open(folder, FOLDER)
    except OSError as error:
        advice = "Create it first." if isinstance(error, FileNotFoundError) else "Name another one."
        raise click.UsageError(f"The folder {folder} cannot be opened: {error.strerror}. {advice}") from None
    try:
        with _progress_bar() as report, _interrupt_stops_restore() as hand_stop:
            return afterlife.restore(volume_id, directory, report, hand_stop=hand_stop, dry_run=dry_run)
    finally:
        os.close(directory)


@contextmanager
def _interrupt_stops_restore() -> Iterator[Callable[[Callable[[], None]], None]]:
    """Stop the restore at the first Ctrl-C, so that the node can report its result; a second one ends the command."""
    before = signal.getsignal(signal.SIGINT)

    def hand_stop(stop: Callable[[], None]) -> None:
        def interrupted(_number: int, _frame: object) -> None:
            signal.signal(signal.SIGINT, before)
            stop()

        signal.signal(signal.SIGINT, interrupted)

    try:
        yield hand_stop
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _progress_bar() -> Iterator[Callable[[Progress], None]]:
    if not sys.stderr.isatty():
        yield lambda _progress: None
        return
    from rich.console import Console  # noqa: PLC0415 - import it only for a terminal: it is slow
    from rich.progress import BarColumn, TextColumn  # noqa: PLC0415 - as above
    from rich.progress import Progress as Bar  # noqa: PLC0415 - as above

    columns = (BarColumn(), TextColumn("{task.description}"))
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def report(progress: Progress) -> None:
            text = content_text(progress.entries, progress.bytes)
            bar.update(task, description=text, completed=progress.bytes, total=progress.expected_bytes)

        yield report
