"""Good answers in every framing, from every kind of client."""

import asyncio
import json

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
    completion,
    delta,
    json_answer,
)


async def test_answer_is_relayed_with_its_bytes_and_the_clients_request_id() -> None:
    async with RawWorker(answer_json) as worker, RouterBed(worker.url) as bed:
        answer = await ask(bed.port, post(chat(), extra="x-request-id: abc-1\r\n"))
        assert (answer.status, answer.body, answer.complete) == (200, completion(), True)
        assert answer.headers["x-request-id"] == "abc-1"
        assert not any(name.startswith("x-tidegate-") for name in answer.headers)


async def test_request_reaches_the_worker_untouched_but_for_its_headers() -> None:
    body = b'{"model": "m",  "messages": [{"role":"user","content":"\\u00e4"}], "unknown_field": [1, 2]}'
    extra = (
        "Authorization: Bearer secret\r\nCookie: a=b\r\nX-Api-Key: k\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\n"
        "Traceparent: 00-aa-bb-01\r\nX-Tidegate-Endpoint: spoof\r\nAccept-Encoding: gzip\r\n"
        "X-Other: kept\r\nTE: trailers\r\n"
    )
    async with RawWorker(answer_json) as worker, RouterBed(worker.url) as bed:
        await ask(bed.port, post(body, path="/v1/chat/completions?beta=true", extra=extra + "x-request-id: r1\r\n"))
        seen = worker.seen[0]
    assert seen.body == body
    assert seen.target == "/v1/chat/completions?beta=true"
    assert seen.headers["traceparent"] == "00-aa-bb-01"
    assert seen.headers["x-other"] == "kept"
    assert seen.headers["host"] == f"127.0.0.1:{worker.port}"
    assert seen.headers["x-request-id"].startswith("r1-")
    dropped = {
        "authorization",
        "cookie",
        "x-api-key",
        "x-hop",
        "x-tidegate-endpoint",
        "accept-encoding",
        "te",
        "connection",
    }
    assert not dropped & set(seen.headers)


async def test_every_attempt_has_an_id_of_its_own() -> None:
    async with RawWorker(answer_json) as worker, RouterBed(worker.url) as bed:
        for _ in range(3):
            await ask(bed.port, post(chat(), extra="x-request-id: same\r\n"))
        ids = [seen.headers["x-request-id"] for seen in worker.seen]
    assert len(set(ids)) == 3
    assert len({len(each) for each in ids}) == 1


async def test_stream_is_relayed_chunked_and_ends_with_done() -> None:
    async with RawWorker(answer_json) as worker, RouterBed(worker.url) as bed:
        answer = await ask(bed.port, post(chat(stream=True)))
    assert answer.headers["transfer-encoding"] == "chunked"
    assert answer.complete
    assert answer.body == delta("hel") + delta("lo") + DONE


async def test_http10_client_gets_a_stream_that_ends_with_the_connection() -> None:
    async with RawWorker(answer_json) as worker, RouterBed(worker.url) as bed, RawClient(bed.port) as client:
        await client.send(post(chat(stream=True), version="1.0"))
        answer = await client.read_answer()
    assert "transfer-encoding" not in answer.headers
    assert answer.headers["connection"] == "close"
    assert answer.body == delta("hel") + delta("lo") + DONE


async def test_http10_keep_alive_is_honoured_for_answers_of_known_length() -> None:
    async with RawWorker(answer_json) as worker, RouterBed(worker.url) as bed, RawClient(bed.port) as client:
        for _ in range(2):
            await client.send(post(chat(), version="1.0", extra="connection: keep-alive\r\n"))
            answer = await client.read_answer()
            assert (answer.status, answer.headers["connection"]) == (200, "keep-alive")
        await client.send(post(chat(), version="1.0"))
        assert (await client.read_answer()).headers["connection"] == "close"
        assert await client.at_end()


