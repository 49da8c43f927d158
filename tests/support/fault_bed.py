"""A router in front of three workers that fail when told, and loads whose every answer is judged."""

import asyncio
import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager

from chat_load import Chat, Ending, LoadOutcome, run_load
from faulty_worker import FaultyWorker
from router_process import RouterProcess, total
from waiting import eventually
from worker_faults import Fault

CONNECTIONS = 16
REQUESTS = 96
UNHEALTHY_THRESHOLD = 2
MODELS_REFRESH_SECONDS = 10
SETTINGS = {
    "timeouts": {"connectSeconds": 1, "firstByteSeconds": 1, "betweenChunksSeconds": 1},
    "healthCheck": {"intervalSeconds": 0.5, "timeoutSeconds": 2, "unhealthyThreshold": UNHEALTHY_THRESHOLD},
    "retries": {"maxAttempts": 3},
}

_numbers = itertools.count()


def chats(count: int, *, stream: bool) -> list[Chat]:
    """Requests that share neither user nor prefix with any before."""
    return [Chat(f"user-{next(_numbers)}", stream=stream) for _ in range(count)]


class FaultBed:
    """The router, the workers, and the one of them that is usually made to fail."""

    def __init__(self, router: RouterProcess, workers: list[FaultyWorker]) -> None:
        self.router = router
        self.workers = workers
        self.faulty = workers[0]

    @property
    def completions(self) -> list[int]:
        """Chat completions that each worker was asked for so far."""
        return [worker.received.completions for worker in self.workers]

    async def load(self, *, stream: bool, count: int = REQUESTS) -> LoadOutcome:
        """Requests over `CONNECTIONS` keep-alive connections."""
        return await run_load(self.router.port, chats(count, stream=stream), connections=CONNECTIONS)

    async def heal(self, *, seconds: float = 8.0) -> None:
        """End all faults; AssertionError unless every worker is used again soon, with nothing but good answers."""
        for worker in self.workers:
            worker.fault, worker.health, worker.retry_after = Fault.NONE, 200, "1"
        before = self.completions
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            outcome = await self.load(stream=True, count=CONNECTIONS)
            assert set(outcome.endings) == {Ending.OK}, outcome.summary()
            if all(now > then for now, then in zip(self.completions, before, strict=True)):
                return
            await asyncio.sleep(0.05)
        raise AssertionError(f"a worker is not used again after it healed: {before} → {self.completions}")

    async def restart(self, workers: list[FaultyWorker]) -> None:
        """Let the router see these workers gone, then let them come back, well, on the same ports."""
        left = len(self.workers) - len(workers)
        for worker in workers:
            worker.stop()
            worker.fault = Fault.NONE
        await asyncio.to_thread(eventually, self.ready_endpoints, lambda ready: ready == left)
        for worker in workers:
            worker.start()

    def ready_endpoints(self) -> float:
        """How many workers the router would use now."""
        return total(self.router.metrics(), "tidegate_router_endpoint_ready")

    async def assert_one_ok(self, *, within_seconds: float) -> None:
        """A request right now is answered well and soon."""
        outcome = await run_load(self.router.port, chats(1, stream=False), connections=1)
        assert set(outcome.endings) == {Ending.OK}, outcome.summary()
        assert outcome.seconds < within_seconds, f"{outcome.seconds:.2f} s"


@contextmanager
def fault_bed() -> Iterator[FaultBed]:
    """A bed that is up; at its end the router must hold nothing and have logged no traceback."""
    with FaultyWorker() as first, FaultyWorker() as second, FaultyWorker() as third:
        workers = [first, second, third]
        with RouterProcess([worker.url for worker in workers], SETTINGS) as router:
            yield FaultBed(router, workers)
            router.assert_idle()
            router.assert_clean_log()
