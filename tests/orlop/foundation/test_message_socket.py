"""Frames and descriptors over a pair of sockets, however they are cut into pieces."""

from __future__ import annotations

import array
import asyncio
import os
import socket
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orlop.foundation.message_socket import (
    MOST_DESCRIPTORS,
    AsyncFrames,
    ConnectionEnded,
    encoded,
    peer_of,
    receive_frame,
    send_frame,
)
from support.host.descriptors import opened

LONGEST = 1 << 22


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    with one, other:
        yield one, other


@given(st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=200)), max_size=10))
def test_frames_come_as_they_were_sent(frames):
    one, other = socket.socketpair()
    with one, other:
        for kind, body in frames:
            send_frame(one, kind, body)
        assert [(f.kind, f.body) for f in (receive_frame(other, LONGEST) for _ in frames)] == frames


@given(st.data(), st.lists(st.binary(max_size=50), min_size=1, max_size=5))
def test_the_pieces_in_which_frames_arrive_do_not_matter(data, bodies):
    stream = b"".join(encoded(1, body) for body in bodies)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]

    async def heard() -> list[bytes]:
        one, other = socket.socketpair()
        with one, other:
            frames = AsyncFrames(other)
            listening = asyncio.ensure_future(_received(frames, len(bodies)))
            for piece in pieces:
                one.send(piece)
                await asyncio.sleep(0)
            return await listening

    assert asyncio.run(heard()) == bodies


async def _received(frames: AsyncFrames, count: int) -> list[bytes]:
    return [(await frames.receive(LONGEST)).body for _ in range(count)]


def test_descriptors_travel_with_their_frame(pair):
    one, other = pair
    reader, writer = os.pipe()
    send_frame(one, 1, b"no descriptor")
    send_frame(one, 2, b"the end to write into", [writer])
    os.close(writer)
    first, second = receive_frame(other, LONGEST), receive_frame(other, LONGEST)
    os.write(second.descriptors[0], b"hello")

    assert first.descriptors == ()
    assert os.read(reader, 10) == b"hello"
    os.close(second.descriptors[0])
    os.close(reader)


def test_more_descriptors_than_agreed_are_closed_by_the_kernel(pair):
    one, other = pair
    before = len(opened())
    send_frame(one, 1, b"x", [0] * (MOST_DESCRIPTORS + 3))
    frame = receive_frame(other, LONGEST)
    for descriptor in frame.descriptors:
        os.close(descriptor)

    assert len(frame.descriptors) <= MOST_DESCRIPTORS
    assert len(opened()) == before


@pytest.mark.parametrize("length", [11, 2**32 - 1])
def test_a_frame_that_is_too_long_is_not_read_and_its_descriptors_are_closed(pair, length: int):
    one, other = pair
    before = len(opened())
    one.sendmsg([b"\x01" + length.to_bytes(4, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, b"\0\0\0\0")])
    with pytest.raises(ConnectionEnded, match="at most 10 are allowed"):
        receive_frame(other, 10)

    assert len(opened()) == before


def test_the_end_in_the_middle_of_a_frame_is_told(pair):
    one, other = pair
    one.send(b"\x01\0\0\0\x05ab")
    one.close()
    with pytest.raises(ConnectionEnded):
        receive_frame(other, LONGEST)


async def test_a_frame_larger_than_the_sockets_buffer_is_sent_while_others_run(pair):
    one, other = pair
    sending = asyncio.ensure_future(AsyncFrames(one).send(7, bytes(3_000_000)))
    frame = await AsyncFrames(other).receive(LONGEST)
    await sending

    assert (frame.kind, len(frame.body)) == (7, 3_000_000)


@pytest.mark.parametrize("how", ["close", "half"])
async def test_the_end_of_the_other_side_is_noticed(pair, how: str):
    one, other = pair
    watching = asyncio.ensure_future(AsyncFrames(other).until_it_ends())
    await asyncio.sleep(0)
    assert not watching.done()
    one.close() if how == "close" else one.shutdown(socket.SHUT_WR)
    await watching


def test_the_kernel_tells_who_connected(pair):
    peer = peer_of(pair[0])

    assert (peer.user, peer.process) == (os.geteuid(), os.getpid())


async def test_descriptors_beyond_the_agreed_number_end_the_connection_however_they_are_spread(
    pair: tuple[socket.socket, socket.socket],
):
    one, other = pair
    before = opened()
    numbers = array.array("i", [one.fileno()] * MOST_DESCRIPTORS).tobytes()
    for piece in (b"\x01", b"\x00\x00\x01\x00", b"x"):
        one.sendmsg([piece], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)])
    with pytest.raises(ConnectionEnded, match="descriptors"):
        await AsyncFrames(other).receive(LONGEST)
    assert opened() == before
