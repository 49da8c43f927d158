"""Clients that leave, stall, flood or speak no HTTP: bounded, answered where an answer can be read, leaked nowhere."""

import asyncio
import random
import socket

import pytest
from raw_http_client import RawClient, ask, chat, get, post
from router_bed import RouterBed, eventually
from upstream_servers import (
    DONE,
    LAST_CHUNK,
    SSE_HEAD,
    Connection,
    RawWorker,
    Seen,
    answer_json,
    chunked,
    delta,
    json_answer,
)


async def hang(connection: Connection, seen: Seen) -> None:
    await connection.wait_gone()


async def stream_and_hang(connection: Connection, seen: Seen) -> None:
    await connection.send(SSE_HEAD + chunked(delta("a")))
    await connection.wait_gone()


async def test_client_that_leaves_before_the_first_byte_frees_the_worker_at_once() -> None:
    async with RawWorker(hang) as worker, RouterBed(worker.url, timeouts={"firstByteSeconds": 60}) as bed:
        async with RawClient(bed.port) as client:
            await client.send(post(chat()))
            await eventually(lambda: len(worker.seen), 1)
            assert bed.in_flight[0] == 1
        await eventually(lambda: any(each.gone.is_set() for each in worker.connections), True, 2)
        await bed.at_rest()
        assert bed.metric("tidegate_router_client_disconnects_total") == 1
        assert b"upstream_faults_total{" not in bed.process.metrics.render()


async def test_client_that_leaves_a_stream_frees_the_worker_at_once() -> None:
    async with RawWorker(stream_and_hang) as worker, RouterBed(worker.url) as bed:
        async with RawClient(bed.port) as client:
            await client.send(post(chat(stream=True)))
            await client.reader.readuntil(b"\n\n\r\n")
        await eventually(lambda: any(each.gone.is_set() for each in worker.connections), True, 2)


async def test_client_that_leaves_while_nobody_is_ready_is_forgotten() -> None:
    async with RawWorker(answer_json) as worker:
        worker.healthy = False
        async with RouterBed(worker.url, await_ready=0) as bed:
            async with RawClient(bed.port) as client:
                await client.send(post(chat()))
                await asyncio.sleep(0.05)
            worker.healthy = True
            await eventually(lambda: bed.process.table.snapshot.endpoints[0].ready, True)
            await eventually(lambda: bed.metric("tidegate_router_client_disconnects_total"), 1)
            assert worker.seen == []


async def test_two_hundred_streams_half_of_them_cut_leave_nothing_behind() -> None:
    randomness = random.Random(7)

    async def chatter(connection: Connection, seen: Seen) -> None:
        await connection.send(SSE_HEAD)
        for _ in range(10):
            await connection.send(chunked(delta("word")))
            await asyncio.sleep(0.02)
        await connection.send(chunked(DONE) + LAST_CHUNK)

    async def stay(port: int) -> bool:
        answer = await ask(port, post(chat(stream=True)), within_seconds=60)
        return answer.complete and answer.body.endswith(DONE)

    async def leave(port: int, after_seconds: float) -> None:
        async with RawClient(port) as client:
            await client.send(post(chat(stream=True)))
            await asyncio.sleep(after_seconds)

    async with RawWorker(chatter) as one, RawWorker(chatter) as two:
        timeouts = {"firstByteSeconds": 30, "betweenChunksSeconds": 30}
        health = {"intervalSeconds": 5, "timeoutSeconds": 20}
        async with RouterBed(one.url, two.url, timeouts=timeouts, healthCheck=health) as bed:
            async with asyncio.TaskGroup() as group:
                staying = [group.create_task(stay(bed.port)) for _ in range(100)]
                for _ in range(100):
                    group.create_task(leave(bed.port, randomness.random() * 0.5))
            assert all(task.result() for task in staying)
            await bed.at_rest()
            assert bed.metric("tidegate_router_in_flight_requests", endpoint="w0") == 0


async def test_answer_to_a_connection_closed_in_this_very_moment_is_dropped() -> None:
    async with RawWorker(stream_and_hang) as worker, RouterBed(worker.url) as bed, RawClient(bed.port) as client:
        await client.send(post(chat(stream=True)))
        await client.reader.readuntil(b"\n\n\r\n")

        async def close_and_write() -> None:
            connection = next(iter(bed.process.gateway.connections))
            assert connection._transport is not None
            assert connection._exchange is not None
            connection._transport.abort()
            connection._exchange.writer.write(b"late")

        await bed.inside(close_and_write())
        await eventually(lambda: any(each.gone.is_set() for each in worker.connections), True, 2)


