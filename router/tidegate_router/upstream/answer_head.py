"""Head of a worker's answer, read once: what relaying looks at, and the lines that go on to the client."""

import msgspec
from tidegate_proto import sse

# What is not passed on: hop-by-hop (RFC 9110, section 7.6.1), rewritten by the router, or the router's to say.
_DROPPED = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"proxy-authenticate",
        b"te",
        b"trailer",
        b"upgrade",
        b"server",
        b"x-request-id",
    },
)
_OWN_PREFIX = b"x-tidegate-"
_MAX_NAMES_KEPT = 256

_PASSED, _DROP, _LENGTH, _FRAMING, _TYPE, _RETRY = range(6)
_SPECIAL = {
    b"content-length": _LENGTH,
    b"transfer-encoding": _FRAMING,
    b"content-type": _TYPE,
    b"retry-after": _RETRY,
}
# Workers send few different names, always in the same case: each is looked at once.
_known: dict[bytes, int] = {}


class AnswerHead(msgspec.Struct, gc=False):
    """`passed` is header lines for the client, each with its CRLF."""

    status: int
    passed: bytes = b""
    content_type: bytes = b""
    content_length: int | None = None
    retry_after: bytes | None = None
    ends_with_connection: bool = True
    is_event_stream: bool = False
    """A success whose body is server-sent events."""
    is_json: bool = False
    """A 200 that claims to be JSON."""

    def again(self, content_length: int) -> "AnswerHead":
        """The same head before a body of another length."""
        head: AnswerHead = self.__copy__()  # type: ignore[attr-defined]  # msgspec's stubs leave it out
        head.content_length = content_length
        return head


def read_answer_head(status: int, fields: list[tuple[bytes, bytes]]) -> AnswerHead:
    """What the router needs of a head that the parser has accepted."""
    head = AnswerHead(status)
    passed = b""
    for name, value in fields:
        kind = _known.get(name)
        if kind is None:
            kind = _kind_of(name)
        if kind == _DROP:
            continue
        if kind == _LENGTH:
            head.content_length = int(value)
            head.ends_with_connection = False
            continue
        if kind == _FRAMING:
            head.ends_with_connection = False
            continue
        if kind == _TYPE:
            head.content_type = value
        elif kind == _RETRY:
            head.retry_after = value
        passed += b"%b: %b\r\n" % (name, value)
    head.passed = passed
    head.is_event_stream = 200 <= status < 300 and head.content_type.startswith(sse.CONTENT_TYPE)
    head.is_json = status == 200 and head.content_type.startswith(b"application/json")
    return head


def _kind_of(name: bytes) -> int:
    key = name.lower()
    kind = _SPECIAL.get(key, _PASSED)
    if key in _DROPPED or key.startswith(_OWN_PREFIX):
        kind = _DROP
    if len(_known) < _MAX_NAMES_KEPT:
        _known[name] = kind
    return kind
