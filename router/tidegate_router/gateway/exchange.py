"""An exchange: one client request, from its bytes to the last byte of its answer.

    parse ─> schedule ─> attempt ─┬─ answer ready ──────────> answered
               ^  ^               ├─ answer started … ended ─> answered
               │  └─ elsewhere ───┼─ refused or failed, nothing written yet
               │                  └─ failed, bytes written ─> error event, connection closed
               └─ woken ── parked (nobody is ready; probes are under way)

Its Ticket holds whatever it holds. Every way out goes through `_finish`, which closes the Ticket.
"""

import time
from typing import TYPE_CHECKING

import msgspec
from tidegate_proto.openai_errors import ApiError, ApiErrorKind

from tidegate_router.gateway.answer_writer import AnswerWriter
from tidegate_router.gateway.exchange_errors import (
    answer_broken,
    attempts_failed,
    model_not_found,
    nobody_ready,
    shutting_down,
)
from tidegate_router.gateway.openai_request import CHAT_PATH, COMPLETIONS_PATH, parse_passthrough, parse_request
from tidegate_router.gateway.request_head import RequestHead
from tidegate_router.gateway.retry_state import RetryState
from tidegate_router.scheduling.decision import Decision, Rejected
from tidegate_router.scheduling.placement import Placement
from tidegate_router.tickets.lease import EndpointLease
from tidegate_router.tickets.ticket import Outcome, Ticket, Usage
from tidegate_router.upstream.answer_head import AnswerHead
from tidegate_router.upstream.attempt import Attempt
from tidegate_router.upstream.faults import Fault, Verdict, retry_after_seconds

if TYPE_CHECKING:
    from tidegate_router.gateway.client_connection import ClientConnection
    from tidegate_router.gateway.gateway import Gateway

INFERENCE_PATHS = frozenset({CHAT_PATH, COMPLETIONS_PATH})