async def test_pipelined_requests_are_answered_in_order() -> None:
    async def slow_first(connection: Connection, seen: Seen) -> None:
        content = json.loads(seen.body)["messages"][0]["content"]
        await asyncio.sleep(0.1 if content == "0" else 0)
        await connection.send(json_answer(completion(content)))

    async with RawWorker(slow_first) as worker, RouterBed(worker.url) as bed, RawClient(bed.port) as client:
        await client.send(b"".join(post(chat(content=str(n))) for n in range(5)) + get("/health"))
        for number in range(5):
            answer = await client.read_answer()
            assert answer.json["choices"][0]["message"]["content"] == str(number)
        assert (await client.read_answer()).json == {"status": "ok"}


async def test_many_pipelined_requests_wait_their_turn_without_being_lost() -> None:
    async with RawWorker(answer_json) as worker, RouterBed(worker.url) as bed, RawClient(bed.port) as client:
        await client.send(*[post(chat(content="x" * 3000)) * 10 for _ in range(20)])
        for _ in range(200):
            assert (await client.read_answer()).status == 200


@pytest.mark.parametrize("size", [1, 7, 4096])
async def test_chunked_upload_arrives_as_one_body(size: int) -> None:
    body = chat(content="y" * 300)
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n"
    async with RawWorker(answer_json) as worker, RouterBed(worker.url) as bed, RawClient(bed.port) as client:
        await client.send(head, chunked(*pieces) + b"0\r\nx-trailer: 1\r\n\r\n")
        assert (await client.read_answer()).status == 200
        assert worker.seen[0].body == body
        assert worker.seen[0].headers["content-length"] == str(len(body))
        assert "x-trailer" not in worker.seen[0].headers


async def test_a_request_byte_by_byte_is_understood() -> None:
    message = post(chat())
    async with RawWorker(answer_json) as worker, RouterBed(worker.url) as bed, RawClient(bed.port) as client:
        for position in range(len(message)):
            client.writer.write(message[position : position + 1])
            await asyncio.sleep(0)
        assert (await client.read_answer()).status == 200


async def test_expect_continue_is_answered_before_the_body() -> None:
    body = chat()
    head = post(body, extra="expect: 100-continue\r\n").removesuffix(body)
    async with RawWorker(answer_json) as worker, RouterBed(worker.url) as bed, RawClient(bed.port) as client:
        await client.send(head)
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await client.send(body)
        assert (await client.read_answer()).status == 200
        assert "expect" not in worker.seen[0].headers


@pytest.mark.parametrize("apart", [False, True])
async def test_an_offered_upgrade_is_ignored_and_the_body_read(apart: bool) -> None:
    body = chat()
    extra = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
    message = post(body, extra=extra)
    async with RawWorker(answer_json) as worker, RouterBed(worker.url) as bed, RawClient(bed.port) as client:
        await client.send(*((message.removesuffix(body), body) if apart else (message,)))
        assert (await client.read_answer()).status == 200
        assert worker.seen[0].body == body
        assert not {"upgrade", "http2-settings"} & set(worker.seen[0].headers)
        await client.send(post(chat()))
        assert (await client.read_answer()).status == 200


async def test_large_answers_pass_with_their_length_and_are_not_held() -> None:
    body = b'{"text": "' + b"z" * (3 << 20) + b'"}'

    async def large(connection: Connection, seen: Seen) -> None:
        await connection.send(json_answer(body))

    async with RawWorker(large) as worker, RouterBed(worker.url) as bed:
        answer = await ask(bed.port, post(chat()))
    assert answer.headers["content-length"] == str(len(body))
    assert answer.body == body


async def test_large_answer_of_unknown_length_passes_chunked() -> None:
    piece = b"z" * 65_536

    async def large(connection: Connection, seen: Seen) -> None:
        await connection.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ntransfer-encoding: chunked\r\n\r\n")
        for _ in range(40):
            await connection.send(chunked(piece))
        await connection.send(LAST_CHUNK)

    async with RawWorker(large) as worker, RouterBed(worker.url) as bed:
        answer = await ask(bed.port, post(chat()))
    assert answer.complete
    assert answer.body == piece * 40


