"""Starting one container of a pod: what its environment refers to is read, the request made, the machine asked.

Secrets are read when they are needed, and kept nowhere. They are in no message: what is missing is named by its key.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from onenode.kubelet.pods.container_rules import (
    CONFIG_ERROR,
    ContainerInputs,
    NotRunnable,
    VolumeSources,
    container_request,
    no_sub_path,
    sub_path_wishes,
)
from onenode.kubelet.pods.container_runtime import (
    ContainerRefused,
    ContainerRuntime,
    RunningContainer,
    WantedContainer,
)
from onenode.kubelet.pods.environment_rules import EnvironmentSources, names_needed
from onenode.kubelet.pods.pod_life_rules import Start
from onenode.kubelet.pods.pod_seams import PodSettings, PodVolumes, SubPathNotReady
from orlop.foundation.structured_log import Log
from orlop.kube.api_errors import NotFound
from orlop.kube.client import KubeClient
from orlop.kube.kinds import CONFIG_MAP, SECRET, InvalidPath, Kind
from orlop.kube.objects import Object, ObjectName, namespace, uid

CONFIG_AGAIN_SECONDS: Final = 10.0
"""A ConfigMap or Secret that is missing may come."""


@dataclass(frozen=True, slots=True)
class NotStarted:
    """`again_after` seconds it may be tried again; None where it counts as an attempt that has ended."""

    reason: str
    sentence: str
    again_after: float | None = None


class ContainerStarter:
    def __init__(
        self, client: KubeClient, containers: ContainerRuntime, volumes: PodVolumes, settings: PodSettings, log: Log
    ) -> None:
        self._client = client
        self._containers = containers
        self._volumes = volumes
        self._settings = settings
        self._log = log

    async def start(
        self, pod: Mapping[str, Any], start: Start, sources: VolumeSources
    ) -> RunningContainer | NotStarted:
        spec = _spec(pod, start.name)
        try:
            environment = await self._environment(pod, spec)
            parts = await self._with_sub_paths(pod, spec, environment, sources)
            around = ContainerInputs(environment, parts, self._settings.hidden)
            runnable = container_request(pod, spec, start.attempt, around)
            wanted = WantedContainer(uid(pod), start.name, start.attempt, runnable.request, runnable.volumes)
            return await self._containers.start(wanted)
        except NotRunnable as error:
            return NotStarted(
                error.reason, str(error), CONFIG_AGAIN_SECONDS if error.reason == CONFIG_ERROR else math.inf
            )
        except ContainerRefused as error:
            return NotStarted("StartError", str(error))

    async def _with_sub_paths(
        self, pod: Mapping[str, Any], spec: Mapping[str, Any], environment: EnvironmentSources, sources: VolumeSources
    ) -> VolumeSources:
        """Prepared at each start: what is there may have been made by the container before."""
        who, found = str(spec["name"]), {}
        for wish in sub_path_wishes(pod, spec, environment):
            try:
                found[who, wish.index] = await self._volumes.sub_path(pod, who, wish)
            except SubPathNotReady as error:
                self._log.warning("subPath not prepared", pod=uid(pod), container=who, why=str(error))
                raise no_sub_path(spec, wish.volume) from None
        return replace(sources, sub_paths=found)

    async def _environment(self, pod: Mapping[str, Any], spec: Mapping[str, Any]) -> EnvironmentSources:
        maps, secrets = names_needed(spec)
        space = namespace(pod)
        return EnvironmentSources(
            {name: found for name in sorted(maps) if (found := await self._found(CONFIG_MAP, space, name))},
            {name: found for name in sorted(secrets) if (found := await self._found(SECRET, space, name))},
            self._settings.services,
            self._settings.allocatable,
        )

    async def _found(self, kind: Kind, space: str | None, name: str) -> Object | None:
        try:
            return await self._client.get(kind, ObjectName(space, name))
        except (NotFound, InvalidPath):  # no object has a name that is no name
            return None


def _spec(pod: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    every = (*(pod["spec"].get("initContainers") or ()), *pod["spec"]["containers"])
    found: Mapping[str, Any] = next(one for one in every if one["name"] == name)
    return found
