"""The object store on disk: restarts, the files and their modes, the lock, and databases that are refused."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
from pathlib import Path

import pytest

from onenode.apiserver.store import database_files
from onenode.apiserver.store.durable_store import durable_store
from onenode.apiserver.store.store_errors import RevisionExpired, StoreInUse, StoreUnusable
from support.api.object_stores import PODS, changed, history_of, made, pod, raw_state, told, tombstone, values, volume


async def some_objects(folder: Path, count: int = 50) -> None:
    async with durable_store(folder) as store:
        await asyncio.gather(*(store.create(pod(f"p{n:03}"), made("x" * 200)) for n in range(count)))


def versions_on_disk(folder: Path) -> list[int]:
    """Of a store that has been closed."""
    connection = sqlite3.connect(folder / database_files.DATABASE)
    rows = connection.execute("SELECT revision FROM versions ORDER BY revision").fetchall()
    connection.close()
    return [revision for (revision,) in rows]


# ---- restarts --------------------------------------------------------------------------------------------------------


async def test_a_restart_finds_the_same_objects_revision_and_history(tmp_path: Path):
    async with durable_store(tmp_path) as store:
        start = store.revision
        await store.create(pod("a"), made(1))
        await store.update(pod("a"), None, changed(2))
        await store.create(volume("v"), made("ü\0"))
        await store.delete(pod("a"), None, tombstone)
        await store.create(pod("a"), made(5))
        with store.watch(PODS, after=start) as watch:
            events = watch.take()
        lists = [store.list(kind, at=at) for kind in (PODS, "persistentvolumes") for at in range(start, start + 6)]

    async with durable_store(tmp_path) as store:
        assert store.revision == start + 5
        assert [
            store.list(page_kind, at=at) for page_kind in (PODS, "persistentvolumes") for at in range(start, start + 6)
        ] == lists
        with store.watch(PODS, after=start) as watch:
            assert watch.take() == events
            await store.update(pod("a"), start + 5, changed(6))
            assert told(watch.take()) == [("UPDATED", "a", start + 6)]


async def test_no_revision_is_given_twice_though_all_that_had_it_is_gone(tmp_path: Path):
    async with durable_store(tmp_path) as store:
        await store.create(pod("a"), made(1))
        await store.delete(pod("a"), None, tombstone)
        last = store.revision
        store.compact(last)

    assert versions_on_disk(tmp_path) == []
    async with durable_store(tmp_path) as store:
        assert store.revision == store.oldest == last
        assert (await store.create(pod("a"), made(1))).revision == last + 1


async def test_the_history_on_disk_is_bounded(tmp_path: Path):
    async with durable_store(tmp_path, history_of(10)) as store:
        await store.create(pod("a"), made(0))
        for n in range(1, 100):
            await store.update(pod("a"), None, changed(n))
        oldest = store.oldest

    assert len(versions_on_disk(tmp_path)) <= 12
    async with durable_store(tmp_path) as store:
        assert values(store.list(PODS).items) == {"a": 99}
        assert len(store.list(PODS, at=oldest).items) == 1
        with pytest.raises(RevisionExpired):
            store.list(PODS, at=oldest - 2)


async def test_a_smaller_bound_after_a_restart_drops_what_is_over_it(tmp_path: Path):
    await some_objects(tmp_path)
    async with durable_store(tmp_path, history_of(3)) as store:
        assert store.revision - store.oldest == 3
        await store.create(pod("q"), made(1))
    async with durable_store(tmp_path) as store:
        assert store.revision - store.oldest <= 4
        assert len(store.list(PODS).items) == 51


async def test_a_history_that_was_compacted_stays_so_after_a_restart(tmp_path: Path):
    await some_objects(tmp_path)
    async with durable_store(tmp_path) as store:
        await store.update(pod("p001"), None, changed("new"))
        store.compact(store.revision)
        revision = store.revision
    async with durable_store(tmp_path) as store:
        assert store.oldest == revision
        assert len(store.list(PODS).items) == 50
    assert len(versions_on_disk(tmp_path)) == 50


# ---- files -----------------------------------------------------------------------------------------------------------


async def test_only_the_owner_can_read_any_file(tmp_path: Path):
    before = os.umask(0)
    try:
        async with durable_store(tmp_path) as store:
            await store.create(pod("a"), made("a secret"))
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    finally:
        os.umask(before)

    assert modes == dict.fromkeys(
        [".reserve", "objects.db", "objects.db-mark", "objects.db-wal", "objects.lock"], 0o600
    )


async def test_a_database_that_others_could_read_is_closed_to_them(tmp_path: Path):
    await some_objects(tmp_path)
    (tmp_path / "objects.db").chmod(0o644)
    async with durable_store(tmp_path) as store:
        await store.create(pod("q"), made(1))
        assert {path.stat().st_mode & 0o077 for path in tmp_path.iterdir()} == {0}


async def test_two_stores_never_use_one_folder(tmp_path: Path):
    async with durable_store(tmp_path) as store:
        with pytest.raises(StoreInUse, match=f"in use by process {os.getpid()}: stop it, or choose another"):
            async with durable_store(tmp_path):
                pass
        await store.create(pod("a"), made(1))
    async with durable_store(tmp_path) as store:
        assert store.get(pod("a"))


async def test_odd_characters_in_the_folder_do_no_harm(tmp_path: Path):
    folder = tmp_path / "a b?mode=memory&c#d%20e'f"
    folder.mkdir()
    await some_objects(folder, 3)
    async with durable_store(folder) as store:
        assert len(store.list(PODS).items) == 3
    assert (folder / "objects.db").stat().st_size > 0


async def test_a_database_that_was_being_made_when_the_process_died_is_made_anew(tmp_path: Path):
    (tmp_path / "objects.db.new").write_bytes(b"half of it")
    (tmp_path / "objects.db.new-wal").write_bytes(b"and more")
    await some_objects(tmp_path, 3)
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == [".reserve", "objects.db", "objects.db-mark", "objects.lock"]


async def test_a_new_database_and_its_name_are_on_disk_before_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Else a power loss could take the file, or the name of it, with all that was acknowledged since."""
    effects: list[str] = []
    fsync, rename = os.fsync, Path.rename

    def noted_fsync(file: int) -> None:
        effects.append(f"fsync {Path(f'/proc/self/fd/{file}').readlink().name}")
        fsync(file)

    def noted_rename(path: Path, target: Path) -> Path:
        effects.append(f"rename {path.name}")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(Path, "rename", noted_rename)
    async with durable_store(tmp_path):
        pass

    new = f"{database_files.DATABASE}.new"
    steps = [f"fsync {new}", f"rename {new}", f"fsync {tmp_path.name}"]
    begin = effects.index(steps[0])
    assert effects[begin : begin + 3] == steps


