"""The pools of all endpoints, by slot, and the header line that names each."""

import asyncio

from tidegate_crds.router_spec import TimeoutsSpec

from tidegate_router.state.endpoints import Endpoint
from tidegate_router.upstream.deadline_wheel import DeadlineWheel
from tidegate_router.upstream.pool import UpstreamPool


class UpstreamPools:
    """Makes a pool when an endpoint is first used."""

    def __init__(self, timeouts: TimeoutsSpec, wheel: DeadlineWheel, loop: asyncio.AbstractEventLoop) -> None:
        self._timeouts = timeouts
        self._wheel = wheel
        self._loop = loop
        self._pools: dict[int, UpstreamPool] = {}

    def of(self, endpoint: Endpoint) -> UpstreamPool:
        """The endpoint's pool."""
        pool = self._pools.get(endpoint.slot)
        if pool is None:
            pool = UpstreamPool(endpoint.host, endpoint.port, self._timeouts, self._wheel, self._loop)
            self._pools[endpoint.slot] = pool
        return pool

    def close(self) -> None:
        """Drop every connection."""
        for pool in self._pools.values():
            pool.close()