async def test_slow_reader_holds_back_the_worker_within_bounds() -> None:
    sent = 0

    async def flood(connection: Connection, seen: Seen) -> None:
        nonlocal sent
        await connection.send(SSE_HEAD)
        piece = chunked(delta("z" * 60_000))
        for _ in range(400):
            connection.writer.write(piece)
            await connection.writer.drain()
            sent += len(piece)
        await connection.send(chunked(DONE) + LAST_CHUNK)

    async with (
        RawWorker(flood) as worker,
        RouterBed(worker.url, timeouts={"betweenChunksSeconds": 0.5}) as bed,
        RawClient(bed.port) as client,
    ):
        transport = client.writer.transport
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        client.reader._limit = 1  # type: ignore[attr-defined]  # stop reading the socket at once
        await client.send(post(chat(stream=True)))
        await asyncio.sleep(1.0)
        stuck_at = sent
        await asyncio.sleep(0.5)
        assert sent == stuck_at, "the worker is held back, and its pause is no time-out"
        assert sent < 16_000_000
        client.reader._limit = 1 << 26  # type: ignore[attr-defined]
        tail = b""
        while not tail.endswith(LAST_CHUNK):
            tail = tail[-64:] + await asyncio.wait_for(client.reader.read(1 << 20), 10)
        assert DONE in tail


async def test_reader_that_never_reads_is_dropped() -> None:
    async def flood(connection: Connection, seen: Seen) -> None:
        await connection.send(SSE_HEAD)
        while True:
            await connection.send(chunked(delta("z" * 600_000)))

    async with RawWorker(flood) as worker, RouterBed(worker.url, timeouts={"clientStalledSeconds": 0.3}) as bed:
        reader, writer = await asyncio.open_connection("127.0.0.1", bed.port, limit=1)
        writer.write(post(chat(stream=True)))
        await eventually(lambda: bed.metric("tidegate_router_client_disconnects_total"), 1)
        await bed.at_rest()
        writer.transport.abort()
        del reader


async def test_slow_reader_of_a_whole_answer_does_not_disturb_the_connection_it_came_from() -> None:
    body = b'{"text": "' + b"z" * 900_000 + b'"}'

    async def large(connection: Connection, seen: Seen) -> None:
        await connection.send(json_answer(body))

    async with RawWorker(large) as worker, RouterBed(worker.url) as bed:
        reader, writer = await asyncio.open_connection("127.0.0.1", bed.port, limit=1)
        writer.write(post(chat()) * 12)
        await eventually(lambda: len(worker.seen) > 2, True)
        await asyncio.sleep(0.2)
        assert len(worker.seen) < 12, "answers are not begun while the client takes none"
        for _ in range(5):
            assert (await ask(bed.port, post(chat()), within_seconds=2)).body == body
        read = 0
        while read < 12 * len(body):
            read += len(await asyncio.wait_for(reader.read(1 << 20), 5))
        writer.transport.abort()


# --- bounds -----------------------------------------------------------------------------------------------------------


async def test_body_over_the_limit_is_refused_by_its_announced_length() -> None:
    async with RawWorker(answer_json) as worker, RouterBed(worker.url, limits={"maxBodyBytes": 2048}) as bed:
        async with RawClient(bed.port) as client:
            await client.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: t\r\ncontent-length: 2049\r\n\r\n")
            answer = await client.read_answer()
            assert (answer.status, answer.error_code) == (413, "request_too_large")
            assert answer.headers["connection"] == "close"
            assert await client.at_end()
        assert worker.seen == []


async def test_client_that_sends_its_whole_large_body_first_still_reads_the_413() -> None:
    body = b"x" * (8 << 20)
    async with (
        RawWorker(answer_json) as worker,
        RouterBed(worker.url, limits={"maxBodyBytes": 4 << 20}) as bed,
        RawClient(bed.port) as client,
    ):
        client.writer.write(post(body))
        await client.writer.drain()
        assert (await client.read_answer()).status == 413


async def test_streamed_body_is_refused_where_it_passes_the_limit() -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n"
    async with (
        RawWorker(answer_json) as worker,
        RouterBed(worker.url, limits={"maxBodyBytes": 2048}) as bed,
        RawClient(bed.port) as client,
    ):
        await client.send(head + chunked(b"x" * 1500), chunked(b"x" * 1500))
        assert (await client.read_answer()).status == 413
        assert await client.at_end()


