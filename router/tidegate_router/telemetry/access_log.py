"""`AccessLog`: one JSON line per request, written in batches. Never a prompt, an answer or a key.

A request costs one append. Lines are encoded when the gateway's timer calls `flush`, or when a batch is full; the sink
gets bytes and must not block. Memory is bounded on both sides: a full sink drops lines, and the drops are counted.
"""

from collections.abc import Callable

import msgspec

BATCH_ENTRIES = 512


class AccessEntry(msgspec.Struct, kw_only=True, gc=False, omit_defaults=True):
    """One line. Durations in seconds; what is unknown or empty is left out of it."""

    time: float
    """When the request was complete, seconds since the epoch."""
    id: str
    method: str
    path: str
    """Without its query."""
    status: int
    duration_seconds: float
    model: str = ""
    endpoint: str = ""
    """The one that answered, or that was tried last."""
    attempts: int = 0
    queue_seconds: float = 0.0
    """Before the last attempt was sent."""
    ttfb_seconds: float | None = None
    bytes_in: int = 0
    bytes_out: int = 0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    predicted_cached_tokens: int = 0
    stream: bool = False
    error: str = ""
    """A reason from the metrics' closed sets."""
    client_aborted: bool = False


class AccessLog:
    """Collects entries and hands encoded batches to a sink, which returns False when it had no room."""

    def __init__(self, sink: Callable[[bytes], bool]) -> None:
        self.dropped = 0
        """Lines that the sink had no room for."""
        self._sink = sink
        self._pending: list[AccessEntry] = []
        self._encode_lines = msgspec.json.Encoder().encode_lines

    def record(self, entry: AccessEntry) -> None:
        """Note one finished request."""
        pending = self._pending
        pending.append(entry)
        if len(pending) >= BATCH_ENTRIES:
            self.flush()

    def flush(self) -> None:
        """Hand everything noted so far to the sink."""
        pending = self._pending
        if not pending:
            return
        self._pending = []
        if not self._sink(self._encode_lines(pending)):
            self.dropped += len(pending)
