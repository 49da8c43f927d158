"""Watches a relayed SSE stream for the three things the router must know: its end, an error in it, its usage.

Bytes are passed on untouched, in whole events: the part of a chunk behind its last blank line waits for the rest, so
that a stream that breaks never leaves half an event with the client. On the usual chunk this costs a few substring
searches; JSON is parsed only for an event that names `"error"`, and once at the end for usage.
"""

from typing import Any

import msgspec

from tidegate_router.upstream.usage import usage_of

_DONE_EVENT = b"data: [DONE]\n\n"
_MAX_HELD_BYTES = 1 << 20


class EventStreamWatch:
    """State of one stream. `done` once `[DONE]` passed, `failed` once the worker sent an error event."""

    __slots__ = ("_held", "_usage_events", "_whole", "done", "failed")

    def __init__(self) -> None:
        self._held = b""
        self._usage_events = b""
        self._whole = True
        self.done = False
        self.failed = False

    @property
    def mid_event(self) -> bool:
        """Whether the client was given part of an event (one too large to hold) and not its end."""
        return not self._whole

    def feed(self, chunk: bytes) -> bytes:
        """The bytes that may go to the client now, b"" while an event is incomplete.

        Nothing comes back after `done` or `failed`: what follows either is not part of an answer.
        """
        if self.done or self.failed:
            return b""
        if self._held:
            chunk = self._held + chunk
            self._held = b""
        if not chunk.endswith(b"\n\n"):
            chunk = self._split(chunk)
            if not chunk:
                return b""
        else:
            self._whole = True
        if b'"error"' in chunk:
            chunk = self._find_error(chunk)
        usage_at = chunk.rfind(b'"usage"')
        if usage_at >= 0 and chunk[usage_at + 7 : usage_at + 24].lstrip(b" \t:")[:1] == b"{":
            self._usage_events = chunk
        if b"[DONE]" in chunk:
            chunk = self._find_done(chunk)
        return chunk

    def finish(self) -> bytes:
        """What is left when the worker ended its body: the tail of a last event that lacked its blank line.

        Only a `[DONE]` counts as one; half an event of anything else is dropped and the stream is incomplete.
        """
        held, self._held = self._held, b""
        if not self.done and not self.failed and _payload(held.strip()) == b"[DONE]":
            self.done = True
            return _DONE_EVENT
        return b""

    def usage(self) -> Any:
        """The worker's last usage object as a `Usage`, None when it sent none that can be read."""
        for event in reversed(_events(self._usage_events)):
            usage = usage_of(_payload(event))
            if usage is not None:
                return usage
        return None

    def _split(self, chunk: bytes) -> bytes:
        """Keep what follows the last blank line for later."""
        end = max(chunk.rfind(b"\n\n") + 2, chunk.rfind(b"\r\n\r\n") + 4, chunk.rfind(b"\r\r") + 2)
        if end < 5:
            end = _small_boundary(chunk)
        if end > 0:
            self._whole = True
            self._held = chunk[end:]
            return chunk[:end]
        if len(chunk) > _MAX_HELD_BYTES:
            self._whole = False
            return chunk
        self._held = chunk
        return b""

    def _find_error(self, chunk: bytes) -> bytes:
        """Note an error event; what stands behind it is cut off."""
        position = 0
        for event in _events(chunk):
            position = chunk.index(event, position) + len(event)
            if b'"error"' in event and _is_error(event):
                self.failed = True
                return chunk[:position] + b"\n\n"
        return chunk

    def _find_done(self, chunk: bytes) -> bytes:
        """Note the end; what stands behind it is cut off."""
        if chunk.endswith(_DONE_EVENT) and (len(chunk) == len(_DONE_EVENT) or chunk[-len(_DONE_EVENT) - 1] in b"\r\n"):
            self.done = True
            return chunk
        position = 0
        for event in _events(chunk):
            start = chunk.index(event, position)
            position = start + len(event)
            if _payload(event) == b"[DONE]":
                self.done = True
                return chunk[:position] + b"\n\n"
        return chunk


def _small_boundary(chunk: bytes) -> int:
    """End of a blank line within the first bytes of a chunk, 0 when there is none."""
    for boundary in (b"\r\n\r\n", b"\n\n", b"\r\r"):
        at = chunk.rfind(boundary)
        if at >= 0:
            return at + len(boundary)
    return 0


def _events(stream: bytes) -> list[bytes]:
    """Events of a stream of whole events, without their blank lines."""
    if b"\r" in stream:
        return [event for part in stream.split(b"\r\n\r\n") for event in _events_of_lf(part)]
    return _events_of_lf(stream)


def _events_of_lf(stream: bytes) -> list[bytes]:
    return [event for event in stream.split(b"\n\n") if event.strip()]


def _payload(event: bytes) -> bytes:
    """The data of an event: its `data:` lines, joined."""
    lines = [line for line in event.splitlines() if line.startswith(b"data:")]
    return b"\n".join(line[5:].strip() for line in lines)


def _is_error(event: bytes) -> bool:
    if event.lstrip().startswith(b"event: error") or b"\nevent: error" in event:
        return True
    try:
        payload = msgspec.json.decode(_payload(event))
    except (ValueError, RecursionError):
        return False
    return isinstance(payload, dict) and bool(payload.get("error"))
