"""The server's side of the engine process: asyncio, never waiting for the model, importing no torch.

EngineError
├── EngineStartError     the engine said why it cannot start; `user_error` marks what a person can mend
└── EngineClosedError    a request for an engine that is closed
"""

import asyncio
import contextlib
import logging
import socket
import sys
from collections.abc import Callable

import msgspec

from tidegate_worker.engine.frames import FrameDecoder, frame
from tidegate_worker.engine.limits import EngineLimits
from tidegate_worker.engine.messages import (
    Abort,
    ChoiceOutput,
    EngineFailed,
    EngineLoad,
    EngineReady,
    FromEngine,
    Shutdown,
    StepOutput,
    Submit,
    ToEngine,
)
from tidegate_worker.engine.settings import EngineSettings

_SOCKET_BUFFER_BYTES = 1 << 20

_logger = logging.getLogger(__name__)


class EngineError(Exception):
    """Something that an `EngineClient` cannot do."""


class EngineStartError(EngineError):
    """The engine process could not become ready."""

    def __init__(self, failure: EngineFailed) -> None:
        super().__init__(failure.message)
        self.user_error = failure.user_error


class EngineClosedError(EngineError):
    """The client was closed; it takes no more requests."""


class _Link(asyncio.Protocol):
    """Bytes of the socket pair, cut into messages."""

    def __init__(self, on_message: Callable[[FromEngine], None], on_lost: Callable[[], None]) -> None:
        self._on_message = on_message
        self._on_lost = on_lost
        self._frames = FrameDecoder()
        self._decoder = msgspec.msgpack.Decoder(FromEngine)

    def data_received(self, data: bytes) -> None:
        for payload in self._frames.feed(data):
            self._on_message(self._decoder.decode(payload))

    def connection_lost(self, _exception: Exception | None) -> None:
        self._on_lost()


class _OpenRequest:
    """Who hears of a request, and which of its choices have not ended."""

    __slots__ = ("on_output", "open_choices")

    def __init__(self, on_output: Callable[[ChoiceOutput], None], choices: int) -> None:
        self.on_output = on_output
        self.open_choices = set(range(choices))


