"""How an engine is set up. Torch-free: the server process builds these, the engine process obeys them."""

from typing import Literal

import msgspec

from tidegate_worker.sim.time_model import TimeModel

MIN_CONTEXT_TOKENS = 16
"""Smallest context to ask for, as the API's `contextTokens`: below it not even a chat template's own words fit."""


class SchedulerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What one step may hold."""

    max_batched_tokens: int = 256
    """Tokens computed in one step, ≥ max_running. Prompts are cut to it, so it bounds how long a long prompt can hold
    up everyone else's next token: at the 300 to 1,600 tokens/s that a 135M model prefills on two CPU cores, 256 tokens
    are 0.2 to 0.8 s. Matrix products gain little from more rows than that on a CPU; an accelerator wants 2,048 or more.
    """
    max_running: int = 64
    """Sequences that hold blocks at once, ≥ 1. Each running sequence gets its token in every step."""

    def problem(self) -> str | None:
        """What is wrong with these numbers, or None."""
        if self.max_running < 1:
            return f"max_running must be at least 1, got {self.max_running}"
        if self.max_batched_tokens < self.max_running:
            return (
                f"max_batched_tokens ({self.max_batched_tokens}) must be at least max_running ({self.max_running}), "
                "or running sequences would miss steps"
            )
        return None


class SimSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The runner without a model."""

    time: TimeModel = msgspec.field(default_factory=TimeModel)
    """How long steps take; all zero by default."""
    mean_output_tokens: int = 0
    """Average answer length: each token ends the answer with probability 1 over this. 0: only max_tokens ends it."""


class EngineSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything an engine process is started with."""

    runner: Literal["torch", "sim"] = "torch"
    """Who computes steps: the model in torch, or a stand-in without a model."""
    model_uri: str = ""
    """Where the model is; see the worker's --model. Unused by "sim"."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Of weights, activations and KV. auto: bfloat16 on an accelerator, float32 on a CPU."""
    device: str = "auto"
    """auto: cuda where there is one, else cpu."""
    context_tokens: int | None = None
    """Most tokens of prompt and answer together, ≥ `MIN_CONTEXT_TOKENS`. None: all the model has ("sim": 8,192)."""
    kv_blocks: int | None = None
    """Size of the KV cache in blocks. None: from kv_memory_bytes ("sim": 1,024)."""
    kv_memory_bytes: int | None = None
    """Memory for the KV cache. None: the runner chooses."""
    threads: int | None = None
    """Compute threads. None: as many as the process may use cores."""
    block_size: int = 16
    """Tokens in a KV block, ≥ 1: the grain of prefix reuse."""
    scheduler: SchedulerSettings = msgspec.field(default_factory=SchedulerSettings)
    sim: SimSettings = msgspec.field(default_factory=SimSettings)
