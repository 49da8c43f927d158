"""The simulated worker's text codec: a byte is a token. Ids 0 to 255 are bytes, 256 ends a turn, 257 begins one."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tidegate_worker.server.text_codec import TextTooLongError
from tidegate_worker.sim.runner import SIM_EOS_TOKEN_ID

START_OF_TURN_TOKEN_ID = SIM_EOS_TOKEN_ID + 1
_BYTES = [bytes([value]) for value in range(256)]
_SPECIAL = {SIM_EOS_TOKEN_ID: b"<|im_end|>", START_OF_TURN_TOKEN_ID: b"<|im_start|>"}


class ByteCodec:
    """See `TextCodec`. Conversations are framed as ChatML does: start, role, newline, content, end, newline."""

    longest_token_bytes = 1
    uses_tools = True

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        del add_special_tokens  # there is no BOS
        return list(text.encode())

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        most_bytes: int,
    ) -> list[int]:
        tokens: list[int] = []
        if tools:
            tokens += self._turn("tools", msgspec.json.encode(list(tools)).decode())
        for message in messages:
            tokens += self._turn(message["role"], message["content"])
        if len(tokens) > most_bytes:
            raise TextTooLongError(len(tokens))
        return [*tokens, START_OF_TURN_TOKEN_ID, *b"assistant\n"]

    def token_bytes(self, token_id: int) -> bytes:
        return _BYTES[token_id] if token_id < 256 else _SPECIAL.get(token_id, b"")

    def is_special(self, token_id: int) -> bool:
        return token_id >= 256

    def _turn(self, role: str, content: str) -> list[int]:
        return [START_OF_TURN_TOKEN_ID, *f"{role}\n{content}".encode(), SIM_EOS_TOKEN_ID, *b"\n"]
