"""Endpoints and their load: an immutable snapshot of who there is, beside columns of integers that change all the time.

An endpoint keeps its slot (an index into the columns, a bit in bit sets) for its whole life. The snapshot is rebuilt
when discovery, readiness or models change; the columns are written by Tickets (in flight) and collectors (the rest)
and read at decision time, never copied.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One worker as routing sees it."""

    slot: int
    name: str
    host: str
    port: int
    telemetry: str | None = None
    ready: bool = False
    """Passed its health checks and not taken out by faults."""
    models: Mapping[str, int | None] | None = None
    """Names it serves, in its order, each with its context in tokens; None while unknown (then any may be tried)."""
    without_models: frozenset[str] = frozenset()
    """Names it answered 404 for, until its list is read again."""

    def may_serve(self, model: str) -> bool:
        """Whether a request for `model` may be sent there."""
        return (self.models is None or model in self.models) and model not in self.without_models

    def contradicts_itself(self, model: str) -> bool:
        """Whether it lists `model` and answered 404 for it all the same."""
        return self.models is not None and model in self.models and model in self.without_models


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All endpoints at one moment. `version` grows with each rebuild."""

    version: int
    endpoints: tuple[Endpoint, ...]


@dataclass(slots=True)
class LoadColumns:
    """Load per slot. Only Tickets change the in-flight columns; collectors own the others."""

    in_flight_requests: list[int] = field(default_factory=list)
    in_flight_tokens: list[int] = field(default_factory=list)
    waiting_requests: list[int] = field(default_factory=list)
    """The worker's own queue, as last heard; -1 is unknown."""
