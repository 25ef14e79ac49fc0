"""Drivers that say in every error which secrets they were given: ours hide them, and anybody else's may not."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from orlop.csi import redacted_messages
from orlop.csi.error_codes import CsiError, error_of
from orlop.csi.proto import rpc as rpc_table
from orlop.csi.transport import CallHandler, Shape


class IndiscreetDriver:
    """Stands between a driver that hides them and the wire."""

    def __init__(self, inner: CallHandler) -> None:
        self._inner = inner

    def shape_of(self, path: str) -> Shape | None:
        return self._inner.shape_of(path)

    async def answer(self, path: str, message: bytes) -> bytes:
        try:
            return await self._inner.answer(path, message)
        except CsiError as error:
            secrets = redacted_messages.secret_values(rpc_table.BY_PATH[path].request.FromString(message))
            quoted = f"{error.message}, with {' and '.join(sorted(secrets))}" if secrets else error.message
            raise error_of(error.code, quoted) from None

    def answers(self, path: str, message: bytes) -> AsyncGenerator[bytes, None]:
        return self._inner.answers(path, message)
