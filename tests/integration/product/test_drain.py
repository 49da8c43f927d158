"""SIGTERM: the router says that it goes, takes nothing new, lets what runs end in time, and cuts the rest clearly."""

import asyncio
import time

from chat_load import Chat, Ending, judge, read_answer
from faulty_worker import FaultyWorker
from raw_http import Connection, get, post
from router_process import RouterProcess
from waiting import eventually
from worker_faults import Fault

DRAIN = {"timeouts": {"drainSeconds": 1.0}}


async def test_streams_that_outlast_the_drain_end_with_an_error_event() -> None:
    with FaultyWorker(Fault.STALL_BETWEEN_CHUNKS) as worker, RouterProcess([worker.url], DRAIN) as router:
        chat = Chat("u", stream=True)
        reader, writer = await asyncio.open_connection("127.0.0.1", router.port)
        writer.write(post("/v1/chat/completions", chat.body()))
        await asyncio.to_thread(eventually, lambda: worker.received.completions, bool)
        stopping = asyncio.create_task(asyncio.to_thread(router.stop))
        verdict = judge(chat, await read_answer(reader))
        assert verdict.ending is Ending.ERROR_EVENT, verdict
        assert await stopping == 0
        writer.close()
        router.assert_clean_log()


async def test_requests_without_an_answer_that_outlast_the_drain_get_a_503() -> None:
    with FaultyWorker(Fault.STALL_BEFORE_FIRST_BYTE) as worker, RouterProcess([worker.url], DRAIN) as router:
        chat = Chat("u", stream=True)
        reader, writer = await asyncio.open_connection("127.0.0.1", router.port)
        writer.write(post("/v1/chat/completions", chat.body()))
        await asyncio.to_thread(eventually, lambda: worker.received.completions, bool)
        stopping = asyncio.create_task(asyncio.to_thread(router.stop))
        verdict = judge(chat, await read_answer(reader))
        assert (verdict.ending, verdict.status) == (Ending.ERROR, 503), verdict
        assert await stopping == 0
        writer.close()
        router.assert_clean_log()


def test_an_idle_router_ends_at_once_though_clients_keep_connections() -> None:
    with FaultyWorker() as worker, RouterProcess([worker.url]) as router:
        clients = [Connection(router.port) for _ in range(8)]
        for client in clients:
            client.send(get("/health"))
            assert client.read_answer() is not None
        started = time.monotonic()
        assert router.stop() == 0
        assert time.monotonic() - started < 3
        for client in clients:
            assert client.closed_by_peer()
            client.close()
        router.assert_clean_log()


def test_a_client_that_has_sent_half_a_request_does_not_hold_it() -> None:
    with FaultyWorker() as worker, RouterProcess([worker.url], DRAIN) as router:
        client = Connection(router.port)
        client.send(post("/v1/chat/completions", Chat("u", stream=False).body())[:-10])
        started = time.monotonic()
        assert router.stop() == 0
        assert time.monotonic() - started < 5
        client.close()
        router.assert_clean_log()


def test_connections_beyond_the_limit_are_closed_and_those_within_go_on() -> None:
    with FaultyWorker() as worker, RouterProcess([worker.url], {"limits": {"maxConnections": 4}}) as router:
        within = [Connection(router.port) for _ in range(4)]
        for client in within:
            client.send(get("/health"))
            answer = client.read_answer()
            assert answer is not None
            assert answer.status == 200
        with Connection(router.port) as beyond:
            assert beyond.closed_by_peer()
        within.pop().close()
        eventually(lambda: answers(router), bool)
        for client in within:
            client.close()
        router.assert_clean_log()


def answers(router: RouterProcess) -> bool:
    with Connection(router.port) as client:
        client.send(get("/health"))
        answer = client.read_answer()
        return answer is not None and answer.status == 200
