"""An attempt: one request at one endpoint, from taking a connection to the end of the answer.

    connect ─> send ─> head ─┬─ event stream ──> whole events, as they come ──> ended
                             ├─ other answer, small ──> held until whole ──> ready
                             └─ other answer, large ──> bytes as they come ──> ended
       any break, time-out or incomplete answer on the way ──> failed(fault)

An attempt is a lease of its Ticket: it owns the endpoint's load and the connection, and `release` at any moment drops
both; the worker then sees its client gone. Its owner hears of exactly one end, and of none after `release`.
"""

import asyncio

import msgspec

from tidegate_router.state.endpoints import Endpoint
from tidegate_router.tickets.lease import EndpointLease
from tidegate_router.upstream.answer_head import AnswerHead
from tidegate_router.upstream.attempt_owner import AttemptLimits, AttemptOwner
from tidegate_router.upstream.connection import UpstreamConnection
from tidegate_router.upstream.event_stream_watch import EventStreamWatch
from tidegate_router.upstream.faults import Fault, Verdict, names_missing_model, verdict_on_status
from tidegate_router.upstream.pool import UpstreamPool
from tidegate_router.upstream.usage import NotJsonError, checked_usage

_REFUSAL_BODY_SECONDS = 1.0
"""How long the body of an answer that is not passed on may take; it is read only to keep the connection."""

_AFTER_DONE_SECONDS = 2.0
"""How long a worker may take to end its body after `[DONE]`."""


