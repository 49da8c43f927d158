"""Answers of workers that are unusual and right come through untouched; those that are wrong in unusual ways do not."""

import asyncio
import json
from collections.abc import Iterator

import echo_answers
import pytest
from chat_load import Chat, Ending, run_load
from faulty_worker import FaultyWorker
from raw_http import Answer, Connection, post
from router_process import RouterProcess
from scripted_http import Request, Sender
from worker_faults import Fault, Script

SETTINGS = {
    "timeouts": {"firstByteSeconds": 2, "betweenChunksSeconds": 1},
    "limits": {"maxBufferedAnswerBytes": 65_536},
    "retries": {"maxAttempts": 1},
    "healthCheck": {"unhealthyThreshold": 100},
}
EVENT_STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"


@pytest.fixture(scope="module")
def worker() -> Iterator[FaultyWorker]:
    with FaultyWorker() as running:
        yield running


@pytest.fixture(scope="module")
def router(worker: FaultyWorker) -> Iterator[RouterProcess]:
    with RouterProcess([worker.url], SETTINGS) as running:
        yield running
        worker.script = None
        running.assert_idle()
        running.assert_clean_log()


def bytes_script(data: bytes, *, close: bool, piece: int = 0) -> Script:
    """Answers with these bytes, all at once or in pieces, and closes behind them or not."""

    async def script(_request: Request, sender: Sender) -> None:
        size = piece or max(1, len(data))
        for start in range(0, len(data), size):
            await sender.raw(data[start : start + size])
        if close:
            sender.close()

    return script


def ask(router: RouterProcess, *, stream: bool) -> Answer | None:
    with Connection(router.port) as connection:
        connection.send(post("/v1/chat/completions", Chat("u", stream=stream).body()))
        return connection.read_answer()


def chunked(*pieces: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (*pieces, b""))


WHOLE = json.dumps(echo_answers.completion("u")).encode()
EVENTS = echo_answers.events("u")
STREAM = b"".join(EVENTS)


def json_head(*fields: bytes) -> bytes:
    return b"\r\n".join([b"HTTP/1.1 200 OK", b"content-type: application/json", *fields, b"", b""])


def stream_head(*fields: bytes) -> bytes:
    return EVENT_STREAM + b"".join(field + b"\r\n" for field in fields) + b"\r\n"


LENGTH = b"content-length: %d" % len(WHOLE)
CHUNKED = b"transfer-encoding: chunked"


@pytest.mark.parametrize(
    ("data", "close"),
    [
        pytest.param(json_head(LENGTH) + WHOLE, False, id="content-length"),
        pytest.param(json_head(LENGTH, b"connection: close") + WHOLE, True, id="closes behind its answer"),
        pytest.param(json_head(CHUNKED) + chunked(WHOLE[:5], WHOLE[5:]), False, id="chunked"),
        pytest.param(
            json_head(CHUNKED) + chunked(*(WHOLE[i : i + 1] for i in range(len(WHOLE)))), False, id="chunks of 1"
        ),
        pytest.param(json_head(b"connection: close") + WHOLE, True, id="ends by closing"),
        pytest.param(b"HTTP/1.0 200 OK\r\ncontent-type: application/json\r\n\r\n" + WHOLE, True, id="HTTP/1.0"),
        pytest.param(json_head(b"Content-Length: %d" % len(WHOLE), b"SERVER:x") + WHOLE, False, id="header case"),
        pytest.param(
            b"HTTP/1.1 200 \r\ncontent-type: application/json\r\n" + LENGTH + b"\r\n\r\n" + WHOLE,
            False,
            id="no reason phrase",
        ),
        pytest.param(b"HTTP/1.1 100 Continue\r\n\r\n" + json_head(LENGTH) + WHOLE, False, id="100 before"),
        pytest.param(json_head(CHUNKED) + chunked(WHOLE)[:-2] + b"x-checksum: 7\r\n\r\n", False, id="trailers"),
    ],
)
def test_an_unusual_whole_answer_is_passed_on(
    router: RouterProcess, worker: FaultyWorker, data: bytes, *, close: bool
) -> None:
    for piece in (0, 1):
        worker.script = bytes_script(data, close=close, piece=piece)
        answer = ask(router, stream=False)
        assert answer is not None
        assert answer.status == 200, answer
        assert answer.body == WHOLE


