"""How a step of an operation fails, and what is known of the volume then: what may be removed, and what may not. Pure.

The code of an error decides. A final one says that nothing was done: what was made for the step goes again, and nobody
need undo it. One that is not final says nothing: the step may have had its effect, or have it later, so everything is
kept and the driver will be asked to undo it. A transient failure came before the driver was asked: nothing changed.

Where the kernel says that something is mounted, no error is believed to be final.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from onenode.kubelet.volumes.volume_values import ActualMount, Device, MountState
from orlop.csi.error_codes import Code, CsiError, is_final


class FailureKind(Enum):
    TRANSIENT = "nothing was asked of the driver"
    NOT_FINAL = "it may have happened, or may still happen"
    FINAL = "the driver says that it did not happen"


@dataclass(frozen=True, slots=True)
class DeviceOutcome:
    device: Device
    remove_folders: bool = False


class MountChange(Enum):
    KEEP = "as it was"
    UNCERTAIN = "perhaps mounted"
    DROP = "not mounted"


@dataclass(frozen=True, slots=True)
class MountOutcome:
    change: MountChange
    remove_folders: bool = False


UNCHANGED: Final = MountOutcome(MountChange.KEEP)


def failure_of_call(error: BaseException) -> FailureKind:
    """Of an RPC that was made; whatever is no answer of the driver is not final."""
    return FailureKind.FINAL if is_final(error) else FailureKind.NOT_FINAL


def after_failed_stage(before: Device, failure: FailureKind, *, reconstructed: bool, is_mounted: bool) -> DeviceOutcome:
    """`reconstructed`: found on disk after a restart, so that an earlier life may have staged it."""
    if failure is FailureKind.TRANSIENT or before is Device.MOUNTED:
        return DeviceOutcome(before)
    if failure is FailureKind.NOT_FINAL or reconstructed or is_mounted:
        return DeviceOutcome(Device.UNCERTAIN)
    return DeviceOutcome(Device.NOT_MOUNTED, remove_folders=True)


def after_failed_publish(before: ActualMount | None, failure: FailureKind, *, is_mounted: bool) -> MountOutcome:
    """What is mounted already stays so, whatever becomes of publishing it once more."""
    if failure is FailureKind.TRANSIENT or (before is not None and before.state is MountState.MOUNTED):
        return UNCHANGED
    if failure is FailureKind.NOT_FINAL or is_mounted:
        return UNCHANGED if before is not None else MountOutcome(MountChange.UNCERTAIN)
    if before is not None and before.reconstructed:
        return UNCHANGED
    return MountOutcome(MountChange.DROP, remove_folders=True)


def call_text(error: CsiError) -> str:
    """Return the error as Go prints it, which is what kubelet's events contain."""
    return f"rpc error: code = {error.code.go_name} desc = {error.message}"


DEADLINE_TEXT: Final = f"rpc error: code = {Code.DEADLINE_EXCEEDED.go_name} desc = context deadline exceeded"


class StepFailed(Exception):
    """`prefix` names the step in kubelet's words, `why` is the reason; neither contains a secret."""

    def __init__(
        self, prefix: str, why: str, failure: FailureKind = FailureKind.TRANSIENT, code: Code | None = None
    ) -> None:
        super().__init__(f"{prefix}: {why}")
        self.prefix = prefix
        self.why = why
        self.failure = failure
        self.code = code
        """The status code of the driver's response, if there was one."""


class NotPrepared(StepFailed):
    """The step has not begun: check again soon, record no event, and do not increase the delay."""


def failed_call(prefix: str, error: CsiError | TimeoutError, asking: str = "") -> StepFailed:
    """Return the failure of a call. The client has already removed the request's secrets from the driver's message."""
    why = call_text(error) if isinstance(error, CsiError) else DEADLINE_TEXT
    code = error.code if isinstance(error, CsiError) else None
    return StepFailed(prefix, f"{asking}{why}", failure_of_call(error), code)