class Attempt(msgspec.Struct, eq=False):
    """See the module. `begun` is True from the first byte handed to the owner for passing on."""

    _owner: AttemptOwner | None
    endpoint: Endpoint
    _pool: UpstreamPool
    _load: EndpointLease
    _limits: AttemptLimits
    _message: bytes
    """The request's head with its blank line."""
    _body: bytes
    _connection: UpstreamConnection | None = None
    _connecting: asyncio.Task[None] | None = None
    _head: AnswerHead | None = None
    _watch: EventStreamWatch | None = None
    _verdict: Verdict = Verdict.PASS
    _held: list[bytes] = msgspec.field(default_factory=list)
    _held_bytes: int = 0
    _passing: bool = False
    begun: bool = False

    # --- what the owner does ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Send the request."""
        connection = self._pool.take()
        if connection is None:
            self._connecting = self._pool.connect(self._on_connected, self._on_connect_failed)
        else:
            self._connection = connection
            connection.send(self, self._message, self._body, self._limits.first_byte_seconds)

    def release(self) -> None:
        self._owner = None
        connecting, self._connecting = self._connecting, None
        if connecting is not None:
            connecting.cancel()
        connection, self._connection = self._connection, None
        if connection is not None and connection.sink is self:
            connection.close()
        self._load.release()

    def pause(self) -> None:
        """Read no further until `resume`: the client takes its time."""
        if self._connection is not None and self._connection.sink is self:
            self._connection.pause()

    def resume(self) -> None:
        """Read on."""
        if self._connection is not None and self._connection.sink is self:
            self._connection.resume(self._limits.between_chunks_seconds)

    def leave_unhealthy(self) -> None:
        """The endpoint fails its checks: go elsewhere, if nothing has come yet and there is an elsewhere."""
        owner = self._owner
        if owner is not None and not self.begun and owner.may_leave(self):
            self._fail(Fault.UNHEALTHY)

    @property
    def is_event_stream(self) -> bool:
        """Whether the answer is server-sent events."""
        return self._watch is not None

    @property
    def mid_event(self) -> bool:
        """Whether the client was left inside an SSE event."""
        return self._watch is not None and self._watch.mid_event

    @property
    def error_event_passed(self) -> bool:
        """Whether the worker's own error event was handed to the owner."""
        return self.begun and self._watch is not None and self._watch.failed

    # --- connecting ---------------------------------------------------------------------------------------------------

    def _send_on(self, connection: UpstreamConnection) -> None:
        self._connection = connection
        connection.send(self, self._message, self._body, self._limits.first_byte_seconds)

    def _on_connected(self, connection: UpstreamConnection) -> None:
        self._connecting = None
        if self._owner is None:
            self._pool.give_back(connection)
        else:
            self._send_on(connection)

    def _on_connect_failed(self) -> None:
        self._connecting = None
        self._fail(Fault.CONNECT)

    # --- AnswerSink ---------------------------------------------------------------------------------------------------

    def answer_begun(self, head: AnswerHead) -> None:
        self._head = head
        self._verdict = verdict = verdict_on_status(head.status, head.retry_after)
        if verdict is not Verdict.PASS:
            self._expect_within(_REFUSAL_BODY_SECONDS)
        elif head.is_event_stream:
            self._watch = EventStreamWatch()
        elif head.content_length is not None and head.content_length > self._limits.max_held_bytes:
            self._passing = head.status != 404

    def answer_at_once(self, head: AnswerHead, body: bytes) -> None:
        owner = self._owner
        if owner is None:
            return
        if head.is_event_stream:
            self.answer_begun(head)
            self.answer_data(body)
            self.answer_complete(close_delimited=False)
            return
        self._head = head
        if not 200 <= head.status < 300:
            self._verdict = verdict_on_status(head.status, head.retry_after)
        self._settle(owner, head, body)

    def answer_data(self, data: bytes) -> None:
        owner = self._owner
        if owner is None:
            return
        if self._verdict is Verdict.PASS:
            self._expect_within(self._limits.between_chunks_seconds)
        if self._watch is not None:
            self._stream_data(owner, self._watch, data)
        elif self._passing:
            self._pass(owner, data)
        else:
            self._held.append(data)
            self._held_bytes += len(data)
            if self._held_bytes > self._limits.max_held_bytes:
                self._overflow(owner)

    def answer_complete(self, *, close_delimited: bool) -> None:  # noqa: ARG002 - whole either way, or not JSON
        owner, head = self._owner, self._head
        if owner is None or head is None:
            return
        if self._watch is not None:
            tail = self._watch.finish()
            if tail:
                self._pass(owner, tail)
            if self._watch.done:
                self._end(owner)
            else:
                self._fail(Fault.CUT)
        elif self._passing:
            self._owner = None
            owner.answer_ended(self, None)
        else:
            self._settle(owner, head, b"".join(self._held))

    def answer_broken(self, fault: Fault) -> None:
        owner, connection = self._owner, self._connection
        if owner is None:
            return
        if self._watch is not None and self._watch.done:
            self._end(owner)
        elif fault is Fault.RESET and connection is not None and connection.reused:
            # The worker closed an idle connection while the request was on its way: no fault, a fresh one decides.
            self._connection = None
            self._connecting = self._pool.connect(self._on_connected, self._on_connect_failed)
        elif self._verdict is not Verdict.PASS and self._head is not None:
            self._settle(owner, self._head, b"")
        else:
            self._fail(fault)

    def answer_timed_out(self) -> None:
        owner = self._owner
        if owner is None:
            return
        if self._watch is not None and self._watch.done:
            self._drop_connection()
            self._end(owner)
        elif self._verdict is not Verdict.PASS and self._head is not None:
            self._drop_connection()
            self._settle(owner, self._head, b"")
        else:
            started = self.begun or self._held_bytes > 0
            self._fail(Fault.STALLED if started else Fault.FIRST_BYTE_TIMEOUT)

    # --- the three kinds of answer ------------------------------------------------------------------------------------

    def _stream_data(self, owner: AttemptOwner, watch: EventStreamWatch, data: bytes) -> None:
        data = watch.feed(data)
        if watch.failed and not self.begun:
            self._fail(Fault.ERROR_EVENT)
            return
        if data:
            self._pass(owner, data)
        if watch.failed:
            self._fail(Fault.ERROR_EVENT)
        elif watch.done:
            self._expect_within(min(_AFTER_DONE_SECONDS, self._limits.between_chunks_seconds))

    def _pass(self, owner: AttemptOwner, data: bytes) -> None:
        if self.begun:
            owner.answer_continued(self, data)
        elif self._head is not None:
            self.begun = True
            owner.answer_started(self, self._head, data)

    def _overflow(self, owner: AttemptOwner) -> None:
        """An answer of unknown length has grown too large to hold."""
        held, self._held = b"".join(self._held), []
        if self._head is None or self._verdict is not Verdict.PASS or self._head.status == 404:
            self._drop_connection()
            if self._head is not None:
                self._settle(owner, self._head, held)
            return
        self._passing = True
        self._pass(owner, held)

    def _settle(self, owner: AttemptOwner, head: AnswerHead, body: bytes) -> None:
        """Decide on an answer that is all there, or whose body does not matter."""
        verdict = self._verdict
        if head.status == 404 and names_missing_model(body):
            verdict = Verdict.MODEL_MISSING
        if verdict is Verdict.FAULT:
            self._fail(Fault.STATUS)
            return
        usage = None
        if head.is_json and verdict is Verdict.PASS:
            try:
                usage = checked_usage(body)
            except NotJsonError:
                self._fail(Fault.MALFORMED)
                return
        self._owner = None
        if verdict is Verdict.PASS:
            owner.answer_ready(self, head, body, usage)
        else:
            owner.attempt_refused(self, verdict, head, body)

    def _end(self, owner: AttemptOwner) -> None:
        self._owner = None
        owner.answer_ended(self, self._watch.usage() if self._watch is not None else None)

    def _fail(self, fault: Fault) -> None:
        owner, self._owner = self._owner, None
        if owner is not None:
            self._drop_connection()
            owner.attempt_failed(self, fault)

    def _drop_connection(self) -> None:
        if self._connection is not None and self._connection.sink is self:
            self._connection.close()

    def _expect_within(self, seconds: float) -> None:
        if self._connection is not None and self._connection.sink is self:
            self._connection.expect_within(seconds)
