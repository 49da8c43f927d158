"""`active-request-scorer`: less work in flight is better, counted by this router's own Tickets, so never stale."""

from collections.abc import Sequence

from tidegate_router.scheduling.plugin import SchedulingContext
from tidegate_router.state.endpoints import Endpoint


class ActiveRequestScorer:
    """1 for the least loaded; what a candidate has more, in tokens over the context's scale, is taken off."""

    def score(self, context: SchedulingContext, candidates: Sequence[Endpoint]) -> list[float]:  # noqa: ARG002 - protocol
        least, scale = context.least_work, context.scale
        return [1.0 - (work - least) / scale for work in context.work]
