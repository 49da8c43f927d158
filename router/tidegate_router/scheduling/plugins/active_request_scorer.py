"""`active-request-scorer`: less work in flight is better, counted by this router's own Tickets, so never stale."""

from collections.abc import Sequence

from tidegate_router.scheduling.plugin import SchedulingContext
from tidegate_router.state.endpoints import Endpoint


class ActiveRequestScorer:
    """1 for the least loaded; what a candidate has more, in tokens over the context's scale, is taken off."""

    def score(self, context: SchedulingContext, candidates: Sequence[Endpoint]) -> list[float] | None:
        least, scale, work = context.least_work, context.scale, context.work
        if work.count(least) == len(candidates):
            return None
        return [1.0 - (each - least) / scale for each in work]
