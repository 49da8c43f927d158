"""OpenAI's error bodies: one table of kinds, the JSON they become, and their SSE frame.

    kind                      status  code
    ApiErrorKind.INVALID      400     None, or what the caller says
    ApiErrorKind.NOT_FOUND    404     model_not_found, …
    …

`ApiError` is data, not an exception: a front turns it into bytes at its boundary only.
"""

from enum import Enum

import msgspec


class ApiErrorKind(Enum):
    """What went wrong, as (HTTP status, OpenAI error type, default code, is another try useful)."""

    INVALID = (400, "invalid_request_error", None, False)
    AUTHENTICATION = (401, "authentication_error", "invalid_api_key", False)
    PERMISSION = (403, "permission_error", None, False)
    NOT_FOUND = (404, "invalid_request_error", None, False)
    MODEL_NOT_FOUND = (404, "invalid_request_error", "model_not_found", False)
    METHOD_NOT_ALLOWED = (405, "invalid_request_error", "method_not_allowed", False)
    TIMEOUT = (408, "invalid_request_error", "request_timeout", True)
    LENGTH_REQUIRED = (411, "invalid_request_error", "length_required", False)
    TOO_LARGE = (413, "invalid_request_error", "request_too_large", False)
    UNSUPPORTED_MEDIA = (415, "invalid_request_error", "unsupported_media_type", False)
    HEADERS_TOO_LARGE = (431, "invalid_request_error", "headers_too_large", False)
    RATE_LIMITED = (429, "rate_limit_error", "rate_limit_exceeded", True)
    SERVER = (500, "server_error", "internal_error", True)
    UNSUPPORTED = (501, "invalid_request_error", "unsupported", False)
    BAD_GATEWAY = (502, "server_error", "upstream_failed", True)
    UNAVAILABLE = (503, "service_unavailable_error", "no_endpoint_available", True)
    UPSTREAM_TIMEOUT = (504, "server_error", "upstream_timeout", True)

    def __init__(self, status: int, error_type: str, default_code: str | None, retryable: bool) -> None:
        self.status = status
        self.error_type = error_type
        self.default_code = default_code
        self.retryable = retryable


class ApiError(msgspec.Struct, frozen=True):
    """One error answer. `param` is the JSON path or header that is wrong, `message` says what to change."""

    kind: ApiErrorKind
    message: str
    param: str | None = None
    code: str | None = None

    @property
    def status(self) -> int:
        return self.kind.status

    def body(self) -> bytes:
        """The JSON body: {"error": {"message", "type", "param", "code"}}."""
        return msgspec.json.encode(
            {
                "error": {
                    "message": self.message,
                    "type": self.kind.error_type,
                    "param": self.param,
                    "code": self.code or self.kind.default_code,
                },
            },
        )

    def sse(self) -> bytes:
        """The error as the last event of a stream that has begun; no `[DONE]` follows it."""
        return b"data: " + self.body() + b"\n\n"
