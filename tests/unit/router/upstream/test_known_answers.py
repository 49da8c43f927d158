"""An answer whose head was seen before is told as the parser would tell it, whatever the bytes and their cuts."""

import asyncio
import itertools
from collections.abc import Callable
from typing import cast

from hypothesis import given, settings
from hypothesis import strategies as st
from tidegate_crds.router_spec import TimeoutsSpec
from tidegate_router.upstream.answer_head import AnswerHead
from tidegate_router.upstream.connection import UpstreamConnection
from tidegate_router.upstream.deadline_wheel import DeadlineWheel
from tidegate_router.upstream.faults import Fault
from tidegate_router.upstream.pool import UpstreamPool

JSON = b"content-type: application/json\r\n"
HEADS = (
    b"HTTP/1.1 200 OK\r\n" + JSON + b"content-length: %d\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nX-Request-Id: a-1\r\nserver: w\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n",
    b"HTTP/1.1 400 No\r\n" + JSON + b"content-length: %d\r\n\r\n",
    b"HTTP/1.1 204 No Content\r\ncontent-length: %d\r\n\r\n",
    b"HTTP/1.0 200 OK\r\ncontent-length: %d\r\n\r\n",
    b"HTTP/1.1 103 Early Hints\r\ncontent-length: %d\r\n\r\n",
)


class Clock:
    def time(self) -> float:
        return 1.0

    def call_later(self, delay: float, callback: Callable[[], None], /) -> None:
        """Nothing expires here."""


class Socket:
    def __init__(self) -> None:
        self.open = True

    def write(self, data: bytes) -> None:
        """Nobody is there."""

    def is_closing(self) -> bool:
        return not self.open

    def abort(self) -> None:
        self.open = False


class Heard:
    """Takes note of what it is told; bytes of the body in one, whatever their pieces were."""

    def __init__(self) -> None:
        self.head: tuple[object, ...] | None = None
        self.body = b""
        self.end: object = None

    def answer_begun(self, head: AnswerHead) -> None:
        self.head = head.status, head.passed, head.content_type, head.content_length, head.is_json, head.is_event_stream

    def answer_data(self, data: bytes) -> None:
        self.body += data

    def answer_at_once(self, head: AnswerHead, body: bytes) -> None:
        self.answer_begun(head)
        self.body = body
        self.end = "whole"

    def answer_complete(self, *, close_delimited: bool) -> None:
        self.end = "closed" if close_delimited else "whole"

    def answer_broken(self, fault: Fault) -> None:
        self.end = fault

    def answer_timed_out(self) -> None:
        raise AssertionError


def make_pool() -> UpstreamPool:
    wheel = DeadlineWheel(Clock())
    return UpstreamPool("127.0.0.1", 1, TimeoutsSpec(), wheel, cast("asyncio.AbstractEventLoop", None))


def answered(pool: UpstreamPool, pieces: list[bytes]) -> tuple[object, ...]:
    """What a sink hears of an answer in these reads, and what becomes of the connection."""
    connection = UpstreamConnection(pool, DeadlineWheel(Clock()))
    socket, heard = Socket(), Heard()
    connection.connection_made(cast("asyncio.Transport", socket))
    connection.send(heard, b"GET / HTTP/1.1\r\n\r\n", b"", 1.0)
    for piece in pieces:
        if socket.open:
            connection.data_received(piece)
    return heard.head, heard.body, heard.end, socket.open, connection.usable


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(HEADS),
    st.binary(max_size=30),
    st.integers(-2, 2),
    st.lists(st.integers(1, 120), max_size=3),
    st.tuples(st.integers(0, 150), st.sampled_from([b"", b"\r", b"\n", b" ", b"\0", b"9", b"-", b"equest-"])),
)
def test_known_answers_are_told_as_the_parser_tells_them(
    head: bytes, body: bytes, surplus: int, cuts: list[int], change: tuple[int, bytes]
) -> None:
    at, put = change
    stream = head % max(0, len(body) - surplus) + body
    stream = stream[:at] + put + stream[at:] if at < len(stream) else stream
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    pieces = [stream[start:end] for start, end in itertools.pairwise(edges)]
    warm = make_pool()
    for known in HEADS:
        answered(warm, [known % 2 + b"{}"])
    assert answered(warm, pieces) == answered(make_pool(), pieces)


def test_a_known_head_serves_for_another_length_and_id() -> None:
    pool = make_pool()
    answered(pool, [HEADS[1] % 2 + b"{}"])
    heard = answered(pool, [HEADS[1].replace(b"a-1", b"b-22") % 4 + b"null"])
    assert heard[1:] == (b"null", "whole", True, True)
    assert cast("tuple[object, ...]", heard[0])[3] == 4
    assert len(pool.known_heads._known) == 1