@pytest.mark.parametrize(
    "events",
    [
        pytest.param(STREAM, id="plain"),
        pytest.param(b": ping\n\n" + STREAM, id="a comment first"),
        pytest.param(EVENTS[0] + b": keep-alive\n\n" * 50 + b"".join(EVENTS[1:]), id="comments between"),
        pytest.param(STREAM.replace(b"\n\n", b"\r\n\r\n"), id="CRLF"),
        pytest.param(STREAM.replace(b"data: ", b"data:"), id="no space behind the colon"),
        pytest.param(STREAM.replace(b"data: {", b"event: message\ndata: {"), id="named events"),
        pytest.param(STREAM.replace(b"data: {", b"id: 7\nretry: 10\ndata: {"), id="ids"),
        pytest.param(STREAM.replace(b'"choices"', b'"error": null, "choices"'), id="error null"),
        pytest.param(
            STREAM.replace(b"answer", b'say \\"error\\": [DONE] data: [DONE]'), id="its text looks like an end"
        ),
        pytest.param(EVENTS[0] + EVENTS[1].replace(b"answer", b"x" * 3_000_000) + EVENTS[-1], id="an event of 3 MB"),
        pytest.param(STREAM.replace(b'"choices"', b'"usage": {"prompt_tokens": "many"}, "choices"'), id="odd usage"),
        pytest.param(STREAM.replace(b'"choices"', b'"usage": [1], "choices"'), id="usage a list"),
        pytest.param(STREAM.replace(b'"choices"', b'"usage": {"prompt_tokens": -5e300}, "choices"'), id="usage huge"),
        pytest.param(EVENTS[-1], id="nothing but [DONE]"),
    ],
)
@pytest.mark.parametrize("pieces", [1, 200], ids=["at once", "in pieces"])
def test_an_unusual_stream_is_passed_on(
    router: RouterProcess, worker: FaultyWorker, events: bytes, pieces: int
) -> None:
    data = stream_head(CHUNKED) + chunked(events)
    worker.script = bytes_script(data, close=False, piece=-(-len(data) // pieces))
    answer = ask(router, stream=True)
    assert answer is not None
    assert answer.status == 200
    assert answer.body.replace(b"\r\n", b"\n") == events.replace(b"\r\n", b"\n")


@pytest.mark.parametrize("cut", range(1, len(EVENTS[-2] + EVENTS[-1]), 9))
def test_a_stream_cut_anywhere_near_its_end_is_whole_or_an_error(
    router: RouterProcess, worker: FaultyWorker, cut: int
) -> None:
    worker.script = bytes_script(stream_head(CHUNKED) + chunked(STREAM[:-cut]), close=True)
    verdict = verdict_of(router, stream=True)
    # All but the blank line behind [DONE] is an answer that is whole.
    assert verdict is Ending.OK if cut <= 2 else verdict is Ending.ERROR_EVENT


def verdict_of(router: RouterProcess, *, stream: bool) -> Ending:
    chat = Chat("u", stream=stream)
    return asyncio.run(run_load(router.port, [chat], connections=1)).verdicts["u"].ending


LARGE = json.dumps({**echo_answers.completion("u"), "padding": "p" * 200_000}).encode()


@pytest.mark.parametrize(
    ("data", "endings"),
    [
        pytest.param(json_head(b"content-length: %d" % len(LARGE)) + LARGE, {Ending.OK}, id="whole"),
        pytest.param(json_head(CHUNKED) + chunked(LARGE), {Ending.OK}, id="whole, chunked"),
        pytest.param(
            json_head(b"content-length: %d" % len(LARGE)) + LARGE[:-9], {Ending.CUT, Ending.ERROR}, id="short"
        ),
        pytest.param(json_head(CHUNKED) + chunked(LARGE)[:-9], {Ending.CUT, Ending.ERROR}, id="short, chunked"),
        pytest.param(json_head(CHUNKED) + chunked(LARGE)[:-5] + b"zz\r\n", {Ending.CUT, Ending.ERROR}, id="bad chunk"),
        pytest.param(
            json_head(b"content-length: %d" % (len(LARGE) - 9)) + LARGE, {Ending.CUT, Ending.ERROR}, id="long"
        ),
    ],
)
def test_an_answer_too_large_to_hold_is_whole_or_visibly_cut(
    router: RouterProcess, worker: FaultyWorker, data: bytes, endings: set[Ending]
) -> None:
    worker.script = bytes_script(data, close=True)
    assert verdict_of(router, stream=False) in endings


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(json_head(b"content-length: 0"), id="empty JSON"),
        pytest.param(json_head(b"content-length: 4") + b"nope", id="no JSON"),
        pytest.param(json_head(LENGTH, b"content-length: 3") + WHOLE, id="two lengths"),
        pytest.param(json_head(LENGTH, CHUNKED) + WHOLE, id="both framings"),
        pytest.param(json_head(b"content-length: -4") + WHOLE, id="negative length"),
        pytest.param(b"HTTP/9.9 200 OK\r\n\r\n" + WHOLE, id="HTTP/9.9"),
        pytest.param(b"HTTP/1.1 OK\r\n\r\n", id="no status"),
        pytest.param(b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n" + WHOLE, id="a header without a colon"),
        pytest.param(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-le", id="cut in its head"),
        pytest.param(b"\x00\x01\x02\x03" * 100, id="binary"),
        pytest.param(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n", id="101"),
        pytest.param(b"HTTP/1.1 302 Found\r\nlocation: http://elsewhere/\r\ncontent-length: 0\r\n\r\n", id="redirect"),
        pytest.param(b"", id="nothing"),
    ],
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_broken_answer_becomes_a_clear_error(
    router: RouterProcess, worker: FaultyWorker, data: bytes, *, stream: bool
) -> None:
    worker.script = bytes_script(data, close=True)
    assert verdict_of(router, stream=stream) is Ending.ERROR


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 422, 451, 499, 501])
def test_a_clients_error_of_a_worker_keeps_status_and_body(
    router: RouterProcess, worker: FaultyWorker, status: int
) -> None:
    body = b'{"error":{"message":"as the worker says","type":"invalid_request_error","param":null,"code":null}}'
    worker.script = bytes_script(
        b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n" % (status, len(body)) + body, close=False
    )
    answer = ask(router, stream=True)
    assert answer is not None
    assert (answer.status, answer.body) == (status, body)


def test_an_answer_before_the_body_was_read_is_passed_on(router: RouterProcess, worker: FaultyWorker) -> None:
    worker.script = bytes_script(json_head(LENGTH) + WHOLE, close=False)
    big = Chat("u", stream=False)
    with Connection(router.port) as connection:
        connection.send(post("/v1/chat/completions", big.body()[:-1] + b',"padding":"' + b"p" * 8_000_000 + b'"}'))
        answer = connection.read_answer()
    assert answer is not None
    assert answer.body == WHOLE


def test_the_fault_of_one_request_does_not_reach_the_next_on_the_same_connection(
    router: RouterProcess, worker: FaultyWorker
) -> None:
    with Connection(router.port) as connection:
        for fault, status in (
            (Fault.SERVER_ERROR, 502),
            (Fault.NONE, 200),
            (Fault.TOO_FEW_BYTES, 502),
            (Fault.NONE, 200),
        ):
            worker.script, worker.fault = None, fault
            connection.send(post("/v1/chat/completions", Chat("u", stream=False).body()))
            answer = connection.read_answer()
            assert answer is not None
            assert answer.status == status, answer
