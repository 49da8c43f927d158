"""Clients that go and workers that die: nothing leaks, nothing unanswered is lost, and what had begun ends clearly."""

import asyncio
import contextlib
import random
import struct
from collections.abc import Iterator
from dataclasses import replace
from socket import SO_LINGER, SOL_SOCKET

import psutil
import pytest
from chat_load import Chat, ChatConnection, Ending, LoadOutcome, judge, read_answer, run_load
from raw_http import post
from router_process import RouterProcess, scrape, total
from sim_worker_process import WorkerProcess, sim_worker
from waiting import eventually

CHAT = "/v1/chat/completions"
FLAGS = ("--decode-step-seconds", "0.02", "--kv-blocks", "2048")


def assert_worker_is_empty(worker: WorkerProcess) -> None:
    """No request, no referenced block, and every block accounted for."""
    samples = scrape(worker.port)
    [blocks] = [int(dict(labels)["num_gpu_blocks"]) for name, labels in samples if name == "vllm:cache_config_info"]

    def state() -> dict[str, float]:
        found = scrape(worker.port)
        kinds = {
            kind: total(found, "tidegate_worker_kv_blocks", state=kind) for kind in ("free", "cached", "referenced")
        }
        requests = {
            name: total(found, name)
            for name in (
                "tidegate_worker_requests_in_flight",
                "vllm:num_requests_running",
                "vllm:num_requests_waiting",
                "tidegate_worker_waiting_tokens",
            )
        }
        return {**kinds, **requests}

    def is_empty(found: dict[str, float]) -> bool:
        accounted = found.pop("free") + found.pop("cached")
        return accounted == blocks and not any(found.values())

    eventually(state, lambda found: is_empty(dict(found)))


async def with_expected_texts(worker: WorkerProcess, chats: list[Chat]) -> list[Chat]:
    """The same requests with the text that is due: greedy text does not depend on the worker or the batch."""
    whole = [replace(chat, stream=False, expected="") for chat in chats]
    outcome = await run_load(worker.port, whole, connections=64, timeout_seconds=60)
    assert set(outcome.endings) == {Ending.OK}, outcome.summary()
    return [replace(chat, expected=outcome.verdicts[chat.user].text) for chat in chats]


def sim_chats(count: int, *, name: str, max_tokens: int, stream: bool = True) -> list[Chat]:
    return [Chat(f"{name}-{n}", stream=stream, model="sim", max_tokens=max_tokens, expected="") for n in range(count)]


