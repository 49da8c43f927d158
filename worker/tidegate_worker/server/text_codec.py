"""What the server asks of a tokenizer and chat template; the model's own and the simulated one both fit."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class TextTooLongError(Exception):
    """A text that is longer than was allowed."""

    def __init__(self, text_bytes: int) -> None:
        super().__init__(f"{text_bytes} bytes of text")
        self.text_bytes = text_bytes


def utf8_bytes(text: str) -> int:
    """The length of a text in UTF-8; a lone surrogate counts as three bytes."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


class TextCodec(Protocol):
    """Text to tokens and back. Thread-safe: long prompts are encoded off the event loop."""

    @property
    def longest_token_bytes(self) -> int:
        """No token stands for more bytes of text than this."""
        ...

    @property
    def uses_tools(self) -> bool:
        """False when the chat template has no place for `tools`: the model would never see them."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of `text`, with the model's BOS in front where it wants one and `add_special_tokens` is set."""
        ...

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None, most_bytes: int
    ) -> list[int]:
        """Token ids of a conversation under the chat template, ready for the assistant's turn.

        Text in the messages never becomes a control token, whatever it spells.

        Raises:
            TextTooLongError: the template makes more than `most_bytes` of it; nothing was encoded.
            ValueError: the template refuses the conversation; the message is for the client.
        """
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for, special tokens included."""
        ...

    def is_special(self, token_id: int) -> bool:
        """True for tokens that mark structure and never belong to an answer's text."""
        ...
