"""Well-formed JSON that asks for nonsense, through the router to a worker: a 400 that says what is wrong, no 5xx."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from malformed_requests import CHAT, COMPLETIONS
from raw_http import ask, post
from router_process import RouterProcess
from sim_worker_process import WorkerProcess, sim_worker

CONTEXT_TOKENS = 2_048


@pytest.fixture(scope="module")
def worker() -> Iterator[WorkerProcess]:
    with sim_worker("--context-tokens", str(CONTEXT_TOKENS), "--kv-blocks", "512") as running:
        yield running


@pytest.fixture(scope="module")
def router(worker: WorkerProcess) -> Iterator[RouterProcess]:
    with RouterProcess([worker.url]) as running:
        yield running
        assert_serves(running)
        running.assert_clean_log()
        assert "Traceback" not in worker.errors()


MESSAGES = [{"role": "user", "content": "hi"}]


def body(path: str, fields: dict[str, Any] | bytes) -> bytes:
    base: dict[str, Any] = {"model": "sim", "max_tokens": 4}
    base |= {"messages": MESSAGES} if path == CHAT else {"prompt": "hi"}
    if isinstance(fields, bytes):  # what json.dumps would not write
        return json.dumps(base).encode()[:-1] + b"," + fields + b"}"
    return json.dumps(base | fields).encode()


def assert_serves(router: RouterProcess) -> None:
    for path in (CHAT, COMPLETIONS):
        answer = ask(router.port, post(path, body(path, {})))
        assert answer is not None
        assert answer.status == 200, answer


def one_message(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hi", **fields}]}


BOTH = [
    {"temperature": "hot"},
    {"temperature": -0.1},
    {"temperature": 9},
    {"temperature": [1]},
    b'"temperature":1e999',
    {"top_p": 0},
    {"top_p": 1.1},
    {"top_p": "all"},
    {"top_k": "few"},
    {"top_k": -7},
    {"n": 0},
    {"n": -1},
    {"n": 10**6},
    {"n": 1.5},
    {"n": "two"},
    {"max_tokens": -1},
    {"max_tokens": 10**12},
    {"max_tokens": "all"},
    {"stop": 7},
    {"stop": ""},
    {"stop": [1, 2]},
    {"stop": {"a": 1}},
    {"stop": ["x"] * 1_000},
    {"stop_token_ids": "end"},
    {"stop_token_ids": [-1]},
    {"seed": "lucky"},
    {"seed": 2**80},
    {"seed": 1.5},
    {"stream_options": "usage"},
    b'"n":1e400',
]
CHAT_ONLY = [
    {"messages": [1]},
    {"messages": ["hi"]},
    {"messages": [None]},
    {"messages": [{}]},
    {"messages": [{"role": "user"}]},
    {"messages": [{"content": "hi"}]},
    one_message(role="wizard"),
    one_message(role=7),
    one_message(content=7),
    one_message(content={"text": "hi"}),
    one_message(content=[1]),
    one_message(content=[{"type": "text"}]),
    one_message(content=[{"type": "text", "text": 3}]),
    one_message(content=[{"type": "hologram", "hologram": "x"}]),
    {"messages": [{"role": "user", "content": "x" * (CONTEXT_TOKENS + 1)}]},
    {"logprobs": "yes"},
    {"logprobs": True, "top_logprobs": 1_000},
    {"logprobs": True, "top_logprobs": -1},
    {"max_completion_tokens": "x"},
]
COMPLETIONS_ONLY = [
    {"prompt": None},
    {"prompt": []},
    {"prompt": [None]},
    {"prompt": [[]]},
    {"prompt": [{}]},
    {"prompt": [1, "two"]},
    {"prompt": [-1]},
    {"prompt": [10**9]},
    {"prompt": [2**80]},
    {"prompt": [[1], "two"]},
    {"prompt": "x" * (CONTEXT_TOKENS + 1)},
    {"logprobs": 1_000},
    {"logprobs": "all"},
]
CASES = [
    *((CHAT, fields) for fields in BOTH + CHAT_ONLY),
    *((COMPLETIONS, fields) for fields in BOTH + COMPLETIONS_ONLY),
]


def case_id(value: object) -> str:
    return "chat" if value == CHAT else "completions" if value == COMPLETIONS else str(value)[:60]


@pytest.mark.parametrize(("path", "fields"), CASES, ids=case_id)
def test_nonsense_is_a_400_that_names_what_is_wrong(
    router: RouterProcess, path: str, fields: dict[str, Any] | bytes
) -> None:
    answer = ask(router.port, post(path, body(path, fields)))
    assert answer is not None
    assert answer.status == 400, answer
    error = answer.document["error"]
    assert error["type"] == "invalid_request_error", answer
    assert error["message"], answer
    assert len(error["message"]) < 2_000, "the request is echoed at length"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_nonsense_in_a_stream_is_an_http_error_not_an_event(router: RouterProcess, *, stream: bool) -> None:
    answer = ask(router.port, post(CHAT, body(CHAT, {"temperature": 9, "stream": stream})))
    assert answer is not None
    assert answer.status == 400
    assert answer.headers["content-type"].startswith("application/json")


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": None, "top_p": None, "n": None, "stop": None, "seed": None, "stream": None},
        {"stop": []},
        {"stop": ["a", "b", "c", "d"]},
        {"user": "someone", "metadata": {"a": "b"}, "store": False},
        {"seed": -1},
        {"temperature": 0},
        {"temperature": 2, "top_p": 1},
        one_message(content=[{"type": "text", "text": "hi"}, {"type": "text", "text": "you"}]),
        {"messages": [{"role": "system", "content": ""}, {"role": "user", "content": ""}]},
        {"messages": [{"role": "developer", "content": "x"}, *MESSAGES]},
        {"messages": [*MESSAGES, {"role": "assistant", "content": None}, *MESSAGES]},
    ],
    ids=case_id,
)
def test_what_is_odd_and_allowed_is_answered(router: RouterProcess, fields: dict[str, Any]) -> None:
    answer = ask(router.port, post(CHAT, body(CHAT, fields)))
    assert answer is not None
    assert answer.status == 200, answer
