"""The text codec of a real model: its tokenizer and its chat template."""

from collections.abc import Mapping, Sequence
from typing import Any

from tidegate_worker.model.chat_template import ChatTemplate
from tidegate_worker.model.tokenizer import Tokenizer, load_tokenizer
from tidegate_worker.model.uri import ModelFiles


class ModelCodec:
    """See `TextCodec`."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._template = ChatTemplate.of(tokenizer)
        self.token_bytes = tokenizer.token_bytes
        self.is_special = tokenizer.is_special
        tokenizer.token_bytes(0)  # builds the table of bytes now rather than on the first answer

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return self._tokenizer.encode(text, add_bos=add_special_tokens)

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
    ) -> list[int]:
        return self._tokenizer.encode_chat(self._template.render(messages, tools))


def load_codec(files: ModelFiles) -> ModelCodec:
    """Blocking, seconds for a large vocabulary. Raises `ModelError`."""
    return ModelCodec(load_tokenizer(files))
