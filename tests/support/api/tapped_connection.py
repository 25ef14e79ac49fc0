"""A connection to SQLite whose every statement passes through the test's hands."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

from onenode.apiserver.store.database import ConnectDatabase, connect

Tap = Callable[[str, Callable[[], Any]], Any]
"""Gets the statement and what carries it out."""


def tapped(tap: Tap) -> ConnectDatabase:
    def connect_tapped(address: str) -> Any:
        return TappedConnection(connect(address), tap)

    return connect_tapped


class TappedConnection:
    def __init__(self, connection: sqlite3.Connection, tap: Tap) -> None:
        self._connection = connection
        self._tap = tap

    def execute(self, statement: str, *parameters: Any) -> Any:
        return self._tap(statement, lambda: self._connection.execute(statement, *parameters))

    def executemany(self, statement: str, *parameters: Any) -> Any:
        return self._tap(statement, lambda: self._connection.executemany(statement, *parameters))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)
