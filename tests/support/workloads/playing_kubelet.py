"""A kubelet that plays: it gives pods a node, makes them ready unless they are broken, and ends those being deleted."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

from orlop.foundation.clock import Clock
from orlop.foundation.structured_log import silent_log
from orlop.kube.api_errors import ApiError
from orlop.kube.cache.informer import Informer, Watched
from orlop.kube.client import DeleteOptions, KubeClient, MergePatch
from orlop.kube.kinds import POD
from orlop.kube.objects import Object, ObjectName, is_being_deleted, is_condition_true, name_of, time_text, uid
from support.worlds import running

NODE = "n1"


@dataclass
class PlayingKubelet:
    """Pods with an image in `broken` never get ready. `started` and `ended` are the names of pods, in order."""

    client: KubeClient
    clock: Clock
    broken: set[str] = field(default_factory=set)
    start_seconds: float = 1.0
    end_seconds: float = 1.0
    started: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)

    async def run(self) -> None:
        random = Random(7)
        informer = Informer(self.client, Watched(POD), clock=self.clock, random=random, log=silent_log())
        changed: asyncio.Queue[ObjectName] = asyncio.Queue()
        informer.add_listener(changed.put_nowait)
        async with running(informer.run(), self._play(informer, changed)):
            await asyncio.Event().wait()

    async def _play(self, informer: Informer, changed: asyncio.Queue[ObjectName]) -> None:
        async with asyncio.TaskGroup() as tasks:
            while True:
                pod = informer.get(await changed.get())
                if pod is not None:
                    tasks.create_task(self._move(dict(pod)))

    async def _move(self, pod: Object) -> None:
        with suppress(ApiError):
            if is_being_deleted(pod):
                await self.clock.sleep(self.end_seconds)
                await self.client.delete(POD, name_of(pod), DeleteOptions(uid(pod), grace_seconds=0))
                self.ended.append(pod["metadata"]["name"])
            elif not pod["spec"].get("nodeName"):
                target = {"apiVersion": "v1", "kind": "Node", "name": NODE}
                about = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod["metadata"]["name"]}}
                await self.client.create_subresource(POD, name_of(pod), "binding", {**about, "target": target})
            elif not is_condition_true(pod, "Ready") and not self._is_broken(pod) and not _is_finished(pod):
                await self.clock.sleep(self.start_seconds)
                await self._make_ready(pod)

    def _is_broken(self, pod: Object) -> bool:
        return any(each["image"] in self.broken for each in pod["spec"]["containers"])

    async def _make_ready(self, pod: Object) -> None:
        now = time_text(self.clock.now())
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": now}
        changes = {"metadata": {"uid": uid(pod)}, "status": {"phase": "Running", "conditions": [ready]}}
        await self.client.patch(POD, name_of(pod), MergePatch(changes), subresource="status")
        self.started.append(pod["metadata"]["name"])


def _is_finished(pod: Object) -> bool:
    return pod["status"].get("phase") in {"Succeeded", "Failed"}
