"""The Ticket: the one object that owns everything a request holds.

    opened ── attempt ── attempt ── … ── close(outcome, usage)        once; afterwards it holds nothing

Whoever takes something for a request hands the Ticket a `Lease`. Any end of the request (answered, failed, client
gone, drained) is `close`, which releases every lease that is still open, newest first. Nothing else counts anything.
"""

from collections.abc import Callable
from enum import Enum
from typing import Any, TypeVar

import msgspec

from tidegate_router.tickets.lease import Lease


class Outcome(Enum):
    """How a request ended; a closed vocabulary, and the `reason` label of metrics."""

    COMPLETED = "completed"
    """The whole answer of a worker was passed on, an error of the client's making included."""
    REJECTED = "rejected"
    """No worker was asked: malformed, too large, unknown model, nobody there."""
    BUSY = "busy"
    """Every worker said that it is full."""
    FAILED = "failed"
    """Attempts failed before the client got a byte; it got an error."""
    CUT = "cut"
    """The answer broke after its first byte; the client was told, or its connection was cut."""
    CLIENT_GONE = "client-gone"
    """The client left, or read nothing for too long."""


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Tokens as the worker counted them. None is unknown, which is not zero."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


_LeaseT = TypeVar("_LeaseT", bound=Lease)


class Ticket(msgspec.Struct, eq=False):
    """Holds leases from the first attempt on and releases all of them exactly once."""

    _on_close: Callable[["Ticket"], Any] | None = None
    _leases: list[Lease] | None = msgspec.field(default_factory=list)
    outcome: Outcome | None = None
    usage: Usage | None = None

    @property
    def closed(self) -> bool:
        """Whether the request has ended."""
        return self._leases is None

    @property
    def open_leases(self) -> int:
        """Leases held now."""
        return len(self._leases or ())

    def hold(self, lease: _LeaseT) -> _LeaseT:
        """Take a lease over; on a closed Ticket it is released at once."""
        if self._leases is None:
            lease.release()
        else:
            self._leases.append(lease)
        return lease

    def release(self, lease: Lease) -> None:
        """End one lease before the Ticket does, as when an attempt has failed."""
        if self._leases is not None and lease in self._leases:
            self._leases.remove(lease)
        lease.release()

    def close(self, outcome: Outcome, usage: Usage | None = None) -> bool:
        """End the request; returns False, and changes nothing, when it had ended before."""
        leases = self._leases
        if leases is None:
            return False
        self._leases = None
        self.outcome = outcome
        self.usage = usage
        while leases:
            leases.pop().release()
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close(self)
        return True
