"""Malformed input through the router, byte for byte: a clear 4xx or a clean close, no 5xx, no traceback, no leak."""

import time
from collections.abc import Iterator

import malformed_requests
import pytest
from faulty_worker import FaultyWorker
from malformed_requests import CHAT, MAX_BODY_BYTES, Malformed, chat
from raw_http import Answer, Connection, ask, get, post
from router_process import RouterProcess

CLIENT_SECONDS = 0.5
SETTINGS = {
    "timeouts": {"clientHeadersSeconds": CLIENT_SECONDS, "clientBodySeconds": CLIENT_SECONDS},
    "limits": {"maxBodyBytes": MAX_BODY_BYTES},
}
MAX_GROWTH_BYTES = 48 << 20


@pytest.fixture(scope="module")
def worker() -> Iterator[FaultyWorker]:
    with FaultyWorker() as running:
        yield running


@pytest.fixture(scope="module")
def router(worker: FaultyWorker) -> Iterator[RouterProcess]:
    with RouterProcess([worker.url], SETTINGS) as running:
        assert_serves(running)
        before = running.resident_bytes()
        yield running
        assert_serves(running)
        running.assert_clean_log()
        assert running.resident_bytes() - before < MAX_GROWTH_BYTES
        assert set(worker.received.requests) <= {"/health", "/v1/models", CHAT}


def assert_serves(router: RouterProcess) -> None:
    answer = ask(router.port, post(CHAT, chat()))
    assert answer is not None
    assert answer.status == 200, answer


def assert_clear_error(answer: Answer) -> None:
    assert answer.headers["content-type"].startswith("application/json"), answer
    error = answer.document["error"]
    assert isinstance(error["message"], str), answer
    assert error["message"], answer
    assert error["type"] == "invalid_request_error", answer
    assert "x-request-id" in answer.headers, answer


@pytest.mark.parametrize("case", malformed_requests.ALL, ids=lambda case: case.name)
def test_malformed_request_gets_a_clear_4xx_or_a_clean_close(router: RouterProcess, case: Malformed) -> None:
    with Connection(router.port) as connection:
        connection.send(case.sent)
        answer = connection.read_answer()
    if answer is None:
        assert case.may_close, "closed without an answer"
        return
    assert answer.status in case.statuses, answer
    assert_clear_error(answer)


def test_there_are_at_least_sixty_cases() -> None:
    assert len(malformed_requests.ALL) >= 60
    assert len({case.name for case in malformed_requests.ALL}) == len(malformed_requests.ALL)


@pytest.mark.parametrize("case", malformed_requests.SMUGGLING, ids=lambda case: case.name)
def test_a_request_hidden_in_another_is_never_answered(
    router: RouterProcess, worker: FaultyWorker, case: Malformed
) -> None:
    with Connection(router.port) as connection:
        connection.send(case.sent)
        first = connection.read_answer()
        second = connection.read_answer() if first is not None else None
    assert second is None, second
    assert malformed_requests.SMUGGLED not in worker.received.requests


def test_after_an_error_that_leaves_the_framing_clear_the_connection_goes_on(router: RouterProcess) -> None:
    with Connection(router.port) as connection:
        for _ in range(3):
            connection.send(post(CHAT, b"not JSON"))
            refused = connection.read_answer()
            assert refused is not None
            assert refused.status == 400
            connection.send(post(CHAT, chat()))
            good = connection.read_answer()
            assert good is not None
            assert good.status == 200


@pytest.mark.parametrize(
    ("sent", "slow"),
    [
        pytest.param(b"", b"GET /health HTTP/1.1\r\nx-slow: ", id="headers"),
        pytest.param(post(CHAT, chat())[:-40], b"", id="silent body"),
        pytest.param(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: test\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{",
            b"",
            id="silent chunk",
        ),
    ],
)
def test_a_slow_sender_is_ended_in_bounded_time(router: RouterProcess, sent: bytes, slow: bytes) -> None:
    started = time.monotonic()
    with Connection(router.port) as connection:
        connection.send(sent)
        connection.send_slowly((slow[index : index + 1] for index in range(len(slow))), pause_seconds=0.05)
        answer = connection.read_answer()
        if answer is not None:
            assert answer.status == 408, answer
            assert_clear_error(answer)
            assert connection.closed_by_peer()
    assert time.monotonic() - started < 6 * CLIENT_SECONDS + 1


def test_a_hundred_slow_senders_hold_nobody_up(router: RouterProcess) -> None:
    slow = [Connection(router.port) for _ in range(100)]
    for connection in slow:
        connection.send(b"POST /v1/chat/completions HTTP/1.1\r\ncontent-le")
    started = time.monotonic()
    assert_serves(router)
    assert time.monotonic() - started < 1
    for connection in slow:
        answer = connection.read_answer()
        assert answer is None or answer.status == 408, answer
        connection.close()


def test_an_idle_connection_that_says_nothing_costs_nothing(router: RouterProcess) -> None:
    idle = [Connection(router.port) for _ in range(200)]
    assert_serves(router)
    for connection in idle:
        connection.close()


def test_a_flood_of_large_bodies_that_never_end_is_bounded_in_memory(router: RouterProcess) -> None:
    before = router.resident_bytes()
    senders = [Connection(router.port) for _ in range(64)]
    for connection in senders:
        connection.send(post(CHAT, chat(user="u" * (MAX_BODY_BYTES - 500)))[:-20])
    held = router.resident_bytes() - before
    assert held < 64 * MAX_BODY_BYTES * 4, f"{held >> 20} MiB for {64 * MAX_BODY_BYTES >> 20} MiB of bodies"
    for connection in senders:
        connection.close()
    assert_serves(router)


def test_the_default_limit_is_64_mib(worker: FaultyWorker) -> None:
    with RouterProcess([worker.url]) as router:
        before = router.resident_bytes()
        for length in ((64 << 20) + 1, 1 << 40):
            head = f"POST {CHAT} HTTP/1.1\r\nhost: test\r\ncontent-length: {length}\r\n\r\n"
            answer = ask(router.port, head.encode())
            assert answer is not None
            assert answer.status == 413
            assert_clear_error(answer)
        nothing_yet = f"POST {CHAT} HTTP/1.1\r\nhost: test\r\ncontent-length: {64 << 20}\r\n\r\n".encode()
        promises = [Connection(router.port) for _ in range(32)]
        for connection in promises:
            connection.send(nothing_yet)
        assert_serves(router)
        assert router.resident_bytes() - before < 32 << 20, "memory is taken for bytes that were only promised"
        for connection in promises:
            connection.close()
        router.assert_clean_log()


def test_nothing_of_a_client_is_echoed_into_headers(router: RouterProcess) -> None:
    answer = ask(router.port, get("/health", "x-request-id: a b\x7f"))
    assert answer is None or "b\x7f" not in answer.headers.get("x-request-id", "")
