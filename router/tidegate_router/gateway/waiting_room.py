"""Requests that found no endpoint ready: they wait a moment while all endpoints are probed."""

from typing import TYPE_CHECKING

from tidegate_router.upstream.deadline_wheel import Deadline, DeadlineWheel

if TYPE_CHECKING:
    from tidegate_router.gateway.exchange import Exchange


class WaitingRoom:
    """Each request waits at most `limit_seconds` in all, however often it comes back."""

    def __init__(self, wheel: DeadlineWheel, limit_seconds: float) -> None:
        self._wheel = wheel
        self._limit_seconds = limit_seconds
        self._waiting: dict[Exchange, Deadline] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def enter(self, exchange: "Exchange") -> None:
        """Wait until `wake_all`, or tell the exchange that it waited too long."""
        now = self._wheel.now
        if not exchange.waiting_until:
            exchange.waiting_until = now + self._limit_seconds
        left = exchange.waiting_until - now
        if left <= 0:
            exchange.waited_too_long()
            return
        deadline = Deadline(self._wheel, lambda: self._expire(exchange))
        self._waiting[exchange] = deadline
        deadline.arm(left)

    def leave(self, exchange: "Exchange") -> None:
        """Its client has gone, or it was ended otherwise."""
        deadline = self._waiting.pop(exchange, None)
        if deadline is not None:
            deadline.clear()

    def wake_all(self) -> None:
        """An endpoint is ready: everybody tries again."""
        waiting, self._waiting = self._waiting, {}
        for exchange, deadline in waiting.items():
            deadline.clear()
            exchange.wake()

    def _expire(self, exchange: "Exchange") -> None:
        if self._waiting.pop(exchange, None) is not None:
            exchange.waited_too_long()
