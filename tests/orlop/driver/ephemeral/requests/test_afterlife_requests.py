"""What a person can ask of a node, over its socket, on real folders."""

from __future__ import annotations

import asyncio
import errno
import io
import os
import socket
import stat
import tarfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec
import pytest

from orlop.admin.node_socket import NodeRefused, NodeUnreachable
from orlop.driver.ephemeral.folder_index import Retained
from orlop.foundation.message_socket import send_frame
from orlop.host.host_errors import HostError
from orlop.records.afterlife_report import MESSAGE, Restored, StreamEnd
from orlop.records.ephemeral_folder import Burial, Owner
from support.afterlife.afterlife_node import DAY, HOUR, ID, OTHER, AfterlifeNode, asked
from support.host.deep_trees import dig
from support.host.descriptors import folder_descriptor, opened
from support.host.file_systems import MOUNTS
from support.host.kernel_rooms import run, swapped_again_and_again
from support.waiting import eventually

pytestmark = MOUNTS


@pytest.fixture
def node(short_folder: Path) -> AfterlifeNode:
    return AfterlifeNode(short_folder)


def refused(error: pytest.ExceptionInfo[NodeRefused]) -> tuple[str, str]:
    return error.value.why, str(error.value)


async def test_everything_retained_is_listed_with_its_pod_and_times(node: AfterlifeNode):
    node.bury(ID, pod="web-0", namespace="shop", age=HOUR, lifespan=DAY)
    node.bury(OTHER, pod="job-1", namespace="lab", age=2 * HOUR, lifespan=HOUR)
    node.live("csi-alive")
    async with node.running() as running:
        rows = {row.volume_id: row for row in await asked(running.afterlife.list_folders)}

    assert set(rows) == {ID, OTHER}
    assert (rows[ID].pod, rows[ID].namespace, rows[ID].bytes_used) == ("web-0", "shop", None)
    assert rows[ID].age_seconds == pytest.approx(HOUR, abs=30)
    assert rows[ID].erased_in_seconds == pytest.approx(DAY - HOUR, abs=30)
    assert rows[OTHER].erased_in_seconds == 0


async def test_a_folder_is_found_by_the_beginning_of_its_id_if_no_other_has_it(node: AfterlifeNode):
    node.bury(ID)
    node.bury(OTHER)
    node.live("csi-alive")
    async with node.running() as running:
        assert (await asked(lambda: running.afterlife.show("csi-7d9b3da1c"))).volume_id == ID
        with pytest.raises(NodeRefused) as several:
            await asked(lambda: running.afterlife.show("csi-7d"))
        with pytest.raises(NodeRefused) as unknown:
            await asked(lambda: running.afterlife.show("csi-none"))
        with pytest.raises(NodeRefused) as alive:
            await asked(lambda: running.afterlife.erase("csi-al"))

    assert several.value.why == "wrong-use"
    assert ID in str(several.value)
    assert OTHER in str(several.value)
    assert unknown.value.why == "not-found"
    assert "belongs to a living pod" in str(alive.value)


async def test_the_path_of_a_retained_folder_is_shown(node: AfterlifeNode):
    folder = node.bury(ID)
    async with node.running() as running:
        shown = await asked(lambda: running.afterlife.show(ID))
        (listed,) = await asked(running.afterlife.list_folders)

    assert (shown.path, listed.path) == (str(folder), str(folder))


async def test_files_are_listed_whatever_their_names(node: AfterlifeNode):
    folder = node.bury()
    for name in (b"plain", b"new\nline", b"\x1b[31mred", b"not-\xff-utf8"):
        (Path(os.fsdecode(os.fsencode(folder) + b"/" + name))).write_bytes(b"x")
    (folder / "sub").mkdir()
    (folder / "out").symlink_to("/etc/passwd")
    os.mkfifo(folder / "pipe")
    async with node.running() as running:
        rows = {row.name: row for row in await asked(lambda: list(running.afterlife.list_files(ID)))}
        inside = await asked(lambda: list(running.afterlife.list_files(ID, b"sub")))

    assert set(rows) == {b"plain", b"new\nline", b"\x1b[31mred", b"not-\xff-utf8", b"sub", b"out", b"pipe"}
    assert rows[b"out"].link == b"/etc/passwd"
    assert rows[b"pipe"].kind == "a fifo"
    assert inside == []


