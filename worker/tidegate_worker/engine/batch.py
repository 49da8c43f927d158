"""The border between scheduler (torch-free) and runner: what a step computes, and what comes back."""

from dataclasses import dataclass, field
from typing import Protocol

from tidegate_worker.engine.messages import TokenLogprob
from tidegate_worker.engine.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What the engine must know of a loaded model and its cache."""

    max_model_tokens: int
    vocabulary_size: int
    eos_token_ids: tuple[int, ...]
    block_size: int
    total_blocks: int


@dataclass(frozen=True, slots=True)
class ScheduledSequence:
    """One sequence's part in a step: `token_ids` are computed at positions `start` … and their KV is written."""

    sequence_id: int
    """Unique for the engine's life; names this choice of this request."""
    token_ids: list[int]
    """The tokens to compute: a chunk of the prompt, or the last sampled token. Never empty."""
    start: int
    """Tokens whose KV the cache already holds."""
    block_ids: list[int]
    """Blocks of the sequence in order; they cover start + len(token_ids) tokens."""
    sample: bool
    """True when the last of `token_ids` is the newest known token, so that its logits give the next one."""
    params: SamplingParams
    choice_index: int
    generated: int
    """Tokens sampled so far (the position in the choice's random stream)."""


@dataclass(frozen=True, slots=True)
class ScheduledBatch:
    """A step: decodes (one token each) first, prefill chunks after."""

    sequences: list[ScheduledSequence]


@dataclass(frozen=True, slots=True)
class SampledToken:
    """The next token of a sequence that had `sample` set."""

    sequence_id: int
    token_id: int
    logprob: TokenLogprob | None = None


@dataclass(slots=True)
class StepResult:
    """What a runner returns, in the order of the batch's sampling sequences."""

    tokens: list[SampledToken] = field(default_factory=list)


class ModelRunner(Protocol):
    """Computes steps. Single-threaded: only the engine's loop calls it."""

    info: ModelInfo

    def execute(self, batch: ScheduledBatch) -> StepResult:
        """Run the model over the batch, write its KV, sample where asked."""
        ...

    def forget(self, sequence_ids: list[int]) -> None:
        """These sequences ended: drop whatever is kept for them (random streams, buffers)."""
        ...
