"""Endpoints that the config lists: they are there from the start, and stay."""

import time
from collections.abc import Iterable

from tidegate_router.config import StaticEndpoint
from tidegate_router.state.endpoint_table import EndpointTable
from tidegate_router.state.health import HealthBoard


def add_static_endpoints(endpoints: Iterable[StaticEndpoint], table: EndpointTable, board: HealthBoard) -> None:
    """Take them in, none ready until its first check."""
    now = time.monotonic()
    for each in endpoints:
        endpoint = table.add(each.name, each.host, each.port, each.telemetry)
        board.add(endpoint.slot, now)
