"""Paths that are about the server and not about its objects: health, version, metrics, OpenAPI.

Everybody may read health and version; for the rest the API server's rules decide. The texts of health are those of
Kubernetes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from email.utils import format_datetime
from typing import Any, Final

from onenode.apiserver.access.rbac_rules import User
from onenode.apiserver.answers.openapi import EncodedDocument, OpenApi
from onenode.apiserver.answers.status_answers import JSON_HEADERS, PAGE_NOT_FOUND, method_not_allowed
from onenode.apiserver.edge.edge_answers import json_answer, text_answer
from orlop.kube.http.http_messages import HttpRequest, HttpResponse

OPEN: Final = ("/livez", "/readyz", "/healthz", "/version")
READ_METHODS: Final = ("GET", "HEAD")
OPENAPI: Final = "/openapi/v3"
OLD_OPENAPI: Final = "/openapi/v2"
OLD_OPENAPI_PROTOBUF: Final = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
EMPTY_OLD_OPENAPI: Final = {"swagger": "2.0", "info": {"title": "Kubernetes", "version": ""}, "paths": {}}
METRICS: Final = "/metrics"
YEAR: Final = timedelta(days=365)

PathHandler = Callable[[HttpRequest, User], Awaitable[HttpResponse]]
Check = Callable[[], str | None]
"""None when all is well, else the reason."""


@dataclass(frozen=True, slots=True)
class EndpointChecks:
    """The health checks. Those in `of_readiness` count for `/readyz` alone: a restart of the process would not help."""

    always: Mapping[str, Check]
    of_readiness: Mapping[str, Check]

    def of(self, endpoint: str) -> Mapping[str, Check]:
        return {**self.always, **self.of_readiness} if endpoint == "readyz" else self.always


def _reading(answer: Callable[[HttpRequest], HttpResponse]) -> PathHandler:
    async def handle(request: HttpRequest, _user: User) -> HttpResponse:
        if request.method not in READ_METHODS:
            raise method_not_allowed()
        return answer(request)

    return handle


def version_document(version: str, platform: str) -> Mapping[str, str]:
    """Clients in Go expect every member; the members that this server lacks are empty."""
    major, minor = version.removeprefix("v").split(".")[:2]
    release = {"major": major, "minor": minor, "gitVersion": version, "gitCommit": "", "gitTreeState": ""}
    return {**release, "buildDate": "1970-01-01T00:00:00Z", "goVersion": "", "compiler": "", "platform": platform}


def _nothing_in_old_openapi(request: HttpRequest) -> HttpResponse:
    """Return an empty OpenAPI v2 document: kubectl reads it for kinds that v3 lacks, and reports a 404 as an error."""
    if "protobuf" in request.headers.get("accept", ""):
        return HttpResponse(200, {"content-type": OLD_OPENAPI_PROTOBUF})
    return json_answer(EMPTY_OLD_OPENAPI)


class ServerPaths:
    def __init__(
        self,
        openapi: OpenApi,
        version: Mapping[str, Any],
        checks: EndpointChecks,
        render_metrics: Callable[[str], tuple[bytes, str]],
        now: Callable[[], datetime],
    ) -> None:
        self._openapi = openapi
        self._version = version
        self._checks = checks
        self._render_metrics = render_metrics
        self._now = now

    def open_answer(self, request: HttpRequest) -> HttpResponse | None:
        """To anybody; None where the path is no open one."""
        if request.method not in READ_METHODS:
            return None
        first, *rest = request.path.removeprefix("/").rstrip("/").split("/")
        if f"/{first}" not in OPEN:
            return None
        if first == "version":
            return None if rest else self._version_answer(request)
        return self._health(first, rest, request)

    def _version_answer(self, request: HttpRequest) -> HttpResponse:
        return json_answer(self._version) if request.method == "GET" else method_not_allowed().answer()

    def handlers(self) -> Mapping[str, PathHandler]:
        """By path, for whom a rule allows the path; a path with a slash at its end stands for all below it."""
        open_paths = dict.fromkeys((*OPEN, *(f"{path}/" for path in OPEN)), self._open)
        return {
            **open_paths,
            METRICS: _reading(self._metrics),
            OPENAPI: _reading(self._index),
            OLD_OPENAPI: _reading(_nothing_in_old_openapi),
            f"{OPENAPI}/": _reading(self._document),
        }

    async def _open(self, request: HttpRequest, _user: User) -> HttpResponse:
        return self.open_answer(request) or PAGE_NOT_FOUND

    def _metrics(self, request: HttpRequest) -> HttpResponse:
        body, media_type = self._render_metrics(request.headers.get("accept", ""))
        return HttpResponse(200, {"content-type": media_type}, body)

    # ---- health ------------------------------------------------------------------------------------------------------

    def _health(self, endpoint: str, rest: list[str], request: HttpRequest) -> HttpResponse:
        checks = self._checks.of(endpoint)
        asked = rest or list(checks)
        if not checks.keys() >= set(asked):
            return PAGE_NOT_FOUND
        reasons = {name: checks[name]() for name in asked}
        failed = any(reason is not None for reason in reasons.values())
        if not failed and not any(name == "verbose" for name, _ in request.query):
            return text_answer("ok")
        lines = [f"[+]{name} ok" if why is None else f"[-]{name} failed: {why}" for name, why in reasons.items()]
        verdict = f"{endpoint} check {'failed' if failed else 'passed'}"
        return text_answer("\n".join([*lines, verdict, ""]), status=500 if failed else 200)

    # ---- OpenAPI -----------------------------------------------------------------------------------------------------

    def _index(self, _request: HttpRequest) -> HttpResponse:
        return json_answer(self._openapi.index())

    def _document(self, request: HttpRequest) -> HttpResponse:
        name = request.path.removeprefix(f"{OPENAPI}/")
        written = self._openapi.document(name)
        if written is None:
            return PAGE_NOT_FOUND
        asked = next((value for key, value in request.query if key == "hash"), "")
        if asked and asked != written.hash:
            return HttpResponse(301, {"location": f"{OPENAPI}/{name}?hash={written.hash}"})
        return self._written(written, request, immutable=bool(asked))

    def _written(self, written: EncodedDocument, request: HttpRequest, *, immutable: bool) -> HttpResponse:
        tag = f'"{written.hash}"'
        headers = {**JSON_HEADERS, "etag": tag, "vary": "Accept"}
        if immutable:
            expires = format_datetime(self._now() + YEAR, usegmt=True)
            headers |= {"cache-control": "public, immutable", "expires": expires}
        else:
            headers["cache-control"] = "no-cache, private"
        if request.headers.get("if-none-match") == tag:
            return HttpResponse(304, headers)
        return HttpResponse(200, headers, written.body)
