"""Leases: what a Ticket holds, each released once however often it is asked."""

from typing import Protocol

from tidegate_router.state.endpoints import LoadColumns


class Lease(Protocol):
    """Something a request holds until its Ticket closes or it gives it back sooner."""

    def release(self) -> None:
        """Give it back; a second call does nothing."""


class EndpointLease:
    """An attempt's share of an endpoint's load: one request and its uncached prompt tokens.

    Counted when the lease is made, before anything is sent, so that a burst sees itself. Only leases change the
    in-flight columns; a slot is not given to another endpoint while a lease on it is open.
    """

    __slots__ = ("_columns", "slot", "tokens")

    def __init__(self, columns: LoadColumns, slot: int, tokens: int) -> None:
        columns.in_flight_requests[slot] += 1
        columns.in_flight_tokens[slot] += tokens
        self._columns: LoadColumns | None = columns
        self.slot = slot
        self.tokens = tokens

    @property
    def released(self) -> bool:
        """Whether the load was given back."""
        return self._columns is None

    def release(self) -> None:
        columns = self._columns
        if columns is None:
            return
        self._columns = None
        columns.in_flight_requests[self.slot] -= 1
        columns.in_flight_tokens[self.slot] -= self.tokens
