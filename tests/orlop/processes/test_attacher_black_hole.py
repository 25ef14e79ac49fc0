"""`orlop attacher` whose connections to the API server turn into black holes, in a network namespace."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random
from urllib.parse import urlsplit

import pytest

from orlop.foundation.clock import SystemClock
from orlop.foundation.structured_log import silent_log
from orlop.kube.client import KubeClient
from orlop.kube.config.cluster_access import over_unix_socket
from orlop.kube.http.http_transport import HttpTransport
from support.api.api_variants import embedded_process, found
from support.attaching.attacher_places import Place
from support.network.namespaces import network_namespace, why_no_namespaces
from support.processes.orlop_process import ORLOP, running
from support.waiting import eventually_answered

RECOVERED_WITHIN_SECONDS = 45

pytestmark = [
    pytest.mark.skipif(bool(why_no_namespaces()), reason=why_no_namespaces()),
    pytest.mark.skipif(not os.environ.get("ORLOP_SOAK"), reason="it waits for the default limits: part of `make soak`"),
]


async def test_the_next_volume_is_attached_within_45_seconds_after_every_connection_fell_silent(short_folder: Path):
    clock = SystemClock()
    with network_namespace() as namespace, embedded_process(short_folder, program=namespace.program(ORLOP)) as state:
        port = urlsplit(found(state / "kubeconfig").server).port
        assert port is not None
        transport = HttpTransport(over_unix_socket(str(state / "api.sock")))  # which no network namespace keeps out
        client = KubeClient(transport, clock=clock, random=Random(1), log=silent_log())
        the = Place(short_folder, state / "kubeconfig", client)
        attacher = ("attacher", *the.flags())
        with the.driver(), running(short_folder, *attacher, program=namespace.program(ORLOP)) as process:
            await the.make(1)
            await eventually_answered(lambda: the.is_attached(1))
            connections = namespace.connections_to(port)
            assert connections
            namespace.drop(port, connections)
            began = clock.elapsed()
            await the.make(2)
            await eventually_answered(lambda: the.is_attached(2), within=120)
            seconds = clock.elapsed() - began
            assert seconds < RECOVERED_WITHIN_SECONDS, process.logged()
            assert not set(connections) & set(namespace.connections_to(port))
        await client.close()
