"""What is counted of requests: how many, how long, by verb, resource and code, under Kubernetes' own names.

Labels come from what is served and never from what a client wrote: anybody may ask for a million paths.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orlop.kube.http.http_messages import HttpRequest
from orlop.kube.kinds import kind_of_resource

if TYPE_CHECKING:
    from orlop.foundation.metrics import Metrics

LABELS: Final = ("verb", "resource", "code")
BUCKETS: Final = (0.001, 0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 5, 10, 30, 60)
WRITES: Final = {"POST": "POST", "PUT": "PUT", "PATCH": "PATCH"}
TRUE: Final = frozenset({"1", "t", "T", "true", "TRUE", "True"})
OTHER: Final = ""


class RequestMetrics:
    def __init__(self, metrics: Metrics) -> None:
        self._total = metrics.counter("apiserver_request_total", "Requests by verb, resource and code.", LABELS)
        self._seconds = metrics.histogram(
            "apiserver_request_duration_seconds", "How long answers took; streams are not among them.", LABELS, BUCKETS
        )

    def began(self, request: HttpRequest, code: int) -> None:
        """A stream: counted when it begins."""
        self._total.inc(*labels_of(request), str(code))

    def ended(self, request: HttpRequest, code: int, seconds: float) -> None:
        labels = (*labels_of(request), str(code))
        self._total.inc(*labels)
        self._seconds.observe(seconds, *labels)


def labels_of(request: HttpRequest) -> tuple[str, str]:
    """Verb and resource; what is no resource of ours has none."""
    parts = request.path.split("/")
    match parts:
        case ["", "api", _, *rest]:
            group = ""
        case ["", "apis", group, _, *rest]:
            pass
        case _:
            return _verb(request, named=True), OTHER
    if len(rest) > 2 and rest[0] == "namespaces" and kind_of_resource(group, rest[2]) is not None:  # noqa: PLR2004
        rest = rest[2:]
    kind = kind_of_resource(group, rest[0]) if rest else None
    if kind is None:
        return _verb(request, named=True), OTHER
    return _verb(request, named=len(rest) > 1), kind.plural


def _verb(request: HttpRequest, *, named: bool) -> str:
    if request.method in WRITES:
        return WRITES[request.method]
    if request.method == "DELETE":
        return "DELETE" if named else "DELETECOLLECTION"
    if request.method not in {"GET", "HEAD"}:
        return "OTHER"
    if any(name == "watch" and value in TRUE for name, value in request.query):
        return "WATCH"
    return "GET" if named else "LIST"
