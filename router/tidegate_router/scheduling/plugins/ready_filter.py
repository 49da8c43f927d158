"""`ready-filter`: only endpoints that pass their health checks. Always on."""

from tidegate_router.state.endpoints import Endpoint


class ReadyFilter:
    """Failure memory goes before every score: a failing worker with the best cache is no candidate."""

    def keeps(self, endpoint: Endpoint, model: str) -> bool:  # noqa: ARG002 - the protocol's shape
        return endpoint.ready
