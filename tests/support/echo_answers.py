"""OpenAI answers that echo who asked: the same text whole and as a stream, so that a client can check what it got."""

import json

MODEL = "echo"
ANSWER_PIECES = 6  # content chunks of a stream


def expected_answer(user: str) -> str:
    """The text that a well-behaved worker answers to a request of `user`."""
    return f"answer to {user}: one two three four five"


def completion(user: str) -> dict[str, object]:
    """A whole chat completion for `user`."""
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": expected_answer(user)},
                "logprobs": None,
                "finish_reason": "stop",
            },
        ],
        "usage": {"prompt_tokens": 8, "completion_tokens": 6, "total_tokens": 14},
    }


def events(user: str) -> list[bytes]:
    """The SSE events of a whole stream for `user`: a role, the pieces, the finish reason, `[DONE]`."""

    def event(delta: dict[str, str], finish_reason: str | None = None) -> bytes:
        chunk = {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": MODEL,
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}],
        }
        return b"data: " + json.dumps(chunk).encode() + b"\n\n"

    text = expected_answer(user)
    size = -(-len(text) // ANSWER_PIECES)
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    contents = [event({"content": piece}) for piece in pieces]
    return [event({"role": "assistant", "content": ""}), *contents, event({}, "stop"), b"data: [DONE]\n\n"]


def error_event() -> bytes:
    """An error as the last event of a stream."""
    body = {"error": {"message": "scripted failure", "type": "server_error", "param": None, "code": None}}
    return b"data: " + json.dumps(body).encode() + b"\n\n"
