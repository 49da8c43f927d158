"""The HTTP of a worker that may misbehave: requests as they were read, answers sent byte by byte as a script says."""

import asyncio
import json
import socket
import struct
from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Received:
    """What a worker has seen."""

    connections: int = 0
    requests: Counter[str] = field(default_factory=Counter)
    """Requests by path."""
    users: Counter[str] = field(default_factory=Counter)
    """Chat completions by their `user`."""
    client_gone: int = 0
    """Connections that ended while an answer was being written or held back."""
    bytes_sent: int = 0
    bodies: list[bytes] = field(default_factory=list)
    """Bodies of the chat completions, the last thousand."""
    headers: list[dict[str, str]] = field(default_factory=list)
    """Header fields of the chat completions, lower-case names, the last thousand."""

    @property
    def completions(self) -> int:
        return self.requests["/v1/chat/completions"]


@dataclass(frozen=True, slots=True)
class Request:
    """One request as the worker read it."""

    path: str
    headers: dict[str, str]
    body: bytes
    first_on_connection: bool

    @property
    def document(self) -> dict[str, object]:
        """The JSON body, {} when it is none."""
        try:
            document = json.loads(self.body)
        except ValueError:
            return {}
        return document if isinstance(document, dict) else {}


class EndOfConversation(Exception):  # noqa: N818 - not an error: the script has closed the connection
    """The script is done with this connection."""


async def read_request(reader: asyncio.StreamReader, *, first_on_connection: bool) -> Request | None:
    """The next request of a connection, None at its end. Bodies by content-length or chunked."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    line, *fields = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (entry.partition(":") for entry in fields if entry)}
    body = b""
    if "chunked" in headers.get("transfer-encoding", ""):
        while size := int(await reader.readline(), 16):
            body += await reader.readexactly(size)
            await reader.readexactly(2)
        await reader.readuntil(b"\r\n")
    elif "content-length" in headers:
        body = await reader.readexactly(int(headers["content-length"]))
    return Request(line.split(" ")[1].split("?")[0], headers, body, first_on_connection)


class Sender:
    """Writes one answer, and counts what it wrote."""

    def __init__(
        self,
        received: Received,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        retry_after: str,
    ) -> None:
        self.retry_after = retry_after
        self._received = received
        self._reader = reader
        self._writer = writer

    async def raw(self, data: bytes) -> None:
        """Send bytes as they are, waiting while the reader is slow."""
        self._writer.write(data)
        self._received.bytes_sent += len(data)
        try:
            await self._writer.drain()
        except ConnectionError:
            self._received.client_gone += 1
            raise

    async def json(self, status: int, document: dict[str, object], *extra_headers: str, length: int = 0) -> None:
        """A whole JSON answer whose content-length is off by `length`."""
        body = json.dumps(document).encode()
        await self.raw(
            head(status, "application/json", f"content-length: {len(body) + length}", *extra_headers) + body,
        )

    async def chunk(self, data: bytes) -> None:
        """One chunk of a chunked answer; b"" is the last."""
        await self.raw(b"%x\r\n%s\r\n" % (len(data), data))

    async def hang(self) -> None:
        """Send nothing more until the other side goes."""
        await self._reader.read()
        self._received.client_gone += 1
        raise EndOfConversation

    def close(self) -> None:
        """FIN."""
        raise EndOfConversation

    def reset(self) -> None:
        """RST."""
        connection = self._writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()
        raise EndOfConversation


def head(status: int, content_type: str, *fields: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status} Scripted", f"content-type: {content_type}", *fields, "", ""]).encode()
