"""The controller of `room_renters` with a CSI driver as its office, right and wrong: a guest's room is an attachment.

The driver has one house, which may be attached to many: a node's id is a guest.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import count
from random import Random
from typing import Any

from orlop.csi.client import CsiClient
from orlop.csi.error_codes import CsiError, Unavailable, is_final
from orlop.csi.in_process_transport import InProcessConnection
from orlop.csi.interceptor import CallInterceptor
from orlop.csi.proto import csi_pb2, rpc
from orlop.foundation.metrics import Metrics
from orlop.foundation.structured_log import silent_log
from orlop.testing.driver_model import DriverFacts, DriverModel
from orlop.testing.explorer import Life, LifeConnection, Process, Stage, explored_methods
from support.explorer.room_renters import Office, Renter

HOUSE = "house"
METRICS = Metrics("explored", of_process=False)
"""Nobody reads them."""
FOR_MANY = csi_pb2.VolumeCapability(
    block=csi_pb2.VolumeCapability.BlockVolume(),
    access_mode=csi_pb2.VolumeCapability.AccessMode(mode="MULTI_NODE_MULTI_WRITER"),
)


class DriverOffice(Office):
    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self._clock = stage.clock
        self._model = DriverModel(DriverFacts(), stage.clock)
        self._house = self._model.storage.add_volume(HOUSE, 1 << 30)

    def open_for(self, renter: Process) -> None:
        numbers = count(1)
        self._interceptor = CallInterceptor(
            explored_methods(renter, self._model.methods()),
            driver_name=self._model.facts.name,
            log=silent_log(),
            metrics=METRICS,
            clock=self._clock,
            new_id=lambda: f"call-{next(numbers)}",
        )

    def client(self, life: Life) -> CsiClient:
        connection = LifeConnection(life, InProcessConnection(self._interceptor))
        return CsiClient(connection, log=silent_log(), metrics=METRICS, clock=self._clock, random=Random(4))

    @property
    def rooms(self) -> dict[int, str]:
        return dict(enumerate(self._house.attached, start=1))


class DriverRenter(Renter):
    def __init__(self, life: Life, office: Office, *given: Any) -> None:
        super().__init__(life, office, *given)
        assert isinstance(office, DriverOffice)
        self.csi = office.client(life)

    @staticmethod
    def new_office(stage: Stage) -> DriverOffice:
        return DriverOffice(stage)

    async def rent(self, guest: str) -> int:
        self.guard()
        request = csi_pb2.ControllerPublishVolumeRequest(volume_id=HOUSE, node_id=guest, volume_capability=FOR_MANY)
        await self.csi.call(rpc.CONTROLLER_PUBLISH_VOLUME, request)
        return self.office.rooms_of(guest)[0]

    async def release(self, guest: str) -> None:
        self.guard()
        request = csi_pb2.ControllerUnpublishVolumeRequest(volume_id=HOUSE, node_id=guest)
        await self.csi.call(rpc.CONTROLLER_UNPUBLISH_VOLUME, request)


# ---- the wrong ones --------------------------------------------------------------------------------------------------


class LetsGoWhatWasRefused(DriverRenter):
    """A final error says that the call is over; it takes it for the end of what it asked about."""

    async def release(self, guest: str) -> None:
        try:
            await super().release(guest)
        except CsiError as error:
            if not is_final(error):
                raise


class TakesNoConnectionForALostReply(DriverRenter):
    """What was asked for is done, it thinks, whether or not the answer comes."""

    async def release(self, guest: str) -> None:
        with suppress(Unavailable):
            await super().release(guest)
