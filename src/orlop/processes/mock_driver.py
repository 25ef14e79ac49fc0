"""`orlop testing mock-driver`: a CSI driver that plays a script, on a real socket, to test controllers against.

Order: check all flags and the whole script → open the record → serve the socket → after a signal, wait for running
calls, for the grace period → record calls that still hang. Each line of the record is a JSON object.
"""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orlop.csi.endpoint import Endpoint, parse_endpoint
from orlop.csi.error_codes import Internal
from orlop.csi.server import serving
from orlop.foundation.duration import Duration
from orlop.foundation.go_flags import boolean, flag, group
from orlop.foundation.runtime import Runtime
from orlop.host.kernel import system_calls
from orlop.processes.daemon import Daemon, LogSettings, folder_exists, is_not_negative, run_daemon
from orlop.testing.driver_script import Script, script_from_yaml
from orlop.testing.scripted_driver import ScriptedDriver, ScriptedInterceptor

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from orlop.testing.call_record import RecordedCall
    from orlop.testing.driver_model import TargetPaths


def script_file(path: str) -> Script:
    """Return the script in a file. Raises ValueError with what is wrong with the file or the script."""
    try:
        content = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"it cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None
    return script_from_yaml(content)


@dataclass(frozen=True, slots=True, kw_only=True)
class MockDriverSettings:
    endpoint: Endpoint = flag(
        parse_endpoint,
        required=True,
        metavar="ADDRESS",
        check=folder_exists,
        help="The address to serve CSI calls on: unix:///path or tcp://host:port.",
    )
    script: Script | None = flag(
        script_file,
        metavar="FILE",
        help="The script, in YAML; without one the driver behaves as the CSI specification asks.",
    )
    record: Path | None = flag(
        Path,
        metavar="FILE",
        help="The file to append one line of JSON to for each finished call, without secrets.",
    )
    create_targets: bool = flag(
        boolean,
        default="false",
        help="Create an empty folder or file at each published target path, and remove it at unpublish. As root, a "
        "small memory file system is mounted at the folder, so that pods can write.",
    )
    grace_period: Duration = flag(
        Duration.parse,
        default="5s",
        metavar="DURATION",
        check=is_not_negative,
        help="How long to wait after SIGTERM for calls under way.",
    )
    log: LogSettings = group(LogSettings)

    def cross_check(self) -> Iterator[str]:
        """Check that the record can be opened. Done here, after all other checks, because opening creates the file."""
        try:
            RecordFile(self.record).close()
        except OSError as error:
            yield f"--record cannot be '{self.record}': it cannot be written: {error.strerror}."


MEMORY_SIZE: Final = "64m"
DAEMON: Final = Daemon("orlop testing mock-driver", "Serves a scripted CSI driver on a socket.", MockDriverSettings)


class CreatedTargets:
    """Creates empty folders and files at target paths, where real drivers mount. Never removes other content.

    As root, it mounts a memory file system at each folder: files that a pod writes are discarded with the mount.
    Without it, they would prevent removing the folder at unpublish.
    """

    def __init__(self, *, mounts: bool) -> None:
        self._mounts = mounts

    def make(self, path: str, *, block: bool) -> None:
        with _as_csi_error(path):
            if block:
                Path(path).touch()
                return
            Path(path).mkdir(exist_ok=True)
            if self._mounts and not Path(path).is_mount():
                _mount_memory(path)

    def remove(self, path: str) -> None:
        with _as_csi_error(path):
            if not Path(path).is_dir():
                Path(path).unlink(missing_ok=True)
                return
            if self._mounts and Path(path).is_mount():
                system_calls.umount2(path, 0)
            Path(path).rmdir()


def _mount_memory(path: str) -> None:
    tree = system_calls.new_file_system("tmpfs", {"size": MEMORY_SIZE}, 0)
    try:
        target = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            system_calls.attach_tree(tree, target)
        finally:
            os.close(target)
    finally:
        os.close(tree)


@contextmanager
def _as_csi_error(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Internal(f"the target path {path} cannot be made or removed: {error.strerror}") from None


class RecordFile:
    """Appends a line for each call and flushes it, so that a kill loses no line."""

    def __init__(self, path: Path | None) -> None:
        self._stream = path.open("a", encoding="utf-8") if path else None

    def add(self, call: RecordedCall) -> None:
        if self._stream is not None:
            self._stream.write(json.dumps(call.as_json(), ensure_ascii=False) + "\n")
            self._stream.flush()

    def close(self) -> None:
        """Stop recording: calls that end with the process are not recorded."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None


async def run(settings: MockDriverSettings, runtime: Runtime, stop: asyncio.Event) -> None:
    record = RecordFile(settings.record)
    targets: TargetPaths | None = CreatedTargets(mounts=os.geteuid() == 0) if settings.create_targets else None
    driver = ScriptedDriver(settings.script or Script(), runtime.clock, targets=targets, when_ended=record.add)
    log = runtime.log.bind(driver=driver.model.facts.name)
    interceptor = ScriptedInterceptor(driver, log=log, metrics=runtime.metrics, clock=runtime.clock)
    try:
        async with serving(settings.endpoint, interceptor, grace=settings.grace_period.seconds, log=runtime.log):
            await stop.wait()
        for call in driver.calls_under_way():
            record.add(call)
    finally:
        record.close()


def main(arguments: Sequence[str]) -> int:
    return run_daemon(DAEMON, arguments, run)
