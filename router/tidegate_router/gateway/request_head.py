"""Reads a client's request line and header fields once: what the router needs, what goes on to the worker, what is refused.

One table says for every header what happens to it; a field that is not in the table goes on untouched. Pure.
"""

import os
from enum import Enum

from tidegate_proto.openai_errors import ApiError, ApiErrorKind

_MAX_REQUEST_ID_CHARACTERS = 128


class _Treat(Enum):
    """What a header field is to the router."""

    DROP = 1
    """Hop-by-hop, rewritten, secret, or ours to say: never reaches a worker."""
    CONTENT_LENGTH = 2
    TRANSFER_ENCODING = 3
    HOST = 4
    EXPECT = 5
    CONNECTION = 6
    REQUEST_ID = 7
    DEBUG = 8
    CONTENT_ENCODING = 9


_HEADERS = {
    b"host": _Treat.HOST,
    b"content-length": _Treat.CONTENT_LENGTH,
    b"transfer-encoding": _Treat.TRANSFER_ENCODING,
    b"expect": _Treat.EXPECT,
    b"connection": _Treat.CONNECTION,
    b"x-request-id": _Treat.REQUEST_ID,
    b"x-tidegate-debug": _Treat.DEBUG,
    b"content-encoding": _Treat.CONTENT_ENCODING,
    # Hop-by-hop (RFC 9110, section 7.6.1).
    b"keep-alive": _Treat.DROP,
    b"proxy-connection": _Treat.DROP,
    b"te": _Treat.DROP,
    b"trailer": _Treat.DROP,
    b"upgrade": _Treat.DROP,
    b"http2-settings": _Treat.DROP,
    # A client's secrets are for the router alone.
    b"authorization": _Treat.DROP,
    b"proxy-authorization": _Treat.DROP,
    b"x-api-key": _Treat.DROP,
    b"api-key": _Treat.DROP,
    b"cookie": _Treat.DROP,
    # A compressed answer could not be watched.
    b"accept-encoding": _Treat.DROP,
}

_OWN_PREFIX = b"x-tidegate-"


class RequestHead:
    """A request without its body. `forwarded` is header lines for the worker, each with its CRLF."""

    __slots__ = (
        "chunked",
        "content_length",
        "debug",
        "expects_continue",
        "forwarded",
        "http10",
        "keep_alive",
        "method",
        "path",
        "request_id",
        "target",
        "upgrade",
    )

    def __init__(self, method: bytes, target: bytes, *, http10: bool, keep_alive: bool) -> None:
        self.method = method
        self.target = _origin_form(target) if target[:1] != b"/" else target
        self.path = self.target.partition(b"?")[0].decode("latin-1")
        self.http10 = http10
        self.keep_alive = keep_alive
        self.content_length: int | None = None
        self.chunked = False
        self.expects_continue = False
        self.debug = False
        self.upgrade = False
        self.request_id = ""
        self.forwarded = b""

    @property
    def has_body(self) -> bool:
        """Whether a body follows."""
        return self.chunked or bool(self.content_length)


def read_head(head: RequestHead, fields: list[tuple[bytes, bytes]]) -> ApiError | None:
    """Fill in `head` from its fields; the error is one after which the connection cannot be trusted further.

    What the parser has refused already (two content-lengths, both framings, folded lines) is not looked at again.
    """
    forwarded: list[bytes] = []
    hosts = 0
    named: bytes = b""
    error: ApiError | None = None
    for name, value in fields:
        key = name.lower()
        treat = _HEADERS.get(key)
        if treat is None:
            if not key.startswith(_OWN_PREFIX):
                forwarded.append(b"%b: %b\r\n" % (key, value))
        elif treat is _Treat.CONTENT_LENGTH:
            head.content_length = int(value)
        elif treat is _Treat.HOST:
            hosts += 1
        elif treat is _Treat.REQUEST_ID:
            head.request_id = _clean_request_id(value)
        elif treat is _Treat.DEBUG:
            head.debug = value.strip() in (b"1", b"true")
        elif treat is _Treat.CONNECTION:
            named += b"," + value.lower()
        elif treat is not _Treat.DROP:
            error = error or _read_framing(head, treat, value)
    if not head.request_id:
        head.request_id = mint_request_id()
    if named:
        forwarded = _without_named(head, named, forwarded)
    head.forwarded = b"".join(forwarded)
    if hosts > 1:
        error = error or ApiError(ApiErrorKind.INVALID, "host: this header stands more than once", param="host")
    return error


def mint_request_id() -> str:
    """A fresh id for a request that came without one."""
    return "req-" + os.urandom(12).hex()


def _read_framing(head: RequestHead, treat: _Treat, value: bytes) -> ApiError | None:
    text = value.strip().lower()
    if treat is _Treat.TRANSFER_ENCODING:
        # Anything but exactly "chunked" is read differently by different servers.
        if text != b"chunked" or head.chunked or head.http10:
            return ApiError(ApiErrorKind.INVALID, "transfer-encoding: only `chunked` on HTTP/1.1 is understood")
        head.chunked = True
    elif treat is _Treat.EXPECT:
        if text != b"100-continue":
            return ApiError(ApiErrorKind.INVALID, "expect: only `100-continue` is understood", param="expect")
        head.expects_continue = not head.http10
    elif text not in (b"", b"identity"):
        return ApiError(
            ApiErrorKind.UNSUPPORTED_MEDIA,
            "content-encoding: send the body uncompressed",
            param="content-encoding",
        )
    return None


def _without_named(head: RequestHead, named: bytes, forwarded: list[bytes]) -> list[bytes]:
    """Drop the fields that `Connection` declares to be hop-by-hop."""
    tokens = {token.strip() for token in named.split(b",")} - {b"", b"close", b"keep-alive"}
    head.upgrade = b"upgrade" in tokens
    if not tokens:
        return forwarded
    return [line for line in forwarded if line.partition(b":")[0] not in tokens]


def _clean_request_id(value: bytes) -> str:
    """A client's id if it is safe to log and to send on, else none."""
    text = value.strip().decode("latin-1")
    if 0 < len(text) <= _MAX_REQUEST_ID_CHARACTERS and text.isascii() and text.isprintable() and " " not in text:
        return text
    return ""


def _origin_form(target: bytes) -> bytes:
    """`http://host/path?query` as `/path?query`; other forms stay as they are and match no route."""
    scheme, separator, rest = target.partition(b"://")
    if not separator or scheme.lower() not in (b"http", b"https"):
        return target
    slash = rest.find(b"/")
    return rest[slash:] if slash >= 0 else b"/"
