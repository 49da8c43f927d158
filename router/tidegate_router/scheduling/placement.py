"""`Placement`: one request on its way to a worker; hashed once, however often it is scheduled."""

from tidegate_router.state.prefix_index import chunk_hashes
from tidegate_router.state.request import Request


class Placement:
    """A request's chunk hashes, and what the index said when it was last scheduled."""

    __slots__ = ("hashes", "matched", "request")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.hashes = chunk_hashes(request)
        self.matched: dict[int, int] = {}
        """Chunks per slot; written by the scheduler."""
