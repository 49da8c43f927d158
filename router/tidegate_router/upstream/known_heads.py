"""Heads of HTTP messages seen before: who speaks to the router says the same thing again and again.

A head is taken apart into what differs from message to message (the digits of its content-length, its x-request-id)
and the exact bytes around them, the key. Whoever parsed a head in full may keep what came of it under its key; the
next head with that key means the same but for the two values, which are checked here as strictly as a parser would.

Memory is bounded: few heads, each small, and all are dropped when there are too many.
"""

from typing import Generic, TypeVar

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

Parts = tuple[bytes, int, int, bytes]
"""Key, where the body begins, content-length, x-request-id (empty when there is none)."""

_KnownT = TypeVar("_KnownT")


def take_apart(data: bytes) -> Parts | None:
    """The parts of the head at the start of `data`; None when it is not whole, or not of the plain kind."""
    end = data.find(_END)
    if not 0 < end <= MAX_HEAD_BYTES:
        return None
    at = data.find(_LENGTH, 0, end) + len(_LENGTH)
    stop = data.find(b"\r", at)
    digits = data[at:stop]
    if at < len(_LENGTH) or not digits.isdigit() or len(digits) > _MAX_DIGITS:
        return None
    body = end + 4
    id_at = data.find(_ID, 0, end)
    if id_at < 0:
        return data[:at] + data[stop:body], body, int(digits), b""
    return _with_id(data, (at, stop, body), id_at + _ID_LINE_REST)


def _with_id(data: bytes, length_at: tuple[int, int, int], id_at: int) -> Parts | None:
    at, stop, body = length_at
    id_stop = data.find(b"\r", id_at)
    value = data[id_at:id_stop]
    if not value.replace(b"-", b"").isalnum() or len(value) > _MAX_ID_BYTES:
        return None
    if id_at < at:
        key = data[:id_at] + data[id_stop:at] + data[stop:body]
    else:
        key = data[:at] + data[stop:id_at] + data[id_stop:body]
    return key, body, int(data[at:stop]), value


class KnownHeads(Generic[_KnownT]):
    """What came of heads, by key."""

    __slots__ = ("_known", "get")

    def __init__(self) -> None:
        self._known: dict[bytes, _KnownT] = {}
        self.get = self._known.get

    def keep(self, head: bytes, parts: Parts, meaning: _KnownT) -> None:
        """Remember a head that was parsed in full, unless taking it apart could have misread it."""
        if not _is_plain(head[: parts[1]], with_id=bool(parts[3])):
            return
        if len(self._known) >= _MAX_HEADS:
            self._known.clear()
        self._known[parts[0]] = meaning


def _is_plain(head: bytes, *, with_id: bool) -> bool:
    """Whether lines end in CRLF alone, and what was cut out were the values of the fields that it seemed to be."""
    lines = head.count(b"\r\n")
    if head.count(b"\r") != lines or head.count(b"\n") != lines:
        return False
    lower = head.lower()
    if lower.count(_LENGTH_LINE) != 1 or head.find(_LENGTH) != lower.find(_LENGTH_LINE) + _TO_LENGTH:
        return False
    ids = lower.count(_ID_LINE)
    return (ids == 1 and head.find(_ID) == lower.find(_ID_LINE) + _TO_ID) if with_id else not ids
