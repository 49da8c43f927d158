"""HTTP/1.1 at the level of bytes: a client that sends what a test wrote down and reads what really came back."""

import contextlib
import json
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

TIMEOUT_SECONDS = 10.0


class BrokenAnswer(Exception):  # noqa: N818 - what came back, not what this code did wrong
    """What came back is no HTTP answer, or not a whole one."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer as it was on the wire. `headers` have lower-case names; the last of equal names wins."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        """The body as JSON; ValueError when it is none."""
        return json.loads(self.body)


class Connection:
    """A blocking TCP connection to a server on loopback. Every wait is bounded by `timeout_seconds`."""

    def __init__(self, port: int, *, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=timeout_seconds)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """FIN, or RST when something is unread."""
        self._socket.close()

    def send(self, data: bytes) -> bool:
        """Send all of data; False when the other side has closed meanwhile, which a test may expect."""
        try:
            self._socket.sendall(data)
        except ConnectionError:
            return False
        return True

    def send_slowly(self, pieces: Iterable[bytes], *, pause_seconds: float) -> bool:
        """Send pieces with a pause between them; False when the other side closed."""
        for piece in pieces:
            if not self.send(piece):
                return False
            time.sleep(pause_seconds)
        return True

    def end_of_sending(self) -> None:
        """Half-close: tell the other side that nothing more comes."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def read_answer(self, *, head_only: bool = False) -> Answer | None:
        """The next final answer (1xx are skipped), None when the other side closed before one began.

        BrokenAnswer when it is no HTTP or ends early; TimeoutError when nothing comes.
        """
        while True:
            head = self._read_head()
            if head is None:
                return None
            status, headers = _parse_head(head)
            if status >= 200:
                break
        if head_only or status in {204, 304}:
            return Answer(status, headers, b"")
        return Answer(status, headers, self._read_body(headers))

    def read_interim(self) -> int:
        """The status of a 1xx answer; BrokenAnswer when something else comes first."""
        head = self._read_head()
        status = _parse_head(head or b"")[0]
        if status >= 200:
            raise BrokenAnswer(f"{status} where an interim answer was due")
        return status

    def closed_by_peer(self) -> bool:
        """Wait until the other side closes; False when it sends something instead. TimeoutError when neither."""
        if self._buffer:
            return False
        try:
            return not self._socket.recv(1)
        except ConnectionError:
            return True

    def _read_head(self) -> bytes | None:
        while b"\r\n\r\n" not in self._buffer:
            if not self._receive():
                if self._buffer:
                    raise BrokenAnswer(f"the connection ended within a head: {self._buffer[:200]!r}")
                return None
            if len(self._buffer) > 1 << 20:
                raise BrokenAnswer(f"no end of head in a megabyte: {self._buffer[:200]!r}")
        head, self._buffer = self._buffer.split(b"\r\n\r\n", 1)
        return head

    def _read_body(self, headers: dict[str, str]) -> bytes:
        if "chunked" in headers.get("transfer-encoding", ""):
            return self._read_chunks()
        if "content-length" in headers:
            return self._read_exactly(int(headers["content-length"]))
        while self._receive():
            pass
        body, self._buffer = self._buffer, b""
        return body

    def _read_chunks(self) -> bytes:
        body = b""
        while True:
            line = self._read_line()
            try:
                size = int(line, 16)
            except ValueError:
                raise BrokenAnswer(f"a chunk size that is none: {line!r}") from None
            body += self._read_exactly(size)
            if self._read_line():
                raise BrokenAnswer("a chunk without its end")
            if not size:
                return body

    def _read_line(self) -> bytes:
        while b"\r\n" not in self._buffer:
            if not self._receive():
                raise BrokenAnswer(f"the connection ended in a chunked body, after {self._buffer[-200:]!r}")
        line, self._buffer = self._buffer.split(b"\r\n", 1)
        return line

    def _read_exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            if not self._receive():
                raise BrokenAnswer(f"the connection ended {size - len(self._buffer)} bytes early")
        data, self._buffer = self._buffer[:size], self._buffer[size:]
        return data

    def _receive(self) -> bool:
        try:
            data = self._socket.recv(65_536)
        except ConnectionResetError:
            return False
        self._buffer += data
        return bool(data)


def _parse_head(head: bytes) -> tuple[int, dict[str, str]]:
    line, *fields = head.decode("latin-1").split("\r\n")
    version, _, rest = line.partition(" ")
    if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
        raise BrokenAnswer(f"not a status line: {line[:200]!r}")
    headers = {name.strip().lower(): value.strip() for name, _, value in (entry.partition(":") for entry in fields)}
    return int(rest[:3]), headers


def post(path: str, body: bytes, *fields: str, host: str = "test") -> bytes:
    """A POST request with its content-length, more header fields as given."""
    lines = [f"POST {path} HTTP/1.1", f"host: {host}", "content-type: application/json", *fields]
    return "\r\n".join([*lines, f"content-length: {len(body)}", "", ""]).encode("latin-1") + body


def get(path: str, *fields: str) -> bytes:
    """A GET request."""
    return "\r\n".join([f"GET {path} HTTP/1.1", "host: test", *fields, "", ""]).encode("latin-1")


def ask(port: int, request: bytes, *, timeout_seconds: float = TIMEOUT_SECONDS) -> Answer | None:
    """Send one request on a connection of its own and read its answer; None when the connection was just closed."""
    with Connection(port, timeout_seconds=timeout_seconds) as connection:
        connection.send(request)
        return connection.read_answer()
