"""Everything at once: workers that fail at random, clients that leave at random; the promises hold all the same."""

import asyncio
import contextlib
import random

from chat_load import Chat, Ending, run_load
from fault_bed import SETTINGS
from faulty_worker import FaultyWorker
from raw_http import post
from router_process import RouterProcess
from scripted_http import Request, Sender
from waiting import eventually
from worker_faults import SCRIPTS, STREAMS_ONLY, Fault, answer_well

SEED = 20_260_101
LOADS = 3
REQUESTS = 250
CALM = 0.7  # part of the requests that a worker answers well
LEFT_OUT = {Fault.ENDLESS, Fault.LONG_STREAM, Fault.BAD_REQUEST, Fault.MODEL_NOT_FOUND}
ALLOWED = {Ending.OK, Ending.ERROR, Ending.ERROR_EVENT}


class RandomScript:
    """Answers well most of the time, and otherwise with any of the faults."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._faults = [fault for fault in SCRIPTS if fault not in LEFT_OUT]

    async def __call__(self, request: Request, sender: Sender) -> None:
        fault = Fault.NONE if self._chance.random() < CALM else self._chance.choice(self._faults)
        if fault in STREAMS_ONLY and not request.document.get("stream"):
            fault = Fault.NONE
        script = SCRIPTS.get(fault, answer_well)
        await script(request, sender)


async def leave_early(port: int, chat: Chat, seconds: float) -> None:
    """Ask and go away before or within the answer."""
    with contextlib.suppress(OSError):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(post("/v1/chat/completions", chat.body()))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await reader.read()
        writer.transport.abort()


async def test_random_faults_and_random_leavers_break_no_promise() -> None:
    chance = random.Random(SEED)
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(FaultyWorker()) for _ in range(4)]
        router = stack.enter_context(RouterProcess([worker.url for worker in workers], SETTINGS))
        for worker in workers:
            worker.script = RandomScript(random.Random(chance.random()))
        seen: set[Ending] = set()
        for number in range(LOADS):
            chats = [Chat(f"chaos-{number}-{n}", stream=chance.random() < 0.6) for n in range(REQUESTS)]
            leavers = [
                leave_early(router.port, Chat(f"leaver-{number}-{n}", stream=True), chance.uniform(0, 0.3))
                for n in range(40)
            ]
            outcome, *_ = await asyncio.gather(
                run_load(router.port, chats, connections=24, timeout_seconds=20), *leavers
            )
            # A cut connection would show too, but a client is owed an error that it can read.
            assert set(outcome.endings) <= ALLOWED, outcome.summary()
            assert outcome.endings[Ending.OK] > REQUESTS // 3, outcome.summary()
            seen |= set(outcome.endings)
        assert Ending.ERROR_EVENT in seen
        router.assert_idle()
        for worker in workers:
            worker.script = None
        await asyncio.to_thread(eventually, lambda: all_ok(router), bool)
        router.assert_idle()
        router.assert_clean_log()


def all_ok(router: RouterProcess) -> bool:
    outcome = asyncio.run(run_load(router.port, [Chat(f"calm-{n}", stream=True) for n in range(16)], connections=4))
    return set(outcome.endings) == {Ending.OK}
