"""A worker process from start to exit: sockets, engine, signals, drain, exit codes.

    0   drained after SIGTERM or SIGINT (requests still open after `drain_seconds` end with an error)
    1   the engine failed, or a second signal cut the drain short
    2   something that a person can mend: model, settings, address in use

Listens from the first moment (`/health` and `/ready` say 503 while loading), prints one line when ready.
"""

import asyncio
import contextlib
import logging
import random
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import uvicorn
import uvloop
from tidegate_proto.openai_errors import ApiError, ApiErrorKind

from tidegate_worker.engine.client import EngineClient, EngineStartError
from tidegate_worker.engine.messages import EngineFailed
from tidegate_worker.engine.settings import EngineSettings
from tidegate_worker.model.errors import ModelError
from tidegate_worker.server.app import build_app
from tidegate_worker.server.http_protocol import BoundedHttpProtocol
from tidegate_worker.server.metrics import WorkerCounts
from tidegate_worker.server.outside import ServerSettings, say
from tidegate_worker.server.service import WorkerService
from tidegate_worker.server.telemetry import TelemetryHub, serving_telemetry
from tidegate_worker.server.text_codec import TextCodec

KEEP_ALIVE_SECONDS = 75
"""Longer than any router keeps an idle connection, so that it is the router that closes, never a race."""
FAREWELL_SECONDS = 2.0
"""For last error events to reach their clients once nothing more will be computed."""
BACKLOG = 2048

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ModelSource:
    """How the worker comes by its model; both calls block and may raise `ModelError`."""

    engine_settings: Callable[[], EngineSettings]
    """Finds the model's files first (a download, perhaps)."""
    codec: Callable[[], TextCodec]
    """Called after `engine_settings`, while the engine loads."""


def run(settings: ServerSettings, source: ModelSource) -> int:
    """Run a worker until it is told to stop or fails; the exit code. Needs the main thread."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            return runner.run(_Worker(settings, source).run())
        except (OSError, ModelError, EngineStartError) as error:
            user_error = not isinstance(error, EngineStartError) or error.user_error
            say(str(error))
            return 2 if user_error else 1


class _Worker:
    """One run of a worker process."""

    def __init__(self, settings: ServerSettings, source: ModelSource) -> None:
        self._settings = settings
        self._source = source
        counts = WorkerCounts()
        self._hub = TelemetryHub(random.SystemRandom().getrandbits(63), settings.served_names, counts)
        self._stop = asyncio.Event()
        self._cut = asyncio.Event()

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)
        service = WorkerService(self._settings.served_names, self._hub, self._hub.counts)
        try:
            # gRPC starts once the engine has been forked off, but a taken port should not cost a model load.
            _listen(self._settings.host, self._settings.telemetry_port).close()
            with contextlib.closing(_listen(self._settings.host, self._settings.port)) as listener:
                return await self._serve(service, listener)
        finally:
            service.stop()

    async def _serve(self, service: WorkerService, listener: socket.socket) -> int:
        app = build_app(service, self._settings.max_body_bytes)
        http = _HttpServer(
            uvicorn.Config(
                app,
                http=BoundedHttpProtocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=int(FAREWELL_SECONDS),
                backlog=BACKLOG,
            ),
        )
        serving = asyncio.create_task(http.serve([listener]), name="http")
        try:
            return await self._live(service, listener)
        finally:
            http.should_exit = True
            await serving

    async def _live(self, service: WorkerService, listener: socket.socket) -> int:
        """Load, serve until told to stop or failed, drain."""
        loading = asyncio.create_task(self._load(), name="load")
        if not await self._unless_stopped(loading):
            return 0
        engine, codec = loading.result()
        try:
            engine.on_step.append(service.on_step)
            service.engine_ready(engine.ready, codec, engine)
            async with serving_telemetry(self._hub, self._settings.host, self._settings.telemetry_port) as port:
                self._announce(listener, port, engine.ready.load_seconds)
                if not await self._unless_stopped(engine.failed):
                    return await self._drain(service, engine)
                return await self._bury(service, engine.failed.result())
        finally:
            await engine.close()

    async def _load(self) -> tuple[EngineClient, TextCodec]:
        settings = await _in_daemon_thread(self._source.engine_settings)
        starting = asyncio.create_task(EngineClient.start(settings), name="engine-start")
        try:
            codec = await _in_daemon_thread(self._source.codec)
            return await starting, codec
        except BaseException:
            starting.cancel()
            with contextlib.suppress(BaseException):
                await (await starting).close()
            raise

    async def _unless_stopped(self, work: "asyncio.Future[Any]") -> bool:
        """Wait for work or a signal: True when the work is done (or failed), False when told to stop first.

        Work that is a task is cancelled and awaited on a stop.
        """
        stop = asyncio.create_task(self._stop.wait())
        try:
            either: set[asyncio.Future[Any]] = {work, stop}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop.cancel()
        if work.done():
            return True
        if isinstance(work, asyncio.Task):
            work.cancel()
            await asyncio.wait({work})
        return False

    async def _drain(self, service: WorkerService, engine: EngineClient) -> int:
        """Finish what is open, within bounds. `/ready` says 503 meanwhile, and the engine may still fail."""
        service.drain()
        waits = {asyncio.create_task(event.wait()) for event in (service.idle, self._cut)}
        either: set[asyncio.Future[Any]] = {*waits, engine.failed}
        try:
            done, _ = await asyncio.wait(
                either,
                timeout=self._settings.drain_seconds,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            for wait in waits:
                wait.cancel()
        if engine.failed in done:
            return await self._bury(service, engine.failed.result())
        service.end_all(ApiError(ApiErrorKind.UNAVAILABLE, "this worker is shutting down", code="draining"))
        await _idle_within(service, FAREWELL_SECONDS)
        return 1 if self._cut.is_set() else 0

    async def _bury(self, service: WorkerService, failure: EngineFailed) -> int:
        service.fail("the engine of this worker has failed")
        say(failure.message)
        await _idle_within(service, FAREWELL_SECONDS)
        return 1

    def _signalled(self) -> None:
        (self._cut if self._stop.is_set() else self._stop).set()

    def _announce(self, listener: socket.socket, telemetry_port: int, load_seconds: float) -> None:
        host = self._settings.host
        shown = f"[{host}]" if ":" in host else host
        print(  # noqa: T201 (the line that supervisors and tests wait for)
            f"tidegate-worker ready http={shown}:{listener.getsockname()[1]} telemetry={shown}:{telemetry_port} "
            f"model={self._settings.served_names[0]} load_seconds={load_seconds:.2f}",
            flush=True,
        )


class _HttpServer(uvicorn.Server):
    """uvicorn without its signal handlers: this process drains before it stops listening."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _listen(host: str, port: int) -> socket.socket:
    """A bound socket. Raises `OSError` that names the address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise OSError(f"cannot listen on {host}:{port}: {reason}") from error
    return listener


async def _in_daemon_thread(work: Callable[[], T]) -> T:
    """`asyncio.to_thread`, except that the process can end in the middle of the work (a download may take minutes)."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(outcome: T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(cast("T", outcome))

    def target() -> None:
        outcome, error = None, None
        try:
            outcome = work()
        except BaseException as raised:  # noqa: BLE001 (carried to the caller)
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(settle, outcome, error)

    threading.Thread(target=target, name="load", daemon=True).start()
    return await done


async def _idle_within(service: WorkerService, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await service.idle.wait()
