"""End a server of somebody else's (grpcio) with everything that it started."""

from __future__ import annotations

import asyncio
from typing import Final

import grpc.aio

CALL_TASK: Final = "HandleExceptions["
"""How grpcio names the task of each call that its server answers."""


async def stop_grpcio_server(server: grpc.aio.Server) -> None:
    """Stop the server and wait until the tasks of its calls have ended.

    `stop` returns once the C core has ended every call. The Python task of a call still waits for the core's notice
    that its last message was sent, and the two notices arrive in either order.
    """
    await server.stop(0)
    if calls := [task for task in asyncio.all_tasks() if task.get_name().startswith(CALL_TASK)]:
        await asyncio.wait(calls)
