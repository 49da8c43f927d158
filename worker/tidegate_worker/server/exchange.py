"""One HTTP exchange at the ASGI border: what has been sent, what may still be, and whether anyone listens.

The status line leaves with the first bytes of the answer, never earlier: until then a failure is an error status that
a router can take elsewhere; afterwards it is one SSE `error` event and the end of the body, without `[DONE]`.
"""

import re
import secrets
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from tidegate_proto import sse
from tidegate_proto.openai_errors import ApiError

from tidegate_worker.server.json_body import Receive, read_body
from tidegate_worker.server.metrics import WorkerCounts

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_JSON = b"application/json"
_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")


class Exchange:
    """A request being answered."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, counts: WorkerCounts) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._counts = counts
        self._headers: Mapping[bytes, bytes] = dict(scope["headers"])
        given = self._headers.get(b"x-request-id", b"")
        self.request_id = given.decode("ascii") if _REQUEST_ID.fullmatch(given) else secrets.token_hex(16)
        self.started = False
        """The status line is out."""
        self._completed = False
        # HTTP/1.0 has no chunked coding, so a stream is collected and sent with its length.
        self._collected: bytearray | None = bytearray() if scope.get("http_version") == "1.0" else None

    async def body(self, limit_bytes: int) -> bytes:
        """The request body; see `read_body`."""
        length = self._headers.get(b"content-length")
        return await read_body(self._receive, None if length is None else length.decode("latin-1"), limit_bytes)

    def path_parameter(self, name: str) -> str | None:
        """A part of the path that the route captured."""
        value: str | None = self._scope.get("path_params", {}).get(name)
        return value

    async def wait_gone(self) -> None:
        """Returns when the client has closed the connection, or the answer is complete."""
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                return

    async def send_whole(
        self, status: int, body: bytes, content_type: bytes = _JSON, retry_after: int | None = None
    ) -> None:
        """A complete answer with its length."""
        headers = [(b"content-length", b"%d" % len(body))]
        if retry_after is not None:
            headers.append((b"retry-after", b"%d" % retry_after))
        await self._start(status, content_type, headers)
        await self._write(body, last=True)

    async def send_event_bytes(self, events: bytes, *, last: bool = False) -> None:
        """Part of an event stream; the status line goes before the first."""
        if self._collected is not None:
            self._collected += events
            if last:
                await self.send_whole(200, bytes(self._collected), sse.CONTENT_TYPE)
            return
        if not self.started:
            await self._start(200, sse.CONTENT_TYPE, [(b"cache-control", b"no-cache")])
        await self._write(events, last=last)

    async def fail(self, error: ApiError) -> None:
        """Tell the client of an error in whatever form is still possible."""
        if self._completed:
            return
        if self.started:
            await self._write(error.sse(), last=True)
            return
        await self.send_whole(error.status, error.body(), retry_after=1 if error.status == 503 else None)

    async def _start(self, status: int, content_type: bytes, headers: list[tuple[bytes, bytes]]) -> None:
        self.started = True
        self._counts.respond(status)
        head = [(b"content-type", content_type), (b"x-request-id", self.request_id.encode("ascii"))]
        await self._send({"type": "http.response.start", "status": status, "headers": head + headers})

    async def _write(self, body: bytes, *, last: bool) -> None:
        self._completed = last
        await self._send({"type": "http.response.body", "body": body, "more_body": not last})
