"""What may go and come when: windows of both ends, limits, and the end of a connection."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orlop.csi.error_codes import Code, NotFound
from orlop.csi.grpc import http2_connection
from orlop.csi.grpc.http2_connection import CallDropped, RequestReceived
from orlop.csi.grpc.http2_frames import ErrorCode
from orlop.csi.transport import LARGEST_MESSAGE
from support.csi.http2_bytes import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    WINDOW,
    data,
    frame,
    message,
    padded,
    request,
    reset,
    settings,
    window,
)
from support.csi.http2_talk import CALL, STREAM, Talk, opened

# ---- windows of the client -------------------------------------------------------------------------------------------


def sent_by(talk: Talk) -> dict[int, bytes]:
    """The data of each stream that was heard."""
    found: dict[int, bytes] = {}
    for kind, _, stream, payload in talk.heard():
        if kind == DATA:
            found[stream] = found.get(stream, b"") + payload
    return found


def answer(talk: Talk, number: int, size: int) -> None:
    talk.connection.send(number, bytes(size))
    talk.connection.finish(number)


def test_an_answer_waits_for_the_stream_and_for_the_connection():
    talk = Talk()
    talk.say(request(1, CALL))
    answer(talk, 1, 100_000)
    assert len(sent_by(talk)[1]) == 65_535
    talk.say(window(20_000, 1))
    assert sent_by(talk) == {}
    talk.say(window(100_000))
    assert len(sent_by(talk)[1]) == 20_000
    talk.say(window(100_000, 1))
    heard = talk.heard()

    assert len(b"".join(payload for kind, _, _, payload in heard if kind == DATA)) == 100_005 - 85_535
    assert heard[-1] == (HEADERS, END_HEADERS | END_STREAM, 1, {"grpc-status": "0"})
    assert talk.connection._sending.unsent == 0
    assert talk.connection.is_idle


def test_no_frame_is_longer_than_the_client_takes():
    talk = Talk()
    talk.say(request(1, CALL))
    answer(talk, 1, 60_000)
    assert max(len(payload) for kind, _, _, payload in talk.heard() if kind == DATA) == 16_384
    talk.say(settings((5, 50_000)), window(1 << 20), request(3, CALL))
    answer(talk, 3, 60_000)

    assert max(len(payload) for kind, _, _, payload in talk.heard() if kind == DATA) == 50_000


def test_streams_that_wait_for_the_connection_take_turns():
    talk = Talk(greeting=PREFACE + settings((4, 1 << 20)))
    for number in (1, 3, 5):
        talk.say(request(number, CALL))
        answer(talk, number, 200_000)
    talk.heard()
    talk.say(window(6 * 16_384))

    assert {number: len(sent) for number, sent in sent_by(talk).items()} == dict.fromkeys((1, 3, 5), 2 * 16_384)


def test_a_stream_without_a_window_holds_up_no_other():
    talk = Talk(greeting=PREFACE + settings((4, 0)))
    talk.say(request(1, CALL), request(3, CALL))
    answer(talk, 1, 10)
    answer(talk, 3, 10)
    assert sent_by(talk) == {}
    talk.say(window(100, 3))

    assert list(sent_by(talk)) == [3]


def test_settings_change_the_windows_of_open_streams_also_to_less_than_nothing():
    talk = Talk()
    talk.say(request(1, CALL))
    answer(talk, 1, 70_000)
    assert len(sent_by(talk)[1]) == 65_535
    talk.say(window(1 << 20), settings((4, 1000)), window(64_535, 1))
    assert sent_by(talk) == {}
    talk.say(window(10, 1))
    assert len(sent_by(talk)[1]) == 10
    talk.say(settings((4, 65_535)))

    assert len(sent_by(talk)[1]) == 70_005 - 65_545


@given(st.lists(st.tuples(st.sampled_from([0, 1, 3, 5]), st.integers(1, 40_000)), max_size=40), st.integers(0, 70_000))
def test_no_more_is_sent_than_every_window_allows_and_all_of_it_in_the_end(updates: list[tuple[int, int]], first: int):
    talk = Talk(greeting=PREFACE + settings((4, first)))
    sizes = {1: 30_000, 3: 50_000, 5: 0}
    allowed, connection = dict.fromkeys(sizes, first), 65_535
    sent = dict.fromkeys(sizes, 0)
    for number, size in sizes.items():
        talk.say(request(number, CALL))
        answer(talk, number, size)
    for stream, increment in [*updates, (0, 1 << 20), (1, 1 << 20), (3, 1 << 20), (5, 1 << 20)]:
        talk.say(window(increment, stream))
        connection += 0 if stream else increment
        if stream:
            allowed[stream] += increment
        for number, data_sent in sent_by(talk).items():
            sent[number] += len(data_sent)
        assert all(sent[number] <= allowed[number] for number in sizes)
        assert sum(sent.values()) <= connection

    assert sent == {number: size + 5 for number, size in sizes.items()}
    assert talk.connection._sending.unsent == 0


def test_a_full_socket_holds_data_back_and_nothing_else():
    talk = Talk()
    talk.say(request(1, CALL))
    talk.connection.pause()
    answer(talk, 1, 10)
    talk.say(frame(PING, b"12345678"))
    assert [kind for kind, *_ in talk.heard()] == [HEADERS, PING]
    talk.connection.resume()

    assert [kind for kind, *_ in talk.heard()] == [DATA, HEADERS]


def test_a_reset_forgets_what_was_still_to_be_sent():
    talk = Talk()
    talk.say(request(1, CALL))
    answer(talk, 1, 100_000)
    talk.heard()
    assert talk.say(reset(1)) == [CallDropped(1)]
    talk.say(window(1 << 20), window(1 << 20, 1))

    assert talk.heard() == []
    assert talk.connection._sending.unsent == 0


def test_a_client_that_wants_a_smaller_table_is_told_once_that_ours_is_empty():
    talk = Talk(greeting=PREFACE + settings((1, 100)))
    talk._answers._decoder.max_allowed_table_size = 100
    for number in (1, 3):
        talk.say(request(number, CALL))
        answer(talk, number, 1)
        assert talk.heard()[0][3][":status"] == "200"


# ---- windows of ours -------------------------------------------------------------------------------------------------


def upload(number: int, size: int) -> list[bytes]:
    """The frames of a message, without its headers."""
    whole = message(bytes(size))
    pieces = [whole[at : at + 16_384] for at in range(0, len(whole), 16_384)]
    return [data(number, piece, ends=piece is pieces[-1]) for piece in pieces]


def granted(talk: Talk) -> dict[int, int]:
    found: dict[int, int] = {}
    for kind, _, stream, payload in talk.heard():
        if kind == WINDOW:
            found[stream] = found.get(stream, 0) + int.from_bytes(payload, "big")
    return found


def test_a_large_message_is_allowed_exactly_what_it_said_it_has():
    talk = Talk()
    talk.say(opened())
    first, *rest = upload(1, LARGEST_MESSAGE)
    talk.say(first)
    assert granted(talk) == {1: LARGEST_MESSAGE + 5 - 65_535}
    talk.say(*rest)

    asked = talk.events[-1]
    assert isinstance(asked, RequestReceived)
    assert asked.message == bytes(LARGEST_MESSAGE)


def test_a_small_message_is_allowed_nothing_more():
    talk = Talk()
    talk.say(opened(), *upload(1, 60_000))

    assert granted(talk) == {}


def test_many_large_messages_are_allowed_a_few_at_a_time_and_all_arrive():
    talk = Talk()
    numbers = range(1, 41, 2)
    uploads = {number: upload(number, LARGEST_MESSAGE) for number in numbers}
    for number in numbers:
        talk.say(opened(number), uploads[number][0], uploads[number][1])
    allowed = granted(talk)
    assert [number for number in numbers if number in allowed] == [1, 3, 5, 7]
    while uploads:
        for number in [number for number in uploads if number in allowed]:
            talk.say(*uploads.pop(number)[2:])
        allowed |= granted(talk)

    assert sum(isinstance(event, RequestReceived) for event in talk.events) == 20


def test_what_a_stream_was_allowed_is_free_again_when_it_is_reset():
    talk = Talk()
    for number in (1, 3, 5, 7, 9, 11):
        talk.say(opened(number), upload(number, LARGEST_MESSAGE)[0])
    assert sorted(granted(talk)) == [1, 3, 5, 7]
    talk.say(reset(9))  # it has waited
    talk.say(reset(3))

    assert sorted(granted(talk)) == [11]


def test_padding_is_allowed_again():
    talk = Talk()
    talk.say(opened(), frame(DATA, padded(message(b"", claims=9), 200), stream=1, flags=PADDED))

    assert granted(talk) == {1: 201}


def test_the_connection_is_widened_again_before_it_is_used_up():
    talk, total = Talk(), 0
    for number in range(1, 201, 2):
        talk.say(opened(number), *upload(number, 60_000))
        total += granted(talk).get(0, 0)
        answer(talk, number, 0)

    assert total >= 100 * 60_005 - http2_connection.CONNECTION_WINDOW
    assert not talk.is_over


def test_more_than_the_connections_window_ends_it():
    talk = Talk()
    talk.connection._receive_window = 10
    http2_connection_before = talk.say(opened())
    talk.say(data(1, message(b"123456")))

    assert len(http2_connection_before) == 1
    assert talk.code() == ("connection", ErrorCode.FLOW_CONTROL_ERROR)


# ---- limits ----------------------------------------------------------------------------------------------------------


def test_more_streams_than_are_taken_are_refused_and_may_come_again():
    talk = Talk()
    numbers = range(1, 2 * http2_connection.MOST_STREAMS, 2)
    for number in numbers:
        talk.say(request(number, CALL))
    talk.say(request(2001, CALL))
    assert talk.code() == ("stream", ErrorCode.REFUSED_STREAM)
    answer(talk, 1, 0)

    assert len(talk.say(request(2003, CALL))) == 2


def test_no_new_call_is_taken_from_who_lets_answers_pile_up():
    talk = Talk()
    for number in range(1, 11, 2):
        talk.say(request(number, CALL))
        answer(talk, number, LARGEST_MESSAGE)
    talk.heard()
    talk.say(request(11, CALL))

    assert talk.code() == ("stream", ErrorCode.REFUSED_STREAM)


def test_who_resets_streams_as_fast_as_he_makes_them_is_let_go():
    talk = Talk()
    while not talk.is_over and len(talk.events) < 9000:
        number = talk.connection._last_stream + 2 if talk.connection._last_stream else 1
        talk.say(request(number, CALL), reset(number))

    assert talk.code() == ("connection", ErrorCode.ENHANCE_YOUR_CALM)
    assert sum(isinstance(event, RequestReceived) for event in talk.events) == http2_connection.MOST_RESETS + 1


def test_resets_now_and_then_are_nothing_to_mind():
    talk = Talk()
    for number in range(1, 8001, 2):
        talk.now += 0.1
        talk.say(request(number, CALL), reset(number))

    assert not talk.is_over


def test_pings_that_keep_a_connection_alive_are_answered_for_ever():
    talk = Talk()
    for _ in range(5000):
        talk.now += 10
        talk.say(frame(PING, b"12345678"))
        assert talk.heard() == [(PING, ACK, 0, b"12345678")]


def test_pings_beside_calls_are_nothing_to_mind():
    talk = Talk()
    for number in range(1, 8001, 2):
        talk.say(request(number, CALL), frame(PING, bytes(8)), window(9), frame(PING, bytes(8), flags=ACK))
        answer(talk, number, 3)
        talk.heard()

    assert not talk.is_over


# ---- the end ---------------------------------------------------------------------------------------------------------


def test_leaving_lets_calls_under_way_finish_and_refuses_new_ones():
    talk = Talk()
    talk.say(request(1, CALL))
    talk.connection.leave()
    talk.connection.leave()
    [(kind, _, _, payload)] = talk.heard()
    assert (kind, payload) == (GOAWAY, b"\0\0\0\x01\0\0\0\0")
    talk.say(request(3, CALL))
    assert talk.code() == ("stream", ErrorCode.REFUSED_STREAM)
    answer(talk, 1, 5)

    assert [kind for kind, *_ in talk.heard()] == [HEADERS, DATA, HEADERS]
    assert talk.connection.is_idle


def test_a_client_that_leaves_may_wait_for_its_answers():
    talk = Talk()
    talk.say(request(1, CALL), frame(GOAWAY, bytes(8)))
    answer(talk, 1, 5)

    assert [kind for kind, *_ in talk.heard()] == [HEADERS, DATA, HEADERS]


def test_a_time_that_is_up_is_told():
    talk = Talk()
    talk.say(request(1, CALL))
    talk.connection.expire(1)
    talk.connection.send(1, b"late")
    talk.connection.finish(1)

    assert talk.status() == (Code.DEADLINE_EXCEEDED, f"{CALL} did not answer in time")


def test_a_time_that_is_up_in_the_middle_of_a_message_resets_its_stream():
    talk = Talk()
    talk.say(request(1, CALL))
    talk.connection.send(1, bytes(100_000))
    talk.connection.expire(1)

    assert talk.code() == ("stream", ErrorCode.CANCEL)


def test_a_stream_of_answers_ends_with_its_error_behind_all_of_them():
    talk = Talk()
    talk.say(request(1, STREAM))
    talk.connection.send(1, bytes(60_000))
    talk.connection.send(1, bytes(60_000))
    assert not talk.connection.is_sent(1)
    talk.connection.finish(1, NotFound("gone"))
    talk.say(window(1 << 20), window(1 << 20, 1))
    heard = talk.heard()

    assert len(b"".join(payload for kind, _, _, payload in heard if kind == DATA)) == 120_010
    assert heard[-1][3] == {"grpc-status": "5", "grpc-message": "gone"}
