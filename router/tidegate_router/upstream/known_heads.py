"""Heads of HTTP messages seen before: who speaks to the router says the same thing again and again.

A head is taken apart into what differs from message to message (the digits of its content-length, its x-request-id)
and the exact bytes around them, the key. Whoever parsed a head in full may keep what came of it under its key; the
next head with that key means the same but for the two values, which are checked here as strictly as a parser would.

Memory is bounded: few heads, each small, and all are dropped when there are too many.
"""

from typing import Generic, NamedTuple, TypeVar

MAX_HEAD_BYTES = 4_096
_MAX_HEADS = 512
_MAX_DIGITS = 12
_MAX_ID_BYTES = 128
_END = b"\r\n\r\n"
_LENGTH = b"ength: "
_LENGTH_LINE = b"\r\ncontent-length: "
_ID = b"equest-"
_ID_LINE = b"\r\nx-request-id: "
_TO_LENGTH = _LENGTH_LINE.index(_LENGTH)
_TO_ID = _ID_LINE.index(_ID)
_ID_LINE_REST = len(_ID_LINE) - _TO_ID

_KnownT = TypeVar("_KnownT")


class Parts(NamedTuple):
    """A head taken apart, and what stands behind it."""

    key: bytes
    head: bytes
    """Without its blank line."""
    body: bytes
    """What follows the head in the same read: the body, a part of it, or more."""
    content_length: int
    request_id: bytes
    """The value of x-request-id, empty when there is none."""


def take_apart(data: bytes) -> Parts | None:
    """The parts of the head at the start of `data`; None when it is not whole, or not of the plain kind."""
    # `partition` rather than `find` and slices: several times as fast on short bytes.
    head, end, body = data.partition(_END)
    before, _, rest = head.partition(_LENGTH)
    digits, _, after = rest.partition(b"\r\n")
    if not digits.isdigit() or not end or len(digits) > _MAX_DIGITS or len(head) > MAX_HEAD_BYTES:
        return None
    if _ID in head:
        return _with_id(head, body, digits)
    # No head that a parser accepts has a NUL in it.
    return Parts(before + b"\0" + after, head, body, int(digits), b"")


def _with_id(head: bytes, body: bytes, digits: bytes) -> Parts | None:
    id_at = head.find(_ID) + _ID_LINE_REST
    value = head[id_at:].partition(b"\r")[0]
    if not value.replace(b"-", b"").isalnum() or len(value) > _MAX_ID_BYTES:
        return None
    without = head[:id_at] + b"\0" + head[id_at + len(value) :]
    before, _, rest = without.partition(_LENGTH)
    left, _, after = rest.partition(b"\r\n")
    if left != digits:
        return None
    return Parts(before + b"\0" + after, head, body, int(digits), value)


class KnownHeads(Generic[_KnownT]):
    """What came of heads, by key."""

    __slots__ = ("_known", "get")

    def __init__(self) -> None:
        self._known: dict[bytes, _KnownT] = {}
        self.get = self._known.get

    def keep(self, parts: Parts, meaning: _KnownT) -> None:
        """Remember a head that was parsed in full, unless taking it apart could have misread it."""
        if not _is_plain(parts.head, with_id=bool(parts.request_id)):
            return
        if len(self._known) >= _MAX_HEADS:
            self._known.clear()
        self._known[parts.key] = meaning


def _is_plain(head: bytes, *, with_id: bool) -> bool:
    """Whether lines end in CRLF alone, and what was cut out were the values of the fields that it seemed to be."""
    lines = head.count(b"\r\n")
    if head.count(b"\r") != lines or head.count(b"\n") != lines or b"\0" in head:
        return False
    lower = head.lower()
    if lower.count(_LENGTH_LINE) != 1 or head.find(_LENGTH) != lower.find(_LENGTH_LINE) + _TO_LENGTH:
        return False
    ids = lower.count(_ID_LINE)
    return (ids == 1 and head.find(_ID) == lower.find(_ID_LINE) + _TO_ID) if with_id else not ids
