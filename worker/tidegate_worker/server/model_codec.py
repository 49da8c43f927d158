"""The text codec of a real model: its tokenizer and its chat template."""

from collections.abc import Mapping, Sequence
from typing import Any

from tidegate_worker.model.chat_template import ChatTemplate, plain_messages
from tidegate_worker.model.literal_text import LiteralText
from tidegate_worker.model.tokenizer import Tokenizer, load_tokenizer
from tidegate_worker.model.uri import ModelFiles
from tidegate_worker.server.text_codec import TextTooLongError, utf8_bytes


class ModelCodec:
    """See `TextCodec`."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._template = ChatTemplate.of(tokenizer)
        self._literal = LiteralText(tokenizer)
        self.uses_tools = self._template.uses_tools
        self.longest_token_bytes = tokenizer.longest_token_bytes
        self.token_bytes = tokenizer.token_bytes
        self.is_special = tokenizer.is_special

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return self._tokenizer.encode(text, add_bos=add_special_tokens)

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        most_bytes: int,
    ) -> list[int]:
        messages = plain_messages(messages)
        spells_control_tokens = self._literal.spelled_in([messages, tools])
        if spells_control_tokens:
            messages, tools = self._literal.disguise(messages), self._literal.disguise(tools)
        rendered = self._template.render_plain(messages, tools)
        size = utf8_bytes(rendered)
        if size > most_bytes:
            raise TextTooLongError(size)
        if spells_control_tokens:
            return self._literal.encode_disguised(rendered)
        return self._tokenizer.encode_chat(rendered)


def load_codec(files: ModelFiles) -> ModelCodec:
    """Blocking, seconds for a large vocabulary. Raises `ModelError`."""
    return ModelCodec(load_tokenizer(files))
