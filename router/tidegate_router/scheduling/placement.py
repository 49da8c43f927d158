"""`Placement`: one request on its way to a worker; hashed once, however often it is scheduled."""

import msgspec

from tidegate_router.state.request import Request


class Placement(msgspec.Struct, eq=False):
    """A request's chunk hashes, and what the index said when it was last scheduled."""

    request: Request
    hashes: list[int]
    matched: dict[int, int] = {}
    """Chunks per slot; written by the scheduler."""
