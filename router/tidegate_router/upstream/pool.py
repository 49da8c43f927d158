"""Connections to one endpoint: idle ones to take, busy ones to find again when the endpoint fails its checks.

Idle connections are taken newest first, so that the rest grow old and close; none lives longer idle than the router's
limit, which lies below the engines' own (uvicorn closes after 5 s).
"""

import asyncio
from collections.abc import Callable

from tidegate_crds.router_spec import TimeoutsSpec

from tidegate_router.upstream.answer_head import AnswerHead
from tidegate_router.upstream.connection import UpstreamConnection
from tidegate_router.upstream.deadline_wheel import DeadlineWheel
from tidegate_router.upstream.known_heads import KnownHeads


class UpstreamPool:
    """All connections of this router to one host and port."""

    def __init__(
        self,
        host: str,
        port: int,
        timeouts: TimeoutsSpec,
        wheel: DeadlineWheel,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.host = host
        self.port = port
        self.authority = (f"[{host}]:{port}" if ":" in host else f"{host}:{port}").encode()
        """What stands in `Host`."""
        self.known_heads: KnownHeads[AnswerHead] = KnownHeads()
        """Heads of this endpoint's answers."""
        self._timeouts = timeouts
        self._wheel = wheel
        self._loop = loop
        self._idle: list[UpstreamConnection] = []
        self._busy: set[UpstreamConnection] = set()
        self._closed = False

    @property
    def idle(self) -> int:
        """Open connections with nothing on them."""
        return len(self._idle)

    @property
    def busy(self) -> tuple[UpstreamConnection, ...]:
        """Connections with a request on them."""
        return tuple(self._busy)

    def take(self) -> UpstreamConnection | None:
        """The most recently used idle connection, None when there is none."""
        idle = self._idle
        while idle:
            connection = idle.pop()
            if connection.usable:
                self._busy.add(connection)
                return connection
        return None

    def connect(
        self,
        on_connected: Callable[[UpstreamConnection], None],
        on_failed: Callable[[], None],
    ) -> "asyncio.Task[None]":
        """Open a connection and hand it over, busy; exactly one callback runs unless the task is cancelled."""
        return self._loop.create_task(self._connect(on_connected, on_failed))

    async def _connect(
        self,
        on_connected: Callable[[UpstreamConnection], None],
        on_failed: Callable[[], None],
    ) -> None:
        try:
            async with asyncio.timeout(self._timeouts.connect_seconds):
                _, connection = await self._loop.create_connection(
                    lambda: UpstreamConnection(self, self._wheel),
                    self.host,
                    self.port,
                )
        except (OSError, TimeoutError):
            on_failed()
            return
        if self._closed or not connection.usable:
            connection.close()
            on_failed()
            return
        self._busy.add(connection)
        on_connected(connection)

    def give_back(self, connection: UpstreamConnection) -> None:
        """Keep a connection whose answer is complete."""
        self._busy.discard(connection)
        if self._closed:
            connection.close()
            return
        connection.deadline.arm(self._timeouts.upstream_idle_seconds)
        self._idle.append(connection)

    def forget(self, connection: UpstreamConnection) -> None:
        """A connection has closed."""
        self._busy.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def close_idle(self) -> None:
        """Drop what is idle: after the endpoint went away none of it can be trusted."""
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def close(self) -> None:
        """Drop everything; connections given back later are closed."""
        self._closed = True
        self.close_idle()
        for connection in self.busy:
            connection.close()
