"""How long a step of a simulated model takes."""

import msgspec


class TimeModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A step's duration as a linear function of its work; all zero: steps are instant.

    The shape of real engines: a fixed cost (launches, reading the weights), compute-bound prefill, a cost per decoding
    sequence, and attention that reads the KV of every position before.
    """

    base_seconds: float = 0.0
    """Of any step."""
    prefill_token_seconds: float = 0.0
    """For each prompt token computed."""
    decode_sequence_seconds: float = 0.0
    """For each sequence that computes one token and samples the next."""
    context_token_seconds: float = 0.0
    """For each cached token that a sequence of the step attends to."""

    def step_seconds(self, prefill_tokens: int, decode_sequences: int, context_tokens: int) -> float:
        """Seconds for a step with that much work."""
        return (
            self.base_seconds
            + prefill_tokens * self.prefill_token_seconds
            + decode_sequences * self.decode_sequence_seconds
            + context_tokens * self.context_token_seconds
        )
