"""A worker that goes wrong on purpose: an OpenAI-like server on a real socket, whose behaviour is set from outside.

It lives in a thread with an event loop of its own, so a blocked test never blocks it. A well-behaved answer echoes the
request's `user` field, so a client can tell its own answer from anybody else's. `fault` and `health` may change at
any time and hold for requests that arrive afterwards.
"""

import asyncio
import threading
from typing import Self

from echo_answers import MODEL
from scripted_http import EndOfConversation, Received, Request, Sender, read_request
from worker_faults import SCRIPTS, Fault, Script, answer_well


class FaultyWorker:
    """A worker on loopback, `fault` and `health` settable; a context manager that ends its thread and sockets.

    `port` 0 takes a free one. `stop()` and `start()` may alternate: the port stays.
    """

    def __init__(self, fault: Fault = Fault.NONE, *, port: int = 0, retry_after: str = "1") -> None:
        self.fault = fault
        self.health = 200
        self.retry_after = retry_after
        self.received = Received()
        self.port = port
        self._loop: asyncio.AbstractEventLoop | None = None
        self._script: Script | None = None
        self._stopping: asyncio.Event | None = None
        self._thread: threading.Thread | None = None

    @property
    def script(self) -> Script:
        """What answers a chat completion: the fault's script, or one that a test has set instead."""
        return self._script or SCRIPTS.get(self.fault, answer_well)

    @script.setter
    def script(self, script: Script | None) -> None:
        self._script = script

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Listen; returns when connections are accepted."""
        listening = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._main(listening)), name="faulty-worker", daemon=True
        )
        self._thread.start()
        if not listening.wait(timeout=10):
            raise TimeoutError("the faulty worker did not start")

    def stop(self) -> None:
        """Close every connection and stop listening."""
        if self._thread is None or self._loop is None or self._stopping is None:
            return
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(timeout=10)
        self._thread = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()

    async def _main(self, listening: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, limit=1 << 20, backlog=512)
        self.port = server.sockets[0].getsockname()[1]
        listening.set()
        await self._stopping.wait()
        server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.received.connections += 1
        first = True
        try:
            while (request := await read_request(reader, first_on_connection=first)) is not None:
                first = False
                await self._answer(request, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, EndOfConversation):
            writer.close()
        except asyncio.CancelledError:  # the worker stops; this is the task's root
            writer.transport.abort()
        else:
            writer.close()

    async def _answer(self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.received.requests[request.path] += 1
        sender = Sender(self.received, reader, writer, self.retry_after)
        if request.path == "/health":
            await sender.json(self.health, {"status": "ok"})
        elif request.path == "/v1/models":
            await sender.json(200, {"object": "list", "data": [{"id": MODEL, "object": "model"}]})
        elif request.path in {"/v1/chat/completions", "/v1/completions"}:
            self.received.users[str(request.document.get("user"))] += 1
            self.received.bodies = [*self.received.bodies[-999:], request.body]
            self.received.headers = [*self.received.headers[-999:], request.headers]
            await self.script(request, sender)
        else:
            await sender.json(404, {"error": {"message": f"no route {request.path}", "type": "invalid_request_error"}})