async def test_a_long_list_of_files_comes_in_parts_and_whole(node: AfterlifeNode):
    folder = node.bury()
    for number in range(1203):
        (folder / f"file-{number:04}").touch()
    async with node.running() as running:
        rows = await asked(lambda: list(running.afterlife.list_files(ID)))

    assert [row.name.decode() for row in rows] == [f"file-{number:04}" for number in range(1203)]


async def test_a_file_is_handed_over_read_only(node: AfterlifeNode):
    folder = node.bury()
    (folder / "sub").mkdir()
    (folder / "sub" / "result.csv").write_text("1,2,3")

    def read(running) -> bytes:
        with running.afterlife.opened_file(ID, b"sub/result.csv") as file:
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.write(file, b"x")
            return os.read(file, 100)

    async with node.running() as running:
        assert await asked(lambda: read(running)) == b"1,2,3"


BAD_PATHS = [b"..", b"../../live", b"out", b"away/passwd", b"pipe", b"null", b"sub", b"none", b"a\0b", b"plain/below"]


@pytest.mark.parametrize("path", BAD_PATHS)
async def test_nothing_but_a_plain_file_in_the_folder_is_ever_opened(node: AfterlifeNode, path: bytes):
    folder = node.bury()
    (folder / "sub").mkdir()
    (folder / "plain").touch()
    (folder / "out").symlink_to("/etc/passwd")
    (folder / "away").symlink_to("/etc")
    os.mkfifo(folder / "pipe")
    os.mknod(folder / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))

    def read(running) -> None:
        with running.afterlife.opened_file(ID, path):
            pytest.fail("it was opened")

    async with node.running() as running:
        with pytest.raises(NodeRefused):
            await asked(lambda: read(running))
        assert running.book.readers == {}


def archived(running, path: bytes = b"") -> tuple[dict[str, bytes | None], StreamEnd]:
    pieces: list[bytes] = []
    done = running.afterlife.download(ID, path, pieces.append)
    with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as tar:
        contents = {m.name: (tar.extractfile(m).read() if m.isreg() else None) for m in tar.getmembers()}  # type: ignore[union-attr]
    return contents, done


async def test_a_folder_or_a_part_of_it_is_downloaded_as_an_archive(node: AfterlifeNode):
    folder = node.bury()
    (folder / "sub").mkdir()
    (folder / "sub" / "a").write_bytes(b"a" * 3_000_000)
    (folder / "b").write_bytes(b"b")
    os.mkfifo(folder / "pipe")
    async with node.running() as running:
        whole, done = await asked(lambda: archived(running))
        part, _ = await asked(lambda: archived(running, b"sub/"))

    assert whole == {ID: None, f"{ID}/b": b"b", f"{ID}/sub": None, f"{ID}/sub/a": b"a" * 3_000_000}
    assert [(each.path, done.problem_count) for each in done.problems] == [(b"pipe", 1)]
    assert part == {"sub": None, "sub/a": b"a" * 3_000_000}


# ---- keeping ---------------------------------------------------------------------------------------------------------


async def test_a_folder_kept_longer_stays_so_over_a_restart(node: AfterlifeNode):
    node.bury(age=HOUR, lifespan=2 * HOUR)
    async with node.running() as running:
        kept = await asked(lambda: running.afterlife.keep(ID, DAY))
    async with node.running() as running:
        row = await asked(lambda: running.afterlife.show(ID))

    assert kept.changed
    assert row.lifespan_seconds == pytest.approx(DAY + HOUR, abs=30)
    assert row.age_seconds == pytest.approx(HOUR, abs=30)


async def test_keeping_never_shortens_and_never_exceeds_the_admins_limit(node: AfterlifeNode):
    node.bury(age=HOUR, lifespan=DAY)
    (before,) = node.names("retained")
    async with node.running() as running:
        assert not (await asked(lambda: running.afterlife.keep(ID, HOUR))).changed
        assert (await asked(lambda: running.afterlife.keep(ID, DAY + HOUR, dry_run=True))).changed
        assert node.names("retained") == [before]
        with pytest.raises(NodeRefused, match=r"--max-afterlifespan\), which is 46h59m"):
            await asked(lambda: running.afterlife.keep(ID, 2 * DAY))

    assert node.names("retained") == [before]


