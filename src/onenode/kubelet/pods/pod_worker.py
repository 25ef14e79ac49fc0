"""One pod's life on this node, from its first sight to the removal of its object.

Order of a start: its volumes are there → one container after the other, as `pod_life_rules` says → the status, after
each change. Whatever of it hangs is given up when the pod must end.
Of an end, whether it was deleted or nothing of it runs again: SIGTERM, the grace period, SIGKILL → no process is left →
the status says so → the volumes are let go → and for a deleted pod its logs, then its object.

Killed anywhere in between, the next life finds the pod's object and begins with what that says: nothing of the pod runs
then, because containers do not outlive us. It must not remove an object while anything of it is still in use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, TypeVar

from onenode.kubelet.node.node_api import NodeApi
from onenode.kubelet.pods import pod_life_rules as rules
from onenode.kubelet.pods.container_rules import IMAGE_NOTE, VolumeSources, unsupported_fields
from onenode.kubelet.pods.container_runtime import ContainerRuntime, RunningContainer
from onenode.kubelet.pods.container_starter import ContainerStarter, NotStarted
from onenode.kubelet.pods.pod_life_rules import (
    Finished,
    PodLife,
    Rest,
    Running,
    Start,
    Terminated,
    Waiting,
    grace_seconds,
)
from onenode.kubelet.pods.pod_seams import PodSettings, PodVolumes, VolumesNotReady
from onenode.kubelet.pods.pod_status_rules import StatusFacts, backoff_message, container_id, pod_status
from orlop.foundation.backoff import Backoff
from orlop.foundation.runtime import Runtime
from orlop.foundation.task_group import TaskGroup
from orlop.kube.api_errors import ApiError, Conflict, Invalid, NotFound
from orlop.kube.client import DeleteOptions, MergePatch
from orlop.kube.events.event_bodies import ObjectReference
from orlop.kube.kinds import POD
from orlop.kube.objects import is_being_deleted, name_of, resource_version, uid, version_order

T = TypeVar("T")
Pod = Mapping[str, Any]
VOLUMES_AGAIN: Final = Backoff(initial=10.0, factor=1.0, cap=10.0, jitter=0.5)
"""kubelet's, after a pod could not be synced."""
TROUBLE: Final = Backoff(initial=0.5, factor=2.0, cap=60.0, jitter=0.5)


