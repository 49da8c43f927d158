"""A generation as OpenAI's answers: `StreamAnswer` makes SSE events of deltas, `WholeAnswer` one JSON body."""

from collections.abc import Sequence
from typing import Any

import msgspec
from tidegate_proto import sse

from tidegate_worker.server.generation import Delta, Generation, TokenEntry, Usage
from tidegate_worker.server.logprobs import chat_logprobs, completion_logprobs
from tidegate_worker.server.text_codec import TextCodec

_encode = msgspec.json.Encoder().encode


def usage_object(usage: Usage) -> dict[str, Any]:
    """`usage`, with the cached part always told: absent would not mean zero."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


class _Answer:
    """What streamed and whole answers share: identity, and how log-probabilities look."""

    def __init__(self, generation: Generation, codec: TextCodec, created: int) -> None:
        self._generation = generation
        self._plan = generation.plan
        self._codec = codec
        chat = self._plan.api == "chat"
        self._head: dict[str, Any] = {
            "id": ("chatcmpl-" if chat else "cmpl-") + generation.request_id,
            "object": "chat.completion" if chat else "text_completion",
            "created": created,
            "model": self._plan.model,
        }

    def _echo(self, index: int) -> str:
        return self._plan.prompts[index // self._plan.choices_per_prompt].echo

    def _logprobs(self, entries: Sequence[TokenEntry]) -> dict[str, Any] | None:
        top = self._plan.logprobs
        if top is None:
            return None
        if self._plan.api == "chat":
            return chat_logprobs(entries, self._codec, top)
        return completion_logprobs(entries, self._codec, top)


class StreamAnswer(_Answer):
    """Events of one streamed answer, in order; `end` closes it."""

    def __init__(self, generation: Generation, codec: TextCodec, created: int) -> None:
        super().__init__(generation, codec, created)
        if self._plan.api == "chat":
            self._head["object"] = "chat.completion.chunk"
        self._tail: dict[str, Any] = {"usage": None} if self._plan.include_usage else {}

    def events(self, deltas: Sequence[Delta]) -> bytes:
        """The events of some deltas; possibly none."""
        make = self._chat_choices if self._plan.api == "chat" else self._completion_choices
        return b"".join(
            sse.event(_encode({**self._head, "choices": [choice], **self._tail}))
            for delta in deltas
            for choice in make(delta)
        )

    def end(self) -> bytes:
        """The usage event where asked for, and `[DONE]`."""
        if not self._plan.include_usage:
            return sse.DONE
        usage = usage_object(self._generation.usage)
        return sse.event(_encode({**self._head, "choices": [], "usage": usage})) + sse.DONE

    def _chat_choices(self, delta: Delta) -> list[dict[str, Any]]:
        choices = []
        if delta.first:
            choices.append(_chat_choice(delta.index, {"role": "assistant", "content": ""}))
        if delta.text or delta.entries:
            logprobs = self._logprobs(delta.entries)
            choices.append(_chat_choice(delta.index, {"content": delta.text}, logprobs))
        if delta.finish_reason is not None:
            choices.append(_chat_choice(delta.index, {}, finish_reason=delta.finish_reason))
        return choices

    def _completion_choices(self, delta: Delta) -> list[dict[str, Any]]:
        text = (self._echo(delta.index) if delta.first else "") + delta.text
        return [
            {
                "index": delta.index,
                "text": text,
                "logprobs": self._logprobs(delta.entries),
                "finish_reason": delta.finish_reason,
            },
        ]


class WholeAnswer(_Answer):
    """The one JSON body of an answer that is not streamed."""

    def body(self) -> bytes:
        """Takes everything the generation holds; call once, when it has finished."""
        deltas = self._generation.take()
        make = self._chat_choice if self._plan.api == "chat" else self._completion_choice
        choices = [make(delta) for delta in deltas]
        return _encode({**self._head, "choices": choices, "usage": usage_object(self._generation.usage)})

    def _chat_choice(self, delta: Delta) -> dict[str, Any]:
        return {
            "index": delta.index,
            "message": {"role": "assistant", "content": delta.text, "refusal": None},
            "logprobs": self._logprobs(delta.entries),
            "finish_reason": delta.finish_reason,
        }

    def _completion_choice(self, delta: Delta) -> dict[str, Any]:
        return {
            "index": delta.index,
            "text": self._echo(delta.index) + delta.text,
            "logprobs": self._logprobs(delta.entries),
            "finish_reason": delta.finish_reason,
        }


def _chat_choice(
    index: int,
    delta: dict[str, Any],
    logprobs: dict[str, Any] | None = None,
    finish_reason: str | None = None,
) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