async def test_a_missing_folder_is_named(tmp_path: Path):
    with pytest.raises(StoreUnusable, match=r"state folder .*nowhere cannot be used: .*No such file or directory"):
        async with durable_store(tmp_path / "nowhere"):
            pass


async def test_what_is_written_is_on_disk_before_it_is_acknowledged(tmp_path: Path):
    connections: list[sqlite3.Connection] = []

    def connect(address: str) -> sqlite3.Connection:
        connections.append(sqlite3.connect(address, uri=True, isolation_level=None, check_same_thread=False))
        return connections[-1]

    async with durable_store(tmp_path, connect=connect) as store:
        await store.create(pod("a"), made(1))
        settings = {
            name: connections[-1].execute(f"PRAGMA {name}").fetchone()[0] for name in ("synchronous", "journal_mode")
        }

    full = 2
    assert settings == {"synchronous": full, "journal_mode": "wal"}


async def test_opening_that_is_cancelled_gives_the_folder_back(tmp_path: Path):
    async def open_and_close() -> None:
        async with durable_store(tmp_path):
            pass

    opening = asyncio.ensure_future(open_and_close())
    await asyncio.sleep(0)
    opening.cancel()
    await asyncio.wait([opening])
    assert opening.cancelled()
    await some_objects(tmp_path, 1)


# ---- what is refused -------------------------------------------------------------------------------------------------