# ---- erasing ---------------------------------------------------------------------------------------------------------


async def test_a_folder_is_erased_when_asked_and_counted_as_such(node: AfterlifeNode):
    (node.bury() / "file").write_text("x")
    node.bury(OTHER)
    async with node.running(reaping=True) as running:
        await asked(lambda: running.afterlife.erase(ID, dry_run=True))
        assert len(node.names("retained")) == 2
        await asked(lambda: running.afterlife.erase(ID))
        assert ID not in running.book.retained
        await eventually(lambda: node.names("trash") == [])
        with pytest.raises(NodeRefused, match="No folder of a volume"):
            await asked(lambda: running.afterlife.erase(ID))

        counted = 'orlop_ephemeral_erased_total{reason="asked"} 1.0'
        await eventually(lambda: counted in node.metrics.render()[0].decode())

    assert len(node.names("retained")) == 1
    assert 'reason="trash"' not in node.metrics.render()[0].decode()


async def test_nothing_of_a_folder_is_erased_while_it_is_read(node: AfterlifeNode):
    """Neither because its time is over nor because somebody asks; afterwards it goes."""
    (node.bury(age=DAY, lifespan=HOUR) / "file").write_text("x")
    opened, release = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def read(running) -> bytes:
        with running.afterlife.opened_file(ID, b"file") as file:
            loop.call_soon_threadsafe(opened.set)
            asyncio.run_coroutine_threadsafe(release.wait(), loop).result()
            return os.read(file, 10)

    async with node.running() as running:
        reading = asyncio.create_task(asyncio.to_thread(read, running))
        await opened.wait()
        reaping = asyncio.create_task(running.reaper.run())
        for _ in range(5):
            with pytest.raises(NodeRefused, match="1 command is reading it"):
                await asked(lambda: running.afterlife.erase(ID))
        assert (await asked(lambda: running.afterlife.show(ID))).readers == 1
        assert len(node.names("retained")) == 1
        release.set()
        assert await reading == b"x"
        await eventually(lambda: node.names("retained") == [])
        reaping.cancel()
        await asyncio.wait([reaping])


async def test_several_may_read_at_a_time(node: AfterlifeNode):
    (node.bury() / "file").write_text("x")

    def two(running) -> int:
        with running.afterlife.opened_file(ID, b"file"), running.afterlife.opened_file(ID, b"file"):
            return int(running.afterlife.show(ID).readers)

    async with node.running() as running:
        assert await asked(lambda: two(running)) == 2
        await eventually(lambda: running.book.readers == {})


# ---- restoring -------------------------------------------------------------------------------------------------------


@pytest.fixture
def target(short_folder: Path) -> Iterator[int]:
    (short_folder / "to").mkdir()
    descriptor = os.open(short_folder / "to", os.O_RDONLY | os.O_DIRECTORY)
    yield descriptor
    os.close(descriptor)