class Exchange(msgspec.Struct, eq=False):
    """See the module."""

    _gateway: "Gateway"
    _client: "ClientConnection"
    writer: AnswerWriter
    head: RequestHead
    retries: RetryState
    ticket: Ticket
    opened_at: float
    _attempt: Attempt | None = None
    _client_slow: bool = False
    placement: Placement | None = None
    decision: Decision | None = None
    queued_seconds: float = 0.0
    reason: str = ""
    """Why it did not end well, in the closed vocabulary of metrics."""
    sent_at: float = 0.0
    first_byte_at: float = 0.0
    waiting_until: float = 0.0

    # --- from the client ----------------------------------------------------------------------------------------------

    def begin(self, body: bytes) -> None:
        """Answer the request, now or later."""
        gateway = self._gateway
        head = self.head
        inference = head.path in INFERENCE_PATHS and head.method == b"POST"
        local = None if inference else gateway.local_answer(head)
        if local is not None:
            self.writer.whole(local.status, local.fields, local.body)
            if local.error is not None:
                self.reason = gateway.rejected(local.error)
            self._finish(Outcome.COMPLETED if local.error is None else Outcome.REJECTED)
            return
        if gateway.draining:
            self._error(shutting_down(), Outcome.REJECTED)
            return
        if inference:
            bytes_per_token = gateway.scheduler.bytes_per_token
            request = parse_request(head.path, body, head.request_id, bytes_per_token=bytes_per_token)
        else:
            request = parse_passthrough(head.path, body, head.request_id)
        if isinstance(request, ApiError):
            self._error(request, Outcome.REJECTED)
            return
        self.placement = gateway.scheduler.prepare(request)
        self._dispatch()

    def client_gone(self) -> None:
        """The client has left: whatever runs for it stops now."""
        self.writer.keep_alive = False
        if self._attempt is not None:
            self._gateway.attempt_abandoned(self._attempt)
        self._finish(Outcome.CLIENT_GONE)

    def client_slow(self) -> None:
        """The client does not take its answer as fast as it comes."""
        self._client_slow = True
        if self._attempt is not None:
            self._attempt.pause()

    def client_ready(self) -> None:
        """It has caught up."""
        self._client_slow = False
        if self._attempt is not None:
            self._attempt.resume()

    def give_up_draining(self) -> None:
        """The router has to end before the answer does."""
        error = shutting_down()
        self.reason = "draining"
        self.writer.keep_alive = False
        if self._attempt is not None and self._attempt.begun:
            self._cut(self._attempt, error)
        else:
            self._error(error, Outcome.FAILED)

    # --- choosing a worker --------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """An endpoint came in while this request waited for one."""
        self._dispatch()

    def waited_too_long(self) -> None:
        """No endpoint came in while it waited."""
        error = self.retries.final_error() or nobody_ready()
        self._error(error, Outcome.FAILED, self.retries.retry_after or 1)

    def _dispatch(self) -> None:
        placement = self.placement
        if placement is None or self.ticket.closed:
            return
        gateway = self._gateway
        decision = gateway.scheduler.schedule(placement, self.retries.tried)
        if isinstance(decision, Rejected) and decision.reason == "all-tried" and self.retries.start_over():
            decision = gateway.scheduler.schedule(placement, self.retries.tried)
        if isinstance(decision, Rejected):
            self._rejected(decision)
            return
        endpoint = decision.endpoint
        load = EndpointLease(gateway.table.load, endpoint.slot, decision.uncached_tokens)
        pool = gateway.pool(endpoint)
        body = placement.request.body
        message = gateway.upstream_head(self.head, pool, len(body))
        attempt = Attempt(self, endpoint, pool, load, gateway.attempt_limits, message, body)
        self.ticket.hold(attempt)
        self._attempt = attempt
        self.decision = decision
        if self.retries.asked:
            gateway.retried(self.reason)
        self.retries.asking(endpoint.slot)
        self.sent_at = gateway.now()
        self.queued_seconds = self.sent_at - self.opened_at
        gateway.scheduler.observe_dispatch(placement, decision)
        attempt.start()

    def _rejected(self, rejected: Rejected) -> None:
        if rejected.reason == "no-endpoints" and self.retries.may_ask:
            self._gateway.park(self)
            return
        error = self.retries.final_error()
        if error is not None:
            outcome = Outcome.BUSY if error.kind is ApiErrorKind.RATE_LIMITED else Outcome.FAILED
            self._error(error, outcome, self.retries.retry_after)
        elif rejected.reason == "model-not-found":
            model = self.placement.request.model if self.placement is not None else ""
            self._gateway.nobody_has(model)
            self._error(model_not_found(model), Outcome.REJECTED)
        else:
            self._error(nobody_ready(), Outcome.FAILED, 1)

    # --- AttemptOwner -------------------------------------------------------------------------------------------------

    def answer_ready(self, attempt: Attempt, head: AnswerHead, body: bytes, usage: Usage | None) -> None:
        self.first_byte_at = time.monotonic()
        self.writer.whole(head.status, head.passed + self._debug_fields() if self.head.debug else head.passed, body)
        self._gateway.worker_answered(self, attempt, usage)
        self._finish(Outcome.COMPLETED, usage)

    def answer_started(self, attempt: Attempt, head: AnswerHead, data: bytes) -> None:
        self._begin_answer(attempt)
        fields = head.passed + self._debug_fields()
        length = None if attempt.is_event_stream else head.content_length
        self.writer.begin(head.status, fields, data, length)

    def answer_continued(self, attempt: Attempt, data: bytes) -> None:  # noqa: ARG002 - there is one attempt at a time
        self.writer.write(data)

    def answer_ended(self, attempt: Attempt, usage: Usage | None) -> None:
        self.writer.end()
        self._gateway.worker_answered(self, attempt, usage)
        self._finish(Outcome.COMPLETED, usage)

    def attempt_refused(self, attempt: Attempt, verdict: Verdict, head: AnswerHead, body: bytes) -> None:
        del body
        slot = attempt.endpoint.slot
        self._gateway.worker_refused(self, attempt, verdict)
        self.reason = verdict.value
        if verdict is Verdict.BUSY:
            self.retries.busy(slot, retry_after_seconds(head.retry_after))
        else:
            model = self.placement.request.model if self.placement is not None else ""
            self.retries.without_model(slot, model_not_found(model))
            if model:
                self._gateway.table.add_without_model(slot, model)
        self._elsewhere(attempt)

    def attempt_failed(self, attempt: Attempt, fault: Fault) -> None:
        self.reason = fault.value
        self._gateway.worker_failed(self, attempt, fault)
        if attempt.begun:
            self._cut(attempt, answer_broken(fault))
            return
        self.retries.failed(attempt.endpoint.slot, fault, attempts_failed(fault))
        self._elsewhere(attempt)

    def may_leave(self, attempt: Attempt) -> bool:
        placement = self.placement
        if placement is None or not self.retries.may_ask:
            return False
        tried = self.retries.tried | 1 << attempt.endpoint.slot
        return isinstance(self._gateway.scheduler.schedule(placement, tried), Decision)

    # --- ends ---------------------------------------------------------------------------------------------------------

    def _elsewhere(self, attempt: Attempt) -> None:
        self.ticket.release(attempt)
        self._attempt = None
        if self.retries.may_ask:
            self._dispatch()
            return
        error = self.retries.final_error() or ApiError(ApiErrorKind.BAD_GATEWAY, "no worker answered")
        self._error(error, Outcome.FAILED, self.retries.retry_after)

    def _begin_answer(self, attempt: Attempt) -> None:
        self.first_byte_at = time.monotonic()
        if self._client_slow:
            attempt.pause()

    def _cut(self, attempt: Attempt, error: ApiError) -> None:
        """End an answer that has begun so that nobody takes it for whole."""
        last = b""
        if attempt.is_event_stream and not attempt.error_event_passed:
            last = (b"\n\n" if attempt.mid_event else b"") + error.sse()
        self.writer.cut(last)
        self._finish(Outcome.CUT)

    def _error(self, error: ApiError, outcome: Outcome, retry_after: int | None = None) -> None:
        if not self.ticket.closed:
            if not self.retries.asked:
                self.reason = self._gateway.rejected(error)
            self.writer.error(error, fields=self._debug_fields(), retry_after_seconds=retry_after)
            self._finish(outcome)

    def _finish(self, outcome: Outcome, usage: Usage | None = None) -> None:
        if not self.ticket.close(outcome, usage):
            return
        self._attempt = None
        if self.waiting_until:
            self._gateway.leave_room(self)
        self._gateway.observer.finished(self)
        self._client.answered(self.writer)

    def _debug_fields(self) -> bytes:
        decision = self.decision
        if not self.head.debug:
            return b""
        if decision is None:
            return b"x-tidegate-attempts: %d\r\n" % self.retries.asked
        scores = ",".join(f"{name}={score:.4f}" for name, score in decision.scores)
        return (
            f"x-tidegate-endpoint: {decision.endpoint.name}\r\n"
            f"x-tidegate-predicted-cached-tokens: {decision.predicted_cached_tokens}\r\n"
            f"x-tidegate-scores: {scores}\r\n"
            f"x-tidegate-attempts: {self.retries.asked}\r\n"
        ).encode("latin-1", "replace")
