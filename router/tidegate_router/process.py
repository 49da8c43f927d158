"""One router process: its parts put together, run until a signal, drained.

The environment, the clock and randomness enter here and nowhere below.
"""

import asyncio
import gc
import os
import random
import signal
from contextlib import ExitStack

from tidegate_crds.router_config import RouterConfig

from tidegate_router.collect.static_endpoints import add_static_endpoints
from tidegate_router.config import profile_of, static_endpoints
from tidegate_router.gateway.gateway import Gateway, RouterParts
from tidegate_router.gateway.listener import Listener
from tidegate_router.gateway.observer import Observer
from tidegate_router.scheduling.scheduler import Scheduler
from tidegate_router.state.endpoint_table import EndpointTable
from tidegate_router.state.health import HealthBoard, HealthPolicy
from tidegate_router.state.prefix_index import TextPrefixIndex
from tidegate_router.telemetry.access_log import AccessLog
from tidegate_router.telemetry.log_sink import LogSink
from tidegate_router.telemetry.metrics import RouterMetrics
from tidegate_router.upstream.deadline_wheel import DeadlineWheel
from tidegate_router.upstream.pools import UpstreamPools

_LOG_FLUSH_SECONDS = 0.25
_GC_THRESHOLD = 50_000


class RouterProcess:
    """Everything that lives as long as the process. `access_log` is None when switched off."""

    def __init__(
        self,
        config: RouterConfig,
        loop: asyncio.AbstractEventLoop,
        access_log: AccessLog | None,
        tick_seconds: float = 0.1,
    ) -> None:
        health = config.health_check
        self._config = config
        self._loop = loop
        self._access_log = access_log
        self._flush_timer: asyncio.TimerHandle | None = None
        self.table = EndpointTable()
        self.wheel = DeadlineWheel(loop, tick_seconds)
        self.pools = UpstreamPools(config.timeouts, self.wheel, loop)
        board = HealthBoard(
            HealthPolicy(health.interval_seconds, health.unhealthy_threshold, health.healthy_threshold),
            random.random,
        )
        add_static_endpoints(static_endpoints(config), self.table, board)
        index = TextPrefixIndex()
        self.metrics = RouterMetrics(self.table)
        if access_log is not None:
            self.metrics.access_log_dropped = lambda: access_log.dropped
        self.gateway = Gateway(
            RouterParts(
                spec=config,
                table=self.table,
                scheduler=Scheduler(profile_of(config), self.table, index, random.random),
                index=index,
                board=board,
                pools=self.pools,
                wheel=self.wheel,
                observer=Observer(self.metrics, access_log),
            ),
        )
        self.listener = Listener(self.gateway)

    async def start(self) -> None:
        """Bind and begin checking endpoints. OSError: the address cannot be had."""
        self.wheel.start()
        await self.listener.open(self._config.listen)
        self.gateway.checks.start(self._loop)
        self._flush_log()

    async def stop(self, drain_seconds: float | None = None) -> None:
        """Drain, then let go of everything."""
        await self.listener.drain(self._config.timeouts.drain_seconds if drain_seconds is None else drain_seconds)
        self.gateway.checks.stop()
        self.pools.close()
        self.wheel.stop()
        if self._flush_timer is not None:
            self._flush_timer.cancel()
        if self._access_log is not None:
            self._access_log.flush()

    def _flush_log(self) -> None:
        if self._access_log is not None:
            self._access_log.flush()
            self._flush_timer = self._loop.call_later(_LOG_FLUSH_SECONDS, self._flush_log)


async def serve(config: RouterConfig) -> None:
    """Run a router until SIGTERM or SIGINT, then drain; a second signal ends the process at once.

    OSError: the address or the access log cannot be had.
    """
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()

    def on_signal() -> None:
        if stopping.is_set():
            os._exit(1)
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    with ExitStack() as stack:
        access_log = None
        if config.access_log.path:
            access_log = AccessLog(stack.enter_context(LogSink(config.access_log.path)))
        process = RouterProcess(config, loop, access_log)
        await process.start()
        print(f"tidegate-router ready {process.listener.url} endpoints={len(process.table)}", flush=True)  # noqa: T201 - the line that supervisors wait for
        # Start-up objects are never garbage; the hot path makes few cycles, so collections may be rare.
        gc.collect()
        gc.freeze()
        gc.set_threshold(_GC_THRESHOLD, 20, 50)
        await stopping.wait()
        await process.stop()
