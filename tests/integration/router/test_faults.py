"""Workers that break, in every place: retried unseen before the first byte, never dressed as success after it."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest
from raw_http_client import RawClient, ask, chat, post
from router_bed import RouterBed, eventually
from upstream_servers import (
    DONE,
    LAST_CHUNK,
    SSE_HEAD,
    Connection,
    RawWorker,
    Script,
    Seen,
    answer_json,
    chunked,
    completion,
    delta,
    json_answer,
)

ERROR_EVENT = b'data: {"error": {"message": "engine died", "type": "server_error", "code": 500}}\n\n'
JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
Break = Callable[[Connection], Awaitable[None]]


def then(*pieces: bytes, end: str = "close") -> Script:
    """Write pieces, then close in order, reset, hang, or keep the connection."""

    async def script(connection: Connection, seen: Seen) -> None:
        await connection.send(*pieces)
        if end == "close":
            connection.close()
        elif end == "reset":
            connection.reset()
        elif end == "hang":
            await connection.wait_gone()

    return script


BEFORE_FIRST_BYTE: dict[str, tuple[Script, str]] = {
    "reset without an answer": (then(end="reset"), "reset"),
    "closed without an answer": (then(), "reset"),
    "silence": (then(end="hang"), "first-byte-timeout"),
    "half a status line": (then(b"HTTP/1.1 20"), "cut"),
    "head and silence": (then(JSON_HEAD + b"content-length: 5\r\n\r\n", end="hang"), "first-byte-timeout"),
    "not http": (then(b"SSH-2.0-OpenSSH_9\r\n", end="keep"), "malformed"),
    "endless head": (then(b"HTTP/1.1 200 OK\r\n" + b"x: " + b"y" * 200_000, end="hang"), "malformed"),
    "status 500": (then(json_answer(b'{"error":{"message":"Traceback"}}', "500 X"), end="keep"), "status"),
    "status 502 without body": (then(b"HTTP/1.1 502 X\r\ncontent-length: 0\r\n\r\n", end="keep"), "status"),
    "status 503 without retry-after": (then(json_answer(b"{}", "503 X"), end="keep"), "status"),
    "status 500 with a body that never ends": (
        then(b"HTTP/1.1 500 X\r\ncontent-length: 9\r\n\r\nab", end="hang"),
        "status",
    ),
    "redirect": (then(b"HTTP/1.1 302 X\r\nlocation: /\r\ncontent-length: 0\r\n\r\n", end="keep"), "status"),
    "too few bytes": (then(json_answer(completion())[:-5]), "cut"),
    "too many bytes": (then(json_answer(completion()) + b"surplus", end="keep"), "overlong"),
    "a second answer": (then(json_answer(completion()) * 2, end="keep"), "overlong"),
    "length shorter than the JSON": (
        then(JSON_HEAD + b"content-length: 20\r\n\r\n" + completion()[:20], b"surplus", end="keep"),
        "malformed",
    ),
    "broken JSON": (then(json_answer(b'{"choices": [}'), end="keep"), "malformed"),
    "empty answer": (then(json_answer(b""), end="keep"), "malformed"),
    "half an answer without length": (then(JSON_HEAD + b"\r\n" + completion()[:20]), "malformed"),
    "bad chunk size": (then(JSON_HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\n", end="keep"), "malformed"),
    "chunks without an end": (then(JSON_HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunked(completion())), "cut"),
    "stalled in a held answer": (then(json_answer(completion())[:-5], end="hang"), "between-chunks-timeout"),
    "error event first": (then(SSE_HEAD + chunked(ERROR_EVENT, DONE) + LAST_CHUNK, end="keep"), "error-event"),
    "error event first, split": (then(SSE_HEAD, chunked(ERROR_EVENT[:12]), chunked(ERROR_EVENT[12:])), "error-event"),
    "stream that ends before its first event": (then(SSE_HEAD + chunked(b"data: {") + LAST_CHUNK, end="keep"), "cut"),
    "empty stream": (then(SSE_HEAD + LAST_CHUNK, end="keep"), "cut"),
    "stream with too many bytes for its content-length": (
        then(
            JSON_HEAD.replace(b"application/json", b"text/event-stream")
            + b"content-length: %d\r\n\r\n" % len(delta("hel"))
            + delta("hel")
            + DONE,
            end="keep",
        ),
        "overlong",
    ),
    "stream cut before its first event": (then(SSE_HEAD + chunked(b"data: {"), end="reset"), "cut"),
}


@pytest.mark.parametrize("name", BEFORE_FIRST_BYTE)
async def test_fault_before_the_first_byte_is_answered_elsewhere(name: str) -> None:
    script, reason = BEFORE_FIRST_BYTE[name]
    timeouts = {"firstByteSeconds": 0.3, "betweenChunksSeconds": 0.3}
    async with (
        RawWorker(script) as bad,
        RawWorker(answer_json) as good,
        RouterBed(bad.url, good.url, timeouts=timeouts) as bed,
    ):
        for number in range(40):
            stream = "event" in name or "stream" in name
            answer = await ask(bed.port, post(chat(stream, content=f"{number}" * 200)))
            assert (answer.status, answer.complete) == (200, True)
            assert answer.body == (delta("hel") + delta("lo") + DONE if stream else completion())
            if bad.seen:
                break
        assert bad.seen
        assert bed.metric("tidegate_router_upstream_faults_total", endpoint="w0", reason=reason) >= 1


@pytest.mark.parametrize("name", BEFORE_FIRST_BYTE)
async def test_fault_everywhere_is_one_error_without_details_of_the_worker(name: str) -> None:
    script, reason = BEFORE_FIRST_BYTE[name]
    timeouts = {"firstByteSeconds": 0.2, "betweenChunksSeconds": 0.2}
    async with (
        RawWorker(script) as one,
        RawWorker(script) as two,
        RouterBed(one.url, two.url, timeouts=timeouts) as bed,
    ):
        answer = await ask(bed.port, post(chat()))
    assert answer.status in ((504,) if "timeout" in reason else (502, 503))
    assert answer.headers["x-should-retry"] == "true"
    assert b"Traceback" not in answer.body
    assert b"127.0.0.1" not in answer.body


BEGUN = SSE_HEAD + chunked(delta("hel"))
AFTER_FIRST_BYTE: dict[str, tuple[Script, str]] = {
    "closed": (then(BEGUN), "cut"),
    "reset": (then(BEGUN, end="reset"), "cut"),
    "ended without done": (then(BEGUN + LAST_CHUNK, end="keep"), "cut"),
    "ended inside an event": (then(BEGUN, chunked(b'data: {"choi') + LAST_CHUNK, end="keep"), "cut"),
    "silence": (then(BEGUN, end="hang"), "between-chunks-timeout"),
    "bad chunk": (then(BEGUN, b"zz\r\n", end="keep"), "malformed"),
    "too few bytes for its content-length": (
        then(
            JSON_HEAD.replace(b"application/json", b"text/event-stream") + b"content-length: 500\r\n\r\n" + delta("hel")
        ),
        "cut",
    ),
    "done inside a text is no end": (then(BEGUN + chunked(delta("data: [DONE]")) + LAST_CHUNK, end="keep"), "cut"),
}


@pytest.mark.parametrize("name", AFTER_FIRST_BYTE)
async def test_stream_that_breaks_ends_with_one_error_event_and_no_done(name: str) -> None:
    script, reason = AFTER_FIRST_BYTE[name]
    async with RawWorker(script) as worker, RouterBed(worker.url, timeouts={"betweenChunksSeconds": 0.3}) as bed:
        async with RawClient(bed.port) as client:
            await client.send(post(chat(stream=True)))
            answer = await client.read_answer()
            assert await client.at_end()
        events = answer.events
        assert answer.status == 200
        assert not answer.complete
        assert events[0]["choices"][0]["delta"]["content"] == "hel"
        assert set(events[-1]) == {"error"}
        assert reason in events[-1]["error"]["message"]
        assert sum("error" in event for event in events) == 1
        assert "[DONE]" not in events
        assert len(worker.seen) == 1
        assert bed.metric("tidegate_router_stream_errors_total", reason=reason) == 1
        assert bed.metric("tidegate_router_upstream_faults_total", endpoint="w0", reason=reason) == 1


async def test_error_event_in_a_begun_stream_is_passed_once_and_counts_against_the_worker() -> None:
    script = then(BEGUN, chunked(ERROR_EVENT[:20]), chunked(ERROR_EVENT[20:] + DONE) + LAST_CHUNK, end="keep")
    async with RawWorker(script) as worker, RouterBed(worker.url) as bed:
        answer = await ask(bed.port, post(chat(stream=True)))
        assert answer.body == delta("hel") + ERROR_EVENT
        assert not answer.complete
        assert bed.metric("tidegate_router_upstream_faults_total", endpoint="w0", reason="error-event") == 1


async def test_the_word_error_in_a_text_is_no_error() -> None:
    text = delta('"error"') + b'data: {"choices":[{"delta":{"content":"error"}}],"error":null}\n\n'
    async with (
        RawWorker(then(SSE_HEAD + chunked(text, DONE) + LAST_CHUNK, end="keep")) as worker,
        RouterBed(worker.url) as bed,
    ):
        answer = await ask(bed.port, post(chat(stream=True)))
        assert answer.complete
        assert answer.body == text + DONE


async def test_stream_is_whole_once_done_has_passed_whatever_the_worker_does_next() -> None:
    script = then(BEGUN + chunked(DONE), end="reset")
    async with RawWorker(script) as worker, RouterBed(worker.url) as bed:
        answer = await ask(bed.port, post(chat(stream=True)))
        assert answer.complete
        assert answer.body == delta("hel") + DONE


async def test_large_answer_that_is_cut_closes_short() -> None:
    async def cut(connection: Connection, seen: Seen) -> None:
        await connection.send(json_answer(b"z" * (3 << 20))[: 2 << 20])
        connection.close()

    async with RawWorker(cut) as worker, RouterBed(worker.url) as bed, RawClient(bed.port) as client:
        await client.send(post(chat()))
        answer = await client.read_answer()
        assert not answer.complete
        assert await client.at_end()


async def test_large_answer_with_surplus_bytes_closes_short() -> None:
    body = b"z" * (3 << 20)

    async def overlong(connection: Connection, seen: Seen) -> None:
        connection.writer.write(json_answer(body) + b"surplus")
        await connection.writer.drain()

    async with RawWorker(overlong) as worker, RouterBed(worker.url) as bed:
        answer = await ask(bed.port, post(chat()))
        assert not answer.complete
        assert bed.metric("tidegate_router_upstream_faults_total", endpoint="w0", reason="overlong") == 1


async def test_refused_connection_is_answered_elsewhere() -> None:
    async with RawWorker(answer_json) as good, RawWorker(answer_json) as bad:
        interval = {"intervalSeconds": 60, "unhealthyThreshold": 100}
        async with RouterBed(good.url, bad.url, healthCheck=interval) as bed:
            await bad.stop()
            answers = await asyncio.gather(*(ask(bed.port, post(chat(content=str(n) * 99))) for n in range(20)))
            assert [each.status for each in answers] == [200] * 20


@pytest.mark.parametrize("status", [400, 404, 413, 422, 501])
async def test_errors_of_the_client_are_passed_on_and_held_against_nobody(status: int) -> None:
    body = b'{"error": {"message": "too long", "type": "invalid_request_error", "param": null, "code": null}}'
    async with RawWorker(then(json_answer(body, f"{status} X"), end="keep")) as worker, RouterBed(worker.url) as bed:
        for _ in range(5):
            answer = await ask(bed.port, post(chat()))
            assert (answer.status, answer.body) == (status, body)
        assert len(worker.seen) == 5
        assert bed.process.table.snapshot.endpoints[0].ready
        assert b"upstream_faults_total{" not in bed.process.metrics.render()


async def test_busy_worker_is_left_at_once_and_stays_in() -> None:
    busy = then(json_answer(b"{}", "429 X", extra="retry-after: 9\r\n"), end="keep")
    async with RawWorker(busy) as full, RawWorker(answer_json) as free, RouterBed(full.url, free.url) as bed:
        answers = [await ask(bed.port, post(chat(content=str(n) * 99))) for n in range(12)]
        assert [each.status for each in answers] == [200] * 12
        assert full.seen
        assert all(each.ready for each in bed.process.table.snapshot.endpoints)


async def test_all_busy_gives_the_smallest_retry_after_and_asks_each_once() -> None:
    def busy(seconds: int, status: str) -> Script:
        return then(json_answer(b"{}", status, extra=f"retry-after: {seconds}\r\n"), end="keep")

    async with (
        RawWorker(busy(9, "429 X")) as one,
        RawWorker(busy(4, "503 X")) as two,
        RawWorker(busy(7, "429 X")) as three,
        RawWorker(busy(8, "429 X")) as four,
        RouterBed(one.url, two.url, three.url, four.url) as bed,
    ):
        answer = await ask(bed.port, post(chat()))
        assert (answer.status, answer.headers["retry-after"]) == (429, "4")
        assert answer.headers["x-should-retry"] == "true"
        assert [len(each.seen) for each in (one, two, three, four)] == [1, 1, 1, 1]
        for each in (one, two, three, four):
            each.script = answer_json
        assert (await ask(bed.port, post(chat()))).status == 200


MISSING = json_answer(b'{"error": {"message": "The model `m` does not exist.", "code": 404}}', "404 X")


async def test_missing_model_is_asked_elsewhere_and_remembered() -> None:
    async with (
        RawWorker(then(MISSING, end="keep")) as without,
        RawWorker(answer_json) as good,
        RouterBed(without.url, good.url) as bed,
    ):
        answers = [await ask(bed.port, post(chat(content=str(n) * 99))) for n in range(12)]
        assert [each.status for each in answers] == [200] * 12
        assert len(without.seen) == 1
        assert b"upstream_faults_total{" not in bed.process.metrics.render()


async def test_model_that_nobody_has_is_404() -> None:
    async with (
        RawWorker(then(MISSING, end="keep")) as one,
        RawWorker(then(MISSING, end="keep")) as two,
        RouterBed(one.url, two.url) as bed,
    ):
        answer = await ask(bed.port, post(chat()))
        assert (answer.status, answer.error_code) == (404, "model_not_found")
        assert (await ask(bed.port, post(chat(model="other")))).error_code == "model_not_found"


async def test_a_model_that_a_worker_has_again_is_found_before_its_list_is_due() -> None:
    async with RawWorker(then(MISSING, end="keep")) as worker, RouterBed(worker.url) as bed:
        assert (await ask(bed.port, post(chat()))).status == 404
        worker.script = answer_json

        async def served() -> int:
            return (await ask(bed.port, post(chat()))).status

        began = time.monotonic()
        answers = [await served()]
        while answers[-1] != 200 and time.monotonic() - began < 5:
            answers.append(await served())
        assert answers[-1] == 200


async def test_retries_are_counted_when_they_are_sent_not_when_they_would_be() -> None:
    broken = then(b"HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n", end="keep")
    async with RawWorker(broken) as one, RawWorker(broken) as two, RouterBed(one.url, two.url) as bed:
        answer = await ask(bed.port, post(chat()))
        assert answer.status == 502
        asked = len(one.seen) + len(two.seen)
        assert asked == 2
        assert bed.metric("tidegate_router_retries_total", reason="status") == asked - 1
        bed.process.gateway.draining = True
        assert (await ask(bed.port, post(chat()))).status == 503
        assert bed.metric("tidegate_router_rejected_total", reason="draining") == 1
        assert bed.metric("tidegate_router_rejected_total", reason="no-endpoints") == 0
        bed.process.gateway.draining = False


async def test_idle_connection_closed_by_the_worker_is_replaced_unseen() -> None:
    """The worker closes a kept connection at the moment it is used again; no request fails and nobody is blamed."""

    async def close_on_second(connection: Connection, seen: Seen) -> None:
        if connection.request_number > 1:
            connection.reset()
        else:
            await connection.send(json_answer(completion()))

    checks = {"intervalSeconds": 60}
    async with RawWorker(close_on_second) as worker, RouterBed(worker.url, healthCheck=checks) as bed:
        for _ in range(6):
            assert (await ask(bed.port, post(chat()))).status == 200
        assert b"upstream_faults_total{" not in bed.process.metrics.render()


async def test_attempts_are_bounded() -> None:
    async with (
        RawWorker(then(json_answer(b"{}", "500 X"), end="keep")) as one,
        RawWorker(then(json_answer(b"{}", "500 X"), end="keep")) as two,
        RawWorker(then(json_answer(b"{}", "500 X"), end="keep")) as three,
        RouterBed(one.url, two.url, three.url, retries={"maxAttempts": 2}) as bed,
    ):
        answer = await ask(bed.port, post(chat(), extra="x-tidegate-debug: 1\r\n"))
        assert (answer.status, answer.headers["x-tidegate-attempts"]) == (502, "2")
        assert sum(len(each.seen) for each in (one, two, three)) == 2


async def test_faulty_worker_is_put_out_and_comes_back_by_itself() -> None:
    async with RawWorker(then(json_answer(b"{}", "500 X"), end="keep")) as worker, RouterBed(worker.url) as bed:
        assert (await ask(bed.port, post(chat()))).status in (502, 503)
        worker.script = answer_json
        await eventually(lambda: bed.process.table.snapshot.endpoints[0].ready, True)
        assert (await ask(bed.port, post(chat()))).status == 200
