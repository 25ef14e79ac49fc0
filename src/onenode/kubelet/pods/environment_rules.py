"""The environment of a container, and what `$(NAME)` means in its command: as kubelet has it. Pure.

Values from ConfigMaps and Secrets are handed in; those that are missing and not optional are an error in kubelet's
words. Later definitions win over earlier ones, `env` over `envFrom`.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from onenode.kubelet.node.downward_rules import NoValue, field_value, resource_value
from orlop.foundation.http_edge import ListenAddress
from orlop.kube.objects import name, namespace

_REFERENCE: Final = re.compile(r"\$(?:\$|\(([^()]*)\))")


class BadEnvironment(ValueError):
    """In kubelet's words, for the container's waiting message."""


@dataclass(frozen=True, slots=True)
class EnvironmentSources:
    """What its environment refers to in the pod's namespace, by name; what does not exist is absent."""

    config_maps: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    secrets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    services: Mapping[str, str] = field(default_factory=dict)
    """The variables with the address of the API, for every container; the pod may set others."""
    allocatable: Mapping[str, str] = field(default_factory=dict)
    """What the node has, for who has no limit of his own."""


def api_services(api: ListenAddress) -> dict[str, str]:
    """Return the variables of the Service `kubernetes`, which client libraries in a pod read."""
    at = f"KUBERNETES_PORT_{api.port}_TCP"
    return {
        "KUBERNETES_SERVICE_HOST": api.host,
        "KUBERNETES_SERVICE_PORT": str(api.port),
        "KUBERNETES_SERVICE_PORT_HTTPS": str(api.port),
        "KUBERNETES_PORT": f"tcp://{api}",
        at: f"tcp://{api}",
        f"{at}_PROTO": "tcp",
        f"{at}_PORT": str(api.port),
        f"{at}_ADDR": api.host,
    }


def names_needed(container: Mapping[str, Any]) -> tuple[frozenset[str], frozenset[str]]:
    """The ConfigMaps and the Secrets that an environment refers to."""
    parts = [(one.get("valueFrom") or {}, "KeyRef") for one in container.get("env") or ()]
    parts += [(one, "Ref") for one in container.get("envFrom") or ()]
    maps = {part[f"configMap{end}"]["name"] for part, end in parts if part.get(f"configMap{end}")}
    secrets = {part[f"secret{end}"]["name"] for part, end in parts if part.get(f"secret{end}")}
    return frozenset(maps), frozenset(secrets)


def environment_of(pod: Mapping[str, Any], container: Mapping[str, Any], sources: EnvironmentSources) -> dict[str, str]:
    found: dict[str, str] = {"HOSTNAME": name(pod), "HOME": "/root", **sources.services}
    for source in container.get("envFrom") or ():
        found |= _from_whole(source, sources)
    for one in container.get("env") or ():
        value = _value(pod, container, one, sources, found)
        if value is not None:
            found[one["name"]] = value
    return found


def expanded(text: str, values: Mapping[str, str]) -> str:
    """`$(NAME)` is its value, `$$` one `$`; what is unknown stays as it is written."""

    def value_of(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return values.get(match[1], match[0])

    return _REFERENCE.sub(value_of, text)


def missing_names(text: str, values: Mapping[str, str]) -> tuple[str, ...]:
    """What a text refers to and nobody has set."""
    found = (match[1] for match in _REFERENCE.finditer(text))
    return tuple(name for name in found if name is not None and name not in values)


def _value(
    pod: Mapping[str, Any],
    container: Mapping[str, Any],
    one: Mapping[str, Any],
    sources: EnvironmentSources,
    known: Mapping[str, str],
) -> str | None:
    origin = one.get("valueFrom")
    if not origin:
        return expanded(one.get("value") or "", known)
    try:
        if reference := origin.get("fieldRef"):
            return _field(pod, reference["fieldPath"])
        if reference := origin.get("resourceFieldRef"):
            return _resource(pod, container, reference, sources)
    except NoValue as error:
        raise BadEnvironment(str(error)) from None
    if reference := origin.get("configMapKeyRef"):
        return _key(pod, "configmap", reference, sources.config_maps)
    if reference := origin.get("secretKeyRef"):
        return _key(pod, "secret", reference, sources.secrets)
    raise BadEnvironment(
        f"the variable {one['name']} of container {container['name']} comes from {', '.join(origin)}, which is not "
        "supported here: give it as a value"
    )


def _field(pod: Mapping[str, Any], path: str) -> str:
    """Some are variables' alone; the others can be in files too."""
    spec, status = pod["spec"], pod.get("status") or {}
    known = {
        "spec.nodeName": spec.get("nodeName") or "",
        "spec.serviceAccountName": spec.get("serviceAccountName") or "",
        "status.podIP": status.get("podIP") or status.get("hostIP") or "",
        "status.podIPs": status.get("podIP") or status.get("hostIP") or "",
        "status.hostIP": status.get("hostIP") or "",
        "status.hostIPs": status.get("hostIP") or "",
    }
    return known[path] if path in known else field_value(pod, path)


def _resource(
    pod: Mapping[str, Any], container: Mapping[str, Any], reference: Mapping[str, Any], sources: EnvironmentSources
) -> str:
    """Of the container itself, where none is named."""
    whose = reference.get("containerName") or container["name"]
    return resource_value(pod, {**reference, "containerName": whose}, sources.allocatable)


def _key(
    pod: Mapping[str, Any], kind: str, reference: Mapping[str, Any], known: Mapping[str, Mapping[str, Any]]
) -> str | None:
    found, optional = known.get(reference["name"]), bool(reference.get("optional"))
    if found is None:
        if optional:
            return None
        raise BadEnvironment(f'{kind} "{reference["name"]}" not found')
    values = _data(kind, found)
    if reference["key"] in values:
        return values[reference["key"]]
    if optional:
        return None
    title = {"configmap": "ConfigMap", "secret": "Secret"}[kind]
    raise BadEnvironment(f"couldn't find key {reference['key']} in {title} {namespace(pod)}/{reference['name']}")


def _from_whole(source: Mapping[str, Any], sources: EnvironmentSources) -> dict[str, str]:
    kind = "configmap" if source.get("configMapRef") else "secret"
    reference = source.get("configMapRef") or source.get("secretRef") or {}
    found = (sources.config_maps if kind == "configmap" else sources.secrets).get(reference.get("name", ""))
    if found is None:
        if reference.get("optional"):
            return {}
        raise BadEnvironment(f'{kind} "{reference.get("name", "")}" not found')
    prefix = source.get("prefix") or ""
    return {f"{prefix}{key}": value for key, value in _data(kind, found).items() if "=" not in key}


def _data(kind: str, found: Mapping[str, Any]) -> dict[str, str]:
    data = found.get("data") or {}
    if kind == "configmap":
        return dict(data)
    return {key: base64.b64decode(value).decode("utf-8", "surrogateescape") for key, value in data.items()}
