"""Which volumes this node's pods want: the newest version of each pod, and the volumes that its claims led to.

Claims and volumes are read from the API server itself whenever a pod changes, and again with growing delays while one
of them cannot be read. What was found once is kept when it cannot be read again: a pod does not lose its volumes
because the API server is away.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from onenode.kubelet.volumes import desired_volumes_rules as rules
from onenode.kubelet.volumes.desired_volumes_rules import PodDesire, Read, Unread, VolumeObjects
from onenode.kubelet.volumes.volume_seams import KnownDrivers
from onenode.kubelet.volumes.volume_values import ApiObject, Desired, DesiredMount, PodUid, UniqueName
from orlop.foundation.runtime import Runtime
from orlop.kube import objects
from orlop.kube.api_errors import ApiError
from orlop.kube.client import KubeClient
from orlop.kube.kinds import PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, InvalidPath, Kind
from orlop.kube.objects import ObjectName

FIRST_LOOK_AGAIN: Final = 0.1
LONGEST_LOOK_AGAIN: Final = 2.0


@dataclass(slots=True)
class WantedPod:
    """`due` is the instant at which its claims are to be read; None: they were, and all could be had."""

    pod: ApiObject
    due: float | None
    desire: PodDesire = field(default_factory=PodDesire)
    updates: int = 0
    """How often the pod was updated; `answered` is the update that the desire is about."""
    answered: int = 0
    delay: float = FIRST_LOOK_AGAIN
    is_being_read: bool = False

    @property
    def is_answered(self) -> bool:
        return self.answered == self.updates

    @property
    def is_resolved(self) -> bool:
        """Whether all that it wants is known, if perhaps from before."""
        known = {name for mount in self.desire.mounts for name in mount.outer_names}
        return self.answered > 0 and known >= set(self.desire.wanted)


class DesiredState:
    def __init__(self, client: KubeClient, drivers: KnownDrivers, runtime: Runtime) -> None:
        self._client = client
        self._known_drivers = drivers
        self._runtime = runtime
        self._pods: dict[PodUid, WantedPod] = {}
        self._postponed: dict[tuple[UniqueName, PodUid], int] = {}
        self._mounts: dict[UniqueName, dict[PodUid, DesiredMount]] | None = None

    # ---- reading -------------------------------------------------------------------------------------------------

    @property
    def pods(self) -> Mapping[PodUid, WantedPod]:
        return self._pods

    def mounts(self) -> Desired:
        if self._mounts is None:
            self._mounts = {}
            for mount in sorted(self._all_mounts(), key=self._turn):
                self._mounts.setdefault(mount.volume, {})[mount.pod.uid] = mount
        return self._mounts

    def unresolved(self) -> Collection[PodUid]:
        return {pod_uid for pod_uid, wanted in self._pods.items() if not wanted.is_resolved}

    def all_looked_at(self) -> bool:
        return all(wanted.answered for wanted in self._pods.values())

    def next_due(self) -> float | None:
        instants = [wanted.due for wanted in self._pods.values() if wanted.due is not None and not wanted.is_being_read]
        return min(instants, default=None)

    def due(self, now: float) -> list[PodUid]:
        return [
            pod_uid
            for pod_uid, wanted in self._pods.items()
            if wanted.due is not None and wanted.due <= now and not wanted.is_being_read
        ]

    def mount(self, volume: UniqueName, pod_uid: PodUid) -> DesiredMount | None:
        return self.mounts().get(volume, {}).get(pod_uid)

    def any_mount(self, volume: UniqueName) -> DesiredMount | None:
        return next(iter(self.mounts().get(volume, {}).values()), None)

    # ---- changing ------------------------------------------------------------------------------------------------

    def want(self, pod: ApiObject, now: float) -> None:
        known = self._pods.get(objects.uid(pod))
        if known is None:
            self._pods[objects.uid(pod)] = WantedPod(pod, now, updates=1)
            return
        known.pod, known.due, known.delay = pod, now, FIRST_LOOK_AGAIN
        known.updates += 1

    def look_again(self, pod_uid: PodUid) -> None:
        """Read the claims of the pod once more, although the pod has not changed."""
        if (known := self._pods.get(pod_uid)) is not None:
            known.due = self._runtime.clock.elapsed()

    def let_go(self, pod_uid: PodUid) -> None:
        self._pods.pop(pod_uid, None)
        self._postponed = {key: turn for key, turn in self._postponed.items() if key[1] != pod_uid}
        self._mounts = None

    def postpone(self, mount: DesiredMount) -> None:
        """Other pods that want the volume have their turn first."""
        self._postponed[mount.volume, mount.pod.uid] = 1 + max(self._postponed.values(), default=0)
        self._mounts = None

    async def read(self, pod_uid: PodUid) -> WantedPod | None:
        """Reads what the pod's claims lead to; None: nobody wants it any more."""
        wanted = self._pods[pod_uid]
        updates, pod, wanted.is_being_read = wanted.updates, wanted.pod, True
        try:
            desire = rules.desire_of(pod, await self._find(pod))
        except Exception as error:  # noqa: BLE001 - one pod's trouble is not the others', and is tried again
            self._tell_not_understood(wanted, error)
            desire = rules.not_understood(wanted.desire)
        finally:
            wanted.is_being_read = False
        if self._pods.get(pod_uid) is not wanted:
            return None
        wanted.desire, wanted.answered = _kept(wanted.desire, desire), updates
        if wanted.is_answered:
            self._set_due(wanted)
        self._mounts = None
        return wanted

    def _tell_not_understood(self, wanted: WantedPod, error: Exception) -> None:
        """Once, however often it is tried again; the pod's events tell of it too."""
        if rules.SOMETHING not in wanted.desire.errors:
            self._runtime.log.exception("pod volumes not understood", error, uid=objects.uid(wanted.pod))

    def _set_due(self, wanted: WantedPod) -> None:
        if not wanted.desire.errors:
            wanted.due = None
            return
        wanted.due = self._runtime.clock.elapsed() + wanted.delay
        wanted.delay = min(LONGEST_LOOK_AGAIN, wanted.delay * 2)

    async def _find(self, pod: ApiObject) -> VolumeObjects:
        claims: dict[str, Read] = {}
        volumes: dict[str, Read] = {}
        for name in rules.claims_to_read(pod):
            claims[name] = await self._get(PERSISTENT_VOLUME_CLAIM, ObjectName(objects.namespace(pod), name))
            volume = rules.volume_to_read(claims[name])
            if volume is not None and volume not in volumes:
                volumes[volume] = await self._get(PERSISTENT_VOLUME, ObjectName(None, volume))
        return VolumeObjects(claims, volumes, self._drivers(pod, volumes))

    def _drivers(self, pod: ApiObject, volumes: Mapping[str, Read]) -> dict[str, ApiObject]:
        found = {name: self._known_drivers.csi_driver(name) for name in rules.drivers_named_by(pod, volumes)}
        return {name: driver for name, driver in found.items() if driver is not None}

    async def _get(self, kind: Kind, name: ObjectName) -> Read:
        try:
            return await self._client.get(kind, name)
        except ApiError as error:
            return Unread(error.message)
        except InvalidPath as error:  # a pod may name anything as its claim
            return Unread(str(error))

    def _all_mounts(self) -> Iterator[DesiredMount]:
        for wanted in self._pods.values():
            yield from wanted.desire.mounts

    def _turn(self, mount: DesiredMount) -> int:
        return self._postponed.get((mount.volume, mount.pod.uid), 0)


def _kept(before: PodDesire, now: PodDesire) -> PodDesire:
    found = {mount.volume for mount in now.mounts}
    failed = set(now.errors)
    kept = [mount for mount in before.mounts if mount.volume not in found and failed.intersection(mount.outer_names)]
    return replace(now, mounts=(*now.mounts, *kept))
