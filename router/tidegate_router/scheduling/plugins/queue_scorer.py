"""`queue-scorer`: a shorter queue at the worker is better, as the worker last reported it."""

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta
from tidegate_crds.router_spec import ApiStruct

from tidegate_router.scheduling.plugin import SchedulingContext


class QueueParameters(ApiStruct, frozen=True, kw_only=True):
    """What counts as a long queue."""

    long_queue_requests: Annotated[int, Meta(ge=1, le=100_000)] = 8
    """A gap to the shortest queue of this many requests scores 0, or the widest gap if that is more."""


class QueueScorer:
    """Linear between the shortest queue (1) and the longest (0 when it is long).

    A worker that reports nothing counts as average: an unknown queue must not look like an empty one.
    """

    def __init__(self, parameters: QueueParameters) -> None:
        self._long_queue = parameters.long_queue_requests

    def score(self, context: SchedulingContext) -> list[float] | None:
        waiting: Sequence[float] = context.candidates.column(context.load.waiting_requests)
        if waiting.count(waiting[0]) == len(waiting):
            return None
        if min(waiting) < 0:
            known = [count for count in waiting if count >= 0]
            average = sum(known) / len(known)
            waiting = [count if count >= 0 else average for count in waiting]
        least = min(waiting)
        span = max(self._long_queue, max(waiting) - least)
        return [1.0 - (count - least) / span for count in waiting]
