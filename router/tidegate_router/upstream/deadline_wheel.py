"""The deadline wheel: every time-out of the data plane on one coarse tick, without a `call_later` per request.

A `Deadline` belongs to a connection or a waiting request for its whole life. Arming it is one assignment when the new
moment lies behind the old one, the common case; the wheel looks at each armed deadline at least once a second and
files it again while its moment has not come. Precision is one tick, always late, never early.
"""

import logging
import math
from collections.abc import Callable
from typing import Protocol

_HORIZON_TICKS = 10
_SLOTS = _HORIZON_TICKS + 1
_NEVER = math.inf

logger = logging.getLogger(__name__)


class Clock(Protocol):
    """What the wheel needs of an event loop."""

    def time(self) -> float:
        """Monotonic seconds."""

    def call_later(self, delay: float, callback: Callable[[], None], /) -> object:
        """Run a callback later, once."""


class Deadline:
    """One moment at which `on_expired` runs, unless it is moved or cleared before."""

    __slots__ = ("_filed_at", "_filed_tick", "_wheel", "due", "on_expired")

    def __init__(self, wheel: "DeadlineWheel", on_expired: Callable[[], None]) -> None:
        self._wheel = wheel
        self._filed_tick = 0
        self._filed_at = _NEVER
        self.due = _NEVER
        self.on_expired = on_expired

    def arm(self, seconds: float) -> None:
        """Expire `seconds` from now, whatever was set before."""
        self.due = due = self._wheel.now + seconds
        if due < self._filed_at:
            self._file()

    def clear(self) -> None:
        """Never expire."""
        self.due = _NEVER

    def _file(self) -> None:
        self._filed_tick = tick = self._wheel.file(self, self.due)
        self._filed_at = self._wheel.tick_time(tick)

    def _visited(self, tick: int, now: float) -> None:
        """Act on an entry of the wheel: expire, or be filed again."""
        if self._filed_tick != tick:  # an entry that an earlier moment replaced
            return
        self._filed_tick = 0
        self._filed_at = _NEVER
        if self.due == _NEVER:
            return
        if self.due > now:
            self._file()
            return
        self.due = _NEVER
        self.on_expired()


class DeadlineWheel:
    """A ring of ticks. `now` is the loop's time as of the last tick: cheap to read, at most one tick old."""

    def __init__(self, clock: Clock, tick_seconds: float = 0.1) -> None:
        self._clock = clock
        self._tick_seconds = tick_seconds
        self._ring: list[list[tuple[Deadline, int]]] = [[] for _ in range(_SLOTS)]
        self._tick = 1
        self._origin = clock.time() - tick_seconds
        self._running = False
        self.now = clock.time()

    def start(self) -> None:
        """Tick until `stop`."""
        if not self._running:
            self._running = True
            self._clock.call_later(self._tick_seconds, self._on_tick)

    def stop(self) -> None:
        """Tick no more; nothing expires afterwards."""
        self._running = False

    def tick_time(self, tick: int) -> float:
        """The moment at which a tick is due."""
        return self._origin + tick * self._tick_seconds

    def file(self, deadline: Deadline, due: float) -> int:
        """Note a deadline in the tick after its moment, or at the horizon if that is nearer; returns the tick."""
        # One tick more than the division says: `now` may be a tick old, and expiring early is the one forbidden error.
        wanted = math.ceil((due - self._origin) / self._tick_seconds) + 1
        tick = min(max(wanted, self._tick + 1), self._tick + _HORIZON_TICKS)
        self._ring[tick % _SLOTS].append((deadline, tick))
        return tick

    def _on_tick(self) -> None:
        if not self._running:
            return
        self._clock.call_later(self._tick_seconds, self._on_tick)
        self.now = now = self._clock.time()
        # A stalled loop skips ticks; no slot may be skipped with them.
        reached = int((now - self._origin) / self._tick_seconds)
        last = min(reached, self._tick + _SLOTS)
        while self._tick < last:
            self._tick += 1
            self._visit(self._tick, now)
        self._tick = max(self._tick, reached)

    def _visit(self, tick: int, now: float) -> None:
        entries = self._ring[tick % _SLOTS]
        if not entries:
            return
        self._ring[tick % _SLOTS] = []
        for deadline, filed_tick in entries:
            try:
                deadline._visited(filed_tick, now)  # noqa: SLF001 - the wheel and its deadlines are one structure
            except Exception:
                logger.exception("deadline callback failed")
