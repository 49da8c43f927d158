"""`active-request-scorer`: less work in flight is better, counted by this router's own Tickets, so never stale."""

from tidegate_router.scheduling.plugin import SchedulingContext


class ActiveRequestScorer:
    """1 for the least loaded; what a candidate has more, in tokens over the context's scale, is taken off."""

    def score(self, context: SchedulingContext) -> list[float] | None:
        least, scale = context.least_work, context.scale
        if least == context.most_work:
            return None
        return [1.0 - (work - least) / scale for work in context.work]
