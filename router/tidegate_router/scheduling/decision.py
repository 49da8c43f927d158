"""What scheduling answers: an endpoint with the reasons, or a rejection. Data, never an exception."""

from dataclasses import dataclass
from typing import Literal

from tidegate_router.state.endpoints import Endpoint

RejectReason = Literal["no-endpoints", "model-not-found", "all-tried"]


@dataclass(frozen=True, slots=True)
class Decision:
    """The chosen endpoint."""

    endpoint: Endpoint
    predicted_cached_tokens: int
    uncached_tokens: int
    """Estimated prompt tokens that this endpoint must compute; what the Ticket charges in flight."""
    scores: tuple[tuple[str, float], ...]
    """(endpoint name, weighted score) of every candidate, for debug headers."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """Nobody can take the request now."""

    reason: RejectReason
