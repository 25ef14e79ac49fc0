"""Disks that are full or broken: the object store stays at what is durable, says so, and goes on when it can."""

from __future__ import annotations

import asyncio
import os
import resource
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from onenode.apiserver.store.durable_store import durable_store
from onenode.apiserver.store.store_errors import StoreUnusable, WriteFailed
from onenode.apiserver.store.versions import Key
from support.api.object_stores import PODS, changed, encoded, made, pod, told, values
from support.api.tapped_connection import tapped
from support.host.file_systems import mounted
from support.places import TESTS


@dataclass
class Faults:
    """Which statements fail; `after` the database has carried them out, or instead of it."""

    on: tuple[str, ...] = ()
    after: bool = False

    def tap(self, statement: str, run: Callable[[], Any]) -> Any:
        fails = statement.startswith(self.on)
        if fails and not self.after:
            raise sqlite3.OperationalError("disk I/O error")
        result = run()
        if fails:
            result.close()  # an error that is kept would keep it open, and with it the database
            raise sqlite3.OperationalError("disk I/O error")
        return result


STATEMENTS = ["BEGIN", "INSERT", "UPDATE", "DELETE", "COMMIT"]


@pytest.mark.parametrize("after", [False, True], ids=["instead", "after"])
@pytest.mark.parametrize("statement", STATEMENTS)
async def test_a_failing_statement_fails_its_batch_and_leaves_what_was_durable(tmp_path: Path, statement, after):
    faults = Faults()
    async with durable_store(tmp_path, connect=tapped(faults.tap)) as store:
        await store.create(pod("kept"), made(1))
        with store.watch(PODS, after=store.revision) as watch:
            before = store.list(PODS)
            faults.on, faults.after = (statement,), after
            attempts = (store.create(pod("a"), made(1)), store.update(pod("kept"), None, changed(2)))
            outcomes = await asyncio.gather(*attempts, return_exceptions=True)

            assert [type(outcome) for outcome in outcomes] == [WriteFailed, WriteFailed]
            assert "disk I/O error" in str(outcomes[0])
            assert store.list(PODS) == before
            faults.on = ()
            created = await store.create(pod("b"), made(1))
            assert told(watch.take()) == [("CREATED", "b", created.revision)]
        assert created.revision > before.revision + 2
    async with durable_store(tmp_path) as store:
        assert values(store.list(PODS).items) == {"b": 1, "kept": 1}
        assert store.revision == created.revision


async def test_the_store_tells_that_it_cannot_be_written_until_a_write_succeeds(tmp_path: Path):
    faults = Faults()
    async with durable_store(tmp_path, connect=tapped(faults.tap)) as store:
        assert store.why_not_writable() is None
        faults.on = ("COMMIT",)
        with pytest.raises(WriteFailed):
            await store.create(pod("a"), made(1))
        assert store.why_not_writable() == "the last change could not be made durable: disk I/O error"
        faults.on = ()
        await store.create(pod("a"), made(1))
        assert store.why_not_writable() is None


async def test_the_store_finds_out_that_it_can_be_written_again_though_nobody_writes(tmp_path: Path):
    faults = Faults()
    async with durable_store(tmp_path, connect=tapped(faults.tap)) as store:
        faults.on = ("COMMIT",)
        with pytest.raises(WriteFailed):
            await store.create(pod("a"), made(1))
        before = store.revision
        for _ in range(3):
            assert store.why_not_writable() is not None
            await store._queue.idle()
        faults.on = ()
        assert store.why_not_writable() is not None, "it is still to be found out"
        await store._queue.idle()
        assert store.why_not_writable() is None
        assert (store.revision, store.list(PODS).items) == (before, [])
        assert (await store.create(pod("b"), made(1))).revision > before


async def test_a_closed_store_that_could_not_be_written_still_says_so(tmp_path: Path):
    faults = Faults()
    async with durable_store(tmp_path, connect=tapped(faults.tap)) as store:
        faults.on = ("COMMIT",)
        with pytest.raises(WriteFailed):
            await store.create(pod("a"), made(1))
    assert store.why_not_writable() is not None


async def test_a_transaction_that_cannot_be_rolled_back_at_once_is_rolled_back_later(tmp_path: Path):
    faults = Faults()
    async with durable_store(tmp_path, connect=tapped(faults.tap)) as store:
        faults.on = ("COMMIT", "ROLLBACK")
        for name in "ab":
            with pytest.raises(WriteFailed):
                await store.create(pod(name), made(1))
        faults.on = ()
        await store.create(pod("a"), made(2))
    async with durable_store(tmp_path) as store:
        assert values(store.list(PODS).items) == {"a": 2}


