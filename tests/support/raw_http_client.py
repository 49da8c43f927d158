"""A client that writes exact bytes and reports exactly what came back, with how the connection ended."""

import asyncio
import json
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self


@dataclass(frozen=True)
class Answer:
    """One answer. `complete` is False when the connection ended before its framing said so."""

    status: int
    headers: dict[str, str]
    body: bytes
    complete: bool

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    @property
    def error_code(self) -> str | None:
        """`error.code` of an OpenAI error."""
        code: str | None = self.json["error"]["code"]
        return code

    @property
    def events(self) -> list[Any]:
        """Data of each SSE event; `[DONE]` stays a string."""
        payloads = [event.removeprefix(b"data: ") for event in self.body.split(b"\n\n") if event.startswith(b"data: ")]
        return ["[DONE]" if payload == b"[DONE]" else json.loads(payload) for payload in payloads]


class RawClient:
    """One connection."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter

    async def __aenter__(self) -> Self:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 26)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.writer.transport.abort()

    async def send(self, *pieces: bytes) -> None:
        """Write pieces, each leaving by itself."""
        for index, piece in enumerate(pieces):
            if index:
                await asyncio.sleep(0.005)
            self.writer.write(piece)
            await self.writer.drain()

    async def read_answer(self, *, method: str = "POST", within_seconds: float = 10.0) -> Answer:
        """The next answer, interim ones skipped."""
        async with asyncio.timeout(within_seconds):
            while True:
                answer = await self._read(method)
                if answer.status >= 200:
                    return answer

    async def at_end(self, within_seconds: float = 10.0) -> bool:
        """Whether the router closed the connection and sent nothing more."""
        async with asyncio.timeout(within_seconds):
            try:
                return await self.reader.read(1) == b""
            except ConnectionResetError:
                return True

    async def _read(self, method: str) -> Answer:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        status = int(head[0].split(" ")[1])
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:] if line)}
        if status < 200 or status in (204, 304) or method == "HEAD":
            return Answer(status, headers, b"", True)
        if headers.get("transfer-encoding") == "chunked":
            body, complete = await self._read_chunks()
        elif "content-length" in headers:
            body, complete = await self._read_exactly(int(headers["content-length"]))
        else:
            body, complete = await self.reader.read(-1), True
        return Answer(status, headers, body, complete)

    async def _read_chunks(self) -> tuple[bytes, bool]:
        body = b""
        try:
            while size := int(await self.reader.readuntil(b"\r\n"), 16):
                body += (await self.reader.readexactly(size + 2))[:-2]
            await self.reader.readexactly(2)
        except (asyncio.IncompleteReadError, ConnectionResetError):
            return body, False
        return body, True

    async def _read_exactly(self, size: int) -> tuple[bytes, bool]:
        try:
            return await self.reader.readexactly(size), True
        except asyncio.IncompleteReadError as error:
            return error.partial, False


def chat(stream: bool = False, model: str = "m", content: str = "hi") -> bytes:
    """Body of a chat completion."""
    body: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": content}]}
    if stream:
        body["stream"] = True
    return json.dumps(body).encode()


def post(body: bytes, path: str = "/v1/chat/completions", extra: str = "", version: str = "1.1") -> bytes:
    """A whole POST."""
    lines = f"POST {path} HTTP/{version}\r\nhost: t\r\ncontent-type: application/json\r\n{extra}"
    return f"{lines}content-length: {len(body)}\r\n\r\n".encode() + body


def get(path: str, method: str = "GET") -> bytes:
    """A whole GET."""
    return f"{method} {path} HTTP/1.1\r\nhost: t\r\n\r\n".encode()


async def ask(port: int, message: bytes, *, within_seconds: float = 10.0) -> Answer:
    """One request on a connection of its own."""
    async with RawClient(port) as client:
        await client.send(message)
        return await client.read_answer(within_seconds=within_seconds)
