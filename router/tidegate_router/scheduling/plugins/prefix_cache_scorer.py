"""`prefix-cache-scorer`: the share of the prompt that a candidate need not compute again.

The credit for a cached prefix holds while its holder is about as busy as the others and fades when it is busier, for
each candidate by itself. So a chat stays where its history is, and a prefix that everybody shares spreads instead of
sending all of the traffic to one worker: past the bound another worker computes it once and holds it as well.
"""

from typing import Annotated

from msgspec import Meta
from tidegate_crds.router_spec import ApiStruct

from tidegate_router.scheduling.plugin import SchedulingContext


class PrefixCacheParameters(ApiStruct, frozen=True, kw_only=True):
    """How much busier than the others a prefix's holder may be."""

    load_factor: Annotated[float, Meta(ge=1, le=100)] = 1.25
    """Requests in flight, as a multiple of the reference (midway between mean and least), with full credit."""
    slack_requests: Annotated[float, Meta(ge=0, le=10_000)] = 1.0
    """Requests on top of that multiple, so that small numbers do not look like imbalance."""
    fade_requests: Annotated[float, Meta(gt=0, le=10_000)] = 2.0
    """Requests past the bound over which the credit falls to nothing."""


class PrefixCacheScorer:
    """Cached tokens over the context's scale, times the room that the holder has left."""

    def __init__(self, parameters: PrefixCacheParameters) -> None:
        self._factor = parameters.load_factor
        self._slack = parameters.slack_requests
        self._fade = parameters.fade_requests

    def score(self, context: SchedulingContext) -> list[float] | None:
        cached = context.cached_tokens
        if not cached:
            return None
        counts, slots, scale = context.requests, context.candidates.slots, context.scale
        ordered = sorted(counts)
        full = self._factor * ((sum(counts) / len(counts) + ordered[0]) / 2 + 1) + self._slack - 1
        if ordered[-1] <= full:
            return [cached.get(slot, 0) / scale for slot in slots]
        fade = self._fade
        return [
            cached.get(slot, 0) / scale * min(1.0, max(0.0, 1.0 - (count - full) / fade))
            for slot, count in zip(slots, counts, strict=True)
        ]