async def test_a_full_database_refuses_what_does_not_fit_and_takes_what_does(tmp_path: Path):
    connections: list[sqlite3.Connection] = []

    def open_small(address: str) -> sqlite3.Connection:
        connections.append(sqlite3.connect(address, uri=True, isolation_level=None, check_same_thread=False))
        return connections[-1]

    async with durable_store(tmp_path, connect=open_small) as store:
        await store.create(pod("a"), made("x"))
        pages = connections[-1].execute("PRAGMA page_count").fetchone()[0]
        connections[-1].execute(f"PRAGMA max_page_count = {pages + 2}")
        with pytest.raises(WriteFailed, match="the disk is full"):
            await store.create(pod("b"), made("x" * 100_000))
        await store.update(pod("a"), None, changed("y"))
        connections[-1].execute(f"PRAGMA max_page_count = {pages + 1000}")
        await store.create(pod("b"), made("x" * 100_000))
    async with durable_store(tmp_path) as store:
        assert {name: len(value) for name, value in values(store.list(PODS).items).items()} == {"a": 1, "b": 100_000}


# ---- the kernel says no ----------------------------------------------------------------------------------------------


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """For the whole process: larger files get EFBIG."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def write_on_a_full_disk(folder: Path) -> None:
    """Run in a process of its own; tells what was acknowledged."""
    async with durable_store(folder) as store:
        acknowledged = {}
        with files_of_at_most(300_000):
            for n in range(60):
                try:
                    await store.create(pod(f"p{n}"), lambda revision: encoded(revision, "x" * 10_000))
                except WriteFailed:
                    assert store.get(pod(f"p{n}")) is None
                else:
                    acknowledged[f"p{n}"] = True
        assert 5 < len(acknowledged) < 55, len(acknowledged)
        await store.create(pod("later"), made("x"))
        print(*acknowledged, "later")  # noqa: T201 - its answer


def run_on_a_full_disk(folder: Path) -> list[str]:
    path = os.pathsep.join([str(TESTS.parent / "src"), str(TESTS), str(Path(__file__).parent)])
    code = (
        "import asyncio, sys, pathlib, test_object_store_failing_disk as t;"
        "asyncio.run(t.write_on_a_full_disk(pathlib.Path(sys.argv[1])))"
    )
    command = [sys.executable, "-c", code, str(folder)]
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout.split()


async def test_a_disk_that_is_full_for_a_while_loses_nothing_that_was_acknowledged(tmp_path: Path):
    acknowledged = run_on_a_full_disk(tmp_path)

    async with durable_store(tmp_path) as store:
        assert sorted(values(store.list(PODS).items)) == sorted(acknowledged)


async def test_what_fills_the_disk_can_still_be_deleted(tmp_path: Path):
    with mounted("ext4", tmp_path) as disk:
        (disk / "store").mkdir()
        async with durable_store(disk / "store") as store:
            await store.create(pod("greedy"), made(1))
            fill(disk / "everything")
            for turn in range(20):
                await store.update(pod("greedy"), None, changed(turn))
            await store.delete(pod("greedy"), None, lambda _last, revision: encoded(revision, "gone"))
            with pytest.raises(WriteFailed, match="full"):
                for turn in range(1000):
                    await store.create(pod(f"more{turn}"), made("x" * 50_000))
            (disk / "everything").unlink()
            await store.create(pod("later"), made(1))
            assert (disk / "store" / ".reserve").stat().st_blocks > 0, "kept again when there is room"
        async with durable_store(disk / "store") as store:
            assert "later" in values(store.list(PODS).items)
            assert "greedy" not in values(store.list(PODS).items)


async def test_on_a_full_disk_deletions_make_the_room_for_new_objects_and_are_never_refused(tmp_path: Path):
    """More is deleted than the reserve could hold, beside creations that find no room."""
    with mounted("tmpfs", tmp_path, "size=160m") as disk:
        (disk / "store").mkdir()
        async with durable_store(disk / "store") as store:
            for n in range(60):
                await asyncio.gather(*(store.create(pod(f"p{n}-{m}"), made("x" * 20_000)) for m in range(10)))
            fill(disk / "everything")
            refused = [store.create(pod(f"full{n}"), made("x" * 100_000)) for n in range(100)]
            assert any(isinstance(each, WriteFailed) for each in await asyncio.gather(*refused, return_exceptions=True))
            for n in range(59):
                names = [pod(f"p{n}-{m}") for m in range(10)]
                marks = [store.update(name, None, changed("y" * 20_100)) for name in names]
                event = store.create(Key("events", "default", f"e{n}"), made("x" * 100_000))
                marked = await asyncio.gather(*marks, event, return_exceptions=True)
                assert [each for each in marked[:-1] if isinstance(each, Exception)] == []
                gone = [store.delete(name, None, lambda _last, revision: encoded(revision, "gone")) for name in names]
                await asyncio.gather(*gone)
            for n in range(100):
                await store.create(pod(f"new{n}"), made("x" * 20_000))
            here = values(store.list(PODS).items)
        async with durable_store(disk / "store") as store:
            assert values(store.list(PODS).items) == here
        assert {f"p59-{m}" for m in range(10)} | {f"new{n}" for n in range(100)} <= here.keys()
        assert not any(name.startswith("p") and not name.startswith("p59-") for name in here)


async def test_on_a_full_disk_events_are_refused_before_small_updates(tmp_path: Path):
    event = Key("events", "default", "e")
    with mounted("tmpfs", tmp_path, "size=160m") as disk:
        (disk / "store").mkdir()
        async with durable_store(disk / "store") as store:
            await store.create(event, made(1))
            await store.create(pod("a"), made(1))
            fill(disk / "everything")
            with pytest.raises(WriteFailed, match="the disk is full: delete objects, or make room on it"):
                for turn in range(5000):
                    await store.update(event, None, changed(turn))
            for turn in range(100):
                await store.update(pod("a"), None, changed(turn))


def fill(path: Path) -> None:
    file = os.open(path, os.O_CREAT | os.O_WRONLY)
    for size in (1 << 20, 1 << 12):
        with suppress(OSError):
            while os.write(file, bytes(size)):
                pass
    os.close(file)


async def test_a_disk_too_full_to_begin_is_told_in_a_sentence_and_leaves_no_database(tmp_path: Path):
    faults = Faults(on=("PRAGMA",))

    def connect_badly(address: str) -> Any:
        raise sqlite3.OperationalError("database or disk is full")

    with pytest.raises(StoreUnusable, match=r"cannot be opened: database or disk is full\. Mend that and start again"):
        async with durable_store(tmp_path, connect=connect_badly):
            pass
    assert not (tmp_path / "objects.db").exists()
    with pytest.raises(StoreUnusable, match="disk I/O error"):
        async with durable_store(tmp_path, connect=tapped(faults.tap)):
            pass
    async with durable_store(tmp_path) as store:
        await store.create(pod("a"), made(1))


class CannotCheckpoint:
    """A connection whose log cannot be brought into the database when it is closed; SQLite does not tell."""

    def __init__(self, connection: sqlite3.Connection, database: Path) -> None:
        self._connection = connection
        self._database = database

    def close(self) -> None:
        log = self._database.with_name(self._database.name + "-wal")
        before = {path: path.read_bytes() for path in (self._database, log) if path.exists()}
        self._connection.close()
        for path, content in before.items():
            path.write_bytes(content)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


async def test_a_disk_that_fills_while_the_database_is_made_leaves_no_half_of_one(tmp_path: Path):
    def connect_on_a_full_disk(address: str) -> Any:
        connection = sqlite3.connect(address, uri=True, isolation_level=None)
        return CannotCheckpoint(connection, Path(address.removeprefix("file://").partition("?")[0]))

    async with durable_store(tmp_path, connect=connect_on_a_full_disk) as store:
        await store.create(pod("a"), made(1))
    async with durable_store(tmp_path) as store:
        assert values(store.list(PODS).items) == {"a": 1}


@pytest.mark.parametrize("code", [sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE])
async def test_no_space_is_told_as_that_with_what_to_do(tmp_path: Path, code: int):
    async with durable_store(tmp_path):
        pass

    def connect_without_space(address: str) -> Any:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = code
        raise error

    with pytest.raises(StoreUnusable, match=r"no space is left on its disk\. Make room there and start again"):
        async with durable_store(tmp_path, connect=connect_without_space):
            pass
