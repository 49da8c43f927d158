"""What scheduling answers: an endpoint with the reasons, or a rejection. Data, never an exception."""

from typing import Literal

import msgspec

from tidegate_router.state.endpoints import Endpoint

RejectReason = Literal["no-endpoints", "model-not-found", "all-tried"]


class Decision(msgspec.Struct, frozen=True, gc=False):
    """The chosen endpoint."""

    endpoint: Endpoint
    predicted_cached_tokens: int
    uncached_tokens: int
    """Estimated prompt tokens that this endpoint must compute; what the Ticket charges in flight."""
    candidates: tuple[Endpoint, ...]
    totals: list[float]
    """The weighted score of each candidate, in their order."""

    @property
    def scores(self) -> tuple[tuple[str, float], ...]:
        """(endpoint name, weighted score) of every candidate, for debug headers."""
        return tuple((each.name, total) for each, total in zip(self.candidates, self.totals, strict=True))


class Rejected(msgspec.Struct, frozen=True, gc=False):
    """Nobody can take the request now."""

    reason: RejectReason
