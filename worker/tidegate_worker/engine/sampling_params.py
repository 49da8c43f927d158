"""How a request wants its tokens chosen. Plain data, already validated at the server's boundary."""

import msgspec

MAX_LOGPROBS = 20


class SamplingParams(msgspec.Struct, frozen=True, array_like=True):
    """Resolved sampling settings of one request; nothing is left to a default of the engine."""

    max_tokens: int
    """Most new tokens per choice, ≥ 1; prompt + max_tokens fits the context."""
    min_tokens: int = 0
    """Until that many tokens are out, EOS and stop tokens are not sampled."""
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 is off."""
    seed: int = 0
    """Always set (the server draws one when the client gave none); choice i has its own stream, from (seed, i)."""
    n: int = 1
    """Choices. They share the prompt's blocks."""
    stop_token_ids: tuple[int, ...] = ()
    """Beside the model's EOS tokens. The stop token is delivered as the last token with reason `stop`."""
    ignore_eos: bool = False
    logprobs: int | None = None
    """None: none. k: the chosen token's log-probability and those of the k most likely ones (0 ≤ k ≤ 20).
    Log-probabilities are those of the model's distribution before temperature, top-k and top-p."""
