"""What is rare and right succeeds: pipelining, chunked uploads, HTTP/1.0, `Expect`, every way to cut a request up."""

import json
from collections.abc import Iterator

import echo_answers
import pytest
from faulty_worker import FaultyWorker
from malformed_requests import CHAT, chat
from raw_http import Answer, Connection, ask, get, post
from router_process import RouterProcess
from worker_faults import Fault


@pytest.fixture(scope="module")
def worker() -> Iterator[FaultyWorker]:
    with FaultyWorker() as running:
        yield running


@pytest.fixture(scope="module")
def router(worker: FaultyWorker) -> Iterator[RouterProcess]:
    with RouterProcess([worker.url]) as running:
        yield running
        running.assert_clean_log()


def text_of(answer: Answer | None) -> str:
    assert answer is not None, "closed without an answer"
    assert answer.status == 200, answer
    text: str = answer.document["choices"][0]["message"]["content"]
    return text


def chunked(*pieces: bytes, head: bytes = b"", extension: bytes = b"", trailers: bytes = b"") -> bytes:
    head = head or f"POST {CHAT} HTTP/1.1\r\nhost: test\r\ntransfer-encoding: chunked\r\n\r\n".encode()
    chunks = b"".join(b"%x%s\r\n%s\r\n" % (len(piece), extension, piece) for piece in pieces)
    return head + chunks + b"0\r\n" + trailers + b"\r\n"


BODY = chat()
LENGTH = f"content-length: {len(BODY)}"


def request(line: str, *fields: str, body: bytes = b"") -> bytes:
    return "\r\n".join([line, *fields, "", ""]).encode("latin-1") + body


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(chunked(BODY), id="one chunk"),
        pytest.param(chunked(*(BODY[start : start + 7] for start in range(0, len(BODY), 7))), id="many chunks"),
        pytest.param(chunked(*(bytes([byte]) for byte in BODY)), id="chunks of one byte"),
        pytest.param(chunked(BODY, extension=b";name=value"), id="chunk extensions"),
        pytest.param(chunked(BODY, trailers=b"x-checksum: 1\r\n"), id="trailers"),
        pytest.param(chunked(BODY).replace(b"\r\n0\r\n", b"\r\n000\r\n"), id="last chunk as 000"),
        pytest.param(
            chunked(BODY).replace(b"transfer-encoding: chunked", b"TRANSFER-ENCODING: Chunked"),
            id="chunked in capitals",
        ),
        pytest.param(
            request(f"POST {CHAT} HTTP/1.1", "HOST: test", LENGTH.upper(), body=BODY), id="upper-case headers"
        ),
        pytest.param(request(f"POST {CHAT} HTTP/1.1", "host:test", LENGTH, body=BODY), id="no space after the colon"),
        pytest.param(
            request(f"POST {CHAT} HTTP/1.1", "host: \t test \t", LENGTH, body=BODY), id="space around a value"
        ),
        pytest.param(request(f"POST {CHAT} HTTP/1.1", "host: test", "x-empty:", LENGTH, body=BODY), id="empty header"),
        pytest.param(request(f"POST {CHAT} HTTP/1.1", "host: test", "x-name: Zoë", LENGTH, body=BODY), id="latin-1"),
        pytest.param(
            request(f"POST {CHAT} HTTP/1.1", "host: test", "a: 1", "a: 2", LENGTH, body=BODY), id="equal names"
        ),
        pytest.param(b"\r\n\r\n" + post(CHAT, BODY), id="blank lines before the request"),
        pytest.param(post(f"{CHAT}?api-version=1&x=%20", BODY), id="query string"),
        pytest.param(
            request(f"POST http://test:80{CHAT} HTTP/1.1", "host: test", LENGTH, body=BODY), id="absolute form"
        ),
        pytest.param(request(f"POST {CHAT} HTTP/1.0", LENGTH, body=BODY), id="HTTP/1.0 without a host"),
        pytest.param(post(CHAT, BODY, "content-type: application/json; charset=utf-8"), id="charset"),
        pytest.param(request(f"POST {CHAT} HTTP/1.1", "host: test", LENGTH, body=BODY), id="no content-type"),
        pytest.param(post(CHAT, BODY, "upgrade: h2c", "connection: upgrade, http2-settings"), id="upgrade offered"),
        pytest.param(post(CHAT, BODY, "content-encoding: identity"), id="identity encoding"),
        pytest.param(post(CHAT, BODY, "accept-encoding: gzip, br"), id="compression accepted"),
        pytest.param(post(CHAT, b" \r\n\t" + BODY + b"\n "), id="space around the JSON"),
        pytest.param(post(CHAT, chat(unknown={"deep": [[[{}]]]})), id="unknown fields"),
        pytest.param(post(CHAT, BODY[:-1] + b',"user":"someone"}'), id="a field twice"),
        pytest.param(post(CHAT, chat(stream=None, max_tokens=None, stream_options=None)), id="nulls"),
        pytest.param(post(CHAT, BODY.replace(b"hi", b"\\u0000\\ud83d\\ude00\\/")), id="escapes and a surrogate pair"),
        pytest.param(post(CHAT, BODY.replace(b"hi", "สวัสดี 😀 ﷽".encode())), id="characters of all widths"),
        pytest.param(post(CHAT, BODY.replace(b'"model"', b'"\\u006dodel"')), id="an escaped key"),
        pytest.param(post(CHAT, chat(messages=[{"role": "user", "content": "word " * 400_000}])), id="two megabytes"),
        pytest.param(post(CHAT, BODY, *(f"x-{number}: y" for number in range(100))), id="a hundred headers"),
        pytest.param(post(CHAT, BODY, "x-long: " + "y" * 30_000), id="a header of 30 KB"),
    ],
)
def test_rare_and_right_succeeds(router: RouterProcess, sent: bytes) -> None:
    assert text_of(ask(router.port, sent)) == echo_answers.expected_answer("someone")


