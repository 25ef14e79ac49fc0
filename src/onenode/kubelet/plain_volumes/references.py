"""Reads what volumes' files are made from: ConfigMaps, Secrets and tokens, each from the API server as it is now."""

from __future__ import annotations

from collections.abc import Mapping

from onenode.kubelet.plain_volumes.payload_rules import PayloadObjects, Read, References, TokenWish
from onenode.kubelet.volumes.desired_volumes_rules import Unread, pod_facts
from onenode.kubelet.volumes.steps.pod_tokens import PodTokens
from onenode.kubelet.volumes.volume_values import ApiObject
from orlop.foundation.runtime import Runtime
from orlop.kube import objects
from orlop.kube.api_errors import ApiError, NotFound
from orlop.kube.client import KubeClient
from orlop.kube.kinds import CONFIG_MAP, SECRET, Kind
from orlop.kube.objects import ObjectName


class ReferenceReader:
    def __init__(self, client: KubeClient, allocatable: Mapping[str, str], runtime: Runtime) -> None:
        self._client = client
        self._tokens = PodTokens(client, runtime)
        self._allocatable = allocatable

    async def read(self, pod: ApiObject, wanted: References) -> PayloadObjects:
        space = objects.namespace(pod)
        return PayloadObjects(
            {name: await self._object(CONFIG_MAP, ObjectName(space, name)) for name in sorted(wanted.config_maps)},
            {name: await self._object(SECRET, ObjectName(space, name)) for name in sorted(wanted.secrets)},
            {wish: await self._token(pod, wish) for wish in wanted.tokens},
            self._allocatable,
        )

    def forget(self, pod_uid: str) -> None:
        self._tokens.forget(pod_uid)

    async def _object(self, kind: Kind, name: ObjectName) -> Read:
        if not name.name:
            return None
        try:
            return await self._client.get(kind, name)
        except NotFound:
            return None
        except ApiError as error:
            return Unread(error.message)

    async def _token(self, pod: ApiObject, wish: TokenWish) -> str | Unread:
        try:
            kept = await self._tokens.token(pod_facts(pod), wish.audience, wish.seconds)
        except ApiError as error:
            return Unread(error.message)
        return kept.token.reveal()