async def test_continue_is_not_said_to_a_body_over_the_limit() -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: t\r\nexpect: 100-continue\r\ncontent-length: 9999999\r\n\r\n"
    async with (
        RawWorker(answer_json) as worker,
        RouterBed(worker.url, limits={"maxBodyBytes": 2048}) as bed,
        RawClient(bed.port) as client,
    ):
        await client.send(head)
        assert (await client.reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize(
    "flood",
    [
        b"GET / HTTP/1.1\r\nx: " + b"y" * 5000,
        b"GET /" + b"y" * 5000,
        b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 1000,
        b"GET / HTTP/1.1\r\n" + b"".join(b"x%d: y\r\n" % n for n in range(20)) + b"\r\n",
        b"GET / HTTP/1.1\r\nx: " + b"y" * 5000 + b"\r\n\r\n",
    ],
    ids=["one endless field", "endless target", "endless fields", "too many fields", "large but whole"],
)
async def test_header_floods_are_refused(flood: bytes) -> None:
    limits = {"maxHeaderBytes": 4096, "maxHeaders": 16}
    async with (
        RawWorker(answer_json) as worker,
        RouterBed(worker.url, limits=limits) as bed,
        RawClient(bed.port) as client,
    ):
        await client.send(flood[:2000], flood[2000:])
        answer = await client.read_answer()
        assert (answer.status, answer.error_code) == (431, "headers_too_large")
        assert await client.at_end()


async def test_slow_loris_gets_408() -> None:
    timeouts = {"clientHeadersSeconds": 0.3}
    async with (
        RawWorker(answer_json) as worker,
        RouterBed(worker.url, timeouts=timeouts) as bed,
        RawClient(bed.port) as client,
    ):

        async def trickle() -> None:
            for byte in b"POST /v1/chat/completions HTTP/1.1\r\nhost: aaaaaaaaaaaaaaaaa":
                await client.send(bytes([byte]))
                await asyncio.sleep(0.05)

        trickling = asyncio.create_task(trickle())
        answer = await client.read_answer(within_seconds=3)
        assert (answer.status, answer.error_code) == (408, "request_timeout")
        assert await client.at_end()
        trickling.cancel()


async def test_body_that_stalls_gets_408_and_one_that_trickles_does_not() -> None:
    body = chat()
    message = post(body)
    timeouts = {"clientBodySeconds": 0.3}
    async with RawWorker(answer_json) as worker, RouterBed(worker.url, timeouts=timeouts) as bed:
        async with RawClient(bed.port) as client:
            await client.send(message[:-5])
            assert (await client.read_answer()).status == 408
        async with RawClient(bed.port) as client:
            await client.send(message[: -len(body)])
            for start in range(0, len(body), 10):
                await client.send(body[start : start + 10])
                await asyncio.sleep(0.1)
            assert (await client.read_answer()).status == 200


async def test_idle_connection_is_closed_in_silence() -> None:
    async with RawWorker(answer_json) as worker, RouterBed(worker.url, timeouts={"clientIdleSeconds": 0.2}) as bed:
        async with RawClient(bed.port) as client:
            await client.send(get("/health"))
            await client.read_answer()
            assert await client.at_end(2)
        async with RawClient(bed.port) as client:
            assert await client.at_end(2)


async def test_connections_over_the_limit_are_closed_and_others_live() -> None:
    async with RawWorker(answer_json) as worker, RouterBed(worker.url, limits={"maxConnections": 2}) as bed:
        async with RawClient(bed.port) as first, RawClient(bed.port) as second:
            for client in (first, second):
                await client.send(get("/health"))
                await client.read_answer()
            async with RawClient(bed.port) as third:
                assert await third.at_end()
            await first.send(post(chat()))
            assert (await first.read_answer()).status == 200
        await eventually(lambda: len(bed.process.gateway.connections), 0)
        assert (await ask(bed.port, post(chat()))).status == 200


# --- not HTTP, or not one reading of it -------------------------------------------------------------------------------

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: t\r\n"
MALFORMED = {
    "both framings": HEAD + b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "both framings, other order": HEAD + b"transfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n0\r\n\r\n",
    "two lengths": HEAD + b"content-length: 3\r\ncontent-length: 4\r\n\r\nabc",
    "length list": HEAD + b"content-length: 3, 4\r\n\r\nabc",
    "signed length": HEAD + b"content-length: +3\r\n\r\nabc",
    "negative length": HEAD + b"content-length: -3\r\n\r\nabc",
    "hex length": HEAD + b"content-length: 0x3\r\n\r\nabc",
    "empty length": HEAD + b"content-length: \r\n\r\nabc",
    "huge length": HEAD + b"content-length: 99999999999999999999\r\n\r\nabc",
    "folded header": HEAD + b"x: a\r\n b\r\ncontent-length: 3\r\n\r\nabc",
    "space before colon": HEAD + b"content-length : 3\r\n\r\nabc",
    "gzip framing": HEAD + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "unknown framing": HEAD + b"transfer-encoding: identity\r\n\r\nabc",
    "framing in HTTP/1.0": HEAD.replace(b"1.1", b"1.0") + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "two hosts": HEAD + b"host: other\r\ncontent-length: 0\r\n\r\n",
    "nul in header": HEAD + b"x: a\0b\r\ncontent-length: 0\r\n\r\n",
    "bare line feeds": HEAD.replace(b"\r\n", b"\n") + b"content-length: 0\n\n",
    "bad chunk": HEAD + b"transfer-encoding: chunked\r\n\r\nxyz\r\n",
    "HTTP/0.9": b"GET /health\r\n\r\n",
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/9.9": b"GET /health HTTP/9.9\r\n\r\n",
    "unknown method": b"BREW /v1/models HTTP/1.1\r\nhost: t\r\n\r\n",
    "TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "noise": b"\xff\xfe\x00garbage\r\n\r\n",
    "expectation": HEAD + b"expect: 200-ok\r\ncontent-length: 0\r\n\r\n",
}


@pytest.mark.parametrize("name", MALFORMED)
async def test_what_is_not_one_reading_of_http_gets_400_and_is_closed(name: str) -> None:
    async with RawWorker(answer_json) as worker, RouterBed(worker.url) as bed, RawClient(bed.port) as client:
        await client.send(MALFORMED[name])
        answer = await client.read_answer()
        assert answer.status == 400
        assert answer.json["error"]["type"] == "invalid_request_error"
        assert answer.headers["connection"] == "close"
        assert await client.at_end()
        assert worker.seen == []


async def test_error_behind_a_good_request_comes_after_its_answer() -> None:
    async with RawWorker(answer_json) as worker, RouterBed(worker.url) as bed, RawClient(bed.port) as client:
        await client.send(post(chat()) + b"\x00\x01\x02garbage\r\n\r\n")
        assert (await client.read_answer()).status == 200
        assert (await client.read_answer()).status == 400
        assert await client.at_end()


@pytest.mark.parametrize(
    ("message", "status", "allow"),
    [
        (b"POST /v1/chat/completions HTTP/1.1\r\nhost: t\r\n\r\n", 411, None),
        (get("/nowhere"), 404, None),
        (get("*"), 404, None),
        (get("/v1/chat/completions"), 405, "POST, OPTIONS"),
        (post(b"{}", path="/health"), 405, "GET, HEAD, OPTIONS"),
        (get("/v1/chat/completions", "DELETE"), 405, "POST, OPTIONS"),
        (get("/v1/chat/completions", "OPTIONS"), 204, "POST, OPTIONS"),
        (get("/v1/models?x=1"), 200, None),
        (get("http://anything:80/health"), 200, None),
        (get("/v1/models/m"), 200, None),
        (get("/v1/models/none"), 404, None),
        (post(b"\x1f\x8b", extra="content-encoding: gzip\r\n"), 415, None),
    ],
)
async def test_paths_and_methods(message: bytes, status: int, allow: str | None) -> None:
    async with RawWorker(answer_json) as worker, RouterBed(worker.url) as bed, RawClient(bed.port) as client:
        await client.send(message)
        answer = await client.read_answer()
        assert (answer.status, answer.headers.get("allow")) == (status, allow)
        if status in (200, 404, 405):
            await client.send(post(chat()))
            assert (await client.read_answer()).status == 200


async def test_head_has_the_length_and_no_body() -> None:
    async with RawWorker(answer_json) as worker, RouterBed(worker.url) as bed, RawClient(bed.port) as client:
        await client.send(get("/health", "HEAD") + get("/health"))
        assert (await client.read_answer(method="HEAD")).headers["content-length"] == "15"
        assert (await client.read_answer()).json == {"status": "ok"}


async def test_client_that_leaves_in_mid_upload_leaves_nothing() -> None:
    async with RawWorker(answer_json) as worker, RouterBed(worker.url) as bed:
        async with RawClient(bed.port) as client:
            await client.send(post(chat())[:-5])
        await eventually(lambda: len(bed.process.gateway.connections), 0)
        assert worker.seen == []
