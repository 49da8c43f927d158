"""A small GET to a worker, over the same connections and parser as requests: health checks and model lists."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from tidegate_router.upstream.answer_head import AnswerHead
from tidegate_router.upstream.connection import UpstreamConnection
from tidegate_router.upstream.faults import Fault
from tidegate_router.upstream.pool import UpstreamPool

_MAX_BODY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class GetAnswer:
    """What came back: a status with its body, or the fault that stood in the way."""

    status: int
    body: bytes
    fault: Fault | None = None

    @property
    def gone(self) -> bool:
        """Whether nothing listens there any more."""
        return self.fault in (Fault.CONNECT, Fault.RESET)


class GetRequest:
    """Runs once, calls back once. A kept connection that turns out dead is replaced by a fresh one."""

    def __init__(
        self, pool: UpstreamPool, path: str, timeout_seconds: float, on_done: Callable[[GetAnswer], None]
    ) -> None:
        self._pool = pool
        host = f"[{pool.host}]" if ":" in pool.host else pool.host
        self._message = f"GET {path} HTTP/1.1\r\nhost: {host}:{pool.port}\r\naccept: */*\r\n\r\n".encode()
        self._timeout_seconds = timeout_seconds
        self._on_done: Callable[[GetAnswer], None] | None = on_done
        self._connection: UpstreamConnection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._status = 0
        self._body = bytearray()

    def start(self) -> None:
        """Send it."""
        connection = self._pool.take()
        if connection is None:
            self._connect()
        else:
            self._send_on(connection)

    def cancel(self) -> None:
        """Forget about it."""
        self._on_done = None
        self._drop()
        if self._connecting is not None:
            self._connecting.cancel()

    def _connect(self) -> None:
        self._connecting = self._pool.connect(self._send_on, lambda: self._finish(GetAnswer(0, b"", Fault.CONNECT)))

    def _send_on(self, connection: UpstreamConnection) -> None:
        self._connection = connection
        connection.send(self, self._message, b"", self._timeout_seconds)

    def answer_begun(self, head: AnswerHead) -> None:
        self._status = head.status

    def answer_data(self, data: bytes) -> None:
        self._body += data
        if len(self._body) > _MAX_BODY_BYTES:
            self._drop()
            self._finish(GetAnswer(0, b"", Fault.OVERLONG))

    def answer_at_once(self, head: AnswerHead, body: bytes) -> None:
        self._finish(GetAnswer(head.status, body))

    def answer_complete(self, *, close_delimited: bool) -> None:  # noqa: ARG002 - nothing here depends on it
        self._finish(GetAnswer(self._status, bytes(self._body)))

    def answer_broken(self, fault: Fault) -> None:
        connection = self._connection
        if fault is Fault.RESET and connection is not None and connection.reused:
            self._connect()
        else:
            self._finish(GetAnswer(0, b"", fault))

    def answer_timed_out(self) -> None:
        self._drop()
        self._finish(GetAnswer(0, b"", Fault.FIRST_BYTE_TIMEOUT))

    def _drop(self) -> None:
        if self._connection is not None and self._connection.sink is self:
            self._connection.close()

    def _finish(self, answer: GetAnswer) -> None:
        on_done, self._on_done = self._on_done, None
        if on_done is not None:
            on_done(answer)