async def test_events_come_through_as_soon_as_they_are_whole() -> None:
    released = asyncio.Event()

    async def halting(connection: Connection, seen: Seen) -> None:
        await connection.send(SSE_HEAD + chunked(delta("a"), delta("b")[:10]))
        await released.wait()
        await connection.send(chunked(delta("b")[10:], DONE) + LAST_CHUNK)

    async with RawWorker(halting) as worker, RouterBed(worker.url) as bed, RawClient(bed.port) as client:
        await client.send(post(chat(stream=True)))
        await client.reader.readuntil(b"\r\n\r\n")
        assert await client.reader.readuntil(b"\n\n\r\n") == chunked(delta("a"))
        released.set()
        assert (await client.reader.readuntil(LAST_CHUNK)) == chunked(delta("b") + DONE) + LAST_CHUNK


async def test_usage_is_settled_however_the_stream_is_split() -> None:
    counts = b'{"prompt_tokens":40,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":32}}'
    usage = b'data: {"choices":[],"usage":' + counts + b"}\n\n"
    stream = delta("a").replace(b"}\n\n", b', "usage": null}\n\n') + usage + DONE
    for cut in range(1, len(stream), 17):

        async def split(connection: Connection, seen: Seen, cut: int = cut) -> None:
            await connection.send(SSE_HEAD, chunked(stream[:cut]), chunked(stream[cut:]) + LAST_CHUNK)

        async with RawWorker(split) as worker, RouterBed(worker.url) as bed:
            answer = await ask(bed.port, post(chat(stream=True)))
            assert answer.body == stream
            await bed.at_rest()
            assert bed.metric("tidegate_router_cached_tokens_total", model="m") == 32
            assert bed.metric("tidegate_router_prompt_tokens_total", model="m") == 40


async def test_debug_headers_tell_where_it_went_and_why() -> None:
    async with RawWorker(answer_json) as one, RawWorker(answer_json) as two, RouterBed(one.url, two.url) as bed:
        answer = await ask(bed.port, post(chat(), extra="x-tidegate-debug: 1\r\n"))
        assert answer.headers["x-tidegate-endpoint"] in ("w0", "w1")
        assert answer.headers["x-tidegate-predicted-cached-tokens"] == "0"
        assert answer.headers["x-tidegate-attempts"] == "1"
        assert {each.split("=")[0] for each in answer.headers["x-tidegate-scores"].split(",")} == {"w0", "w1"}


async def test_worker_that_closes_after_each_answer_is_respected() -> None:
    async def closing(connection: Connection, seen: Seen) -> None:
        await connection.send(json_answer(completion(), extra="connection: close\r\n"))
        connection.close()

    async with RawWorker(closing) as worker, RouterBed(worker.url) as bed:
        for _ in range(5):
            assert (await ask(bed.port, post(chat()))).status == 200
        assert bed.metric("tidegate_router_attempts_total", endpoint="w0", outcome="answered") == 5


async def test_connections_to_workers_are_kept_and_reused() -> None:
    async with RawWorker(answer_json) as worker, RouterBed(worker.url) as bed, RawClient(bed.port) as client:
        for _ in range(10):
            await client.send(post(chat()))
            await client.read_answer()
        assert max(each.request_number for each in worker.connections) == 10


async def test_access_log_has_one_line_with_the_true_tokens() -> None:
    async with RawWorker(answer_json) as worker, RouterBed(worker.url) as bed:
        await ask(bed.port, post(chat(), extra="x-request-id: seen\r\n"))
        await ask(bed.port, get("/health"))
        await eventually(lambda: bed.in_flight, (0, 0))
        lines = await bed.log()
    assert len(lines) == 1
    line = lines[0]
    assert (line["id"], line["status"], line["endpoint"], line["attempts"]) == ("seen", 200, "w0", 1)
    assert (line["prompt_tokens"], line["cached_tokens"], line["completion_tokens"]) == (7, 3, 2)
