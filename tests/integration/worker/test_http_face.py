"""The worker's HTTP face over real sockets: answers, errors, oddities."""

import json
import socket
from pathlib import Path

import httpx
import pytest
from malformed_requests import BODIES, HEADS, LINES, SMUGGLING, Malformed
from raw_http import ask
from sim_worker_process import WorkerProcess, sim_worker
from worker_observation import assert_idle, child_processes, metrics, sse_events

CHAT = {"model": "sim", "messages": [{"role": "user", "content": "hi"}]}


def test_a_simulated_worker_starts_fast_and_without_torch() -> None:
    with sim_worker() as worker:
        assert worker.start_seconds < 10  # about 1 s alone; tests share the machine
        for pid in (worker.process.pid, *child_processes(worker.process.pid)):
            assert "libtorch" not in Path(f"/proc/{pid}/maps").read_text()


def test_state_endpoints(fast: WorkerProcess) -> None:
    for path in ("/health", "/ready"):
        answer = httpx.get(fast.url + path)
        assert (answer.status_code, answer.json()) == (200, {"status": "ready"})
    names = [model["id"] for model in httpx.get(fast.url + "/v1/models").json()["data"]]
    assert names == ["echo", "sim"]
    assert httpx.get(fast.url + "/v1/models/sim").json()["id"] == "sim"
    assert httpx.get(fast.url + "/v1/models/other").status_code == 404


def test_tokenize_and_detokenize(fast: WorkerProcess) -> None:
    answer = httpx.post(fast.url + "/tokenize", json={"prompt": "é"}).json()
    assert answer == {"tokens": [0xC3, 0xA9], "count": 2, "max_model_len": 8192}
    assert httpx.post(fast.url + "/detokenize", json={"tokens": [0xC3, 0xA9]}).json() == {"prompt": "é"}
    assert httpx.post(fast.url + "/detokenize", json={"tokens": [600]}).json()["error"]["param"] == "tokens[0]"
    assert httpx.post(fast.url + "/tokenize", json={}).status_code == 400
    chat = httpx.post(fast.url + "/tokenize", json={"messages": CHAT["messages"]}).json()
    used = httpx.post(fast.url + "/v1/chat/completions", json={**CHAT, "max_tokens": 1}).json()["usage"]
    assert chat["count"] == used["prompt_tokens"]


def test_request_ids_are_echoed_or_minted(fast: WorkerProcess) -> None:
    url = fast.url + "/v1/chat/completions"
    body = {**CHAT, "max_tokens": 1}
    assert httpx.post(url, json=body, headers={"x-request-id": "abc-1"}).headers["x-request-id"] == "abc-1"
    minted = {httpx.post(url, json=body).headers["x-request-id"] for _ in range(2)}
    assert len(minted) == 2
    assert len(httpx.post(url, json=body, headers={"x-request-id": "x" * 500}).headers["x-request-id"]) == 32


def test_a_second_turn_reports_its_cached_tokens(fast: WorkerProcess) -> None:
    body = {"model": "sim", "prompt": "cache me " * 30, "max_tokens": 2}
    first = httpx.post(fast.url + "/v1/completions", json=body).json()["usage"]
    second = httpx.post(fast.url + "/v1/completions", json=body).json()["usage"]
    assert first["prompt_tokens_details"] == {"cached_tokens": 0}
    assert second["prompt_tokens_details"]["cached_tokens"] >= 256
    salted = httpx.post(fast.url + "/v1/completions", json={**body, "cache_salt": "s"}).json()["usage"]
    assert salted["prompt_tokens_details"] == {"cached_tokens": 0}


def test_unknown_paths_and_methods_answer_in_openai_s_shape(fast: WorkerProcess) -> None:
    assert httpx.get(fast.url + "/v1/nothing").json()["error"]["code"] == "not_found"
    answer = httpx.get(fast.url + "/v1/chat/completions")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert answer.json()["error"]["code"] == "method_not_allowed"


def test_http_1_0_gets_a_stream_with_its_length(fast: WorkerProcess) -> None:
    body = json.dumps({**CHAT, "max_tokens": 3, "stream": True}).encode()
    with socket.create_connection((fast.host, fast.port), timeout=10) as connection:
        connection.sendall(b"POST /v1/chat/completions HTTP/1.0\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    head, _, text = answer.partition(b"\r\n\r\n")
    assert b"content-length: %d" % len(text) in head
    assert sse_events(text.decode())[-1] == "[DONE]"


def test_chunked_uploads_and_expect_continue_are_served(fast: WorkerProcess) -> None:
    body = json.dumps({**CHAT, "max_tokens": 1}).encode()
    answer = httpx.post(fast.url + "/v1/chat/completions", content=iter([body[:5], body[5:]]))
    assert answer.status_code == 200
    with socket.create_connection((fast.host, fast.port), timeout=10) as connection:
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: %d\r\n\r\n"
            % len(body),
        )
        assert connection.recv(100).startswith(b"HTTP/1.1 100 Continue")
        connection.sendall(body)
        assert connection.recv(100).startswith(b"HTTP/1.1 200")


def test_a_body_over_the_limit_is_a_413(fast: WorkerProcess) -> None:
    huge = json.dumps({**CHAT, "user": "x" * 70_000}).encode()
    for content in (huge, iter([huge])):
        answer = httpx.post(fast.url + "/v1/chat/completions", content=content)
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")


@pytest.mark.parametrize("case", BODIES, ids=lambda case: case.name)
def test_a_malformed_body_is_a_clear_4xx(fast: WorkerProcess, case: Malformed) -> None:
    answer = ask(fast.port, case.sent)
    assert answer is not None
    assert 400 <= answer.status < 500
    error = answer.document["error"]
    assert error["message"]
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("case", [*HEADS, *LINES, *SMUGGLING], ids=lambda case: case.name)
def test_malformed_http_is_never_a_500(fast: WorkerProcess, case: Malformed) -> None:
    answer = ask(fast.port, case.sent)
    assert answer is None or answer.status < 500 or answer.status in (501, 505)
    if answer is not None and answer.status == 400:
        assert answer.document["error"]["type"] == "invalid_request_error"


def test_after_all_that_the_worker_is_whole(fast: WorkerProcess) -> None:
    assert httpx.post(fast.url + "/v1/chat/completions", json={**CHAT, "max_tokens": 1}).status_code == 200
    assert_idle(fast)
    assert "Traceback" not in fast.errors()
    assert metrics(fast).get("tidegate_worker_http_responses_total/500", 0) == 0
