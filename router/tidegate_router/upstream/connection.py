"""One connection to a worker: sends a request, reads its answer, tells an `AnswerSink` what it saw.

    idle ── send ──> waiting ── head ──> body ── complete ──> idle
      │                 └────────── any end ─────────────> closed, the sink hears `answer_broken`
      └── bytes nobody asked for, end of stream, idle too long ──> closed

The parser's callbacks only take notes; the sink is called after each read, when it is known whether bytes followed the
end of the answer. An answer with more bytes than its framing says is broken, never complete.
"""

import asyncio
from typing import TYPE_CHECKING, Protocol, cast

import httptools

from tidegate_router.upstream.answer_head import AnswerHead, read_answer_head
from tidegate_router.upstream.deadline_wheel import Deadline, DeadlineWheel
from tidegate_router.upstream.faults import Fault
from tidegate_router.upstream.known_heads import Parts, take_apart

if TYPE_CHECKING:
    from tidegate_router.upstream.pool import UpstreamPool

MAX_ANSWER_HEAD_BYTES = 64 << 10
_WRITE_TOGETHER_BYTES = 16_384


class AnswerSink(Protocol):
    """Who waits for the answer. After `answer_complete` or `answer_broken` nothing more is called."""

    def answer_begun(self, head: AnswerHead) -> None:
        """The head is complete."""

    def answer_data(self, data: bytes) -> None:
        """Some bytes of the body, without their framing."""

    def answer_at_once(self, head: AnswerHead, body: bytes) -> None:
        """Head, body and end in one read; none of the others is called."""

    def answer_complete(self, *, close_delimited: bool) -> None:
        """The body is whole as its framing says, or ended with the connection if it had none."""

    def answer_broken(self, fault: Fault) -> None:
        """No more will come. The connection is closed."""

    def answer_timed_out(self) -> None:
        """The deadline set by `expect_within` passed."""