async def test_a_folder_is_restored_into_a_new_one_for_root_alone(node: AfterlifeNode, target: int):
    folder = node.bury()
    (folder / "sub").mkdir()
    (folder / "sub" / "tool").write_bytes(b"#!")
    (folder / "sub" / "tool").chmod(0o4755)
    os.mkfifo(folder / "pipe")
    async with node.running() as running:
        dry = await asked(lambda: running.afterlife.restore(ID, target, dry_run=True))
        assert os.listdir(target) == []
        restored = await asked(lambda: running.afterlife.restore(ID, target))

    made = node.folder / "to" / ID
    assert dry.name == ID
    assert (restored.name, restored.finished, restored.problem_count) == (ID, True, 1)
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    assert stat.S_IMODE((made / "sub" / "tool").stat().st_mode) == 0o755
    assert (made / "sub" / "tool").read_bytes() == b"#!"
    assert (folder / "sub" / "tool").exists(), "what is retained stays retained"


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize("place", [".", "live", "retained", "trash", "live/csi-alive", "itself", "mounted"])
async def test_nothing_is_restored_into_the_nodes_own_folders(
    node: AfterlifeNode,
    short_folder: Path,
    place: str,
    dry_run: bool,  # noqa: FBT001 - one of the cases
):
    buried, alive, pods_view = node.bury(ID), node.live("csi-alive"), short_folder / "pod"
    (buried / "sub").mkdir()
    pods_view.mkdir()
    run("mount", "--bind", str(alive), str(pods_view))
    try:
        path = {"itself": buried / "sub", "mounted": pods_view}.get(place, node.workdir / place)
        async with node.running() as running:
            before = {str(each) for each in node.workdir.rglob("*")}
            with folder_descriptor(path) as folder, pytest.raises(NodeRefused, match="one of this node's own"):
                await asked(lambda: running.afterlife.restore(ID, folder, dry_run=dry_run))
        assert {str(each) for each in node.workdir.rglob("*")} == before
    finally:
        run("umount", str(pods_view))


async def test_a_restore_replaces_nothing(node: AfterlifeNode, target: int):
    node.bury()
    (node.folder / "to" / ID).write_text("mine")
    async with node.running() as running:
        with pytest.raises(NodeRefused, match="already"):
            await asked(lambda: running.afterlife.restore(ID, target))

    assert (node.folder / "to" / ID).read_text() == "mine"
    assert os.listdir(target) == [ID]


async def test_a_restore_that_is_stopped_says_what_is_left_and_can_be_repeated(node: AfterlifeNode, target: int):
    folder = node.bury()
    for number in range(200):
        (folder / f"{number:03}").write_bytes(b"x" * 1000)

    def stopped(running) -> Restored:
        return running.afterlife.restore(ID, target, hand_stop=lambda stop: stop())

    async with node.running() as running:
        first = await asked(lambda: stopped(running))
        left = os.listdir(target)
        again = await asked(lambda: running.afterlife.restore(ID, target))

    assert not first.finished
    assert first.name == f".orlop-unfinished-{ID}"
    assert set(left) <= {first.name}
    assert (again.finished, again.entries) == (True, 200)
    assert os.listdir(target) == [ID]


async def test_what_a_killed_restore_left_is_replaced_by_the_next(node: AfterlifeNode, target: int):
    (node.bury() / "file").write_text("x")
    half = node.folder / "to" / f".orlop-unfinished-{ID}"
    half.mkdir()
    (half / "stale").write_text("old")
    (half / "away").symlink_to("/etc")
    async with node.running() as running:
        await asked(lambda: running.afterlife.restore(ID, target))

    assert os.listdir(target) == [ID]
    assert [path.name for path in (node.folder / "to" / ID).iterdir()] == ["file"]


async def test_a_restore_without_a_folder_to_restore_into_is_refused(node: AfterlifeNode, short_folder: Path):
    node.bury()
    file = os.open(short_folder / "file", os.O_RDWR | os.O_CREAT)
    async with node.running() as running:
        with pytest.raises(NodeRefused, match="no folder"):
            await asked(lambda: running.afterlife.restore(ID, file))
    os.close(file)


# ---- usage -----------------------------------------------------------------------------------------------------------


async def test_usage_tells_the_namespaces_and_what_goes_next(node: AfterlifeNode):
    node.bury(ID, namespace="shop", lifespan=DAY)
    node.bury(OTHER, namespace="lab", lifespan=2 * HOUR)
    async with node.running() as running:
        running.book.was_measured(ID, 5000)
        usage = await asked(running.afterlife.usage)

    assert [(each.namespace, each.bytes, each.unmeasured) for each in usage.namespaces] == [
        ("shop", 5000, 0),
        ("lab", 0, 1),
    ]
    assert usage.next_erase is not None
    assert (usage.next_erase.row.volume_id, usage.next_erase.reason) == (OTHER, "age")
    assert usage.factor == 1
    assert 0 < usage.free_bytes < usage.total_bytes


# ---- the socket ------------------------------------------------------------------------------------------------------


