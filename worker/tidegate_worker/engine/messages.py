"""What the server process and the engine process say to each other: msgpack-framed structs over a socket pair.

Server → engine: `Submit`, `Abort`, `Shutdown`. Engine → server: `EngineReady` once, then one `StepOutput` a step
(and one whenever load changes without a step), `EngineFailed` as the last word of an engine that gives up.
"""

from typing import Literal

import msgspec

from tidegate_worker.engine.sampling_params import SamplingParams

FinishReason = Literal["stop", "length", "abort", "error"]


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    pass


class Submit(_Message, frozen=True):
    """A new request. Ids are unique for the life of the process (the server mints them)."""

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    salt: str = ""
    adapter: str = ""


class Abort(_Message, frozen=True):
    """Drop a request in whatever state; its blocks are free within one step. Unknown ids are ignored."""

    request_id: str
    index: int | None = None
    """Drop only this choice (its stop string was found); None: all of them."""


class Shutdown(_Message, frozen=True):
    """End the engine process after the current step."""


class EngineReady(_Message, frozen=True):
    """The model is loaded and warm."""

    max_model_tokens: int
    block_size: int
    total_blocks: int
    vocabulary_size: int
    eos_token_ids: tuple[int, ...]
    load_seconds: float


class EngineFailed(_Message, frozen=True):
    """The engine cannot start or go on. `user_error` marks what a person can mend (bad URI, too little memory)."""

    message: str
    user_error: bool


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """Log-probability of the chosen token and of the most likely ones, best first."""

    logprob: float
    top: list[tuple[int, float]]


class ChoiceOutput(msgspec.Struct, frozen=True, array_like=True):
    """New tokens of one choice of one request."""

    request_id: str
    index: int
    token_ids: list[int]
    logprobs: list[TokenLogprob] | None
    """One per token when asked for."""
    finish_reason: FinishReason | None
    cached_tokens: int
    """Prompt tokens found in the prefix cache when this request was first scheduled; constant over its life."""
    error: str | None = None
    """Set with `finish_reason` "error": what went wrong, in words that a user may read."""


class BlockStored(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A full block became reusable."""

    hash: bytes
    parent: bytes
    token_ids: list[int]
    adapter: str
    salt: str


class BlockRemoved(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A block's reusable content is gone."""

    hash: bytes


class CacheCleared(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """All reusable content is gone."""


BlockEvent = BlockStored | BlockRemoved | CacheCleared


class EngineLoad(msgspec.Struct, frozen=True, array_like=True):
    """The engine's load after a step. referenced + cached + free = total blocks, always."""

    waiting_requests: int
    running_requests: int
    waiting_tokens: int
    referenced_blocks: int
    cached_blocks: int
    free_blocks: int
    preemptions_total: int
    prefix_query_tokens_total: int
    prefix_hit_tokens_total: int


class StepOutput(_Message, frozen=True):
    """Everything that a step changed."""

    choices: list[ChoiceOutput]
    block_events: list[BlockEvent]
    load: EngineLoad
    step_seconds: float
    """0 when no model step ran."""
    prefill_tokens: int
    decode_tokens: int


ToEngine = Submit | Abort | Shutdown
FromEngine = EngineReady | EngineFailed | StepOutput
