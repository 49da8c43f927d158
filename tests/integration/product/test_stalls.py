"""Workers that stop answering and clients that stop reading: bounded in time and in memory."""

import asyncio

import pytest
from chat_load import Chat, Ending, run_load
from fault_bed import SETTINGS, chats
from faulty_worker import FaultyWorker
from raw_http import Connection, post
from router_process import RouterProcess
from waiting import eventually
from worker_faults import LONG_STREAM_EVENTS, Fault


async def test_requests_that_wait_at_a_worker_that_turns_unhealthy_move_elsewhere() -> None:
    settings = {**SETTINGS, "timeouts": {"firstByteSeconds": 60}}
    with (
        FaultyWorker(Fault.STALL_BEFORE_FIRST_BYTE) as stuck,
        FaultyWorker() as good,
        RouterProcess([stuck.url, good.url], settings) as router,
    ):
        load = asyncio.create_task(run_load(router.port, chats(8, stream=True), connections=8, timeout_seconds=15))
        await asyncio.to_thread(eventually, lambda: stuck.received.completions, bool)
        stuck.health = 503
        outcome = await load
        assert outcome.endings == {Ending.OK: 8}, outcome.summary()
        assert outcome.seconds < 10
        router.assert_idle()
        router.assert_clean_log()


@pytest.mark.parametrize("fault", [Fault.STALL_BEFORE_FIRST_BYTE, Fault.STALL_AFTER_HEADERS], ids=lambda f: f.name)
async def test_when_every_worker_stalls_the_client_is_told_in_bounded_time(fault: Fault) -> None:
    with FaultyWorker(fault) as one, FaultyWorker(fault) as two, RouterProcess([one.url, two.url], SETTINGS) as router:
        outcome = await run_load(router.port, chats(8, stream=True), connections=8, timeout_seconds=20)
        assert outcome.endings == {Ending.ERROR: 8}, outcome.summary()
        assert {verdict.status for verdict in outcome.verdicts.values()} <= {502, 503, 504}, outcome.summary()
        assert outcome.seconds < 3 * 1 + 4
        router.assert_idle()
        router.assert_clean_log()


async def test_slow_readers_are_not_buffered_without_bound() -> None:
    settings = {"timeouts": {"clientStalledSeconds": 2}, "limits": {"maxStreamBufferBytes": 65_536}}
    with FaultyWorker(Fault.ENDLESS) as worker, RouterProcess([worker.url], settings) as router:
        before = router.resident_bytes()
        readers = []
        for number in range(20):
            connection = Connection(router.port)
            connection.send(post("/v1/chat/completions", Chat(f"slow-{number}", stream=True).body()))
            readers.append(connection)
        eventually(lambda: worker.received.completions, lambda count: count == 20)
        # Nobody reads: the worker's connections are paused, and after clientStalledSeconds all of it ends.
        eventually(lambda: worker.received.client_gone, lambda gone: gone == 20, seconds=15)
        grown = router.resident_bytes() - before
        assert grown < 32 << 20, f"{grown >> 20} MiB more"
        for connection in readers:
            connection.close()
        router.assert_idle()
        router.assert_clean_log()


async def test_a_reader_that_pauses_and_goes_on_gets_the_whole_answer() -> None:
    settings = {"limits": {"maxStreamBufferBytes": 65_536}}
    with FaultyWorker(Fault.LONG_STREAM) as worker, RouterProcess([worker.url], settings) as router:
        [chat] = chats(1, stream=True)
        with Connection(router.port) as connection:
            connection.send(post("/v1/chat/completions", chat.body()))
            sent = -1
            while sent != worker.received.bytes_sent:  # until the pressure has come through to the worker
                sent = worker.received.bytes_sent
                await asyncio.sleep(0.3)
            answer = connection.read_answer()
        assert answer is not None
        assert answer.body.count(b"data: ") == LONG_STREAM_EVENTS
        assert answer.body.endswith(b"data: [DONE]\n\n")
        router.assert_idle()
        router.assert_clean_log()
