"""One HTTP request in the engine: what its choices have produced and the client has not yet been sent.

The engine's side (`on_output`, `fail`) never waits: while nobody takes, deltas of a choice coalesce into one, bounded
by the request's `max_tokens`. The HTTP side waits on `changed` and takes all there is. Single-threaded: both sides run
on the event loop.
"""

import asyncio
from dataclasses import dataclass, field
from typing import NamedTuple

from tidegate_proto.openai_errors import ApiError, ApiErrorKind

from tidegate_worker.engine.messages import ChoiceOutput, TokenLogprob
from tidegate_worker.server.detokenizer import ChoiceText
from tidegate_worker.server.errors import RequestRefusedError
from tidegate_worker.server.plan import GenerationPlan
from tidegate_worker.server.text_codec import TextCodec


class TokenEntry(NamedTuple):
    """A token with its log-probabilities, and where its text starts in the choice's text, in characters."""

    token_id: int
    logprob: TokenLogprob
    start: int


@dataclass(slots=True)
class Delta:
    """What one choice gained since it was last taken."""

    index: int
    text: str
    entries: list[TokenEntry]
    finish_reason: str | None
    first: bool
    """Nothing was taken of this choice before."""


@dataclass(slots=True)
class Usage:
    """Token counts of a request so far."""

    prompt_tokens: int
    cached_tokens: int = 0
    completion_tokens: int = 0


@dataclass(slots=True)
class _Choice:
    text: ChoiceText[TokenEntry]
    finish_reason: str | None = None
    changed: bool = False
    begun: bool = False
    last_token_at: float | None = None


@dataclass(slots=True)
class Heard:
    """What an output tells beside its text."""

    first: float | None = None
    """Seconds to the request's first token."""
    gaps: list[tuple[float, int]] = field(default_factory=list)
    """(seconds per token, tokens)"""
    stopped_early: bool = False
    """A stop string ended this choice while the engine goes on with it."""


class Generation:
    """The choices of one request, between the engine and one client."""

    def __init__(self, plan: GenerationPlan, codec: TextCodec, request_id: str, started_at: float) -> None:
        self.plan = plan
        self.request_id = request_id
        self.started_at = started_at
        self.usage = Usage(plan.prompt_tokens)
        self.error: ApiError | None = None
        self.engine_ids: list[str] = []
        """One engine request per prompt."""
        self._codec = codec
        per_prompt = plan.choices_per_prompt
        self._choices = [_Choice(ChoiceText(plan.stops)) for _ in range(len(plan.prompts) * per_prompt)]
        self._unfinished = len(self._choices)
        self._cached: dict[int, int] = {}
        self._changed = asyncio.Event()

    @property
    def finished(self) -> bool:
        """Every choice has its finish reason."""
        return self._unfinished == 0

    @property
    def finish_reason(self) -> str | None:
        """That of the first choice."""
        return self._choices[0].finish_reason

    def on_output(self, prompt: int, output: ChoiceOutput, now: float) -> Heard:
        """Take in new tokens of one choice. An output for a choice that a stop string ended is ignored."""
        heard = Heard()
        choice = self._choices[prompt * self.plan.choices_per_prompt + output.index]
        if prompt not in self._cached:
            self._cached[prompt] = output.cached_tokens
            self.usage.cached_tokens += output.cached_tokens
        if choice.finish_reason is not None:
            return heard
        if output.finish_reason in ("abort", "error"):
            message = output.error or "the engine gave this request up"
            self.fail(ApiError(ApiErrorKind.UNAVAILABLE, message, code="engine_error"))
            return heard
        if output.token_ids:
            self._time(choice, len(output.token_ids), now, heard)
        self._append(choice, output)
        if choice.text.stopped or output.finish_reason is not None:
            choice.text.finish()
            choice.finish_reason = "stop" if choice.text.stopped else output.finish_reason
            heard.stopped_early = output.finish_reason is None
            self._unfinished -= 1
        choice.changed = True
        if self.plan.stream or self.finished:
            self._changed.set()
        return heard

    def fail(self, error: ApiError) -> None:
        """End the request with an error; the first one stays."""
        self.error = self.error or error
        self._changed.set()

    async def changed(self) -> None:
        """Wait for something to take: any delta when streaming, else the whole answer. Raises the failure."""
        await self._changed.wait()
        self._changed.clear()
        if self.error is not None:
            raise RequestRefusedError(self.error)

    def take(self) -> list[Delta]:
        """All that is new, one delta a choice, in order of the choices."""
        deltas = []
        for index, choice in enumerate(self._choices):
            if not choice.changed:
                continue
            text, entries = choice.text.take()
            if text or entries or choice.finish_reason is not None or not choice.begun:
                deltas.append(Delta(index, text, entries, choice.finish_reason, first=not choice.begun))
            choice.begun = True
            choice.changed = False
        return deltas

    def _append(self, choice: _Choice, output: ChoiceOutput) -> None:
        last = len(output.token_ids) - 1
        for position, token_id in enumerate(output.token_ids):
            self.usage.completion_tokens += 1
            if position == last and output.finish_reason == "stop":
                break  # EOS or a stop token: it ends the text and is no part of it
            start = choice.text.characters
            entry = TokenEntry(token_id, output.logprobs[position], start) if output.logprobs else None
            special = self._codec.is_special(token_id)
            choice.text.push(b"" if special else self._codec.token_bytes(token_id), entry)
            if choice.text.stopped:
                break

    def _time(self, choice: _Choice, tokens: int, now: float, heard: Heard) -> None:
        if choice.last_token_at is None:
            if all(other.last_token_at is None for other in self._choices):
                heard.first = now - self.started_at
        else:
            heard.gaps.append(((now - choice.last_token_at) / tokens, tokens))
        choice.last_token_at = now