async def test_the_socket_is_for_root_alone_and_goes_with_the_process(node: AfterlifeNode):
    async with node.running():
        assert stat.S_IMODE(node.socket.stat().st_mode) == 0o600
        assert stat.S_IMODE(node.socket.parent.stat().st_mode) == 0o700
    assert not node.socket.exists()


async def test_another_user_is_told_so_and_gets_nothing(node: AfterlifeNode):
    node.allowed_user = 12345
    node.bury()
    async with node.running() as running:
        with pytest.raises(NodeRefused, match="run the command as root"):
            await asked(running.afterlife.list_folders)


def connected(node: AfterlifeNode) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(node.socket))
    return connection


async def test_nonsense_is_answered_with_a_sentence_or_the_end_and_harms_nobody(node: AfterlifeNode):
    node.bury()

    def talk(data: bytes) -> bytes:
        heard = b""
        with connected(node) as connection, suppress(ConnectionResetError):
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            while piece := connection.recv(4096):
                heard += piece
        return heard

    async with node.running() as running:
        before = len(opened())
        assert await asked(lambda: talk(b"GET / HTTP/1.1\r\n\r\n")) == b""
        assert await asked(lambda: talk(b"J\xff\xff\xff\xff")) == b""
        assert await asked(lambda: talk(b"J\0\0")) == b""
        assert b"cannot be understood" in await asked(lambda: talk(b"J\0\0\0\x03abc"))
        assert b"of version 9" in await asked(lambda: talk(b'J\0\0\0\x0d{"version":9}'))
        assert len(await asked(running.afterlife.list_folders)) == 1
        await eventually(lambda: len(opened()) == before)


async def test_descriptors_that_nobody_asked_for_are_closed(node: AfterlifeNode):
    node.bury()
    async with node.running():
        before = len(opened())
        with connected(node) as connection:
            send_frame(connection, MESSAGE, b'{"version":1,"question":{"ask":"list"}}', [0, 0, 0, 0, 0, 0])
            await asked(lambda: connection.recv(4096))
        await eventually(lambda: len(opened()) == before)


async def test_a_client_that_vanishes_in_the_middle_of_a_download_leaves_nothing_behind(node: AfterlifeNode):
    folder = node.bury()
    (folder / "large").write_bytes(bytes(20_000_000))
    async with node.running() as running:
        before = len(opened())
        with connected(node) as connection:
            question = b'{"version":1,"question":{"ask":"download","id":"csi-7"}}'
            send_frame(connection, MESSAGE, question)
            await asked(lambda: connection.recv(4096))
            assert running.book.readers == {ID: 1}
        await eventually(lambda: running.book.readers == {})
        await eventually(lambda: len(opened()) == before)


async def test_many_ask_at_once(node: AfterlifeNode):
    (node.bury() / "file").write_text("x")
    async with node.running() as running:
        answers = await asyncio.gather(*(asked(running.afterlife.list_folders) for _ in range(50)))

    assert [len(rows) for rows in answers] == [1] * 50


async def test_a_node_that_is_not_there_is_told_with_what_to_do(node: AfterlifeNode):
    async with node.running() as running:
        pass
    with pytest.raises(NodeUnreachable, match="Check that the node's process runs"):
        running.afterlife.list_folders()


async def test_a_folder_that_a_pod_takes_back_while_it_is_downloaded_is_read_on_and_told(node: AfterlifeNode):
    """By its descriptor, wherever it is renamed to; the pod does not wait for the reader."""
    folder = node.bury()
    (folder / "large").write_bytes(bytes(20_000_000))
    pieces: list[bytes] = []
    begun, resurrected = threading.Event(), threading.Event()

    def slowly(piece: bytes) -> None:
        pieces.append(piece)
        begun.set()
        assert resurrected.wait(150)

    async with node.running() as running:
        downloading = asyncio.create_task(asked(lambda: running.afterlife.download(ID, b"", slowly)))
        await asyncio.to_thread(begun.wait, 10)
        async with running.folders.keys.hold(ID, why="NodePublishVolume"):
            folder.rename(node.workdir / "live" / ID)
            running.book.lives(running.book.retained[ID].record)
        resurrected.set()
        done = await downloading

    assert sum(map(len, pieces)) > 20_000_000
    assert [each.path for each in done.problems] == [b"."]
    assert "was published again" in done.problems[0].sentence


