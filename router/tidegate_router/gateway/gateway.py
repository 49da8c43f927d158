"""`Gateway`: what client connections share; every effect of an exchange on the rest of the router goes through it."""

import asyncio
import itertools
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidegate_crds.router_spec import LimitsSpec, RouterSpec, TimeoutsSpec
from tidegate_proto.openai_errors import ApiError

from tidegate_router.collect.health_checks import HealthChecks
from tidegate_router.gateway.answer_writer import AnswerWriter
from tidegate_router.gateway.exchange import Exchange
from tidegate_router.gateway.local_answers import LocalAnswer, LocalAnswers
from tidegate_router.gateway.observer import Observer
from tidegate_router.gateway.request_head import RequestHead
from tidegate_router.gateway.waiting_room import WaitingRoom
from tidegate_router.scheduling.scheduler import Scheduler
from tidegate_router.state.endpoint_table import EndpointTable
from tidegate_router.state.endpoints import Endpoint
from tidegate_router.state.health import HealthBoard, Transition
from tidegate_router.state.prefix_index import TextPrefixIndex
from tidegate_router.tickets.ticket import Usage
from tidegate_router.upstream.attempt import Attempt
from tidegate_router.upstream.attempt_owner import AttemptLimits
from tidegate_router.upstream.deadline_wheel import DeadlineWheel
from tidegate_router.upstream.faults import Fault, Verdict
from tidegate_router.upstream.known_heads import KnownHeads
from tidegate_router.upstream.pool import UpstreamPool
from tidegate_router.upstream.pools import UpstreamPools

if TYPE_CHECKING:
    from tidegate_router.gateway.client_connection import ClientConnection


@dataclass(frozen=True, slots=True)
class RouterParts:
    """What a gateway is made of."""

    spec: RouterSpec
    table: EndpointTable
    scheduler: Scheduler
    index: TextPrefixIndex
    board: HealthBoard
    pools: UpstreamPools
    wheel: DeadlineWheel
    observer: Observer


