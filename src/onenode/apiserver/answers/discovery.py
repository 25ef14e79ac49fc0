"""What the server says it serves: the documents of discovery, plain and aggregated, made from the kinds. Pure."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final

import msgspec

from onenode.apiserver.answers.status_answers import JSON, JSON_HEADERS
from onenode.apiserver.requests.media_types import accepted
from orlop.kube.http.http_messages import HttpResponse
from orlop.kube.kinds import Kind, Subresource

AGGREGATED: Final = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
"""The media type of the aggregated form; kubectl takes the answer for the plain form unless it repeats this."""

Document = dict[str, Any]
StorageHashes = Mapping[Kind, str]
"""What names the version in which the objects of a kind are stored; kinds that are not stored have none."""


def storage_hash(stored_as: Kind) -> str:
    """Return the hash of the version in which objects are stored: clients compare it, and learn nothing else."""
    name = f"{stored_as.group}/{stored_as.version}/{stored_as.kind}"
    return b64encode(sha256(name.encode()).digest()[:8]).decode()


def core_versions(address: str) -> Document:
    """Of `/api`."""
    where = [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}]
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": where}


def group_list(kinds: Sequence[Kind]) -> Document:
    """Of `/apis`."""
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(kinds, name) for name in _groups(kinds)]}


def group(kinds: Sequence[Kind], name: str) -> Document | None:
    """Of `/apis/GROUP`."""
    if name not in _groups(kinds):
        return None
    return {"kind": "APIGroup", "apiVersion": "v1", **_group(kinds, name)}


def resource_list(kinds: Sequence[Kind], group_name: str, version: str, hashes: StorageHashes) -> Document | None:
    """Of `/api/v1` and `/apis/GROUP/VERSION`."""
    mine = _of(kinds, group_name, version)
    if not mine:
        return None
    resources = [entry for kind in mine for entry in _resources(kind, hashes.get(kind, ""))]
    group_version = mine[0].api_version
    # The list of the core group does not say its version, in Kubernetes as here.
    version_of_list = {"apiVersion": "v1"} if group_name else {}
    return {"kind": "APIResourceList", **version_of_list, "groupVersion": group_version, "resources": resources}


def aggregated(kinds: Sequence[Kind], *, core: bool) -> Document:
    """All of `/api`, or all of `/apis`, at once."""
    names = [""] if core else _groups(kinds)
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": [_aggregated_group(kinds, name) for name in names],
    }


def _groups(kinds: Iterable[Kind]) -> list[str]:
    """In the order in which the kinds name them; the core group has no name and is not among them."""
    return list(dict.fromkeys(kind.group for kind in kinds if kind.group))


def _versions(kinds: Iterable[Kind], group_name: str) -> list[str]:
    return list(dict.fromkeys(kind.version for kind in kinds if kind.group == group_name))


def _of(kinds: Iterable[Kind], group_name: str, version: str) -> list[Kind]:
    return [kind for kind in kinds if (kind.group, kind.version) == (group_name, version)]


def _group(kinds: Sequence[Kind], name: str) -> Document:
    versions = [{"groupVersion": f"{name}/{version}", "version": version} for version in _versions(kinds, name)]
    return {"name": name, "versions": versions, "preferredVersion": versions[0]}


def _resources(kind: Kind, storage_hash: str) -> Iterable[Document]:
    resource: Document = {
        "name": kind.plural,
        "singularName": kind.singular,
        "namespaced": kind.namespaced,
        "kind": kind.kind,
        "verbs": list(kind.verbs),
    }
    if kind.short_names:
        resource["shortNames"] = list(kind.short_names)
    if kind.categories:
        resource["categories"] = list(kind.categories)
    if storage_hash:
        resource["storageVersionHash"] = storage_hash
    yield resource
    for part in kind.subresources:
        yield _subresource(kind, part)


def _subresource(kind: Kind, part: Subresource) -> Document:
    entry: Document = {
        "name": f"{kind.plural}/{part.name}",
        "singularName": "",
        "namespaced": kind.namespaced,
        "kind": part.kind or kind.kind,
        "verbs": list(part.verbs),
    }
    if part.group is not None:
        entry |= {"group": part.group, "version": part.version}
    return entry


def _aggregated_group(kinds: Sequence[Kind], name: str) -> Document:
    versions = [
        {
            "version": version,
            "resources": [_aggregated_resource(kind) for kind in _of(kinds, name, version)],
            "freshness": "Current",
        }
        for version in _versions(kinds, name)
    ]
    return {"metadata": {"name": name} if name else {}, "versions": versions}


def _aggregated_resource(kind: Kind) -> Document:
    entry: Document = {
        "resource": kind.plural,
        # Empty means the group and version of the parent.
        "responseKind": {"group": "", "version": "", "kind": kind.kind},
        "scope": "Namespaced" if kind.namespaced else "Cluster",
        "singularResource": kind.singular,
        "verbs": list(kind.verbs),
    }
    if kind.short_names:
        entry["shortNames"] = list(kind.short_names)
    if kind.categories:
        entry["categories"] = list(kind.categories)
    if kind.subresources:
        entry["subresources"] = [_aggregated_subresource(kind, part) for part in kind.subresources]
    return entry


def _aggregated_subresource(kind: Kind, part: Subresource) -> Document:
    answered = {"group": part.group or "", "version": part.version, "kind": part.kind or kind.kind}
    return {"subresource": part.name, "responseKind": answered, "verbs": list(part.verbs)}


# ---- the paths -------------------------------------------------------------------------------------------------------

# Where the documents of discovery are found, and which form of them a client takes. Pure.


def discovery_answer(
    kinds: Sequence[Kind], hashes: StorageHashes, path: str, accept: str, address: str
) -> HttpResponse | None:
    """None where there is no such document."""
    if path in {"/api", "/apis"} and _wants_aggregated(accept):
        whole = aggregated(kinds, core=path == "/api")
        return HttpResponse(200, {"content-type": AGGREGATED}, msgspec.json.encode(whole))
    document = _document(kinds, hashes, path.strip("/").split("/"), address)
    return None if document is None else HttpResponse(200, JSON_HEADERS, msgspec.json.encode(document) + b"\n")


def _document(kinds: Sequence[Kind], hashes: StorageHashes, parts: list[str], address: str) -> Document | None:
    match parts:
        case ["api"]:
            return core_versions(address)
        case ["apis"]:
            return group_list(kinds)
        case ["api", version]:
            return resource_list(kinds, "", version, hashes)
        case ["apis", name]:
            return group(kinds, name)
        case ["apis", name, version]:
            return resource_list(kinds, name, version, hashes)
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
