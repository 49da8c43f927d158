"""One client's connection: reads requests within bounds, answers them one after another in order.

    idle ── first byte ──> head ── body ──> queued ──> exchange (one at a time) ──> idle
       any breach of HTTP or of a bound ──> error answer behind the ones before it ──> lingering ──> closed

Lingering: after an error to a client that may still be sending, our side is closed for writing and what arrives is
read and dropped for a while; closing at once would reset the connection and destroy the answer under way.
"""

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, cast

from tidegate_crds.router_spec import LimitsSpec, TimeoutsSpec
from tidegate_proto.openai_errors import ApiError, ApiErrorKind

from tidegate_router.gateway import answer_bytes
from tidegate_router.gateway.answer_writer import AnswerWriter
from tidegate_router.gateway.exchange import Exchange
from tidegate_router.gateway.request_reader import Arrived, RequestReader
from tidegate_router.gateway.retry_state import RetryState
from tidegate_router.tickets.ticket import Ticket
from tidegate_router.upstream.deadline_wheel import Deadline

if TYPE_CHECKING:
    from tidegate_router.gateway.gateway import Gateway

_MAX_QUEUED_REQUESTS = 16
_MAX_QUEUED_BYTES = 256 << 10
_LINGER_SECONDS = 5.0
_LINGER_BYTES = 64 << 20
"""Dropped beyond the largest body while the client reads why it was refused."""