async def ask_and_leave(port: int, chat: Chat, chance: random.Random) -> None:
    """Send a request and leave at a random moment: in the request, before the answer, or in it; by FIN or RST."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    request = post(CHAT, chat.body())
    whole = chance.random() < 0.9
    writer.write(request if whole else request[: chance.randrange(len(request))])
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(chance.uniform(0, 1.5)):
            await reader.read() if chance.random() < 0.5 else await asyncio.Event().wait()
    if chance.random() < 0.5:
        connection = writer.get_extra_info("socket")
        connection.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
    writer.close()


async def ask_alone(port: int, chat: Chat) -> Ending:
    with contextlib.closing(ChatConnection(port, timeout_seconds=60)) as connection:
        return (await connection.ask(chat)).ending


@pytest.fixture(scope="module")
def two_workers() -> Iterator[tuple[WorkerProcess, WorkerProcess]]:
    with sim_worker(*FLAGS) as first, sim_worker(*FLAGS) as second:
        yield first, second


async def test_half_of_200_streams_are_cut_and_nothing_leaks(two_workers: tuple[WorkerProcess, WorkerProcess]) -> None:
    chance = random.Random(3)
    with RouterProcess([worker.url for worker in two_workers]) as router:
        staying = await with_expected_texts(two_workers[0], sim_chats(100, name="stays", max_tokens=64))
        leaving = sim_chats(100, name="leaves", max_tokens=64)
        tasks = [asyncio.create_task(ask_alone(router.port, chat)) for chat in staying]
        gone = [asyncio.create_task(ask_and_leave(router.port, chat, chance)) for chat in leaving]
        endings = await asyncio.gather(*tasks)
        await asyncio.gather(*gone)
        assert set(endings) == {Ending.OK}
        router.assert_idle()
        for worker in two_workers:
            assert_worker_is_empty(worker)
            assert "Traceback" not in worker.errors()
        assert total(router.metrics(), "tidegate_router_client_disconnects_total") > 0
        eventually(lambda: total(router.metrics(), "tidegate_router_connections"), lambda count: count <= 1)
        router.assert_clean_log()


async def test_a_client_that_leaves_frees_its_blocks_at_once(two_workers: tuple[WorkerProcess, WorkerProcess]) -> None:
    with RouterProcess([worker.url for worker in two_workers]) as router:
        reader, writer = await asyncio.open_connection("127.0.0.1", router.port)
        [chat] = sim_chats(1, name="endless", max_tokens=1_000)
        writer.write(post(CHAT, chat.body()))
        await reader.readuntil(b"data: ")
        assert total(router.metrics(), "tidegate_router_in_flight_requests") == 1
        writer.close()
        await writer.wait_closed()
        router.assert_idle()
        for worker in two_workers:
            assert_worker_is_empty(worker)


async def test_a_killed_worker_loses_only_what_had_begun_and_comes_back() -> None:
    flags = (*FLAGS, "--max-running", "8")
    with sim_worker(*flags) as survivor, contextlib.ExitStack() as stack:
        victim = stack.enter_context(sim_worker(*flags))
        with RouterProcess([survivor.url, victim.url]) as router:
            chats = await with_expected_texts(
                survivor,
                [
                    *sim_chats(36, name="stream", max_tokens=24),
                    *sim_chats(12, name="whole", max_tokens=24, stream=False),
                ],
            )
            outcome = await load_and_kill(router, chats, victim)
            assert_only_begun_streams_are_lost(outcome)
            stack.close()
            with sim_worker(*flags, "--port", str(victim.port)) as risen:
                await assert_used_again(router, risen)
                router.assert_idle()
                for worker in (survivor, risen):
                    assert_worker_is_empty(worker)
            router.assert_clean_log()


async def load_and_kill(router: RouterProcess, chats: list[Chat], victim: WorkerProcess) -> LoadOutcome:
    """Run the load and SIGKILL the victim once it runs some requests and holds more."""
    children = psutil.Process(victim.process.pid).children(recursive=True)

    def kill_under_load() -> None:
        eventually(lambda: total(scrape(victim.port), "vllm:generation_tokens_total"), lambda tokens: tokens > 40)
        assert total(scrape(victim.port), "vllm:num_requests_waiting") > 0
        victim.process.kill()

    load = run_load(router.port, chats, connections=len(chats), timeout_seconds=60)
    outcome, _ = await asyncio.gather(load, asyncio.to_thread(kill_under_load))
    eventually(lambda: [child.pid for child in children if child.is_running()], lambda left: not left)
    return outcome


def assert_only_begun_streams_are_lost(outcome: LoadOutcome) -> None:
    assert set(outcome.endings) <= {Ending.OK, Ending.ERROR_EVENT}, outcome.summary()
    lost = outcome.of(Ending.ERROR_EVENT)
    assert 1 <= len(lost) <= 8, outcome.summary()  # no more than the victim ran at once
    assert all(verdict.events > 0 for verdict in lost.values()), outcome.summary()
    assert not any(user.startswith("whole") for user in lost)


async def assert_used_again(router: RouterProcess, risen: WorkerProcess) -> None:
    eventually(lambda: total(router.metrics(), "tidegate_router_endpoint_ready"), lambda ready: ready == 2, seconds=15)
    outcome = await run_load(router.port, sim_chats(32, name="after", max_tokens=4), connections=8, timeout_seconds=30)
    assert set(outcome.endings) == {Ending.OK}, outcome.summary()
    assert total(scrape(risen.port), "vllm:generation_tokens_total") > 0


async def test_a_drained_router_lets_running_streams_end(two_workers: tuple[WorkerProcess, WorkerProcess]) -> None:
    with RouterProcess([worker.url for worker in two_workers]) as router:
        chats = sim_chats(16, name="drained", max_tokens=48)
        connections = [await asyncio.open_connection("127.0.0.1", router.port) for _ in chats]
        for chat, (_, writer) in zip(chats, connections, strict=True):
            writer.write(post(CHAT, chat.body()))
        eventually(lambda: total(router.metrics(), "tidegate_router_in_flight_requests"), lambda count: count == 16)
        stopping = asyncio.create_task(asyncio.to_thread(router.stop))
        answers = await asyncio.gather(*(read_answer(reader) for reader, _ in connections))
        verdicts = [judge(chat, answer) for chat, answer in zip(chats, answers, strict=True)]
        assert {verdict.ending for verdict in verdicts} == {Ending.OK}, verdicts[:3]
        assert await stopping == 0
        for _, writer in connections:
            writer.close()
        router.assert_clean_log()


async def test_a_frozen_worker_holds_nothing_up_and_is_used_again_when_it_thaws() -> None:
    settings = {
        "timeouts": {"firstByteSeconds": 60, "betweenChunksSeconds": 1.5},
        "healthCheck": {"intervalSeconds": 0.3, "timeoutSeconds": 1},
    }
    flags = (*FLAGS, "--max-running", "8")
    with (
        sim_worker(*flags) as survivor,
        sim_worker(*flags) as frozen,
        RouterProcess([survivor.url, frozen.url], settings) as router,
    ):
        tree = [psutil.Process(frozen.process.pid), *psutil.Process(frozen.process.pid).children(recursive=True)]

        def freeze_under_load() -> None:
            eventually(lambda: total(scrape(frozen.port), "vllm:generation_tokens_total"), lambda tokens: tokens > 40)
            for process in tree:
                process.suspend()

        chats = sim_chats(32, name="frozen", max_tokens=24)
        load = run_load(router.port, chats, connections=len(chats), timeout_seconds=30)
        try:
            outcome, _ = await asyncio.gather(load, asyncio.to_thread(freeze_under_load))
            assert set(outcome.endings) <= {Ending.OK, Ending.ERROR_EVENT}, outcome.summary()
            assert len(outcome.of(Ending.ERROR_EVENT)) <= 8, outcome.summary()  # what it ran at once
            after = await run_load(router.port, sim_chats(4, name="meanwhile", max_tokens=2), connections=4)
            assert set(after.endings) == {Ending.OK}, after.summary()
        finally:
            for process in tree:
                process.resume()
        await assert_used_again(router, frozen)
        router.assert_idle()
        for worker in (survivor, frozen):
            assert_worker_is_empty(worker)
        router.assert_clean_log()