class UpstreamConnection(asyncio.Protocol):
    """An HTTP/1.1 client connection that carries one request at a time."""

    __slots__ = (
        "_complete",
        "_excess",
        "_fields",
        "_head",
        "_head_bytes",
        "_head_told",
        "_keep_alive",
        "_parser",
        "_paused",
        "_pieces",
        "_pool",
        "_sink",
        "_transport",
        "answer_bytes_seen",
        "deadline",
        "reused",
    )

    def __init__(self, pool: "UpstreamPool", wheel: DeadlineWheel) -> None:
        self._pool = pool
        self.deadline = Deadline(wheel, self._on_deadline)
        self._transport: asyncio.Transport | None = None
        self._sink: AnswerSink | None = None
        self._paused = False
        self.reused = False
        self.answer_bytes_seen = False
        self._parser = httptools.HttpResponseParser(self)
        self._fields: list[tuple[bytes, bytes]] = []
        self._head: AnswerHead | None = None
        self._head_told = False
        self._head_bytes = 0
        self._pieces: list[bytes] = []
        self._complete = False
        self._excess = False
        self._keep_alive = False

    # --- what the owner does ------------------------------------------------------------------------------------------

    @property
    def usable(self) -> bool:
        """Open and with nobody waiting on it."""
        return self._sink is None and self._transport is not None and not self._transport.is_closing()

    @property
    def sink(self) -> AnswerSink | None:
        """Who waits for an answer here."""
        return self._sink

    def send(self, sink: AnswerSink, message: bytes, body: bytes, within_seconds: float) -> None:
        """Write a request and wait for its answer on behalf of `sink`."""
        transport: asyncio.Transport = self._transport  # type: ignore[assignment]  # usable, or it was not handed out
        self._sink = sink
        self.answer_bytes_seen = False
        if len(body) > _WRITE_TOGETHER_BYTES:
            transport.write(message)
            transport.write(body)
        else:
            transport.write(message + body)
        self.deadline.arm(within_seconds)

    def expect_within(self, seconds: float) -> None:
        """Call the sink's `answer_timed_out` unless this is called again within that time."""
        self.deadline.arm(seconds)

    def pause(self) -> None:
        """Stop reading: the client is slow. No deadline runs meanwhile, for the worker is not at fault."""
        if not self._paused and self._transport is not None and not self._transport.is_closing():
            self._paused = True
            self._transport.pause_reading()
            self.deadline.clear()

    def resume(self, within_seconds: float) -> None:
        """Read again."""
        if self._paused and self._transport is not None and not self._transport.is_closing():
            self._paused = False
            self._transport.resume_reading()
            self.deadline.arm(within_seconds)

    def close(self) -> None:
        """Drop the connection at once, whatever is on it; the worker sees its client gone."""
        self._sink = None
        self.deadline.clear()
        self._pool.forget(self)
        if self._transport is not None:
            self._transport.abort()

    # --- what the transport saw ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        sink = self._sink
        if sink is None:
            self.close()
            return
        parts = None
        if not self.answer_bytes_seen:
            self.answer_bytes_seen = True
            parts = take_apart(data)
            if parts is not None:
                key, _, body, length, _ = parts
                known = self._pool.known_heads.get(key)
                if known is not None and len(body) == length:
                    self._give_back(keep_alive=True)
                    sink.answer_at_once(known if length == known.content_length else known.again(length), body)
                    return
        self._parse(sink, data, parts)

    def _parse(self, sink: AnswerSink, data: bytes, parts: Parts | None) -> None:
        malformed = False
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            malformed = True
        head = self._head
        if head is None:
            self._head_bytes += len(data)
            if malformed or self._head_bytes > MAX_ANSWER_HEAD_BYTES:
                self._break(Fault.MALFORMED)
            return
        pieces = self._pieces
        if self._complete and (malformed or self._excess):
            # Before the last bytes are passed on: without them nobody takes the answer for whole.
            self._break(Fault.OVERLONG)
            return
        if self._complete and not self._head_told:
            if parts is not None and self._keep_alive and data.startswith(b"HTTP/1.1 200 "):
                self._pool.known_heads.keep(parts, head)
            self._let_go()
            sink.answer_at_once(head, pieces[0] if len(pieces) == 1 else b"".join(pieces))
            return
        self._tell(sink, head, pieces)
        if self._sink is not sink:
            return
        if self._complete:
            self._let_go()
            sink.answer_complete(close_delimited=False)
        elif malformed:
            self._break(Fault.MALFORMED)

    def _tell(self, sink: AnswerSink, head: AnswerHead, pieces: list[bytes]) -> None:
        """Pass on what the parser noted of an answer that takes more than one read."""
        if not self._head_told:
            self._head_told = True
            sink.answer_begun(head)
        if pieces and self._sink is sink:
            self._pieces = []
            sink.answer_data(pieces[0] if len(pieces) == 1 else b"".join(pieces))

    def connection_lost(self, exc: Exception | None) -> None:
        head = self._head
        sink = self._sink
        if sink is not None and exc is None and head is not None and head.ends_with_connection:
            self._keep_alive = False
            self._let_go()
            sink.answer_complete(close_delimited=True)
        else:
            self._break(Fault.CUT if self.answer_bytes_seen else Fault.RESET)
        self._transport = None
        self._pool.forget(self)

    # --- what the parser saw ------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._complete:
            self._excess = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head is None:
            self._fields.append((name, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            self._fields = []
        elif self._head is None:
            self._keep_alive = self._parser.should_keep_alive()
            self._head = read_answer_head(status, self._fields)

    def on_body(self, body: bytes) -> None:
        if not self._complete:
            self._pieces.append(body)

    def on_message_complete(self) -> None:
        if self._head is not None:
            self._complete = True

    # --- ends ---------------------------------------------------------------------------------------------------------

    def _let_go(self) -> None:
        """Let go of a sink whose answer is whole."""
        self._fields = []
        self._head = None
        self._head_told = False
        self._head_bytes = 0
        self._pieces = []
        self._complete = False
        self._give_back(keep_alive=self._keep_alive)

    def _give_back(self, *, keep_alive: bool) -> None:
        """The connection is free for the next request, or closed."""
        self._sink = None
        if not keep_alive:
            self.close()
            return
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        self.reused = True
        self._pool.give_back(self)

    def _break(self, fault: Fault) -> None:
        sink = self._sink
        self.close()
        if sink is not None:
            sink.answer_broken(fault)

    def _on_deadline(self) -> None:
        if self._sink is None:
            self.close()
        else:
            self._sink.answer_timed_out()