class ClientConnection(asyncio.Protocol):
    """See the module. Reading is the `RequestReader`'s, answering the `Exchange`'s."""

    __slots__ = (
        "_choked",
        "_deadline",
        "_exchange",
        "_gateway",
        "_last",
        "_limits",
        "_lingered_bytes",
        "_lingering",
        "_paused",
        "_pumping",
        "_queue",
        "_queued_bytes",
        "_reader",
        "_stalled_at_bytes",
        "_timeouts",
        "_transport",
    )

    def __init__(self, gateway: "Gateway", limits: LimitsSpec, timeouts: TimeoutsSpec) -> None:
        self._gateway = gateway
        self._limits = limits
        self._timeouts = timeouts
        self._deadline = Deadline(gateway.wheel, self._on_deadline)
        self._reader = RequestReader(limits, self._on_request, gateway.known_heads)
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange | None = None
        self._queue: deque[Arrived] = deque()
        self._queued_bytes = 0
        self._pumping = False
        self._choked = False
        self._paused = False
        self._last = False
        self._lingering = False
        self._lingered_bytes = 0
        self._stalled_at_bytes = 0

    # --- what the transport saw ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = stream = cast("asyncio.Transport", transport)
        if not self._gateway.admit_connection(self):
            stream.abort()
            return
        stream.set_write_buffer_limits(high=self._limits.max_stream_buffer_bytes)
        self._deadline.arm(self._timeouts.client_idle_seconds)

    def data_received(self, data: bytes) -> None:
        if self._last:
            self._drop(data)
            return
        reader = self._reader
        if self._exchange is None and not self._queue and not self._choked and self._transport is not None:
            arrived = reader.take_whole(data)
            if arrived is not None:
                self._deadline.clear()
                self._answer(arrived, self._transport)
                return
        body_bytes = reader.body_bytes
        reader.feed(data)
        if self._exchange is None:
            if self._queue:
                self._pump()
            elif reader.in_body:
                if reader.expects_continue:
                    self._say_continue()
                if reader.body_bytes != body_bytes:
                    self._deadline.arm(self._timeouts.client_body_seconds)
            elif reader.began_head:
                reader.began_head = False
                self._deadline.arm(self._timeouts.client_headers_seconds)
        elif len(self._queue) >= _MAX_QUEUED_REQUESTS or self._queued_bytes + reader.body_bytes > _MAX_QUEUED_BYTES:
            self._pause_reading()

    def eof_received(self) -> bool:
        """The client will send no more; an answer that it may not be there to read is not worth computing."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - gone is gone
        self._deadline.clear()
        self._queue.clear()
        self._last = True
        exchange, self._exchange = self._exchange, None
        self._transport = None
        self._gateway.forget_connection(self)
        if exchange is not None:
            exchange.client_gone()

    def pause_writing(self) -> None:
        self._choked = True
        self._await_reader()
        if self._exchange is not None:
            self._exchange.client_slow()

    def resume_writing(self) -> None:
        self._choked = False
        if self._last:
            return
        self._deadline.clear()
        if self._exchange is not None:
            self._exchange.client_ready()
        elif not self._pumping:
            self._pump()

    # --- what the reader saw ------------------------------------------------------------------------------------------

    def _on_request(self, arrived: Arrived) -> None:
        self._queue.append(arrived)
        self._queued_bytes += len(arrived[1])

    # --- answering ----------------------------------------------------------------------------------------------------

    def answered(self, writer: AnswerWriter) -> None:
        """The exchange has written its whole answer, or all there will be of it."""
        self._exchange = None
        if not writer.keep_alive or self._gateway.draining:
            self._close_after_answer()
            return
        if self._pumping or self._choked:
            return
        if self._queue or self._paused or self._reader.in_message:
            self._pump()
        else:
            self._deadline.arm(self._timeouts.client_idle_seconds)

    def close_if_idle(self) -> None:
        """Close unless a request is under way; with one, the connection closes behind its answer."""
        if self._exchange is None and not self._queue and not self._reader.in_message and self._transport is not None:
            self._last = True
            self._transport.close()

    def end_now(self) -> None:
        """End the running request with an error; draining has taken too long."""
        if self._exchange is not None:
            self._exchange.give_up_draining()
        elif self._transport is not None:
            self._transport.abort()

    def _pump(self) -> None:
        """Start queued requests, one at a time, until one has to wait."""
        self._pumping = True
        try:
            while self._exchange is None and self._queue and self._transport is not None and self._may_answer:
                arrived = self._queue.popleft()
                self._queued_bytes -= len(arrived[1])
                self._deadline.clear()
                self._answer(arrived, self._transport)
        finally:
            self._pumping = False
        if self._exchange is None and self._may_answer:
            self._resume_reading()
            self._await_request()

    @property
    def _may_answer(self) -> bool:
        """Whether another answer may be begun: the connection stays, and the client takes what it has been sent."""
        return not self._last and not self._choked

    def _await_reader(self) -> None:
        if self._transport is not None:
            self._stalled_at_bytes = self._transport.get_write_buffer_size()
        self._deadline.arm(self._timeouts.client_stalled_seconds)

    def _answer(self, arrived: Arrived, transport: asyncio.Transport) -> None:
        head, body, error = arrived
        writer = AnswerWriter(transport, head, head.keep_alive)
        if error is not None:
            writer.keep_alive = False
            self._gateway.answer_refused(writer, head, error)
            self._linger()
            return
        self._exchange = exchange = Exchange(
            self._gateway, self, writer, head, RetryState(self._gateway.max_attempts), Ticket(), time.monotonic()
        )
        exchange.begin(body)

    def _await_request(self) -> None:
        if self._reader.in_body:
            if self._reader.expects_continue:
                self._say_continue()
            self._deadline.arm(self._timeouts.client_body_seconds)
        elif self._reader.in_message:
            self._deadline.arm(self._timeouts.client_headers_seconds)
        else:
            self._deadline.arm(self._timeouts.client_idle_seconds)

    def _say_continue(self) -> None:
        self._reader.expects_continue = False
        if self._transport is not None:
            self._transport.write(answer_bytes.CONTINUE)

    # --- closing ------------------------------------------------------------------------------------------------------

    def _close_after_answer(self) -> None:
        self._last = True
        if self._transport is None:
            return
        if self._queue or self._reader.in_message or self._reader.refused:
            self._linger()
            return
        self._await_reader()
        self._transport.close()

    def _linger(self) -> None:
        self._last = self._lingering = True
        self._queue.clear()
        self._resume_reading()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write_eof()
            self._deadline.arm(_LINGER_SECONDS)

    def _drop(self, data: bytes) -> None:
        self._lingered_bytes += len(data)
        if self._lingered_bytes > self._limits.max_body_bytes + _LINGER_BYTES and self._transport is not None:
            self._transport.abort()

    def _pause_reading(self) -> None:
        if not self._paused and self._transport is not None and not self._transport.is_closing():
            self._paused = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._paused and self._transport is not None and not self._transport.is_closing():
            self._paused = False
            self._transport.resume_reading()

    def _on_deadline(self) -> None:
        transport = self._transport
        if transport is None:
            return
        if self._choked or (self._last and not self._lingering):
            # Some of it was taken since: slow is not stalled.
            if 0 < transport.get_write_buffer_size() < self._stalled_at_bytes:
                self._await_reader()
            else:
                transport.abort()
        elif self._exchange is not None:
            return
        elif self._lingering or not self._reader.in_message:
            transport.abort()
        else:
            what = "body" if self._reader.in_body else "headers"
            error = ApiError(ApiErrorKind.TIMEOUT, f"the request's {what} did not arrive in time; send it again")
            self._answer(self._reader.refuse(error), transport)
