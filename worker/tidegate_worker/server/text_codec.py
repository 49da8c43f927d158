"""What the server asks of a tokenizer and chat template; the model's own and the simulated one both fit."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class TextCodec(Protocol):
    """Text to tokens and back. Thread-safe: long prompts are encoded off the event loop."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of `text`, with the model's BOS in front where it wants one and `add_special_tokens` is set."""
        ...

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
    ) -> list[int]:
        """Token ids of a conversation under the chat template, ready for the assistant's turn.

        Raises `ValueError` with a message for the client when the template refuses the conversation.
        """
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for, special tokens included."""
        ...

    def is_special(self, token_id: int) -> bool:
        """True for tokens that mark structure and never belong to an answer's text."""
        ...
