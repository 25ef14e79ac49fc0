"""Keep the configuration of the files that are there. A wrong one keeps the one before, and its fault is remembered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orlop.host.host_errors import HostError
from orlop.static_pv.configuration import (
    ConfigurationFault,
    StaticClass,
    StaticConfiguration,
    parse_configuration,
)

if TYPE_CHECKING:
    from orlop.foundation.runtime import Runtime
    from orlop.host.static_host import StaticHost
    from orlop.host.threads import Threads


@dataclass(frozen=True, slots=True)
class StaticMachine:
    """How a worker reaches its machine."""

    host: StaticHost
    threads: Threads
    """Runs each call in a thread that may hang."""
    wipers: Threads
    """The same, at idle I/O priority."""
    watch: Callable[[str], object] = lambda _folder: None
    """Called with each folder before it is read, so that its changes are events from then on."""

    async def configuration_files(self, folder: str) -> dict[str, str]:
        self.watch(folder)
        return await self.threads(lambda: self.host.configuration_files(folder))


class ConfigurationWatch:
    """`read` returns the files by name. `report` is called with whether they can be used."""

    def __init__(
        self, read: Callable[[], Awaitable[dict[str, str]]], report: Callable[[bool], object], *, runtime: Runtime
    ) -> None:
        self._read = read
        self._report = report
        self._log = runtime.log
        self._files: dict[str, str] | None = None
        self.current: StaticConfiguration | None = None
        """The configuration in use; None before the first that could be read."""
        self.fault = ""
        """Why the files that are there now are not used, as a sentence; empty if they are."""

    def of_class(self, name: str) -> StaticClass | None:
        return self.current.of_class(name) if self.current is not None else None

    def command_of(self, name: str) -> str:
        """Return the name of the command that wipes block devices of a class."""
        static_class = self.of_class(name)
        return static_class.cleaner_command[0] if static_class is not None and static_class.cleaner_command else ""

    async def load(self) -> bool:
        """Read the files again; use them if they are valid. Return whether the configuration has changed."""
        try:
            files = await self._read()
            if files == self._files:
                return False
            configuration = parse_configuration(files)
        except (HostError, ConfigurationFault) as error:
            # Read again in each pass: a file that could not be read may be readable without being changed.
            self._files = None
            self._set_fault(str(error))
            return False
        self._files = files
        self._set_fault("")
        is_other, self.current = configuration != self.current, configuration
        if is_other:
            for remark in configuration.remarks:
                self._log.info("configuration key without effect", remark=remark)
            names = [each.name for each in configuration.classes]
            self._log.info("configuration loaded", classes=names)
        return is_other

    def _set_fault(self, fault: str) -> None:
        if fault and fault != self.fault:
            in_use = "the one before" if self.current is not None else "none"
            self._log.warning("configuration not usable", error=fault, in_use=in_use)
        self.fault = fault
        self._report(not fault)
