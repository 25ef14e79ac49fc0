"""Where the documents of discovery are found, and which form of them a client takes. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from orlop.embedded.apiserver import discovery
from orlop.embedded.apiserver.media_types import accepted
from orlop.embedded.apiserver.status_answers import JSON, JSON_HEADERS
from orlop.kube.http_messages import HttpAnswer
from orlop.kube.kinds import Kind


def discovery_answer(kinds: Sequence[Kind], path: str, accept: str, address: str) -> HttpAnswer | None:
    """None where there is no such document."""
    if path in {"/api", "/apis"} and _wants_aggregated(accept):
        whole = discovery.aggregated(kinds, core=path == "/api")
        return HttpAnswer(200, {"content-type": discovery.AGGREGATED}, msgspec.json.encode(whole))
    document = _document(kinds, path.strip("/").split("/"), address)
    return None if document is None else HttpAnswer(200, JSON_HEADERS, msgspec.json.encode(document) + b"\n")


def _document(kinds: Sequence[Kind], parts: list[str], address: str) -> discovery.Document | None:
    match parts:
        case ["api"]:
            return discovery.core_versions(address)
        case ["apis"]:
            return discovery.group_list(kinds)
        case ["api", version]:
            return discovery.resource_list(kinds, "", version)
        case ["apis", group]:
            return discovery.group(kinds, group)
        case ["apis", group, version]:
            return discovery.resource_list(kinds, group, version)
        case _:
            return None


def _wants_aggregated(accept: str) -> bool:
    """Whether the aggregated form comes before the plain one among what is accepted."""
    for media_type in accepted(accept):
        parameters = media_type.parameters
        if media_type.name != JSON:
            continue
        if "as" not in parameters:
            return False
        wanted = (parameters.get("g"), parameters.get("v"), parameters["as"])
        if wanted == ("apidiscovery.k8s.io", "v2", "APIGroupDiscoveryList"):
            return True
    return False
