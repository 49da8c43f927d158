"""How a request is refused inside the server.

RequestRefusedError      carries the `ApiError` that the boundary turns into JSON or an SSE event
└─ ClientGoneError       nobody is left to answer
"""

from tidegate_proto.openai_errors import ApiError, ApiErrorKind


class RequestRefusedError(Exception):
    """A request cannot be served; `error` says why in OpenAI's shape."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(error.message)
        self.error = error


class ClientGoneError(RequestRefusedError):
    """The client closed its connection before the answer was complete."""

    def __init__(self) -> None:
        super().__init__(ApiError(ApiErrorKind.TIMEOUT, "the client closed the connection", code="client_closed"))


def invalid(message: str, param: str | None = None, code: str | None = None) -> RequestRefusedError:
    """A 400 that names the wrong field by its JSON path."""
    return RequestRefusedError(ApiError(ApiErrorKind.INVALID, message, param, code))


def unavailable(message: str, code: str) -> RequestRefusedError:
    """A 503: another worker, or this one later, can serve the request."""
    return RequestRefusedError(ApiError(ApiErrorKind.UNAVAILABLE, message, code=code))
