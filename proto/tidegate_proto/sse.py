"""Server-sent events as OpenAI's streams use them (WHATWG HTML, section 9.2)."""

DONE = b"data: [DONE]\n\n"
CONTENT_TYPE = b"text/event-stream"


def event(payload: bytes) -> bytes:
    """One `data:` event around a single-line payload."""
    return b"data: " + payload + b"\n\n"
