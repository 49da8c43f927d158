"""Log-probabilities in the shapes of the two APIs."""

import math
from collections.abc import Sequence
from typing import Any

from tidegate_worker.server.generation import TokenEntry
from tidegate_worker.server.text_codec import TextCodec

LOWEST_LOGPROB = -9999.0
"""OpenAI's stand-in for minus infinity, which JSON cannot hold."""


def chat_logprobs(entries: Sequence[TokenEntry], codec: TextCodec, top: int) -> dict[str, Any]:
    """`choices[].logprobs` of a chat answer; `bytes` lets a client join tokens that split a character."""
    content = []
    for token_id, logprob, _ in entries:
        item = _chat_token(token_id, logprob.logprob, codec)
        item["top_logprobs"] = [_chat_token(other, value, codec) for other, value in logprob.top[:top]]
        content.append(item)
    return {"content": content, "refusal": None}


def completion_logprobs(entries: Sequence[TokenEntry], codec: TextCodec, top: int) -> dict[str, Any]:
    """`choices[].logprobs` of a completion. Tokens inside a character share the offset at which it starts."""
    tokens: list[str] = []
    values: list[float] = []
    alternatives: list[dict[str, float]] = []
    offsets: list[int] = []
    for token_id, logprob, start in entries:
        token = token_text(token_id, codec)
        best: dict[str, float] = {}
        for other, value in logprob.top[:top]:
            # Two tokens may stand for the same text; the likeliest keeps the name.
            best.setdefault(token_text(other, codec), _finite(value))
        best.setdefault(token, _finite(logprob.logprob))
        tokens.append(token)
        values.append(_finite(logprob.logprob))
        alternatives.append(best)
        offsets.append(start)
    return {"tokens": tokens, "token_logprobs": values, "top_logprobs": alternatives, "text_offset": offsets}


def token_text(token_id: int, codec: TextCodec) -> str:
    """A token as text; one that is no whole characters as OpenAI writes it: `bytes:` and its bytes, escaped."""
    token = codec.token_bytes(token_id)
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + repr(token)[2:-1]


def _chat_token(token_id: int, logprob: float, codec: TextCodec) -> dict[str, Any]:
    token = codec.token_bytes(token_id)
    return {"token": token.decode("utf-8", "replace"), "logprob": _finite(logprob), "bytes": list(token)}


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else LOWEST_LOGPROB