class Gateway:
    """One per process."""

    def __init__(self, parts: RouterParts) -> None:
        spec = parts.spec
        self.limits: LimitsSpec = spec.limits
        self.timeouts: TimeoutsSpec = spec.timeouts
        self.table = parts.table
        self.scheduler = parts.scheduler
        self.wheel = parts.wheel
        self.now = time.monotonic
        self.max_attempts = spec.retries.max_attempts
        self.attempt_limits = AttemptLimits(
            first_byte_seconds=spec.timeouts.first_byte_seconds,
            between_chunks_seconds=spec.timeouts.between_chunks_seconds,
            max_held_bytes=spec.limits.max_buffered_answer_bytes,
        )
        self.known_heads: KnownHeads[RequestHead] = KnownHeads()
        """Clients' request heads, for all connections together."""
        self.draining = False
        self.connections: set[ClientConnection] = set()
        self.emptied = asyncio.Event()
        """Set when the last connection closes while draining."""
        self.checks = HealthChecks(
            spec.health_check,
            parts.board,
            parts.table,
            parts.pools,
            self.endpoint_changed,
            self.endpoint_failing,
        )
        self._board = parts.board
        self._index = parts.index
        self._pools = parts.pools
        self.pool = parts.pools.of
        """Connections to an endpoint."""
        self.observer = parts.observer
        self._metrics = parts.observer.metrics
        self._room = WaitingRoom(parts.wheel, spec.timeouts.connect_seconds)
        self._local = LocalAnswers(parts.table, self._metrics.render, lambda: self.draining, int(time.time()))
        # An engine may abort by prefix of an id, so no id of ours is the prefix of another: fixed width, never reused.
        self._attempt_nonce = os.urandom(5).hex().encode()
        self._attempt_numbers = itertools.count()

    # --- connections --------------------------------------------------------------------------------------------------

    def admit_connection(self, connection: "ClientConnection") -> bool:
        """Count a new client connection; False when there are too many."""
        if len(self.connections) >= self.limits.max_connections:
            self._metrics.rejected("too-many-connections")
            return False
        self.connections.add(connection)
        self._metrics.connections = len(self.connections)
        return True

    def forget_connection(self, connection: "ClientConnection") -> None:
        """It has closed."""
        self.connections.discard(connection)
        self._metrics.connections = len(self.connections)
        if self.draining and not self.connections:
            self.emptied.set()

    def answer_refused(self, writer: AnswerWriter, head: RequestHead, error: ApiError) -> None:
        """Answer what could not be read as a request."""
        writer.error(error)
        self.observer.refused(head, error)

    # --- understanding a request --------------------------------------------------------------------------------------

    def local_answer(self, head: RequestHead) -> LocalAnswer | None:
        """The answer that needs no worker, None when one is needed."""
        return self._local.answer(head)

    # --- workers ------------------------------------------------------------------------------------------------------

    def upstream_head(self, head: RequestHead, pool: UpstreamPool, length: int) -> bytes:
        """The head of a worker's request: the client's without what is the router's business."""
        return b"%bhost: %b\r\ncontent-length: %d\r\nx-request-id: %b-%b%08x\r\n%b\r\n" % (
            head.line,
            pool.authority,
            length,
            head.request_id.encode(),
            self._attempt_nonce,
            next(self._attempt_numbers) & 0xFFFFFFFF,
            head.forwarded,
        )

    def park(self, exchange: Exchange) -> None:
        """Nobody is ready: probe at once, and wait for who comes in."""
        self._room.enter(exchange)
        self.checks.hurry()

    def worker_answered(self, exchange: Exchange, attempt: Attempt, usage: Usage | None) -> None:
        """The worker's answer is the request's."""
        endpoint = attempt.endpoint
        self._board.answered(endpoint.slot)
        self._metrics.attempt_ended(endpoint.name, "answered")
        if usage is not None and usage.prompt_tokens is not None and exchange.placement and exchange.decision:
            self.scheduler.observe_usage(
                exchange.placement,
                exchange.decision,
                usage.prompt_tokens,
                usage.cached_tokens,
            )

    def attempt_abandoned(self, attempt: Attempt) -> None:
        """The client left while a worker was at it."""
        self._metrics.attempt_ended(attempt.endpoint.name, "abandoned")

    def worker_refused(self, exchange: Exchange, attempt: Attempt, verdict: Verdict) -> None:
        """The worker works, but not for this request."""
        self._board.answered(attempt.endpoint.slot)
        self.observer.attempt_refused(attempt.endpoint.name, verdict.value)
        if exchange.placement and exchange.decision:
            self.scheduler.observe_failure(exchange.placement, exchange.decision)

    def worker_failed(self, exchange: Exchange, attempt: Attempt, fault: Fault) -> None:
        """The worker failed; enough of these put it out."""
        endpoint = attempt.endpoint
        self.observer.attempt_failed(endpoint.name, fault, begun=attempt.begun)
        if exchange.placement and exchange.decision:
            self.scheduler.observe_failure(exchange.placement, exchange.decision)
        if fault.counts:
            gone = fault in (Fault.CONNECT, Fault.RESET)
            self.checks.apply(self._board.fault(endpoint.slot, self.now(), exchange.sent_at, gone=gone))

    def endpoint_changed(self, transition: Transition) -> None:
        """An endpoint came in or went out."""
        if transition.cache_lost:
            self._index.forget(transition.slot)
        if transition.ready:
            self._room.wake_all()
            return
        endpoint = self.table.get(transition.slot)
        if endpoint is not None:
            self._pools.of(endpoint).close_idle()

    def endpoint_failing(self, endpoint: Endpoint) -> None:
        """An endpoint that is out fails its checks: requests without a first byte go elsewhere, if they can."""
        for connection in self._pools.of(endpoint).busy:
            if isinstance(connection.sink, Attempt):
                connection.sink.leave_unhealthy()

    # --- ends ---------------------------------------------------------------------------------------------------------

    def leave_room(self, exchange: Exchange) -> None:
        """A request that had to wait has ended."""
        self._room.leave(exchange)

    def rejected(self, error: ApiError) -> str:
        """A request is answered with an error and no worker was asked; the reason in the metrics' words."""
        return self.observer.rejected(error, draining=self.draining)

    def retried(self, reason: str) -> None:
        """A request is sent to another worker, or again to the same; why the last attempt came to nothing."""
        self._metrics.retried(reason)

    def nobody_has(self, model: str) -> None:
        """A request ends with model-not-found although no worker was asked just now."""
        self.checks.doubt_models(model)
