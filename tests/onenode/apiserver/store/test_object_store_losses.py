"""Acknowledged writes that were lost with SQLite's log are noticed; what a power loss may take is not."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import SOAK
from onenode.apiserver.store import history_log_rules
from onenode.apiserver.store.durable_store import durable_store
from onenode.apiserver.store.store_errors import StoreUnusable, WriteFailed
from support.api.object_stores import PODS, changed, made, pod, raw_state, values
from support.api.tapped_connection import tapped

FRAME_BYTES = 24 + 4096
LOG_HEADER_BYTES = 32

Files = dict[str, bytes]


async def killed(folder: Path, writes: int = 60) -> tuple[Files, list[int]]:
    """What a process leaves that was killed after so many writes, and how long the log was after each."""
    lengths = []
    async with durable_store(folder) as store:
        for n in range(writes):
            await store.write(pod(f"p{n % 20}"), changed("x" * 3000))
            lengths.append((folder / "objects.db-wal").stat().st_size)
        return raw_state(folder), lengths


def lay_out(folder: Path, files: Files) -> Path:
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def flip(log: Path, at: int) -> None:
    content = bytearray(log.read_bytes())
    content[at] ^= 0xFF
    log.write_bytes(content)


LOSSES: list[tuple[str, Callable[[Path], None], str]] = [
    ("missing", Path.unlink, r"its log .*objects.db-wal is missing"),
    ("empty", lambda log: os.truncate(log, 0), r"its log .* is empty"),
    ("cut in its header", lambda log: os.truncate(log, 20), r"its log .* is damaged"),
    ("a bit in its header", lambda log: flip(log, 4), r"its log .* is damaged"),
    ("all zeroes", lambda log: log.write_bytes(bytes(log.stat().st_size)) and None, r"its log .* is damaged"),
    ("a bit of a page", lambda log: flip(log, log.stat().st_size // 2), "acknowledged cannot be read"),
    ("a bit of a checksum", lambda log: flip(log, LOG_HEADER_BYTES + 10 * FRAME_BYTES + 17), "cannot be read"),
    ("a bit of a salt", lambda log: flip(log, LOG_HEADER_BYTES + 10 * FRAME_BYTES + 9), "cannot be read"),
    ("all but the header", lambda log: os.truncate(log, LOG_HEADER_BYTES), "it ends at revision 1, but 2 had been"),
]


@pytest.mark.parametrize(("lose", "sentence"), [loss[1:] for loss in LOSSES], ids=[loss[0] for loss in LOSSES])
async def test_a_log_that_was_lost_or_damaged_after_a_kill_is_refused_and_left_as_it_is(
    tmp_path: Path, lose: Callable[[Path], None], sentence: str
):
    files, _ = await killed(tmp_path)
    folder = lay_out(tmp_path / "killed", files)
    lose(folder / "objects.db-wal")
    before = {name: content for name, content in raw_state(folder).items() if content}
    for _ in range(2):
        with pytest.raises(StoreUnusable, match=sentence):
            async with durable_store(folder):
                pass

    assert {name: content for name, content in raw_state(folder).items() if content} == before


async def test_a_long_log_that_lost_its_second_half_is_refused(tmp_path: Path):
    files, lengths = await killed(tmp_path, 200)
    files["objects.db-wal"] = files["objects.db-wal"][: lengths[50]]
    folder = lay_out(tmp_path / "cut", files)
    with pytest.raises(StoreUnusable, match=r"but \d+ had been acknowledged"):
        async with durable_store(folder):
            pass


async def test_who_accepts_the_loss_goes_on_with_what_is_there(tmp_path: Path):
    files, _ = await killed(tmp_path)
    folder = lay_out(tmp_path / "killed", files)
    (folder / "objects.db-wal").unlink()
    (folder / "objects.db-mark").unlink()
    async with durable_store(folder) as store:
        assert store.list(PODS).items == []


async def test_who_moves_a_database_away_starts_with_nothing(tmp_path: Path):
    await killed(tmp_path)
    (tmp_path / "objects.db").rename(tmp_path / "elsewhere")
    async with durable_store(tmp_path) as store:
        await store.create(pod("a"), made(1))
    async with durable_store(tmp_path) as store:
        assert values(store.list(PODS).items) == {"a": 1}


# ---- what is never refused -------------------------------------------------------------------------------------------


async def test_a_power_loss_in_the_last_transaction_is_never_taken_for_damage(tmp_path: Path):
    files, lengths = await killed(tmp_path)
    log, random = files["objects.db-wal"], Random(3)
    for number in range(60 if SOAK else 15):
        durable = random.randrange(len(lengths) - 1)  # everything up to here was acknowledged; the next was not
        torn = bytearray(log[: lengths[durable + 1]])
        for at in range(lengths[durable], len(torn), 512):
            if random.random() < 0.4:
                torn[at : at + 512] = bytes(len(torn[at : at + 512]))
        folder = lay_out(
            tmp_path / f"torn-{number}", {**files, "objects.db-wal": bytes(torn), "objects.db-mark": b"open 2\n"}
        )
        async with durable_store(folder) as store:
            assert store.revision in {durable + 2, durable + 3}
            await store.create(pod("after"), made(1))
            again = raw_state(folder)
        async with durable_store(lay_out(tmp_path / f"again-{number}", again)) as store:
            assert store.get(pod("after"))


async def test_what_failed_transactions_left_in_the_log_is_never_taken_for_damage(tmp_path: Path):
    failing = False

    def tap(statement: str, run: Callable[[], Any]) -> Any:
        if failing and statement == "COMMIT":
            raise sqlite3.OperationalError("disk I/O error")
        return run()

    async with durable_store(tmp_path, connect=tapped(tap)) as store:
        for n in range(6):
            failing = n % 2 == 0
            with contextlib.suppress(WriteFailed):
                await store.write(pod("large"), changed("x" * (5_000_000 - n * 700_000 if failing else 10_000)))
        expected, files = store.revision, raw_state(tmp_path)
    assert len(files["objects.db-wal"]) > 2_000_000
    async with durable_store(lay_out(tmp_path / "killed", files)) as store:
        assert store.revision == expected


async def test_a_commit_that_changes_nothing_needs_no_log(tmp_path: Path):
    async with durable_store(tmp_path) as store:
        store.compact(store.revision)
        await asyncio.sleep(0)
        await store._queue.idle()
        files = raw_state(tmp_path)
    async with durable_store(lay_out(tmp_path / "killed", files)) as store:
        assert store.revision == 1


async def test_versions_that_were_forgotten_after_a_start_are_not_taken_for_lost(tmp_path: Path):
    async with durable_store(tmp_path) as store:
        for n in range(6):
            await store.write(pod("a"), changed(n))
    async with durable_store(tmp_path) as store:
        store.compact(store.revision)
        await asyncio.sleep(0)
        await store._queue.idle()
        files = raw_state(tmp_path)
    async with durable_store(lay_out(tmp_path / "killed", files)) as store:
        assert values(store.list(PODS).items) == {"a": 5}


@pytest.mark.parametrize("mark", [b"", b"open", b"open x", b"closed 99", b"\xff\xff", b"what\n"])
async def test_a_mark_that_cannot_be_read_tells_nothing(tmp_path: Path, mark: bytes):
    files, _ = await killed(tmp_path, 3)
    async with durable_store(lay_out(tmp_path / "x", {**files, "objects.db-mark": mark})) as store:
        assert store.revision == 4


async def test_a_mark_that_cannot_be_written_fails_no_write_and_refuses_no_start(tmp_path: Path):
    async with durable_store(tmp_path) as store:
        (tmp_path / "objects.db-mark.new").mkdir()  # in the way
        for n in range(300):
            await store.write(pod("a"), changed(n))
    assert not (tmp_path / "objects.db-mark").exists()
    async with durable_store(tmp_path) as store:
        assert values(store.list(PODS).items) == {"a": 299}


async def test_a_log_that_was_used_anew_and_anew_is_sound(tmp_path: Path):
    files, _ = await killed(tmp_path, 1500)
    async with durable_store(lay_out(tmp_path / "killed", files)) as store:
        assert store.revision == 1501


@settings(max_examples=50)
@given(st.binary(max_size=20_000))
def test_any_bytes_can_be_asked_about(content: bytes):
    assert not history_log_rules.is_damaged_inside(content)
