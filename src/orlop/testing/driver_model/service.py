"""The base of every service of the model: facts, storage, clock, and the check of capabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from orlop.csi.error_codes import Aborted, InvalidArgument, NotFound, Unimplemented
from orlop.csi.proto import csi_pb2
from orlop.testing.driver_model.facts import GIBIBYTE, AbilityGroup, DriverFacts
from orlop.testing.driver_model.storage import ModelItem, ModelSnapshot, ModelVolume, Shelf, Storage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orlop.foundation.clock import Clock

Item = TypeVar("Item", bound=ModelItem)
LONGEST_TOKEN: Final = 18
ListRequest = csi_pb2.ListVolumesRequest | csi_pb2.ListSnapshotsRequest | csi_pb2.ControllerListVolumeHealthRequest


class ModelService:
    """The base class of all services."""

    def __init__(self, facts: DriverFacts, storage: Storage, clock: Clock) -> None:
        self.facts = facts
        self.storage = storage
        self._clock = clock

    def _demand(self, group: AbilityGroup, ability: str) -> None:
        """Raise `Unimplemented` if the capability is off, as for an RPC that does not exist."""
        if not self.facts.can(group, ability):
            raise Unimplemented(f"this driver lacks the {group.replace('_', ' ')} capability {ability}")

    def _volume(self, volume_id: str) -> ModelVolume:
        volume = self.storage.volumes.get(volume_id)
        if volume is None and self.facts.knows_any_volume:
            return self.storage.add_volume(volume_id, GIBIBYTE)
        if volume is None:
            raise NotFound(f"there is no volume {volume_id}")
        return volume

    def _snapshot(self, snapshot_id: str) -> ModelSnapshot:
        snapshot = self.storage.snapshots.get(snapshot_id)
        if snapshot is None:
            raise NotFound(f"there is no snapshot {snapshot_id}")
        return snapshot


def page_of(shelf: Shelf[Item], matching: Sequence[Item], request: ListRequest) -> tuple[Sequence[Item], str]:
    """Return one page of the matching items, and the token of the next page: the serial of this page's last item."""
    if request.max_entries < 0:
        raise InvalidArgument(f"max_entries is {request.max_entries}: it must be 0 (no limit) or more")
    last_serial = _serial_of(request.starting_token, shelf)
    remaining = [item for item in matching if item.serial > last_serial]
    page = remaining[: request.max_entries] if request.max_entries else remaining
    return page, str(page[-1].serial) if len(page) < len(remaining) else ""


def _serial_of(token: str, shelf: Shelf[Item]) -> int:
    if not token:
        return 0
    if not (
        token.isascii() and token.isdigit() and len(token) <= LONGEST_TOKEN and 0 < int(token) <= shelf.last_serial
    ):
        raise Aborted("this starting_token was never returned: start again without one")
    return int(token)
