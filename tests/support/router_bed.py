"""A whole router on a uvloop of its own in a thread, in front of given workers, and what can be seen of it."""

import asyncio
import concurrent.futures
import json
import threading
from collections.abc import Coroutine, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import uvloop
from tidegate_crds.decoding import load_router_config
from tidegate_crds.router_config import RouterConfig
from tidegate_router.process import RouterProcess
from tidegate_router.telemetry.access_log import AccessLog

_T = TypeVar("_T")
_FAST = {
    "timeouts": {
        "connectSeconds": 1.0,
        "firstByteSeconds": 2.0,
        "betweenChunksSeconds": 2.0,
        "clientHeadersSeconds": 2.0,
        "clientBodySeconds": 2.0,
        "clientStalledSeconds": 5.0,
        "drainSeconds": 2.0,
    },
    "healthCheck": {"intervalSeconds": 0.1, "timeoutSeconds": 0.5},
}


def router_config(urls: Sequence[str], **sections: dict[str, Any]) -> RouterConfig:
    """A config with short time-outs; `sections` are merged over it, by their camelCase names."""
    document: dict[str, Any] = {
        "apiVersion": "router.tidegate.dev/v1alpha1",
        "kind": "RouterConfig",
        "listen": {"port": 0},
        "endpoints": [{"url": url, "name": f"w{index}"} for index, url in enumerate(urls)],
    }
    for name in {*_FAST, *sections}:
        document[name] = {**_FAST.get(name, {}), **sections.get(name, {})}
    return load_router_config(json.dumps(document))


class RouterBed:
    """Starts with its workers ready; at the end every column must be zero, whatever the test did."""

    def __init__(self, *urls: str, await_ready: int | None = None, **sections: dict[str, Any]) -> None:
        self.config = router_config(urls, **sections)
        self._await_ready = len(urls) if await_ready is None else await_ready
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="router-bed", daemon=True)
        self._log: list[bytes] = []
        self.errors: list[dict[str, Any]] = []
        self.process: RouterProcess

    async def __aenter__(self) -> Self:
        self._loop.set_exception_handler(lambda _, context: self.errors.append(context))
        self._thread.start()
        await self.inside(self._start())
        await eventually(lambda: sum(each.ready for each in self.process.table.snapshot.endpoints), self._await_ready)
        if self._await_ready:
            await eventually(lambda: sum(bool(e.models) for e in self.process.table.snapshot.endpoints) > 0, True)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                await self.at_rest()
        finally:
            await self.inside(self.process.stop(0.2))
            self._loop.call_soon_threadsafe(self._loop.stop)
            await asyncio.to_thread(self._thread.join, 5)
            self._loop.close()
        if kind is None:
            assert self.errors == []

    @property
    def port(self) -> int:
        """Where the gateway listens."""
        return self.process.listener.port

    @property
    def in_flight(self) -> tuple[int, int]:
        """Sum over endpoints of (requests, tokens)."""
        load = self.process.table.load
        return sum(load.in_flight_requests), sum(load.in_flight_tokens)

    async def at_rest(self) -> None:
        """Wait until nothing is in flight anywhere, and see that no column went below zero."""
        await eventually(lambda: self.in_flight, (0, 0))
        load = self.process.table.load
        assert min(load.in_flight_requests) == 0
        assert min(load.in_flight_tokens) == 0

    async def inside(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Run something on the router's loop."""
        future: concurrent.futures.Future[_T] = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        return await asyncio.wrap_future(future)

    async def log(self) -> list[dict[str, Any]]:
        """Access log lines so far."""

        async def flush() -> None:
            self._access_log.flush()

        await self.inside(flush())
        return [json.loads(line) for line in b"".join(self._log).splitlines()]

    def metric(self, name: str, **labels: str) -> float:
        """The value of one series, 0 when it does not exist."""
        for line in self.process.metrics.render().decode().splitlines():
            series, _, value = line.rpartition(" ")
            if series.partition("{")[0] == name and all(f'{key}="{want}"' in series for key, want in labels.items()):
                return float(value)
        return 0.0

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    async def _start(self) -> None:
        def keep(batch: bytes) -> bool:
            self._log.append(batch)
            return True

        self._access_log = AccessLog(keep)
        self.process = RouterProcess(self.config, self._loop, self._access_log, tick_seconds=0.02)
        await self.process.start()


async def eventually(read: Any, expected: object, within_seconds: float = 5.0) -> None:
    """Wait until `read()` gives `expected`; the failure shows the last value."""
    loop = asyncio.get_running_loop()
    until = loop.time() + within_seconds
    value = read()
    while value != expected:
        if loop.time() > until:
            raise AssertionError(f"after {within_seconds} s: expected {expected!r}, last value {value!r}")
        await asyncio.sleep(0.01)
        value = read()
