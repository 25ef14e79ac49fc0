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
        found = self.storage.volumes.get(volume_id)
        if found is None and self.facts.knows_any_volume:
            return self.storage.add_volume(volume_id, GIBIBYTE)
        if found is None:
            raise NotFound(f"there is no volume {volume_id}")
        return found

    def _snapshot(self, snapshot_id: str) -> ModelSnapshot:
        found = self.storage.snapshots.get(snapshot_id)
        if found is None:
            raise NotFound(f"there is no snapshot {snapshot_id}")
        return found


def page_of(shelf: Shelf[Item], found: Sequence[Item], request: ListRequest) -> tuple[Sequence[Item], str]:
    """Return one page and the token of the next one, which is the serial of the last item on this page."""
    if request.max_entries < 0:
        raise InvalidArgument(f"max_entries is {request.max_entries}: it has to be 0 (no limit) or more")
    seen = _serial_of(request.starting_token, shelf)
    left = [item for item in found if item.serial > seen]
    page = left[: request.max_entries] if request.max_entries else left
    return page, str(page[-1].serial) if len(page) < len(left) else ""


def _serial_of(token: str, shelf: Shelf[Item]) -> int:
    if not token:
        return 0
    if not (
        token.isascii() and token.isdigit() and len(token) <= LONGEST_TOKEN and 0 < int(token) <= shelf.last_serial
    ):
        raise Aborted("this starting_token was never given out: begin again without one")
    return int(token)
