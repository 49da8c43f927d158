"""What is told to metrics and the access log, from one place: the ends of attempts and of requests."""

import time

from tidegate_proto.openai_errors import ApiError, ApiErrorKind

from tidegate_router.gateway.exchange import Exchange
from tidegate_router.gateway.local_answers import PROBE_PATHS
from tidegate_router.gateway.request_head import RequestHead
from tidegate_router.telemetry.access_log import AccessEntry, AccessLog
from tidegate_router.telemetry.metrics import RouterMetrics
from tidegate_router.tickets.ticket import Outcome, Usage
from tidegate_router.upstream.faults import Fault

_REJECTION_REASONS = {
    ApiErrorKind.TOO_LARGE: "too-large",
    ApiErrorKind.HEADERS_TOO_LARGE: "headers-too-large",
    ApiErrorKind.TIMEOUT: "timeout",
    ApiErrorKind.NOT_FOUND: "not-found",
    ApiErrorKind.MODEL_NOT_FOUND: "model-not-found",
    ApiErrorKind.METHOD_NOT_ALLOWED: "method-not-allowed",
    ApiErrorKind.UNAVAILABLE: "no-endpoints",
    ApiErrorKind.RATE_LIMITED: "busy",
}
_NO_USAGE = Usage()


class Observer:
    """Stateless but for what it writes to."""

    def __init__(self, metrics: RouterMetrics, access_log: AccessLog | None) -> None:
        self.metrics = metrics
        self._access_log = access_log

    def attempt_refused(self, endpoint: str, outcome: str) -> None:
        """A worker was busy, or without the model."""
        self.metrics.attempt_ended(endpoint, outcome)

    def attempt_failed(self, endpoint: str, fault: Fault, *, begun: bool) -> None:
        """A worker failed."""
        metrics = self.metrics
        metrics.attempt_ended(endpoint, "failed")
        if fault.counts:
            metrics.fault(endpoint, fault.value)
        if begun:
            metrics.stream_failed(fault.value)

    def rejected(self, error: ApiError, *, draining: bool = False) -> str:
        """A request gets an error without a worker having been asked; returns the reason counted."""
        reason = _REJECTION_REASONS.get(error.kind, "invalid")
        if draining and error.kind is ApiErrorKind.UNAVAILABLE:
            reason = "draining"
        self.metrics.rejected(reason)
        return reason

    def refused(self, head: RequestHead, error: ApiError) -> None:
        """A client sent what is no request, or too much."""
        reason = self.rejected(error)
        self.metrics.request_finished("", error.status, 0.0, None)
        if self._access_log is not None:
            self._access_log.record(
                AccessEntry(
                    time=time.time(),
                    id=head.request_id,
                    method=head.method.decode("latin-1"),
                    path=head.path,
                    status=error.status,
                    duration_seconds=0.0,
                    error=reason,
                ),
            )

    def finished(self, exchange: Exchange) -> None:
        """A request has ended, in whatever way. Probes and scrapes are not worth a line."""
        status = exchange.writer.status
        placement = exchange.placement
        if placement is None and status in (200, 503) and exchange.head.path in PROBE_PATHS:
            return
        ticket = exchange.ticket
        usage = ticket.usage
        decision = exchange.decision
        model = "" if placement is None else placement.request.model
        opened_at = exchange.opened_at
        duration = time.monotonic() - opened_at
        first_byte = exchange.first_byte_at - opened_at if exchange.first_byte_at else None
        metrics = self.metrics
        if status:
            metrics.request_finished(model, status, duration, first_byte)
        if ticket.outcome is Outcome.CLIENT_GONE:
            metrics.client_disconnects += 1
        if usage is not None:
            metrics.tokens_used(
                model,
                usage.prompt_tokens or 0,
                usage.cached_tokens or 0,
                usage.completion_tokens or 0,
                0 if decision is None else decision.predicted_cached_tokens,
            )
        if self._access_log is not None:
            self._access_log.record(_entry(exchange, usage or _NO_USAGE, duration, first_byte))


def _entry(exchange: Exchange, usage: Usage, duration: float, first_byte: float | None) -> AccessEntry:
    head, writer, decision = exchange.head, exchange.writer, exchange.decision
    request = exchange.placement.request if exchange.placement is not None else None
    outcome = exchange.ticket.outcome
    return AccessEntry(
        time=time.time(),
        id=head.request_id,
        method="POST" if head.method == b"POST" else head.method.decode("latin-1"),
        path=head.path,
        status=writer.status,
        duration_seconds=duration,
        model=request.model if request is not None else "",
        endpoint=decision.endpoint.name if decision is not None else "",
        attempts=exchange.retries.asked,
        queue_seconds=exchange.queued_seconds,
        ttfb_seconds=first_byte,
        bytes_in=len(request.body) if request is not None else 0,
        bytes_out=writer.bytes_out,
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        completion_tokens=usage.completion_tokens,
        predicted_cached_tokens=decision.predicted_cached_tokens if decision is not None else 0,
        stream=request is not None and request.stream,
        error="" if outcome is Outcome.COMPLETED else exchange.reason,
        client_aborted=outcome is Outcome.CLIENT_GONE,
    )
