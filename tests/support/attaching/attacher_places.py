"""Where `orlop attacher` runs as a process: an API server, mock drivers on sockets, and objects of its own.

The API server is the embedded one, as a process of its own; or, where ORLOP_TEST_KUBECONFIG names one, that. Names are
such as nobody else has, and what was made is taken away in the end.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

from orlop.foundation.clock import SystemClock
from orlop.foundation.structured_log import silent_log
from orlop.kube import objects
from orlop.kube.api_errors import AlreadyExists, NotFound
from orlop.kube.client import KubeClient, MergePatch
from orlop.kube.http.http_transport import HttpTransport
from orlop.kube.kinds import CSI_NODE, EVENT, LEASE, PERSISTENT_VOLUME, VOLUME_ATTACHMENT, Kind
from orlop.kube.objects import ObjectName
from orlop.processes.attacher import lease_of
from orlop.sidecars.attacher.finalizer_rules import finalizer_of
from support.api.api_objects import attachment, csi_node, volume
from support.api.api_variants import embedded_process, found
from support.processes.orlop_process import ORLOP, Running, running

FOREIGN = os.environ.get("ORLOP_TEST_KUBECONFIG", "")
AS_ANOTHER_MACHINE = 'echo {name} > /proc/sys/kernel/hostname && exec "$@"'
Object = dict[str, Any]


@dataclass
class Place:
    folder: Path
    kubeconfig: Path
    client: KubeClient
    tag: str = field(default_factory=lambda: os.urandom(4).hex())

    @property
    def driver_name(self) -> str:
        return f"mock-{self.tag}.example.com"

    @property
    def finalizer(self) -> str:
        return finalizer_of(self.driver_name)

    @property
    def lease(self) -> ObjectName:
        return ObjectName("default", lease_of(self.driver_name))

    def named(self, name: str) -> str:
        """Of objects in no namespace."""
        return f"{name}-{self.tag}"

    # ---- processes -----------------------------------------------------------------------------------------------

    def driver(self, socket: str = "csi.sock", **script: Any) -> AbstractContextManager[Running]:
        volumes = [{"id": f"h{number}", "size": "1Gi"} for number in range(10)]
        path = self.folder / f"{socket}.yaml"
        path.write_text(json.dumps({"driver": {"name": self.driver_name}, "volumes": volumes, **script}))
        endpoint = f"unix://{self.folder}/{socket}"
        flags = ("--endpoint", endpoint, "--script", str(path), "--record", str(self.record(socket)))
        return running(self.folder, "testing", "mock-driver", *flags)

    def record(self, socket: str = "csi.sock") -> Path:
        """Of the calls that have ended."""
        return self.folder / f"{socket}.calls"

    def attacher(self, *more: str, socket: str = "csi.sock") -> AbstractContextManager[Running]:
        return running(self.folder, "attacher", *self.flags(socket), *more)

    def flags(self, socket: str = "csi.sock") -> Sequence[str]:
        return f"--csi-address={self.folder}/{socket}", f"--kubeconfig={self.kubeconfig}"

    def replica(self, name: str, *more: str) -> AbstractContextManager[Running]:
        """With a driver of its own, on a machine that is called so: leases are held by machines."""
        shell = ["sh", "-c", AS_ANOTHER_MACHINE.format(name=name), "sh"]
        flags = ("attacher", *self.flags(f"{name}.sock"), "--leader-election", *more)
        return running(self.folder, *flags, program=["unshare", "--uts", *shell, *ORLOP])

    # ---- objects -------------------------------------------------------------------------------------------------

    async def make(self, number: int = 1) -> None:
        """A VolumeAttachment with its PersistentVolume."""
        with suppress(AlreadyExists):
            node = csi_node(self.named("n"), {"name": self.driver_name, "nodeID": "node-1"})
            await self.client.create(CSI_NODE, node)
        source = {"driver": self.driver_name, "volumeHandle": f"h{number}"}
        await self.client.create(PERSISTENT_VOLUME, volume(self.named(f"pv{number}"), csi=source))
        wanted = attachment(
            self.named(f"va{number}"),
            attacher=self.driver_name,
            nodeName=self.named("n"),
            source={"persistentVolumeName": self.named(f"pv{number}")},
        )
        await self.client.create(VOLUME_ATTACHMENT, wanted)

    async def attachment(self, number: int = 1) -> Object | None:
        try:
            return await self.client.get(VOLUME_ATTACHMENT, ObjectName(None, self.named(f"va{number}")))
        except NotFound:
            return None

    async def delete(self, number: int = 1) -> None:
        await self.client.delete(VOLUME_ATTACHMENT, ObjectName(None, self.named(f"va{number}")))

    async def is_attached(self, number: int = 1) -> bool:
        there = await self.attachment(number)
        return there is not None and bool(there.get("status", {}).get("attached"))

    async def is_protected(self, number: int = 1) -> bool:
        there = await self.attachment(number)
        return there is not None and objects.has_finalizer(there, self.finalizer)

    async def is_gone(self, number: int = 1) -> bool:
        return await self.attachment(number) is None

    async def error(self, field: str, number: int = 1) -> Object | None:
        there = await self.attachment(number)
        return there.get("status", {}).get(field) if there is not None else None

    async def has_event(self, reason: str, note: str, number: int = 1) -> bool:
        events = (await self.client.list(EVENT)).items
        about = [event for event in events if event["regarding"].get("name") == self.named(f"va{number}")]
        return any((event["reason"], event["note"]) == (reason, note) for event in about)

    async def renewed(self) -> datetime:
        """When the lease was last renewed."""
        lease = await self.lease_object()
        assert lease is not None
        return datetime.fromisoformat(lease["spec"]["renewTime"])

    async def lease_object(self) -> Object | None:
        try:
            return await self.client.get(LEASE, self.lease)
        except NotFound:
            return None

    async def holder(self) -> str:
        """The machine's name, without what tells its processes from each other."""
        lease = await self.lease_object()
        return str(lease["spec"].get("holderIdentity") or "").partition("_")[0] if lease is not None else ""

    async def clean_up(self) -> None:
        for number in range(10):
            await self._remove(VOLUME_ATTACHMENT, ObjectName(None, self.named(f"va{number}")))
            await self._remove(PERSISTENT_VOLUME, ObjectName(None, self.named(f"pv{number}")))
        await self._remove(CSI_NODE, ObjectName(None, self.named("n")))
        for namespace in ("default", "orlop-system"):
            await self._remove(LEASE, ObjectName(namespace, self.lease.name))

    async def _remove(self, kind: Kind, name: ObjectName) -> None:
        with suppress(NotFound):
            await self.client.delete(kind, name)
            await self.client.patch(kind, name, MergePatch({"metadata": {"finalizers": None}}))


@contextmanager
def api_server_for_all() -> Iterator[Path]:
    """Its kubeconfig."""
    if FOREIGN:
        yield Path(FOREIGN)
        return
    folder = Path(tempfile.mkdtemp(prefix="o-", dir="/tmp"))
    with embedded_process(folder) as state:
        yield state / "kubeconfig"
    shutil.rmtree(folder)


@asynccontextmanager
async def place(folder: Path, kubeconfig: Path) -> AsyncIterator[Place]:
    client = KubeClient(HttpTransport(found(kubeconfig)), clock=SystemClock(), random=Random(1), log=silent_log())
    made = Place(folder, kubeconfig, client)
    try:
        yield made
        await made.clean_up()
    finally:
        await client.close()


# ---- over HTTP -------------------------------------------------------------------------------------------------------


def answer_of(process: Running, path: str) -> tuple[int, str]:
    """Of one that was started with `--http-endpoint=127.0.0.1:0`."""
    address = process.logged().partition("serving HTTP")[2].partition("address=")[2].split()[0].strip('"')
    try:
        with urlopen(f"http://{address}{path}") as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()
