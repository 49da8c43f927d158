"""Builders for tests of the worker's server: bodies, plans, engine outputs and a scripted engine."""

import json
from collections.abc import Callable
from typing import Any

from tidegate_worker.engine.messages import (
    BlockStored,
    ChoiceOutput,
    EngineLoad,
    EngineReady,
    FinishReason,
    StepOutput,
    Submit,
    TokenLogprob,
)
from tidegate_worker.server.model_limits import ModelLimits
from tidegate_worker.server.plan import GenerationPlan, plan_chat, plan_completion
from tidegate_worker.sim.tokenizer import ByteCodec

CODEC = ByteCodec()
LIMITS = ModelLimits(("m", "alias"), context_tokens=100, vocabulary_size=512)


def chat_body(**fields: Any) -> bytes:
    """A good chat body with some members changed."""
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}).encode()


def completion_body(**fields: Any) -> bytes:
    """A good completion body with some members changed."""
    return json.dumps({"model": "m", "prompt": "hi", **fields}).encode()


def chat_plan(**fields: Any) -> GenerationPlan:
    return plan_chat(chat_body(**fields), CODEC, LIMITS, lambda: 11)


def completion_plan(**fields: Any) -> GenerationPlan:
    return plan_completion(completion_body(**fields), CODEC, LIMITS, lambda: 11)


def output(
    tokens: bytes | list[int],
    finish_reason: FinishReason | None = None,
    *,
    request_id: str = "0",
    index: int = 0,
    cached_tokens: int = 0,
    logprobs: bool = False,
) -> ChoiceOutput:
    """New tokens of a choice, bytes being tokens."""
    ids = list(tokens)
    values = [TokenLogprob(-0.5, [(token, -0.5)]) for token in ids] if logprobs else None
    return ChoiceOutput(request_id, index, ids, values, finish_reason, cached_tokens)


def ready(total_blocks: int = 64, block_size: int = 16, max_model_tokens: int = 100) -> EngineReady:
    return EngineReady(max_model_tokens, block_size, total_blocks, 512, (256,), 0.0)


def load(referenced: int = 0, cached: int = 0, total: int = 64, waiting: int = 0, running: int = 0) -> EngineLoad:
    return EngineLoad(waiting, running, 0, referenced, cached, total - referenced - cached, 0, 0, 0)


def step(*events: BlockStored, state: EngineLoad | None = None) -> StepOutput:
    return StepOutput([], list(events), state or load(), 0.01, 3, 2)


def stored(number: int, parent: int | None = None) -> BlockStored:
    """A block named by a number."""
    return BlockStored(block_name(number), b"" if parent is None else block_name(parent), [number] * 16, "", "")


def block_name(number: int) -> bytes:
    return number.to_bytes(16, "big")


class ScriptedEngine:
    """An engine link that remembers what it was told, and says what a test makes it say."""

    silent_seconds = 0.0

    def __init__(self) -> None:
        self.submitted: list[Submit] = []
        self.aborted: list[tuple[str, int | None]] = []
        self._hear: dict[str, Callable[[ChoiceOutput], None]] = {}

    def submit(self, message: Submit, on_output: Callable[[ChoiceOutput], None]) -> None:
        self.submitted.append(message)
        self._hear[message.request_id] = on_output

    def abort(self, request_id: str, index: int | None = None) -> None:
        self.aborted.append((request_id, index))

    def say(self, result: ChoiceOutput) -> None:
        self._hear[result.request_id](result)