@pytest.mark.parametrize("chunks", [False, True], ids=["content-length", "chunked"])
def test_a_request_cut_at_any_byte_is_the_same_request(router: RouterProcess, *, chunks: bool) -> None:
    sent = chunked(BODY[:20], BODY[20:]) if chunks else post(CHAT, BODY)
    with Connection(router.port) as connection:
        for cut in range(1, len(sent)):
            connection.send_slowly((sent[:cut], sent[cut:]), pause_seconds=0.001)
            assert text_of(connection.read_answer()) == echo_answers.expected_answer("someone"), f"cut at byte {cut}"


def test_a_request_byte_by_byte_is_the_same_request(router: RouterProcess) -> None:
    sent = post(CHAT, BODY)
    with Connection(router.port) as connection:
        connection.send_slowly((sent[index : index + 1] for index in range(len(sent))), pause_seconds=0.0005)
        assert text_of(connection.read_answer()) == echo_answers.expected_answer("someone")


def test_pipelined_requests_are_answered_in_order(router: RouterProcess) -> None:
    users = [f"pipelined-{number}" for number in range(40)]
    with Connection(router.port) as connection:
        connection.send(b"".join(post(CHAT, chat(user=user)) for user in users))
        assert [text_of(connection.read_answer()) for _ in users] == [echo_answers.expected_answer(u) for u in users]


def test_pipelined_streams_and_whole_answers_do_not_mix(router: RouterProcess, worker: FaultyWorker) -> None:
    worker.fault = Fault.SLOW_DRIP
    try:
        with Connection(router.port) as connection:
            connection.send(post(CHAT, chat(user="a", stream=True)) + post(CHAT, chat(user="b")) + get("/health"))
            stream, whole, health = (connection.read_answer() for _ in range(3))
    finally:
        worker.fault = Fault.NONE
    assert stream is not None
    assert stream.body == b"".join(echo_answers.events("a"))
    assert text_of(whole) == echo_answers.expected_answer("b")
    assert health is not None
    assert health.status == 200


def test_a_bad_request_in_a_pipeline_is_answered_in_its_place(router: RouterProcess) -> None:
    with Connection(router.port) as connection:
        connection.send(post(CHAT, BODY) + post(CHAT, b"not JSON") + post(CHAT, BODY))
        answers = [connection.read_answer() for _ in range(3)]
    assert [answer.status for answer in answers if answer is not None] == [200, 400, 200]


def test_a_connection_serves_many_requests(router: RouterProcess) -> None:
    with Connection(router.port) as connection:
        for number in range(200):
            connection.send(post(CHAT, chat(user=f"again-{number}")))
            assert text_of(connection.read_answer()) == echo_answers.expected_answer(f"again-{number}")


