"""uvicorn's HTTP protocol with bounds on what a client may make it hold before a request exists."""

import asyncio
from typing import Any

from tidegate_proto.openai_errors import ApiError, ApiErrorKind
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 * 1024
HEAD_TIMEOUT_SECONDS = 30.0


class BoundedHttpProtocol(HttpToolsProtocol):
    """Closes a connection whose request head is larger than `MAX_HEAD_BYTES` or slower than `HEAD_TIMEOUT_SECONDS`."""

    _in_head = False
    _head_bytes = 0
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_arrived()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._in_head and not self.transport.is_closing():
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self.send_400_response(f"the request head is larger than {MAX_HEAD_BYTES} bytes")

    def on_message_begin(self) -> None:
        self._in_head = True
        self._head_bytes = 0
        if self._head_timer is None:
            self._await_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._head_arrived()
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer a request that is no HTTP, in the same form as every other error."""
        message = "the request is not valid HTTP" if msg == "Invalid HTTP request received." else msg
        body = ApiError(ApiErrorKind.INVALID, message).body()
        head = b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: %d\r\n" % len(body)
        self.transport.write(head + b"connection: close\r\n\r\n" + body)
        self.transport.close()

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_SECONDS, self.transport.close)

    def _head_arrived(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