async def test_no_more_than_a_few_are_downloaded_or_restored_at_a_time(node: AfterlifeNode, target: int):
    (node.bury() / "large").write_bytes(bytes(20_000_000))
    question = b'{"version":1,"question":{"ask":"download","id":"csi-7"}}'
    async with node.running() as running:
        with ExitStack() as stack:
            for _ in range(4):
                connection = stack.enter_context(connected(node))
                send_frame(connection, MESSAGE, question)
                await asked(lambda connection=connection: connection.recv(10))
            with pytest.raises(NodeRefused, match="Try again later"):
                await asked(lambda: running.afterlife.restore(ID, target))
            assert len(await asked(running.afterlife.list_folders)) == 1
        await eventually(lambda: running.book.readers == {})
        await asked(lambda: running.afterlife.restore(ID, target))


async def test_a_symbolic_link_that_is_swapped_in_leads_nowhere(node: AfterlifeNode):
    folder = node.bury()
    (folder / "sub").mkdir()
    (folder / "sub" / "secret").write_text("ours")
    outside = node.folder / "outside"
    outside.mkdir()
    (outside / "secret").write_text("theirs")
    (folder / "link").symlink_to(outside)

    def read(running) -> set[bytes]:
        found = set()
        for _ in range(200):
            with suppress(NodeRefused), running.afterlife.opened_file(ID, b"sub/secret") as file:
                found.add(os.read(file, 10))
        return found

    async with node.running() as running:
        with swapped_again_and_again(folder / "sub", folder / "link"):
            assert await asked(lambda: read(running)) <= {b"ours"}


async def test_a_tree_of_any_depth_is_downloaded_told_in_bounds_and_erased(node: AfterlifeNode):
    dig(node.bury() / "deep", 5000)
    async with node.running(reaping=True) as running:
        _, done = await asked(lambda: archived(running))
        with pytest.raises(NodeRefused) as refusal:
            await asked(lambda: list(running.afterlife.list_files(ID, b"/".join([b"x" * 200] * 200))))
        await asked(lambda: running.afterlife.erase(ID))
        await eventually(lambda: node.names("trash") == [])

    assert done.problem_count == 1
    assert len(done.problems[0].path) < 5000
    assert len(str(refusal.value)) < 5000


async def test_why_a_folder_is_still_there_is_told(node: AfterlifeNode):
    node.bury(age=DAY, lifespan=HOUR)
    async with node.running() as running:
        running.reaper._retry_later(ID, HostError(errno.EBUSY, "The folder is mounted somewhere."))
        assert (await asked(lambda: running.afterlife.show(ID))).trouble == "The folder is mounted somewhere."


async def test_names_that_fill_a_whole_page_fit_into_an_answer(node: AfterlifeNode):
    """Records are at most as long as an attribute: 64 KiB."""
    node.bury()
    async with node.running() as running:
        one = running.book.retained[ID]
        for number in range(501):
            record = msgspec.structs.replace(
                one.record, volume_id=f"v{number}", owner=Owner("u", "\x01" * 10_000, "n" * 4000)
            )
            running.book.retained[f"v{number}"] = Retained(record, Burial(f"v{number}", 1.0, DAY))
        rows = await asked(running.afterlife.list_folders)

    assert len(rows) == 502


@pytest.mark.parametrize("question", [b'{"ask":"erase","id":"csi-7"}', b'{"ask":"keep","id":"csi-7","seconds":90000}'])
async def test_what_a_client_asked_for_and_did_not_wait_for_is_done_and_the_book_is_true(
    node: AfterlifeNode, question: bytes
):
    before = node.bury().name
    async with node.running() as running:
        with connected(node) as connection:
            send_frame(connection, MESSAGE, b'{"version":1,"question":%b}' % question)
        await eventually(lambda: node.names("retained") != [before])
        known = lambda: [each.burial.folder_name for each in running.book.retained.values()]  # noqa: E731
        await eventually(lambda: known() == node.names("retained"))
