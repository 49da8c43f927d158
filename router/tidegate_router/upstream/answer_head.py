"""Head of a worker's answer, read once: what relaying looks at, and the lines that go on to the client."""

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


class AnswerHead:
    """`passed` is header lines for the client, each with its CRLF."""

    __slots__ = ("content_length", "content_type", "ends_with_connection", "passed", "retry_after", "status")

    def __init__(self, status: int, fields: list[tuple[bytes, bytes]]) -> None:
        self.status = status
        self.content_type = b""
        self.retry_after: bytes | None = None
        self.content_length: int | None = None
        self.ends_with_connection = True
        passed = b""
        for name, value in fields:
            kind = _known.get(name)
            if kind is None:
                kind = _kind_of(name)
            if kind == _DROP:
                continue
            if kind == _LENGTH:
                self.content_length = int(value)
                self.ends_with_connection = False
                continue
            if kind == _FRAMING:
                self.ends_with_connection = False
                continue
            if kind == _TYPE:
                self.content_type = value
            elif kind == _RETRY:
                self.retry_after = value
            passed += b"%b: %b\r\n" % (name, value)
        self.passed = passed


def _kind_of(name: bytes) -> int:
    key = name.lower()
    kind = _SPECIAL.get(key, _PASSED)
    if key in _DROPPED or key.startswith(_OWN_PREFIX):
        kind = _DROP
    if len(_known) < _MAX_NAMES_KEPT:
        _known[name] = kind
    return kind
