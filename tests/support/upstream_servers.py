"""Raw workers for router tests: they write exactly the bytes a script says, split exactly where it says.

A script is called once per request with the connection and does as it likes; `/health` and `/v1/models` are answered
well by themselves unless the worker is told otherwise.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

HEALTH_OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


@dataclass
class Seen:
    """A request as the worker got it."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Connection:
    """One connection at the worker. `gone` is set when the router closed it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    request_number: int = 0
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    async def send(self, *pieces: bytes) -> None:
        """Write pieces, each leaving in a segment of its own."""
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()
            await asyncio.sleep(0.005)

    def close(self) -> None:
        """End the connection in order."""
        self.writer.close()

    def reset(self) -> None:
        """End it with a reset."""
        self.writer.transport.abort()

    async def wait_gone(self) -> None:
        """Until the router has closed its side."""
        while await self.reader.read(4096):
            pass
        self.gone.set()


Script = Callable[[Connection, Seen], Awaitable[None]]


class RawWorker:
    """A worker on a free port of loopback."""

    def __init__(self, script: Script, *, models: tuple[str, ...] = ("m",), port: int = 0) -> None:
        self.script = script
        self.models = models
        self.healthy = True
        self.seen: list[Seen] = []
        self.connections: list[Connection] = []
        self.port = port
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, limit=1 << 24)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Close the listener and every connection, as a killed process does."""
        if self._server is not None:
            self._server.close()
        for connection in self.connections:
            connection.reset()
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        """For a router config."""
        return f"http://127.0.0.1:{self.port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        connection = Connection(reader, writer)
        self.connections.append(connection)
        try:
            while not writer.is_closing():
                seen = await _read_request(reader)
                if seen is None:
                    break
                await self._answer(connection, seen)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            connection.gone.set()
            writer.close()

    async def _answer(self, connection: Connection, seen: Seen) -> None:
        if seen.target == "/health":
            if self.healthy:
                await connection.send(HEALTH_OK)
            else:
                await connection.send(b"HTTP/1.1 500 X\r\ncontent-length: 0\r\n\r\n")
        elif seen.target == "/v1/models":
            body = json.dumps(
                {"object": "list", "data": [{"id": name, "max_model_len": 4096} for name in self.models]}
            ).encode()
            await connection.send(json_answer(body))
        else:
            self.seen.append(seen)
            connection.request_number += 1
            await self.script(connection, seen)


async def _read_request(reader: asyncio.StreamReader) -> Seen | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    lines = head.decode("latin-1").split("\r\n")
    method, target, _ = lines[0].split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:] if line)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Seen(method, target, headers, body)


def json_answer(body: bytes, status: str = "200 OK", extra: str = "") -> bytes:
    """A JSON answer with a right content-length."""
    return (
        f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\n{extra}content-length: {len(body)}\r\n\r\n".encode()
        + body
    )


def chunked(*pieces: bytes) -> bytes:
    """Pieces as a chunked body, without its end."""
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)


SSE_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def delta(text: str) -> bytes:
    """One content event."""
    payload = {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": text}}]}
    return b"data: " + json.dumps(payload).encode() + b"\n\n"


def completion(text: str = "hello", prompt: int = 7, cached: int = 3) -> bytes:
    """A whole chat completion."""
    usage = {"prompt_tokens": prompt, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": cached}}
    return json.dumps({"choices": [{"message": {"content": text}}], "usage": usage}).encode()


async def answer_json(connection: Connection, seen: Seen) -> None:
    """A good worker: streams when asked to, else answers whole."""
    if json.loads(seen.body or b"{}").get("stream"):
        await connection.send(SSE_HEAD + chunked(delta("hel"), delta("lo"), DONE) + LAST_CHUNK)
    else:
        await connection.send(json_answer(completion()))