class EngineClient:
    """One engine process, from start to end.

    Every submitted request that is not aborted gets, for each of its choices, outputs up to exactly one with a finish
    reason, also when the engine dies (`error`). After `abort` nothing more is heard of it.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        """Internal: use `start`."""
        loop = asyncio.get_running_loop()
        self._process = process
        self._encoder = msgspec.msgpack.Encoder()
        self._transport: asyncio.Transport | None = None
        self._ready: asyncio.Future[EngineReady] = loop.create_future()
        self._watcher: asyncio.Task[None] | None = None
        self._lost: asyncio.Future[None] = loop.create_future()
        self._requests: dict[str, _OpenRequest] = {}
        self._closing = False
        self._failure: EngineFailed | None = None
        self._heard_at = loop.time()
        self.failed: asyncio.Future[EngineFailed] = loop.create_future()
        """Done when the engine ends although nobody closed it. Its result says why; it never holds an exception."""
        self.on_step: list[Callable[[StepOutput], None]] = []
        """Called with every step's output, after the requests have heard theirs. Must not block."""
        self.load = EngineLoad(0, 0, 0, 0, 0, 0, 0, 0, 0)
        """The engine's latest load."""

    @classmethod
    async def start(cls, settings: EngineSettings) -> "EngineClient":
        """Start an engine process and wait until it has loaded its model. Cancelling ends the process.

        Raises:
            EngineStartError: it cannot start; the message says why and `user_error` whether a person can mend it.
        """
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                process = await _spawn(settings, theirs)
        except BaseException:
            ours.close()
            raise
        client = cls(process)
        try:
            await client._connect(ours)
            await client._wait_until_ready()
        except BaseException:
            await client._kill()
            raise
        client._watcher = asyncio.create_task(client._watch(), name="engine-watch")
        return client

    @property
    def ready(self) -> EngineReady:
        """What the engine said of itself when it had started."""
        return self._ready.result()

    @property
    def limits(self) -> EngineLimits:
        """What requests must keep to; `limits.refusal(submit)` says in words what is wrong with one."""
        return EngineLimits(self.ready.max_model_tokens, self.ready.vocabulary_size)

    @property
    def pid(self) -> int:
        """The engine process."""
        return self._process.pid

    @property
    def silent_seconds(self) -> float:
        """How long the engine has owed an answer and said nothing; 0 while no request is open.

        Every step is heard, so more than the longest step means a stuck engine, however alive its process looks.
        """
        return asyncio.get_running_loop().time() - self._heard_at if self._requests else 0.0

    def submit(self, message: Submit, on_output: Callable[[ChoiceOutput], None]) -> None:
        """Hand over a request. `on_output` is called on the event loop, never from inside this call; must not block.

        Raises:
            ValueError: the id is in use.
            EngineClosedError: the client is closed.
        """
        if self._closing:
            raise EngineClosedError("the engine is closed")
        if message.request_id in self._requests:
            raise ValueError(f"request id {message.request_id} is in use")
        if not self._requests:
            self._heard_at = asyncio.get_running_loop().time()
        self._requests[message.request_id] = _OpenRequest(on_output, message.params.n)
        if self._lost.done():
            asyncio.get_running_loop().call_soon(self._fail_request, message.request_id)
            return
        self._send(message)

    def abort(self, request_id: str, index: int | None = None) -> None:
        """Drop a request, or one of its choices: no more outputs of it, and its blocks are free within one step.

        Unknown and finished ones are ignored.
        """
        request = self._requests.get(request_id)
        if request is None or (index is not None and index not in request.open_choices):
            return
        request.open_choices.difference_update(set(request.open_choices) if index is None else {index})
        if not request.open_choices:
            del self._requests[request_id]
        self._send(Abort(request_id, index))

    async def close(self, timeout_seconds: float = 5.0) -> None:
        """End the engine process after its current step, by force after the time-out. Open requests end with `error`.

        Idempotent, and safe when the engine has died.
        """
        self._closing = True
        self._send(Shutdown())
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._process.wait()
        except TimeoutError:
            _logger.warning("engine process did not end in %s s, killed", timeout_seconds)
        await self._kill()
        if self._watcher is not None:
            await self._watcher

    async def _connect(self, ours: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            transport, _ = await loop.create_unix_connection(lambda: _Link(self._receive, self._lose), sock=ours)
        except BaseException:
            ours.close()
            raise
        self._transport = transport

    async def _wait_until_ready(self) -> None:
        await asyncio.wait((self._ready, self._lost), return_when=asyncio.FIRST_COMPLETED)
        if not self._ready.done():
            raise EngineStartError(self._failure or await self._death())
        self.load = msgspec.structs.replace(self.load, free_blocks=self.ready.total_blocks)

    def _send(self, message: ToEngine) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame(self._encoder.encode(message)))

    def _receive(self, message: FromEngine) -> None:
        self._heard_at = asyncio.get_running_loop().time()
        match message:
            case StepOutput():
                self._hear_step(message)
            case EngineReady():
                self._ready.set_result(message)
            case EngineFailed():
                self._failure = message
                if self._ready.done():
                    self._fail(message)

    def _hear_step(self, output: StepOutput) -> None:
        self.load = output.load
        for choice in output.choices:
            self._deliver(choice)
        for listener in self.on_step:
            try:
                listener(output)
            except Exception:
                _logger.exception("a step listener failed")

    def _deliver(self, choice: ChoiceOutput) -> None:
        request = self._requests.get(choice.request_id)
        if request is None or choice.index not in request.open_choices:
            return
        if choice.finish_reason is not None:
            request.open_choices.discard(choice.index)
            if not request.open_choices:
                del self._requests[choice.request_id]
        try:
            request.on_output(choice)
        except Exception:
            _logger.exception("an output handler failed, request dropped", extra={"request_id": choice.request_id})
            self.abort(choice.request_id)

    def _fail_request(self, request_id: str) -> None:
        request = self._requests.get(request_id)
        for index in sorted(request.open_choices) if request is not None else ():
            self._deliver(ChoiceOutput(request_id, index, [], None, "error", 0, "the engine stopped"))

    def _lose(self) -> None:
        self._lost.set_result(None)
        for request_id in list(self._requests):
            self._fail_request(request_id)

    async def _watch(self) -> None:
        """Wait for the engine's end and tell it, unless it was asked for."""
        await self._lost
        self._fail(self._failure or await self._death())

    def _fail(self, failure: EngineFailed) -> None:
        if not self._closing and not self.failed.done():
            self.failed.set_result(failure)

    async def _death(self) -> EngineFailed:
        """What the end of a process that gave no last word looked like."""
        code = await self._process.wait()
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return EngineFailed(f"the engine process {how}", user_error=False)

    async def _kill(self) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        if self._transport is not None:
            self._transport.close()
            await self._lost


async def _spawn(settings: EngineSettings, theirs: socket.socket) -> asyncio.subprocess.Process:
    """Start the engine process on its end of the socket pair (-P: no module of the working directory is imported)."""
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER_BYTES)
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-P", "-m", "tidegate_worker.engine.process"),
        *("--fd", str(theirs.fileno()), "--settings", msgspec.json.encode(settings).decode()),
        stdin=asyncio.subprocess.DEVNULL,
        pass_fds=(theirs.fileno(),),
    )
