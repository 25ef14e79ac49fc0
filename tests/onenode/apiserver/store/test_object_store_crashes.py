"""What was acknowledged survives a kill and a power loss; what was torn does no harm."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import IO, Any

import pytest

from onenode.apiserver.store.durable_store import durable_store
from onenode.apiserver.store.store import ObjectStore
from support.api.object_stores import (
    PODS,
    changed,
    history_of,
    made,
    pod,
    raw_state,
    tombstone,
    value_of,
    written_revision,
)
from support.api.tapped_connection import tapped
from support.places import TESTS

SOAK = bool(os.environ.get("ORLOP_SOAK"))
WRITERS, ROUNDS = (1_000, 10) if SOAK else (100, 2)


# ---- kill -9 ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Acknowledged:
    value: int
    revision: int


def write_until_killed(folder: Path, acknowledgements: int) -> dict[str, Acknowledged]:
    """The last acknowledged write of each writer; the process is killed when it has acknowledged so many."""
    command = [sys.executable, "-m", "support.api.object_store_writer", str(folder), str(WRITERS)]
    source = TESTS.parent / "src"
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{TESTS}"}
    )
    assert process.stdout is not None
    with process.stdout as output:
        lines = [output.readline() for _ in range(acknowledgements)]
        process.kill()
        process.wait()
        lines += whole_lines(output)  # told before the kill, read after it
    return {name: Acknowledged(int(value), int(revision)) for name, value, revision in map(str.split, lines)}


def whole_lines(output: IO[str]) -> list[str]:
    return [line for line in output.read().splitlines(keepends=True) if line.endswith("\n")]


def assert_nothing_is_lost(store: ObjectStore, acknowledged: dict[str, Acknowledged]) -> None:
    for name, last in acknowledged.items():
        stored = store.get(pod(name))
        assert stored is not None, f"{name} was acknowledged with {last} and is gone"
        # One write more may have been under way.
        assert last.value <= value_of(stored) <= last.value + 1
        assert stored.revision >= last.revision
        assert written_revision(stored) == stored.revision


def assert_the_history_leads_to_the_present(store: ObjectStore) -> None:
    page = store.list(PODS, at=store.oldest)
    state = {each.key: each for each in page.items}
    with store.watch(PODS, after=store.oldest) as watch:
        changes = watch.take()
    for change in changes:
        assert state.get(change.key) == change.before
        state.pop(change.key, None)
        if (result := change.result()) is not None:
            state[change.key] = result
    assert sorted(state) == [each.key for each in store.list(PODS).items]
    assert set(state.values()) == set(store.list(PODS).items)
    assert [change.revision for change in changes] == sorted({change.revision for change in changes})


@pytest.mark.timeout(300)
async def test_a_kill_in_the_middle_of_concurrent_writes_loses_no_acknowledged_one(tmp_path: Path):
    random = Random(1)
    for _ in range(ROUNDS):
        acknowledged = write_until_killed(tmp_path, random.randrange(WRITERS // 2, WRITERS * 5))
        async with durable_store(tmp_path) as store:
            assert_nothing_is_lost(store, acknowledged)
            assert_the_history_leads_to_the_present(store)


# ---- killed around every statement -----------------------------------------------------------------------------------


@dataclass
class Deaths:
    """What a process leaves that dies before or after each statement, and what it had acknowledged by then."""

    folder: Path
    store: ObjectStore | None = None
    left: list[tuple[str, int, dict[str, bytes]]] = field(default_factory=list)

    def tap(self, statement: str, run: Callable[[], Any]) -> Any:
        self._die(f"before {statement}")
        result = run()
        self._die(f"after {statement}")
        return result

    def _die(self, moment: str) -> None:
        if self.store is not None:
            self.left.append((moment, self.store.revision, raw_state(self.folder)))


async def test_a_death_before_or_after_any_statement_loses_nothing_and_halves_nothing(tmp_path: Path):
    lived, died = tmp_path / "lived", tmp_path / "died"
    lived.mkdir()
    deaths = Deaths(lived)
    whole = {1}
    async with durable_store(lived, history_of(4), connect=tapped(deaths.tap)) as store:
        deaths.store = store
        for batch in range(4):
            names = [f"p{n}" for n in range(batch, batch + 3)]
            await asyncio.gather(*(store.write(pod(name), changed("x" * 5_000)) for name in names))
            whole.add(store.revision)
        await store.delete(pod("p1"), None, tombstone)
        whole.add(store.revision)

    assert len(deaths.left) > 40
    for moment, acknowledged, files in deaths.left:
        died.mkdir()
        for name, content in files.items():
            (died / name).write_bytes(content)
        async with durable_store(died) as store:
            assert store.revision >= acknowledged, moment
            assert store.revision in whole, moment
            assert_the_history_leads_to_the_present(store)
        shutil.rmtree(died)


# ---- power loss ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Moment:
    """How long the log was when everything up to a revision had been acknowledged."""

    revision: int
    log_bytes: int


@dataclass(frozen=True)
class Recording:
    """The files of a store that ran until the power went, before any of its log had reached the database."""

    database: bytes
    log: bytes
    moments: list[Moment]

    def lay_out(self, folder: Path, log: bytes) -> None:
        (folder / "objects.db").write_bytes(self.database)
        (folder / "objects.db-wal").write_bytes(log)

    def acknowledged_at(self, log_bytes: int) -> int:
        return max((m.revision for m in self.moments if m.log_bytes <= log_bytes), default=1)


async def random_writes(store: ObjectStore, random: Random, count: int) -> None:
    async def write(name: str, size: int) -> None:
        key = pod(name)
        if store.get(key) is None:
            await store.write(key, changed("x" * size))
        elif size % 5 == 0:
            await store.delete(key, None, tombstone)
        else:
            await store.update(key, None, changed("y" * size))

    names = random.sample(range(20), count)
    await asyncio.gather(*(write(f"p{n}", random.randrange(3_000)) for n in names))


async def record(folder: Path, seed: int) -> Recording:
    random = Random(seed)
    moments = []
    async with durable_store(folder, history_of(30)) as store:
        for _ in range(25):
            await random_writes(store, random, random.randrange(1, 8))
            moments.append(Moment(store.revision, (folder / "objects.db-wal").stat().st_size))
        files = raw_state(folder)
    return Recording(files["objects.db"], files["objects.db-wal"], moments)


@pytest.mark.parametrize("seed", range(20 if SOAK else 2))
async def test_a_log_that_was_cut_anywhere_holds_all_that_was_acknowledged_until_then(tmp_path: Path, seed: int):
    (tmp_path / "original").mkdir()
    recording = await record(tmp_path / "original", seed)
    random = Random(seed)
    cuts = [random.randrange(len(recording.log)) for _ in range(20)]
    for cut in (0, *cuts, *(m.log_bytes for m in recording.moments[::5]), len(recording.log)):
        tails = [b"", random.randbytes(random.randrange(1, 9000)), b"\0" * (len(recording.log) - cut)]
        folder = tmp_path / f"cut-{cut}"
        folder.mkdir(exist_ok=True)
        recording.lay_out(folder, recording.log[:cut] + random.choice(tails))
        async with durable_store(folder) as store:
            assert recording.acknowledged_at(cut) <= store.revision <= recording.moments[-1].revision
            assert_the_history_leads_to_the_present(store)
            await store.create(pod("after"), made(1))
        async with durable_store(folder) as store:
            assert store.get(pod("after"))


async def test_a_database_of_which_only_some_pages_were_brought_up_to_date_is_mended_by_its_log(tmp_path: Path):
    original = tmp_path / "original"
    original.mkdir()
    recording = await record(original, 7)
    new = (original / "objects.db").read_bytes()  # closing brings it up to date
    old = recording.database.ljust(len(new), b"\0")
    random = Random(7)
    async with durable_store(original) as store:
        expected, pages = store.list(PODS), range(0, len(new), 4096)
    for number in range(30 if SOAK else 5):
        folder = tmp_path / str(number)
        folder.mkdir()
        recording.lay_out(folder, recording.log)
        mixed = b"".join(random.choice((old, new))[at : at + 4096] for at in pages)
        (folder / "objects.db").write_bytes(mixed)
        async with durable_store(folder) as store:
            assert store.list(PODS) == expected
            assert_the_history_leads_to_the_present(store)