def truncate(database: Path) -> None:
    os.truncate(database, database.stat().st_size // 2)


def cut_in_the_header(database: Path) -> None:
    os.truncate(database, 50)


def empty(database: Path) -> None:
    os.truncate(database, 0)


def text(database: Path) -> None:
    database.write_text("kind: ConfigMap\n" * 1000)


def break_a_page(database: Path) -> None:
    overwrite(database, 4096 * 2, b"\xff" * 4096)


def miscount_the_free_pages(database: Path) -> None:
    overwrite(database, 36, (3).to_bytes(4))


def flip_a_bit_of_an_object(database: Path) -> None:
    at = database.read_bytes().rindex(b"xxxxxxxx")
    overwrite(database, at, b"y")


def make_newer(database: Path) -> None:
    overwrite(database, 60, (7).to_bytes(4))


def make_older(database: Path) -> None:
    overwrite(database, 60, (0).to_bytes(4))


def begin_behind_the_end(database: Path) -> None:
    execute(database, "UPDATE store SET oldest = 99999")


def lose_a_row(database: Path) -> None:
    execute(database, "DELETE FROM versions WHERE revision = 9")


def restore_an_old_one(database: Path) -> None:
    execute(database, "DELETE FROM versions WHERE revision > 5", "UPDATE store SET revision = 5")


def give_to_another_program(database: Path) -> None:
    execute(database, "PRAGMA application_id = 1")


def drop_a_table(database: Path) -> None:
    execute(database, "DROP TABLE store")


def lose_the_counter(database: Path) -> None:
    execute(database, "DELETE FROM store")


def count_back(database: Path) -> None:
    execute(database, "UPDATE store SET revision = 5")


def put_text_into_a_number(database: Path) -> None:
    execute(database, "UPDATE versions SET json = 'text' WHERE revision = 9")


def repeat_a_creation(database: Path) -> None:
    execute(
        database,
        "INSERT INTO versions SELECT 999, resource, namespace, name, kind, json, checksum FROM versions LIMIT 1",
        "UPDATE store SET revision = 999",
    )


def replace_by_a_folder(database: Path) -> None:
    database.unlink()
    database.mkdir()


def overwrite(database: Path, at: int, data: bytes) -> None:
    with database.open("r+b") as file:
        file.seek(at)
        file.write(data)


def execute(database: Path, *statements: str) -> None:
    connection = sqlite3.connect(database, isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    connection.close()


REFUSED = [
    (truncate, "is damaged"),
    (cut_in_the_header, "not a database, or only a piece of one"),
    (empty, "not a database, or only a piece of one"),
    (text, "not a database"),
    (break_a_page, "is damaged"),
    (miscount_the_free_pages, "is damaged"),
    (
        flip_a_bit_of_an_object,
        r"is damaged: revision \d+ of pods default/p0\d\d does not have the bytes that were written",
    ),
    (make_newer, "schema version 7, this program knows 1: it was written by a newer one"),
    (make_older, "schema version 0, this program knows 1: it was written by an older one"),
    (begin_behind_the_end, "is damaged: its history begins at revision 99999, behind its newest revision 51"),
    (lose_a_row, "is damaged: it does not have the versions of objects that it had when it was closed"),
    (restore_an_old_one, "it ends at revision 5, but 51 had been acknowledged.*remove .*objects.db-mark"),
    (give_to_another_program, "database of another program"),
    (drop_a_table, "no such table: store"),
    (lose_the_counter, "is damaged"),
    (count_back, "is damaged: revision 6 does not follow"),
    (put_text_into_a_number, "is damaged"),
    (repeat_a_creation, "is damaged: revision 999 does not follow"),
]


@pytest.mark.parametrize(("damage", "sentence"), REFUSED, ids=[damage.__name__ for damage, _ in REFUSED])
async def test_what_is_no_sound_database_is_refused_with_a_sentence_and_left_as_it_is(tmp_path: Path, damage, sentence):
    await some_objects(tmp_path)
    damage(tmp_path / "objects.db")
    before = (tmp_path / "objects.db").read_bytes()
    for _ in range(2):
        with pytest.raises(StoreUnusable, match=sentence):
            async with durable_store(tmp_path):
                pass

    assert (tmp_path / "objects.db").read_bytes() == before


async def test_neither_a_folder_nor_a_link_is_taken_for_a_database(tmp_path: Path):
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "objects.db").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "folder" / "objects.db").mkdir(parents=True)
    for folder in ("state", "folder"):
        with pytest.raises(StoreUnusable, match="not a plain file"):
            async with durable_store(tmp_path / folder):
                pass


async def test_a_log_without_its_database_is_refused_and_kept(tmp_path: Path):
    (tmp_path / "objects.db-wal").write_bytes(b"acknowledged writes")
    with pytest.raises(StoreUnusable, match=r"objects.db-wal is there, but the database .* is missing"):
        async with durable_store(tmp_path):
            pass
    assert raw_state(tmp_path) == {"objects.db-wal": b"acknowledged writes"}


async def test_a_refused_database_keeps_the_log_that_a_crash_left_beside_it(tmp_path: Path):
    (tmp_path / "crashed").mkdir()
    async with durable_store(tmp_path) as store:
        await store.create(pod("a"), made("x" * 5000))
        for name, content in raw_state(tmp_path).items():
            (tmp_path / "crashed" / name).write_bytes(content)
    make_newer(tmp_path / "crashed" / "objects.db")
    before = raw_state(tmp_path / "crashed")
    assert len(before["objects.db-wal"]) > 5000
    with pytest.raises(StoreUnusable, match="newer"):
        async with durable_store(tmp_path / "crashed"):
            pass
    assert raw_state(tmp_path / "crashed") == before
