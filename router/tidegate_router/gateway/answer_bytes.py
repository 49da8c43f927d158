"""Turns answers into HTTP/1.1 bytes. Pure; the only place that knows the client's framing."""

from http import HTTPStatus

from tidegate_proto.openai_errors import ApiError

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"
JSON = b"content-type: application/json\r\n"

STATUS_LINES = {status.value: b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode()) for status in HTTPStatus}

_SDK_RETRIES = frozenset({408, 409, 429})


def status_line(status: int) -> bytes:
    """`HTTP/1.1 200 OK` with its CRLF."""
    return STATUS_LINES.get(status) or b"HTTP/1.1 %d Status\r\n" % status


def error_fields(error: ApiError, retry_after_seconds: int | None = None) -> bytes:
    """Header lines of an error: what it is, and whether another try is worth it.

    OpenAI's clients retry 408, 409, 429 and 5xx by themselves unless `x-should-retry` says otherwise.
    """
    lines = JSON
    if error.status in _SDK_RETRIES or error.status >= 500:
        lines += b"x-should-retry: true\r\n" if error.kind.retryable else b"x-should-retry: false\r\n"
    if retry_after_seconds is not None:
        lines += b"retry-after: %d\r\n" % retry_after_seconds
    return lines


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)
