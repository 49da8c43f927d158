"""Endpoints that fail their checks, die, come back; and the router's own going."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self
from urllib.parse import quote

import pytest
from raw_http_client import RawClient, ask, chat, get, post
from router_bed import RouterBed, eventually
from upstream_servers import (
    LAST_CHUNK,
    SSE_HEAD,
    Connection,
    RawWorker,
    Seen,
    answer_json,
    chunked,
    completion,
    delta,
    json_answer,
)


async def hang(connection: Connection, seen: Seen) -> None:
    await connection.wait_gone()


async def test_ready_follows_the_endpoints() -> None:
    async with RawWorker(answer_json) as worker, RouterBed(worker.url) as bed:
        assert (await ask(bed.port, get("/ready"))).status == 200
        worker.healthy = False
        await eventually(lambda: bed.process.table.snapshot.endpoints[0].ready, False)
        assert (await ask(bed.port, get("/ready"))).status == 503
        assert (await ask(bed.port, get("/health"))).status == 200
        assert [each["id"] for each in (await ask(bed.port, get("/v1/models"))).json["data"]] == ["m"]
        worker.healthy = True
        await eventually(lambda: bed.process.table.snapshot.endpoints[0].ready, True)
        assert (await ask(bed.port, get("/ready"))).status == 200


async def test_models_are_the_union_of_all_workers() -> None:
    async with (
        RawWorker(answer_json, models=("a", "b")) as one,
        RawWorker(answer_json, models=("b", "c")) as two,
        RouterBed(one.url, two.url) as bed,
    ):
        await eventually(lambda: all(each.models for each in bed.process.table.snapshot.endpoints), True)
        answer = await ask(bed.port, get("/v1/models"))
        assert [each["id"] for each in answer.json["data"]] == ["a", "b", "c"]
        assert (await ask(bed.port, post(chat(model="c")))).status == 200
        assert two.seen
        assert not one.seen


async def test_a_model_is_found_by_its_name_however_the_client_writes_it() -> None:
    name = "org/Tide ไทย"
    async with RawWorker(answer_json, models=("z", name)) as worker, RouterBed(worker.url) as bed:
        await eventually(lambda: all(each.models for each in bed.process.table.snapshot.endpoints), True)
        listed = (await ask(bed.port, get("/v1/models"))).json["data"]
        assert [each["id"] for each in listed] == ["z", name], "the worker's own order: the first is the canonical name"
        assert [each["max_model_len"] for each in listed] == [4096, 4096]
        for written in (quote(name, safe=""), quote(name)):
            answer = await ask(bed.port, get(f"/v1/models/{written}"))
            assert (answer.status, answer.json["id"]) == (200, name)
        assert (await ask(bed.port, get("/v1/models/org%2Fnone"))).status == 404


async def test_probes_of_a_router_that_is_not_ready_are_neither_counted_nor_logged() -> None:
    async with RawWorker(answer_json) as worker, RouterBed(worker.url) as bed:
        worker.healthy = False
        await eventually(lambda: bed.process.table.snapshot.endpoints[0].ready, False)
        assert (await ask(bed.port, get("/ready"))).status == 503
        metrics = bed.process.metrics.render().decode()
        assert 'code="503"' not in metrics
        assert 'rejected_total{reason="no-endpoints"}' not in metrics


async def test_requests_without_a_first_byte_leave_a_worker_that_fails_its_checks() -> None:
    async with RawWorker(hang) as frozen, RouterBed(frozen.url, timeouts={"firstByteSeconds": 60}) as bed:
        waiting = [asyncio.create_task(ask(bed.port, post(chat()), within_seconds=20)) for _ in range(5)]
        await eventually(lambda: len(frozen.seen), 5)
        frozen.healthy = False
        await eventually(lambda: bed.process.table.snapshot.endpoints[0].ready, False)
        assert bed.in_flight[0] == 5, "with nowhere else to go they stay"
        for task in waiting:
            task.cancel()
        await bed.at_rest()


async def test_requests_without_a_first_byte_move_to_a_healthy_worker() -> None:
    async with (
        RawWorker(hang) as frozen,
        RawWorker(answer_json) as good,
        RouterBed(frozen.url, good.url, timeouts={"firstByteSeconds": 60}) as bed,
    ):
        waiting = [
            asyncio.create_task(ask(bed.port, post(chat(content=str(n) * 99)), within_seconds=20)) for n in range(8)
        ]
        await eventually(lambda: len(frozen.seen) > 0, True)
        frozen.healthy = False
        answers = await asyncio.gather(*waiting)
        assert [each.status for each in answers] == [200] * 8


async def test_requests_move_also_when_faults_put_the_worker_out_before_its_checks_did() -> None:
    async def begin_or_hang(connection: Connection, seen: Seen) -> None:
        if b'"stream"' in seen.body:
            await connection.send(SSE_HEAD + chunked(delta("a")))
        await connection.wait_gone()

    timeouts = {"firstByteSeconds": 60, "betweenChunksSeconds": 0.2}
    checks = {"intervalSeconds": 0.6, "timeoutSeconds": 0.3}
    async with (
        RawWorker(begin_or_hang) as frozen,
        RawWorker(answer_json) as good,
        RouterBed(frozen.url, good.url, timeouts=timeouts, healthCheck=checks) as bed,
    ):
        asked = [chat(number % 2 == 0, content=str(number) * 99) for number in range(16)]
        waiting = [asyncio.create_task(ask(bed.port, post(body), within_seconds=20)) for body in asked]
        await eventually(lambda: len(frozen.seen) >= 4, True)
        frozen.healthy = False
        for body, answer in zip(asked, await asyncio.gather(*waiting), strict=True):
            assert answer.status == 200
            assert answer.complete or b'"stream"' in body


async def test_request_that_finds_nobody_ready_waits_for_who_comes() -> None:
    async with RawWorker(answer_json) as worker:
        worker.healthy = False
        async with RouterBed(worker.url, await_ready=0) as bed:
            waiting = asyncio.create_task(ask(bed.port, post(chat())))
            await asyncio.sleep(0.1)
            assert not waiting.done()
            worker.healthy = True
            assert (await waiting).status == 200


async def test_request_that_waits_in_vain_gets_503_with_retry_after_in_bounded_time() -> None:
    async with RawWorker(answer_json) as worker:
        worker.healthy = False
        async with RouterBed(worker.url, await_ready=0, timeouts={"connectSeconds": 0.3}) as bed:
            answer = await ask(bed.port, post(chat()), within_seconds=3)
            assert (answer.status, answer.error_code) == (503, "no_endpoint_available")
            assert int(answer.headers["retry-after"]) >= 1


async def test_killed_worker_loses_no_request_that_had_not_begun_and_is_used_again() -> None:
    async def slow(connection: Connection, seen: Seen) -> None:
        await asyncio.sleep(0.05)
        await connection.send(json_answer(completion()))

    async with RawWorker(slow) as stays, RawWorker(slow) as dies, RouterBed(stays.url, dies.url) as bed:
        running = True

        async def load(number: int) -> list[int]:
            statuses = []
            while running:
                statuses.append((await ask(bed.port, post(chat(content=f"{number}" * 99)))).status)
            return statuses

        clients = [asyncio.create_task(load(number)) for number in range(16)]
        await eventually(lambda: len(dies.seen) > 8, True)
        await dies.stop()
        await asyncio.sleep(0.5)
        async with RawWorker(slow, port=dies.port) as again:
            await eventually(lambda: len(again.seen) > 0, True, 3)
            running = False
            statuses = [status for statuses in await asyncio.gather(*clients) for status in statuses]
        assert set(statuses) == {200}


async def test_killed_worker_ends_begun_streams_with_an_error_event() -> None:
    async def begin(connection: Connection, seen: Seen) -> None:
        await connection.send(SSE_HEAD + chunked(delta("a")))
        await connection.wait_gone()

    async with RawWorker(begin) as worker, RouterBed(worker.url) as bed:
        waiting = [asyncio.create_task(ask(bed.port, post(chat(stream=True)))) for _ in range(5)]
        await eventually(lambda: len(worker.seen), 5)
        await eventually(lambda: bed.in_flight[0], 5)
        await asyncio.sleep(0.1)
        await worker.stop()
        for answer in await asyncio.gather(*waiting):
            assert not answer.complete
            assert "error" in answer.events[-1]


async def test_all_workers_killed_and_back_within_the_wait_is_no_error() -> None:
    async with RawWorker(answer_json) as worker, RouterBed(worker.url, timeouts={"connectSeconds": 3}) as bed:
        await worker.stop()
        await eventually(lambda: bed.process.table.snapshot.endpoints[0].ready, False)
        waiting = asyncio.create_task(ask(bed.port, post(chat())))
        await asyncio.sleep(0.3)
        async with RawWorker(answer_json, port=worker.port):
            assert (await waiting).status == 200


# --- the process ------------------------------------------------------------------------------------------------------


def write_config(folder: Path, *urls: str, port: int = 0, drain_seconds: float = 3) -> Path:
    lines = [
        "apiVersion: router.tidegate.dev/v1alpha1",
        "kind: RouterConfig",
        f"listen: {{port: {port}}}",
        f"timeouts: {{drainSeconds: {drain_seconds}}}",
        "endpoints:",
        *[f"- url: {url}" for url in urls],
    ]
    path = folder / "router.yaml"
    path.write_text("\n".join(lines))
    return path


class Router:
    """A router process of its own."""

    def __init__(self, config: Path) -> None:
        self._config = config
        self.process: asyncio.subprocess.Process
        self.ready_line = ""

    async def __aenter__(self) -> Self:
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tidegate_router",
            "--config",
            str(self._config),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        self.ready_line = (await self.process.stdout.readline()).decode()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.communicate()

    @property
    def port(self) -> int:
        return int(self.ready_line.split()[2].rsplit(":", 1)[1])


async def test_startup_line_names_the_address_and_the_endpoints(tmp_path: Path) -> None:
    async with RawWorker(answer_json) as worker, Router(write_config(tmp_path, worker.url)) as router:
        assert router.ready_line == f"tidegate-router ready http://127.0.0.1:{router.port} endpoints=1\n"


async def test_drain_finishes_what_runs_refuses_what_comes_and_exits_0(tmp_path: Path) -> None:
    release = asyncio.Event()

    async def slow(connection: Connection, seen: Seen) -> None:
        await connection.send(SSE_HEAD + chunked(delta("a")))
        await release.wait()
        await connection.send(chunked(b"data: [DONE]\n\n") + LAST_CHUNK)

    async with RawWorker(slow) as worker, Router(write_config(tmp_path, worker.url)) as router:
        async with RawClient(router.port) as busy, RawClient(router.port) as idle:
            await idle.send(get("/health"))
            await idle.read_answer()
            await busy.send(post(chat(stream=True)))
            await busy.reader.readuntil(b"\r\n\r\n")
            router.process.send_signal(signal.SIGTERM)
            assert await idle.at_end()
            with pytest.raises(OSError):
                await ask(router.port, get("/ready"))
            release.set()
            assert LAST_CHUNK in await busy.reader.read(-1)
        assert await asyncio.wait_for(router.process.wait(), 5) == 0


async def test_drain_that_takes_too_long_ends_streams_with_an_error_event(tmp_path: Path) -> None:
    async def endless(connection: Connection, seen: Seen) -> None:
        await connection.send(SSE_HEAD + chunked(delta("a")))
        await connection.wait_gone()

    config = write_config
    async with RawWorker(endless) as worker, Router(config(tmp_path, worker.url, drain_seconds=0.3)) as router:
        async with RawClient(router.port) as client, RawClient(router.port) as waiting:
            await client.send(post(chat(stream=True)))
            await client.reader.readuntil(b"\n\n\r\n")
            worker.script = hang
            await waiting.send(post(chat()))
            await eventually(lambda: len(worker.seen), 2)
            router.process.send_signal(signal.SIGTERM)
            assert b'"error"' in await client.reader.read(-1)
            assert (await waiting.read_answer()).status == 503
        assert await asyncio.wait_for(router.process.wait(), 5) == 0


async def test_second_signal_ends_at_once(tmp_path: Path) -> None:
    async with (
        RawWorker(hang) as worker,
        Router(write_config(tmp_path, worker.url, drain_seconds=60)) as router,
        RawClient(router.port) as client,
    ):
        await client.send(post(chat()))
        await eventually(lambda: len(worker.seen), 1)
        router.process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.2)
        assert router.process.returncode is None
        router.process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(router.process.wait(), 2) != 0


async def test_bad_config_and_a_taken_port_are_one_message_and_exit_2(tmp_path: Path) -> None:
    async def run(config: Path) -> tuple[int | None, str]:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tidegate_router",
            "--config",
            str(config),
            stderr=subprocess.PIPE,
            env={**os.environ},
        )
        _, errors = await asyncio.wait_for(process.communicate(), 10)
        return process.returncode, errors.decode()

    broken = tmp_path / "broken.yaml"
    broken.write_text("kind: RouterConfig\n")
    code, errors = await run(broken)
    assert code == 2
    assert "Traceback" not in errors
    assert "apiVersion" in errors
    async with RawWorker(answer_json) as worker:
        code, errors = await run(write_config(tmp_path, worker.url, port=worker.port))
    assert code == 2
    assert errors.count("\n") == 1
    assert str(worker.port) in errors
