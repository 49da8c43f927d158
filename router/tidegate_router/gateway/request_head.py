"""Reads a client's request line and header fields once: what the router needs, what goes on, what is refused.

One table says for every header what happens to it; a field that is not in the table goes on untouched. Pure.
"""

import itertools
import os

import msgspec
from tidegate_proto.openai_errors import ApiError, ApiErrorKind

_MAX_REQUEST_ID_CHARACTERS = 128


# What a header field is to the router.
_FORWARD, _DROP, _CONTENT_LENGTH, _TRANSFER_ENCODING, _HOST, _EXPECT, _CONNECTION, _REQUEST_ID, _DEBUG, _CODING = range(
    10
)

_TREATMENT = {
    b"host": _HOST,
    b"content-length": _CONTENT_LENGTH,
    b"transfer-encoding": _TRANSFER_ENCODING,
    b"expect": _EXPECT,
    b"connection": _CONNECTION,
    b"x-request-id": _REQUEST_ID,
    b"x-tidegate-debug": _DEBUG,
    b"content-encoding": _CODING,
    # Hop-by-hop (RFC 9110, section 7.6.1).
    b"keep-alive": _DROP,
    b"proxy-connection": _DROP,
    b"te": _DROP,
    b"trailer": _DROP,
    b"upgrade": _DROP,
    b"http2-settings": _DROP,
    # A client's secrets are for the router alone.
    b"authorization": _DROP,
    b"proxy-authorization": _DROP,
    b"x-api-key": _DROP,
    b"api-key": _DROP,
    b"cookie": _DROP,
    # A compressed answer could not be watched.
    b"accept-encoding": _DROP,
}
_OWN_PREFIX = b"x-tidegate-"
_MAX_NAMES_KEPT = 1024
# Clients send few different names, in few ways of writing them: each is looked at once.
_known: dict[bytes, int] = {}

_process_nonce = os.urandom(6).hex()
_numbers = itertools.count(1)


class RequestHead(msgspec.Struct, gc=False):
    """A request without its body. `forwarded` is header lines for the worker, each with its CRLF."""

    method: bytes
    target: bytes
    http10: bool
    keep_alive: bool
    path: str = ""
    content_length: int | None = None
    chunked: bool = False
    expects_continue: bool = False
    debug: bool = False
    upgrade: bool = False
    request_id: str = ""
    forwarded: bytes = b""
    line: bytes = b""
    """The request line for the worker, with its CRLF."""

    def __post_init__(self) -> None:
        target = self.target
        if target[:1] != b"/":
            self.target = target = _origin_form(target)
        self.line = b"%b %b HTTP/1.1\r\n" % (self.method, target)
        self.path = target.partition(b"?")[0].decode("latin-1")

    def again(self, content_length: int, request_id: bytes) -> "RequestHead":
        """The same head of another request: a body of another length, the client's id (a clean one) or a fresh one."""
        head: RequestHead = self.__copy__()  # type: ignore[attr-defined]  # msgspec's stubs leave it out
        head.content_length = content_length
        head.request_id = request_id.decode("ascii") if request_id else mint_request_id()
        return head

    @property
    def may_recur(self) -> bool:
        """Whether a head of the same bytes means just this again: a POST with a body, and nothing out of the way."""
        plain = self.method == b"POST" and self.keep_alive and not self.http10
        return plain and bool(self.content_length) and not (self.chunked or self.expects_continue or self.upgrade)

    @property
    def has_body(self) -> bool:
        """Whether a body follows."""
        return self.chunked or bool(self.content_length)


def read_head(head: RequestHead, fields: list[tuple[bytes, bytes]]) -> ApiError | None:
    """Fill in `head` from its fields; the error is one after which the connection cannot be trusted further.

    What the parser has refused already (two content-lengths, both framings, folded lines) is not looked at again.
    """
    forwarded = b""
    hosts = 0
    named: bytes = b""
    error: ApiError | None = None
    for name, value in fields:
        treatment = _known.get(name)
        if treatment is None:
            treatment = _treatment_of(name)
        if treatment == _FORWARD:
            forwarded += b"%b: %b\r\n" % (name, value)
        elif treatment == _CONTENT_LENGTH:
            head.content_length = int(value)
        elif treatment == _HOST:
            hosts += 1
        elif treatment == _REQUEST_ID:
            head.request_id = _clean_request_id(value)
        elif treatment == _DEBUG:
            head.debug = value.strip() in (b"1", b"true")
        elif treatment == _CONNECTION:
            named += b"," + value.lower()
        elif treatment != _DROP:
            error = error or _read_framing(head, treatment, value)
    if not head.request_id:
        head.request_id = mint_request_id()
    head.forwarded = _without_named(head, named, forwarded) if named else forwarded
    if hosts > 1:
        error = error or ApiError(ApiErrorKind.INVALID, "host: this header stands more than once", param="host")
    return error


def _treatment_of(name: bytes) -> int:
    key = name.lower()
    treatment = _TREATMENT.get(key)
    if treatment is None:
        treatment = _DROP if key.startswith(_OWN_PREFIX) else _FORWARD
    if len(_known) < _MAX_NAMES_KEPT:
        _known[name] = treatment
    return treatment


def mint_request_id() -> str:
    """A fresh id for a request that came without one."""
    return f"req-{_process_nonce}{next(_numbers):010x}"


def _read_framing(head: RequestHead, treatment: int, value: bytes) -> ApiError | None:
    text = value.strip().lower()
    if treatment == _TRANSFER_ENCODING:
        # Anything but exactly "chunked" is read differently by different servers.
        if text != b"chunked" or head.chunked or head.http10:
            return ApiError(ApiErrorKind.INVALID, "transfer-encoding: only `chunked` on HTTP/1.1 is understood")
        head.chunked = True
    elif treatment == _EXPECT:
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


def _without_named(head: RequestHead, named: bytes, forwarded: bytes) -> bytes:
    """Drop the fields that `Connection` declares to be hop-by-hop."""
    tokens = {token.strip() for token in named.split(b",")} - {b"", b"close", b"keep-alive"}
    head.upgrade = b"upgrade" in tokens
    if not tokens:
        return forwarded
    lines = forwarded.splitlines(keepends=True)
    return b"".join([line for line in lines if line.partition(b":")[0].lower() not in tokens])


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
