"""What can go wrong with an attempt, and what a worker's answer means for the next step. Pure.

answer of a worker              verdict                       then
2xx, 4xx but those below, 501   Verdict.PASS                  passed on
404 that names the model        Verdict.MODEL_MISSING         another worker; this one is known to lack the model
429, 503 with Retry-After       Verdict.BUSY                  another worker at once, no fault
any other 5xx, 3xx              Verdict.FAULT                 a fault of the worker; another one, within the budget
"""

from enum import Enum
from typing import Any

import msgspec
from tidegate_proto.openai_errors import ApiErrorKind


class Fault(Enum):
    """Why an attempt failed; a closed vocabulary, and the `reason` label of metrics."""

    CONNECT = "connect"
    """No TCP connection within its time."""
    RESET = "reset"
    """The connection ended before any byte of the answer."""
    FIRST_BYTE_TIMEOUT = "first-byte-timeout"
    STALLED = "between-chunks-timeout"
    CUT = "cut"
    """The answer ended before its content-length, its last chunk or its `[DONE]`."""
    OVERLONG = "overlong"
    """More bytes than the answer's framing says."""
    MALFORMED = "malformed"
    """Not HTTP, or not the JSON that it claims to be."""
    STATUS = "status"
    """A status that means the worker failed."""
    ERROR_EVENT = "error-event"
    """An SSE `error` event inside a 200."""
    UNHEALTHY = "unhealthy"
    """The endpoint failed its health checks while the request waited there; the checks have counted that."""

    @property
    def counts(self) -> bool:
        """Whether it is held against the endpoint."""
        return self is not Fault.UNHEALTHY

    @property
    def may_repeat_here(self) -> bool:
        """Whether the same endpoint may be asked again when there is no other: it never began to answer."""
        return self in (Fault.CONNECT, Fault.RESET)

    @property
    def error_kind(self) -> ApiErrorKind:
        """What the client is told when no attempt is left."""
        if self in (Fault.FIRST_BYTE_TIMEOUT, Fault.STALLED):
            return ApiErrorKind.UPSTREAM_TIMEOUT
        return ApiErrorKind.BAD_GATEWAY


class Verdict(Enum):
    """What an answer means for routing."""

    PASS = "pass"  # noqa: S105 - not a password
    MODEL_MISSING = "model-missing"
    BUSY = "busy"
    FAULT = "fault"


def verdict_on_status(status: int, retry_after: bytes | None) -> Verdict:
    """What a status line says by itself; a 404 is settled by `names_missing_model` on its body."""
    if 200 <= status < 300 or status == 501:
        return Verdict.PASS
    if status == 429 or (status == 503 and retry_after is not None):
        return Verdict.BUSY
    if 400 <= status < 500:
        return Verdict.PASS
    return Verdict.FAULT


def names_missing_model(body: bytes) -> bool:
    """Whether a 404's body is about the model rather than the path or an object.

    OpenAI and our worker send the code `model_not_found`; vLLM and SGLang send a message that says so.
    """
    try:
        answer: Any = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        return False
    error = answer.get("error", answer) if isinstance(answer, dict) else None
    if not isinstance(error, dict):
        return False
    if error.get("code") == "model_not_found":
        return True
    message = error.get("message")
    return isinstance(message, str) and "model" in message.lower() and "not" in message.lower()


def retry_after_seconds(value: bytes | None) -> int | None:
    """Seconds of a Retry-After header; None when it is absent, a date, or nonsense."""
    if value is None:
        return None
    text = value.strip()
    if not text.isdigit() or len(text) > 6:
        return None
    return int(text)
