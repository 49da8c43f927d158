"""Writes exactly one answer to one request, in the framing that this client understands.

new ── whole ──────────────────────────> ended
 └──── begin ── write … ─┬─ end ───────> ended
                         └─ cut ───────> ended, and the connection closes short
"""

import asyncio

import msgspec
from tidegate_proto.openai_errors import ApiError

from tidegate_router.gateway import answer_bytes
from tidegate_router.gateway.request_head import RequestHead

_BODILESS = frozenset({204, 304})


class AnswerWriter(msgspec.Struct, eq=False):
    """One per request. `keep_alive` turns False when the connection must close behind the answer."""

    _transport: asyncio.Transport
    _head: RequestHead
    keep_alive: bool
    _chunked: bool = False
    begun: bool = False
    status: int = 0
    bytes_out: int = 0

    def whole(self, status: int, fields: bytes, body: bytes) -> None:
        """Send a complete answer."""
        if self.begun:
            raise RuntimeError("a request is answered once")
        self.begun = True
        self.status = status
        head = self._head
        plain = self.keep_alive and not head.http10
        message = b"%b%bx-request-id: %b\r\n%bcontent-length: %d\r\n\r\n" % (
            answer_bytes.STATUS_LINES.get(status) or answer_bytes.status_line(status),
            fields,
            head.request_id.encode(),
            b"" if plain else self._connection_line(),
            len(body),
        )
        if head.method == b"HEAD" or status in _BODILESS:
            body = b""
            if status in _BODILESS:
                message = message.replace(b"content-length: 0\r\n", b"")
        self.bytes_out = len(body)
        if not self._transport.is_closing():
            self._transport.write(message + body)

    def error(self, error: ApiError, *, fields: bytes = b"", retry_after_seconds: int | None = None) -> None:
        """Send an error as OpenAI's JSON."""
        self.whole(error.status, answer_bytes.error_fields(error, retry_after_seconds) + fields, error.body())

    def begin(self, status: int, fields: bytes, first: bytes, content_length: int | None) -> None:
        """Start an answer of known or unknown length, with its first bytes in the same segment as its head."""
        self._start(status)
        head = self._head
        if content_length is not None:
            framing = b"content-length: %d\r\n" % content_length
        elif head.http10:
            framing = b""
            self.keep_alive = False
        else:
            framing = b"transfer-encoding: chunked\r\n"
            self._chunked = True
        lines = b"%b%b%bx-request-id: %b\r\n%b\r\n" % (
            answer_bytes.status_line(status),
            fields,
            framing,
            head.request_id.encode(),
            self._connection_line(),
        )
        self.bytes_out = len(first)
        self._send(lines + (answer_bytes.chunk(first) if self._chunked else first))

    def write(self, data: bytes) -> None:
        """Send more of a begun answer."""
        self.bytes_out += len(data)
        self._send(answer_bytes.chunk(data) if self._chunked else data)

    def end(self) -> None:
        """The begun answer is whole."""
        if self._chunked:
            self._send(answer_bytes.LAST_CHUNK)

    def cut(self, last: bytes = b"") -> None:
        """The begun answer is not whole: say `last`, then close without the end that its framing promises."""
        if last:
            self.write(last)
        self.keep_alive = False

    def _send(self, data: bytes) -> None:
        # Between the end of a connection and the word of it, a write would raise.
        if not self._transport.is_closing():
            self._transport.write(data)

    def _start(self, status: int) -> None:
        if self.begun:
            raise RuntimeError("a request is answered once")
        self.begun = True
        self.status = status

    def _connection_line(self) -> bytes:
        if not self.keep_alive:
            return b"connection: close\r\n"
        return b"connection: keep-alive\r\n" if self._head.http10 else b""
