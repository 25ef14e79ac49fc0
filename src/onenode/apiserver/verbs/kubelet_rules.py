"""What a kubelet is asked, and why it is not, for a request about a pod or a node; in Kubernetes' words. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlencode

from onenode.apiserver.answers.status_answers import (
    Refusal,
    bad_request,
    internal_error,
    no_such_resource,
    unavailable,
)
from onenode.apiserver.answers.status_answers import invalid as invalid_object
from onenode.apiserver.requests.request_options import Query, first_options, flag_option, integer_option
from onenode.apiserver.schema.field_errors import Cause, forbidden, invalid, not_supported
from orlop.kube.kinds import Kind

LOG_OPTIONS: Final = Kind("", "v1", "PodLogOptions", "podlogoptions", namespaced=True)
PASSED_ON_TO_LOGS: Final = (
    *("follow", "previous", "sinceSeconds", "sinceTime", "timestamps", "tailLines", "limitBytes", "stream"),
)
KUBELETS_NAMES: Final = {"stdin": "input", "stdout": "output", "stderr": "error", "tty": "tty"}
UPGRADE_HEADERS: Final = (
    *("upgrade", "connection", "sec-websocket-key", "sec-websocket-version", "sec-websocket-protocol"),
)
NOT_FOUND, BAD_REQUEST, INTERNAL = 404, 400, 500


@dataclass(frozen=True, slots=True)
class KubeletTarget:
    """What is asked of the kubelet of a node."""

    node: str
    target: str


# ---- logs ------------------------------------------------------------------------------------------------------------


def log_target(pod: Mapping[str, Any], query: Query) -> KubeletTarget | None:
    """None where the pod is on no node yet: its log is empty."""
    options = first_options(query)
    name = pod["metadata"]["name"]
    if causes := _log_causes(options):
        raise invalid_object(LOG_OPTIONS, name, causes)
    container = chosen_container(pod, options.get("container", ""))
    if not pod["spec"].get("nodeName"):
        return None
    passed_on = {key: options[key] for key in PASSED_ON_TO_LOGS if options.get(key)}
    return _target(pod, "containerLogs", container, list(passed_on.items()))


def _log_causes(options: Mapping[str, str]) -> list[Cause]:
    tail = integer_option(options, "tailLines")
    seconds, bytes_ = integer_option(options, "sinceSeconds"), integer_option(options, "limitBytes")
    causes = []
    if tail is not None and tail < 0:
        causes.append(invalid("tailLines", tail, "must be greater than or equal to 0"))
    if bytes_ is not None and bytes_ < 1:
        causes.append(invalid("limitBytes", bytes_, "must be greater than 0"))
    if seconds is not None and options.get("sinceTime"):
        causes.append(forbidden("", "at most one of `sinceTime` or `sinceSeconds` may be specified"))
    elif seconds is not None and seconds < 1:
        causes.append(invalid("sinceSeconds", seconds, "must be greater than 0"))
    stream = options.get("stream") or "All"
    if stream not in {"All", "Stdout", "Stderr"}:
        causes.append(not_supported("stream", stream, ("All", "Stderr", "Stdout")))
    elif stream != "All" and tail is not None:
        causes.append(forbidden("", "`tailLines` and specific `stream` are mutually exclusive for now"))
    return causes


# ---- commands --------------------------------------------------------------------------------------------------------


def exec_target(pod: Mapping[str, Any], query: Query) -> KubeletTarget:
    options = first_options(query)
    container = chosen_container(pod, options.get("container", ""))
    if not pod["spec"].get("nodeName"):
        raise bad_request(f"pod {pod['metadata']['name']} does not have a host assigned")
    pairs = [("command", value) for key, value in query if key == "command"]
    pairs += [(theirs, "1") for ours, theirs in KUBELETS_NAMES.items() if flag_option(options, ours)]
    return _target(pod, "exec", container, pairs)


def upgrade_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Those that a kubelet needs; nothing else of the client's goes there."""
    return {name: headers[name] for name in UPGRADE_HEADERS if name in headers}


def chosen_container(pod: Mapping[str, Any], asked: str) -> str:
    spec, name = pod["spec"], pod["metadata"]["name"]
    names = [one["name"] for one in spec["containers"]]
    init = [one["name"] for one in spec.get("initContainers") or ()]
    if not asked:
        if len(names) == 1:
            return str(names[0])
        others = f" or one of the init containers: [{' '.join(init)}]" if init else ""
        raise bad_request(
            f"a container name must be specified for pod {name}, choose one of: [{' '.join(names)}]{others}"
        )
    if asked not in (*names, *init):
        raise bad_request(f"container {asked} is not valid for pod {name}")
    return asked


def _target(pod: Mapping[str, Any], what: str, container: str, pairs: Sequence[tuple[str, str]]) -> KubeletTarget:
    metadata = pod["metadata"]
    names = (metadata["namespace"], metadata["name"], container)
    path = "/".join(["", what, *(quote(name, safe="") for name in names)])
    return KubeletTarget(pod["spec"]["nodeName"], f"{path}?{urlencode(pairs)}" if pairs else path)


# ---- nodes -----------------------------------------------------------------------------------------------------------


def node_name(asked: str) -> str:
    """Of `NAME`, `NAME:PORT` and `SCHEME:NAME:PORT`: there is one way to a kubelet here."""
    match asked.split(":"):
        case [name] | [name, _] | ["http" | "https" | "", name, _]:
            return name
        case _:
            raise bad_request(f'invalid node request "{asked}"')


def proxy_target(node: str, rest: Sequence[str], query: Query) -> KubeletTarget:
    if any(part in {".", ".."} for part in rest):
        raise no_such_resource()
    path = "/" + "/".join(quote(part, safe="") for part in rest)
    return KubeletTarget(node, f"{path}?{urlencode(list(query))}" if query else path)


# ---- what kubelets say -----------------------------------------------------------------------------------------------


def refusal_of(status: int, text: str, resource: str, name: str, verb: str = "get") -> Refusal:
    """Return the error for the client when a kubelet's answer is an error."""
    said = text.strip()
    if status == INTERNAL:
        return internal_error(said)
    if status == BAD_REQUEST:
        return bad_request(said)
    if status == NOT_FOUND:
        what = f"the server could not find the requested resource ({verb} {resource} {name})"
        return Refusal(status, "NotFound", what, _unexpected(said, name, resource))
    return Refusal(status, "", said or "unknown", _unexpected(said, name, resource))


def _unexpected(said: str, name: str, resource: str) -> dict[str, Any]:
    cause = {"reason": "UnexpectedServerResponse", "message": said or "unknown"}
    return {"name": name, "kind": resource, "causes": [cause]}


def not_reached(node: str, why: str) -> Refusal:
    return unavailable(f'error trying to reach service: the kubelet of node "{node}" {why}')