class PodWorker:
    """`changed` is called with each version of the pod, and with None when its object is gone."""

    def __init__(
        self,
        pod: Pod,
        api: NodeApi,
        containers: ContainerRuntime,
        volumes: PodVolumes,
        settings: PodSettings,
        runtime: Runtime,
    ) -> None:
        self._client = api.kube
        self._events = api.events
        self._containers = containers
        self._volumes = volumes
        self._settings = settings
        self._runtime = runtime
        self._pod = pod
        self._name = name_of(pod)
        self._uid = uid(pod)
        self._object_gone = False
        self._has_told = False
        self._news = asyncio.Event()
        self._running: dict[str, RunningContainer] = {}
        self._sources: VolumeSources | None = None
        self._life: PodLife = rules.life_of(pod, runtime.clock.now(), runtime.clock.elapsed())
        self._starts = ContainerStarter(api.kube, containers, volumes, settings, runtime.log)
        self._written: Any = None
        self._log = runtime.log.bind(pod=str(self._name), uid=self._uid)

    def changed(self, pod: Pod | None) -> None:
        if pod is None:
            self._object_gone = True
        else:
            self._take(pod)
        self._news.set()

    def _take(self, pod: Pod) -> None:
        """Ignore versions older than our own writes: the cache may lag behind them."""
        if version_order(resource_version(pod)) >= version_order(resource_version(self._pod)):
            self._pod = pod

    @property
    def running(self) -> Mapping[str, RunningContainer]:
        """By the containers' names; for logs and commands inside."""
        return self._running

    @property
    def pod(self) -> Pod:
        """The newest version: from the cache, or written by us."""
        return self._pod

    def is_running(self, container: str, attempt: int) -> bool:
        life = self._life.container(container)
        return life.attempt == attempt and isinstance(life.state, Running)

    @property
    def life(self) -> PodLife:
        return self._life

    @property
    def _must_end(self) -> bool:
        return self._object_gone or is_being_deleted(self._pod)

    async def run(self) -> None:
        """Until the pod's object is gone, and everything of it here."""
        async with TaskGroup() as tasks:
            self._tasks = tasks
            await self._until_gone()

    async def _until_gone(self) -> None:
        failures = 0
        while True:
            try:
                await self._live()
            except Exception as error:  # noqa: BLE001 - one pod's trouble is not the others', and is tried again
                failures += 1
                self._log.exception("pod not reconciled; retrying", error)
                await self._runtime.clock.sleep(TROUBLE.delay(failures, self._runtime.random))
            else:
                return

    async def _live(self) -> None:
        if not self._must_end and not self._is_finished:
            self._tell_what_is_not_done()
            await self._run_containers()
        await self._end_containers()
        await self._report()
        await self._volumes.let_go(self._pod)
        while not self._must_end:
            await self._something_new()
        await self._remove()

    # ---- running -------------------------------------------------------------------------------------------------

    @property
    def _is_finished(self) -> bool:
        return (self._pod.get("status") or {}).get("phase") in rules.FINAL_PHASES

    def _tell_what_is_not_done(self) -> None:
        if self._has_told or not self._starts_something():
            return
        self._has_told = True
        self._events.normal(self._pod, "ImageNotPulled", IMAGE_NOTE)
        if fields := unsupported_fields(self._pod):
            note = f"This pod asks for what is not done here: {', '.join(fields)}."
            self._events.warning(self._pod, "NotSupported", note)

    def _starts_something(self) -> bool:
        """After a restart of ours there may be nothing left to be started of a pod."""
        return not isinstance(rules.next_step(self._life, self._runtime.clock.elapsed()), Finished)

    async def _run_containers(self) -> None:
        """Until nothing of it runs again, or it must end."""
        await self._report()
        await self._get_volumes()
        while not self._must_end:
            match rules.next_step(self._life, self._runtime.clock.elapsed()):
                case Start() as start:
                    await self._start(start)
                case Rest(until, backing_off):
                    self._show_backoff(backing_off)
                    await self._report()
                    await self._something_new(until)
                case Finished():
                    return
            await self._report()

    async def _get_volumes(self) -> None:
        failures = 0
        while not self._must_end and self._sources is None:
            try:
                self._sources = await self._unless_ended(self._volumes.ready(self._pod))
            except VolumesNotReady as error:
                failures += 1
                if error.is_reported:
                    note = f"Unable to attach or mount volumes: {error}"
                    self._events.warning(self._pod, "FailedMount", note)
                await self._something_new(self._in_seconds(VOLUMES_AGAIN.delay(failures, self._runtime.random)))

    async def _start(self, start: Start) -> None:
        assert self._sources is not None  # noqa: S101 - nothing is started before
        started = await self._unless_ended(self._starts.start(self._pod, start, self._sources))
        if started is None:
            return
        if isinstance(started, NotStarted):
            self._note_not_started(start, started)
            return
        self._running[start.name] = started
        self._life = rules.with_started(self._life, start, self._runtime.clock.now())
        self._events.normal(self._container(start.name), "Started", f"Started container {start.name}")
        self._tasks.start(self._watch(start, started), name=f"container {start.name} of {self._name}")

    def _note_not_started(self, start: Start, why: NotStarted) -> None:
        self._events.warning(self._container(start.name), "Failed", f"Error: {why.sentence}")
        now, clock = self._runtime.clock.now(), self._runtime.clock
        if why.again_after is not None:
            waiting, again = Waiting(why.reason, why.sentence), self._in_seconds(why.again_after)
            self._life = rules.with_not_startable(self._life, start.name, waiting, again)
            return
        self._life = rules.with_started(self._life, start, now)
        ended = Terminated(
            code=rules.START_ERROR_CODE,
            reason=why.reason,
            began=None,
            ended=now,
            message=why.sentence,
            container_id=container_id(self._uid, start.name, start.attempt),
        )
        self._life = rules.with_ended(self._life, start.name, ended, clock.elapsed())

    async def _watch(self, start: Start, container: RunningContainer) -> None:
        code = await container.ended()
        clock = self._runtime.clock
        state = self._life.container(start.name).state
        began = state.since if isinstance(state, Running) else None
        identity = container_id(self._uid, start.name, start.attempt)
        ended = Terminated(code, rules.exit_reason(code), began, clock.now(), container_id=identity)
        self._life = rules.with_ended(self._life, start.name, ended, clock.elapsed())
        del self._running[start.name]
        self._news.set()

    def _show_backoff(self, backing_off: tuple[tuple[str, float], ...]) -> None:
        for name, seconds in backing_off:
            message = backoff_message(self._pod, name, seconds)
            if isinstance(self._life.container(name).state, Terminated):
                note = f"Back-off restarting failed container {name} in pod {self._name.name}"
                self._events.warning(self._container(name), "BackOff", note)
            self._life = rules.with_backoff_shown(self._life, name, message)

    def _container(self, name: str) -> ObjectReference:
        """Return what an event about a container is about: its pod, and its place in the pod's spec."""
        inits = (each["name"] for each in self._pod["spec"].get("initContainers") or ())
        field = "initContainers" if name in inits else "containers"
        return ObjectReference.to(self._pod, f"spec.{field}{{{name}}}")

    # ---- ending --------------------------------------------------------------------------------------------------

    async def _end_containers(self) -> None:
        """A shorter grace period may be asked for meanwhile."""
        began = self._runtime.clock.elapsed()
        for name, container in self._running.items():
            self._events.normal(self._container(name), "Killing", f"Stopping container {name}")
            container.ask_to_end()
        while self._running and self._runtime.clock.elapsed() < (until := began + grace_seconds(self._pod)):
            await self._something_new(until)
        for container in self._running.values():
            container.kill()
        while self._running:
            await self._something_new()

    async def _remove(self) -> None:
        await self._containers.forget_pod(self._uid)
        with suppress(NotFound, Conflict):  # it is gone, or another pod has its name
            await self._client.delete(POD, self._name, DeleteOptions(uid=self._uid, grace_seconds=0))

    # ---- telling -------------------------------------------------------------------------------------------------

    async def _report(self) -> None:
        """Tried until it is written, or nobody wants to know any more."""
        failures = 0
        while not self._object_gone:
            # What is being deleted is never started again, whatever its policy says.
            life = replace(self._life, restart_policy="Never") if self._must_end else self._life
            status = pod_status(self._pod, life, self._facts())
            if status == self._written:
                return
            try:
                await self._write(status)
            except NotFound:
                self._object_gone = True
            except ApiError as error:
                failures += 1
                self._log.warning("pod status not written; retrying", why=str(error))
                await self._runtime.clock.sleep(TROUBLE.delay(failures, self._runtime.random))

    async def _write(self, status: Any) -> None:
        changes = {"metadata": {"uid": self._uid}, "status": status}
        try:
            found = await self._client.patch(POD, self._name, MergePatch(changes), subresource="status")
        except Invalid:
            # So the API server refuses our uid where another pod has the name by now.
            if uid(await self._client.get(POD, self._name)) == self._uid:
                raise
            self._object_gone = True
            return
        self._written = status
        self._take(found)

    def _facts(self) -> StatusFacts:
        return StatusFacts(self._runtime.clock.now(), self._settings.node_address, self._sources is not None)

    # ---- waiting -------------------------------------------------------------------------------------------------

    def _in_seconds(self, seconds: float) -> float:
        return self._runtime.clock.elapsed() + seconds

    async def _something_new(self, until: float | None = None) -> None:
        if until is None:
            await self._news.wait()
        else:
            with suppress(TimeoutError):
                async with self._runtime.clock.timeout(max(0.0, until - self._runtime.clock.elapsed())):
                    await self._news.wait()
        self._news.clear()

    async def _unless_ended(self, question: Coroutine[Any, Any, T]) -> T | None:
        """The answer; None where the pod must end before there is one."""
        asking = asyncio.ensure_future(question)
        asking.add_done_callback(lambda _: self._news.set())
        given_up = False
        try:
            while not asking.done() and not self._must_end:
                await self._something_new()
        finally:
            given_up = asking.cancel()
            if given_up:
                await asyncio.wait([asking])
        if given_up and (asking.cancelled() or asking.exception() is not None):
            return None
        return asking.result()
