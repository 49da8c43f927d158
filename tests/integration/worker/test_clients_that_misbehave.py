"""Clients that leave or do not read: the batch goes on, blocks come back, memory stays bounded."""

import json
import random
import socket
import time

import httpx
import pytest
from sim_worker_process import WorkerProcess
from waiting import eventually
from worker_observation import assert_idle, metrics, sse_events

LONG = {"model": "sim", "prompt": "go on and on", "max_tokens": 4000}


def open_request(worker: WorkerProcess, **fields: object) -> socket.socket:
    body = json.dumps({**LONG, **fields}).encode()
    connection = socket.create_connection((worker.host, worker.port), timeout=10)
    connection.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    return connection


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_blocks(steady: WorkerProcess, stream: bool) -> None:
    aborted = metrics(steady)["vllm:request_success_total/abort"]
    with open_request(steady, stream=stream, n=2):
        eventually(lambda: metrics(steady)["tidegate_worker_kv_blocks/referenced"], lambda blocks: blocks > 0)
    assert_idle(steady)
    assert metrics(steady)["vllm:request_success_total/abort"] == aborted + 1


def test_a_client_that_leaves_before_the_first_token_frees_its_place(steady: WorkerProcess) -> None:
    with open_request(steady, prompt="x" * 6000, max_tokens=1000, stream=True):
        pass
    assert_idle(steady)


def test_a_reader_that_stalls_holds_up_nobody_and_gets_its_whole_text_later(steady: WorkerProcess) -> None:
    with open_request(
        steady, stream=True, max_tokens=300, logprobs=1, n=4, stream_options={"include_usage": True}
    ) as stalled:
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        eventually(lambda: metrics(steady)["vllm:num_requests_running"], lambda running: running > 0)
        began = time.monotonic()
        quick = httpx.post(steady.url + "/v1/completions", json={**LONG, "max_tokens": 20, "stream": False}, timeout=30)
        assert quick.status_code == 200
        assert time.monotonic() - began < 5
        eventually(lambda: metrics(steady)["vllm:num_requests_running"], lambda running: running == 0, seconds=30)
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        answer = b""
        while b"[DONE]" not in answer:
            piece = stalled.recv(65536)
            assert piece
            answer += piece
    assert b'"completion_tokens":1200' in answer


def test_many_cut_streams_leave_nothing_behind(steady: WorkerProcess) -> None:
    chance = random.Random(5)
    connections = [open_request(steady, stream=True, max_tokens=50, prompt=f"number {at}") for at in range(60)]
    for connection in connections[::2]:
        time.sleep(chance.random() * 0.02)
        connection.close()
    for connection in connections[1::2]:
        answer = b""
        while b"[DONE]" not in answer:
            piece = connection.recv(65536)
            assert piece, answer
            answer += piece
        connection.close()
    assert_idle(steady)


def test_a_huge_prompt_does_not_hold_up_the_event_loop(steady: WorkerProcess) -> None:
    with httpx.Client(base_url=steady.url, timeout=30) as client:
        client.get("/health")
        with open_request(steady, prompt="word " * 2_000_000, stream=True) as big:
            slowest = 0.0
            for _ in range(20):
                began = time.monotonic()
                client.get("/health")
                slowest = max(slowest, time.monotonic() - began)
            assert big.recv(12) == b"HTTP/1.1 400"
    assert slowest < 2


def test_tokens_come_one_by_one_and_the_status_line_only_with_the_first(steady: WorkerProcess) -> None:
    body = {**LONG, "max_tokens": 20, "stream": True, "prompt": "y" * 4000}
    with httpx.stream("POST", steady.url + "/v1/completions", json=body, timeout=30) as answer:
        text = "".join(answer.iter_text())
    texts = [event["choices"][0]["text"] for event in sse_events(text)[:-1]]
    assert len(texts) > 10
    assert sum(map(len, texts)) == 20
