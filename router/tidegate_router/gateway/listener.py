"""Accepts clients, and lets them go: on drain nobody new, idle ones at once, busy ones when answered or out of time."""

import asyncio
import socket
from contextlib import suppress

from tidegate_crds.router_spec import ListenSpec

from tidegate_router.gateway.client_connection import ClientConnection
from tidegate_router.gateway.gateway import Gateway

_BACKLOG = 4096
_FLUSH_SECONDS = 1.0


class Listener:
    """One listening address."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._server: asyncio.Server | None = None
        self.host = ""
        self.port = 0

    async def open(self, listen: ListenSpec) -> None:
        """Bind and accept. OSError: the address cannot be had."""
        gateway = self._gateway
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: ClientConnection(gateway, gateway.limits, gateway.timeouts),
            listen.host,
            listen.port,
            backlog=_BACKLOG,
            family=socket.AF_INET6 if ":" in listen.host else socket.AF_INET,
        )
        self.host, self.port = self._server.sockets[0].getsockname()[:2]

    @property
    def url(self) -> str:
        """`http://host:port` as bound."""
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"

    async def drain(self, seconds: float) -> None:
        """Accept nobody, let running requests end, for at most `seconds`; then each gets an error."""
        gateway = self._gateway
        gateway.draining = True
        if self._server is not None:
            self._server.close()
        for connection in tuple(gateway.connections):
            connection.close_if_idle()
        if not await self._emptied_within(seconds):
            for connection in tuple(gateway.connections):
                connection.end_now()
            await self._emptied_within(_FLUSH_SECONDS)

    async def _emptied_within(self, seconds: float) -> bool:
        if self._gateway.connections:
            self._gateway.emptied.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._gateway.emptied.wait(), seconds)
        return not self._gateway.connections
