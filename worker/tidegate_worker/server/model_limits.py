"""What bounds every request to the loaded model, and what can be refused for it before any work is done."""

from dataclasses import dataclass

from tidegate_proto.openai_errors import ApiError, ApiErrorKind

from tidegate_worker.server.errors import RequestRefusedError, invalid
from tidegate_worker.server.text_codec import TextCodec


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What bounds every request to the loaded model."""

    served_names: tuple[str, ...]
    context_tokens: int
    """Most tokens of prompt and answer together: the model's context, or the whole KV cache if that is smaller."""
    vocabulary_size: int


def check_model(name: str, limits: ModelLimits) -> None:
    """404 unless this worker serves `name`."""
    if name not in limits.served_names:
        shown = name if len(name) <= 100 else name[:100] + "…"
        message = f"the model '{shown}' does not exist here; this worker serves {', '.join(limits.served_names)}"
        raise RequestRefusedError(ApiError(ApiErrorKind.MODEL_NOT_FOUND, message, "model"))


def most_text_bytes(codec: TextCodec, limits: ModelLimits) -> int:
    """More text than this cannot fit the context, into whatever tokens it is cut."""
    return limits.context_tokens * codec.longest_token_bytes


def check_text(text_bytes: int, path: str, codec: TextCodec, limits: ModelLimits) -> None:
    """400 for a prompt that cannot fit, before any work is spent on cutting it into tokens.

    Looks at its length alone: text that the tokenizer would drop counts like any other.
    """
    if text_bytes > most_text_bytes(codec, limits):
        raise too_long(f"{text_bytes} bytes of text", path, limits)


def too_long(what: str, path: str, limits: ModelLimits) -> RequestRefusedError:
    """The 400 for `what`, which is more than the context holds."""
    return invalid(
        f"{what} cannot fit this model's context of {limits.context_tokens} tokens; shorten the prompt",
        path,
        "context_length_exceeded",
    )
