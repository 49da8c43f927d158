"""What an engine can serve at all. Pure; the server asks before it submits, the engine asks again to protect itself."""

import msgspec

from tidegate_worker.engine.messages import Submit


class EngineLimits(msgspec.Struct, frozen=True):
    """Bounds that no request of this engine may pass."""

    max_model_tokens: int
    """Prompt and answer together: the model's context, or the whole KV cache where that is smaller."""
    vocabulary_size: int

    def refusal(self, request: Submit) -> str | None:
        """Why this request can never run, or None. A request that passes is served whatever else is running."""
        prompt_tokens, max_tokens = len(request.prompt_token_ids), request.params.max_tokens
        if prompt_tokens == 0:
            return "the prompt has no tokens; send at least one"
        if max_tokens < 1 or request.params.n < 1:
            return "max_tokens and n must be at least 1"
        if prompt_tokens + max_tokens > self.max_model_tokens:
            return (
                f"this worker serves {self.max_model_tokens} tokens per request, but the prompt has {prompt_tokens} "
                f"and max_tokens is {max_tokens}; shorten the prompt or lower max_tokens"
            )
        if min(request.prompt_token_ids) < 0 or max(request.prompt_token_ids) >= self.vocabulary_size:
            return f"the prompt has a token id outside this model's vocabulary of {self.vocabulary_size}"
        return None