def test_expect_100_continue_is_answered_before_the_body(router: RouterProcess) -> None:
    sent = post(CHAT, BODY, "expect: 100-continue")
    with Connection(router.port) as connection:
        connection.send(sent[: -len(BODY)])
        assert connection.read_interim() == 100
        connection.send(BODY)
        assert text_of(connection.read_answer()) == echo_answers.expected_answer("someone")


def test_a_client_that_expects_100_and_does_not_wait_is_served(router: RouterProcess) -> None:
    assert text_of(ask(router.port, post(CHAT, BODY, "Expect: 100-Continue")))


def test_expect_100_with_a_body_too_large_is_refused_before_the_body(router: RouterProcess) -> None:
    sent = request(f"POST {CHAT} HTTP/1.1", "host: test", "expect: 100-continue", f"content-length: {1 << 40}")
    with Connection(router.port) as connection:
        connection.send(sent)
        answer = connection.read_answer()
    assert answer is not None
    assert answer.status == 413


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_http_1_0_without_keep_alive_ends_with_the_answer(router: RouterProcess, *, stream: bool) -> None:
    body = chat(stream=stream)
    with Connection(router.port) as connection:
        connection.send(request(f"POST {CHAT} HTTP/1.0", f"content-length: {len(body)}", body=body))
        answer = connection.read_answer()
        assert answer is not None
        assert answer.status == 200
        assert "transfer-encoding" not in answer.headers
        assert connection.closed_by_peer()
    expected = b"".join(echo_answers.events("someone")) if stream else None
    assert expected is None or answer.body == expected


def test_http_1_0_with_keep_alive_goes_on(router: RouterProcess) -> None:
    sent = request(f"POST {CHAT} HTTP/1.0", "connection: keep-alive", LENGTH, body=BODY)
    with Connection(router.port) as connection:
        for _ in range(3):
            connection.send(sent)
            answer = connection.read_answer()
            assert text_of(answer)
            assert answer is not None
            assert answer.headers["connection"] == "keep-alive"


def test_connection_close_closes_behind_the_answer(router: RouterProcess) -> None:
    with Connection(router.port) as connection:
        connection.send(post(CHAT, BODY, "connection: close"))
        answer = connection.read_answer()
        assert text_of(answer)
        assert answer is not None
        assert answer.headers["connection"] == "close"
        assert connection.closed_by_peer()


@pytest.mark.parametrize("path", ["/health", "/v1/models"])
def test_head_has_headers_and_no_body(router: RouterProcess, path: str) -> None:
    with Connection(router.port) as connection:
        connection.send(request(f"HEAD {path} HTTP/1.1", "host: test"))
        answer = connection.read_answer(head_only=True)
        assert answer is not None
        assert answer.status == 200
        connection.send(get("/health"))
        after = connection.read_answer()
        assert after is not None
        assert after.status == 200


def test_the_clients_request_id_comes_back_and_goes_on(router: RouterProcess, worker: FaultyWorker) -> None:
    answer = ask(router.port, post(CHAT, BODY, "X-Request-Id: my-own-id-7"))
    assert answer is not None
    assert answer.headers["x-request-id"] == "my-own-id-7"
    # A worker must not see one id twice, so each attempt adds to it.
    assert worker.received.headers[-1]["x-request-id"].startswith("my-own-id-7-")


def test_a_clients_secrets_stay_with_the_router(router: RouterProcess, worker: FaultyWorker) -> None:
    sent = post(CHAT, BODY, "authorization: Bearer sk-secret", "x-api-key: sk-secret", "cookie: a=sk-secret")
    assert text_of(ask(router.port, sent))
    assert "sk-secret" not in json.dumps(worker.received.headers[-1])
    assert "sk-secret" not in router.log()
    assert "sk-secret" not in json.dumps(router.access_log())


def test_the_body_reaches_the_worker_untouched(router: RouterProcess, worker: FaultyWorker) -> None:
    body = b' {"model" : "echo", "unknown":[1e3,"\\u00e9", "\xc3\xa9"],"messages":[{"role":"user","content":"x"}]}\n'
    assert text_of(ask(router.port, post(CHAT, body)))
    assert worker.received.bodies[-1] == body
