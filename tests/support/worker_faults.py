"""What can go wrong with a worker, and the script that does it on the wire."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from enum import Enum

from echo_answers import completion, error_event, events
from scripted_http import Request, Sender, head

LONG_STREAM_EVENTS = 2_000


class Fault(Enum):
    """What goes wrong with a chat completion; the health check and /v1/models are not affected."""

    NONE = "none"
    STREAM_WITHOUT_DONE = "the stream ends cleanly after its finish reason, no [DONE]"
    STREAM_CUT_SHORT = "the stream ends cleanly in the middle: no finish reason, no [DONE]"
    STREAM_CUT_IN_EVENT = "the stream ends cleanly in the middle of an event"
    STREAM_CLOSED = "a stream without length or chunks is closed in the middle"
    ERROR_EVENT_FIRST = "the first event of a 200 stream is an error"
    ERROR_EVENT_MIDDLE = "an error event after two pieces"
    TOO_FEW_BYTES = "closes before content-length is reached"
    TOO_MANY_BYTES = "sends more than content-length says"
    BROKEN_CHUNK = "a chunk size that is no number, after two pieces"
    RESET_BEFORE_FIRST_BYTE = "RST after the request was read"
    RESET_AFTER_FIRST_BYTE = "RST after two pieces"
    CLOSE_BEFORE_FIRST_BYTE = "FIN after the request was read"
    STALL_BEFORE_FIRST_BYTE = "reads the request and never answers"
    STALL_AFTER_HEADERS = "sends its status line and headers and nothing else"
    STALL_BETWEEN_CHUNKS = "stalls after two pieces"
    TOO_MANY_REQUESTS = "429 with Retry-After"
    BAD_REQUEST = "400, as for the client's mistake"
    MODEL_NOT_FOUND = "404 model_not_found"
    SERVER_ERROR = "500"
    UNAVAILABLE = "503"
    NOT_HTTP = "answers something that is not HTTP"
    HUGE_HEADERS = "an answer with a megabyte of headers"
    CLOSE_AT_REUSE = "answers well, and closes its connection when a second request comes on it"
    SLOW_DRIP = "a correct answer, a few bytes at a time"
    EARLY_HINTS = "a correct answer after 100 and 103 answers"
    LONG_STREAM = "a correct stream of eight megabytes"
    ENDLESS = "a stream that never ends, as fast as it is read"


STREAMS_ONLY = {Fault.STREAM_CLOSED, Fault.ERROR_EVENT_FIRST, Fault.ERROR_EVENT_MIDDLE, Fault.STREAM_WITHOUT_DONE}
"""Faults that only a request for a stream can meet."""

Script = Callable[[Request, Sender], Awaitable[None]]


def _user(request: Request) -> str:
    return str(request.document.get("user"))


async def answer_well(request: Request, sender: Sender) -> None:
    if not request.document.get("stream"):
        await sender.json(200, completion(_user(request)))
        return
    await _stream_head(sender)
    for event in events(_user(request)):
        await sender.chunk(event)
    await sender.chunk(b"")


async def _stream_head(sender: Sender) -> None:
    await sender.raw(head(200, "text/event-stream", "transfer-encoding: chunked"))


async def _begin_stream(request: Request, sender: Sender, count: int) -> None:
    """Headers and the first events; a request that wants no stream gets the first half of its JSON, chunked."""
    if request.document.get("stream"):
        await _stream_head(sender)
        for event in events(_user(request))[:count]:
            await sender.chunk(event)
        return
    await sender.raw(head(200, "application/json", "transfer-encoding: chunked"))
    body = json.dumps(completion(_user(request))).encode()
    await sender.chunk(body[: len(body) // 2])


async def _stream_without_done(request: Request, sender: Sender) -> None:
    await _begin_stream(request, sender, -1)
    await sender.chunk(b"")


async def _stream_cut_short(request: Request, sender: Sender) -> None:
    await _begin_stream(request, sender, 3)
    await sender.chunk(b"")


async def _stream_cut_in_event(request: Request, sender: Sender) -> None:
    await _begin_stream(request, sender, 3)
    await sender.chunk(events(_user(request))[3][:40])
    await sender.chunk(b"")


async def _stream_closed(request: Request, sender: Sender) -> None:
    await sender.raw(head(200, "text/event-stream", "connection: close"))
    await sender.raw(b"".join(events(_user(request))[:3]))
    sender.close()


async def _error_event_first(_request: Request, sender: Sender) -> None:
    await _stream_head(sender)
    await sender.chunk(error_event())
    await sender.chunk(b"")


async def _error_event_middle(request: Request, sender: Sender) -> None:
    await _begin_stream(request, sender, 3)
    await sender.chunk(error_event())
    await sender.chunk(b"")


async def _too_few_bytes(request: Request, sender: Sender) -> None:
    await _with_length(request, sender, 20)
    sender.close()


async def _too_many_bytes(request: Request, sender: Sender) -> None:
    await _with_length(request, sender, -20)


async def _with_length(request: Request, sender: Sender, off_by: int) -> None:
    """A whole answer, stream or not, whose content-length is off."""
    if not request.document.get("stream"):
        await sender.json(200, completion(_user(request)), length=off_by)
        return
    body = b"".join(events(_user(request)))
    await sender.raw(head(200, "text/event-stream", f"content-length: {len(body) + off_by}") + body)


async def _broken_chunk(request: Request, sender: Sender) -> None:
    await _begin_stream(request, sender, 3)
    await sender.raw(b"zz\r\nwhat\r\n0\r\n\r\n")


async def _reset_before(_request: Request, sender: Sender) -> None:
    sender.reset()


async def _reset_after(request: Request, sender: Sender) -> None:
    await _begin_stream(request, sender, 3)
    await asyncio.sleep(0.02)  # a reset at once would overtake the bytes before it
    sender.reset()


async def _close_before(_request: Request, sender: Sender) -> None:
    sender.close()


async def _stall_before(_request: Request, sender: Sender) -> None:
    await sender.hang()


async def _stall_after_headers(request: Request, sender: Sender) -> None:
    kind = "text/event-stream" if request.document.get("stream") else "application/json"
    await sender.raw(head(200, kind, "transfer-encoding: chunked"))
    await sender.hang()


async def _stall_between(request: Request, sender: Sender) -> None:
    await _begin_stream(request, sender, 3)
    await sender.hang()


def _status(status: int, error_type: str, code: str | None) -> Script:
    async def script(_request: Request, sender: Sender) -> None:
        error = {"message": "scripted answer", "type": error_type, "param": None, "code": code}
        extra = [f"retry-after: {sender.retry_after}"] if status == 429 else []
        await sender.json(status, {"error": error}, *extra)

    return script


async def _not_http(_request: Request, sender: Sender) -> None:
    await sender.raw(b"SSH-2.0-OpenSSH_9.2\r\nwhat is this\r\n\r\n")
    sender.close()


async def _huge_headers(request: Request, sender: Sender) -> None:
    await sender.json(200, completion(_user(request)), *(f"x-filler-{index}: {'f' * 1000}" for index in range(1000)))


async def _close_at_reuse(request: Request, sender: Sender) -> None:
    if not request.first_on_connection:
        sender.close()
    await answer_well(request, sender)


async def _slow_drip(request: Request, sender: Sender) -> None:
    if request.document.get("stream"):
        await _stream_head(sender)
        body = b"".join(b"%x\r\n%s\r\n" % (len(event), event) for event in events(_user(request))) + b"0\r\n\r\n"
    else:
        document = json.dumps(completion(_user(request))).encode()
        body = head(200, "application/json", f"content-length: {len(document)}") + document
    for start in range(0, len(body), 40):
        await sender.raw(body[start : start + 40])
        await asyncio.sleep(0.005)


async def _early_hints(request: Request, sender: Sender) -> None:
    await sender.raw(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </style>\r\n\r\n")
    await answer_well(request, sender)


async def _long_stream(request: Request, sender: Sender) -> None:
    first, *pieces, finish, done = events(_user(request))
    filler = _filler_event()
    await _stream_head(sender)
    await sender.chunk(first)
    for _ in range(LONG_STREAM_EVENTS - 3 - len(pieces)):
        await sender.chunk(filler)
    for event in (*pieces, finish, done, b""):
        await sender.chunk(event)


async def _endless(request: Request, sender: Sender) -> None:
    filler = _filler_event()
    await _stream_head(sender)
    await sender.chunk(events(_user(request))[0])
    while True:
        await sender.chunk(filler)


def _filler_event() -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": "x" * 4000}}]}).encode() + b"\n\n"


SCRIPTS: dict[Fault, Script] = {
    Fault.STREAM_WITHOUT_DONE: _stream_without_done,
    Fault.STREAM_CUT_SHORT: _stream_cut_short,
    Fault.STREAM_CUT_IN_EVENT: _stream_cut_in_event,
    Fault.STREAM_CLOSED: _stream_closed,
    Fault.ERROR_EVENT_FIRST: _error_event_first,
    Fault.ERROR_EVENT_MIDDLE: _error_event_middle,
    Fault.TOO_FEW_BYTES: _too_few_bytes,
    Fault.TOO_MANY_BYTES: _too_many_bytes,
    Fault.BROKEN_CHUNK: _broken_chunk,
    Fault.RESET_BEFORE_FIRST_BYTE: _reset_before,
    Fault.RESET_AFTER_FIRST_BYTE: _reset_after,
    Fault.CLOSE_BEFORE_FIRST_BYTE: _close_before,
    Fault.STALL_BEFORE_FIRST_BYTE: _stall_before,
    Fault.STALL_AFTER_HEADERS: _stall_after_headers,
    Fault.STALL_BETWEEN_CHUNKS: _stall_between,
    Fault.TOO_MANY_REQUESTS: _status(429, "rate_limit_error", "rate_limit_exceeded"),
    Fault.BAD_REQUEST: _status(400, "invalid_request_error", None),
    Fault.MODEL_NOT_FOUND: _status(404, "invalid_request_error", "model_not_found"),
    Fault.SERVER_ERROR: _status(500, "server_error", None),
    Fault.UNAVAILABLE: _status(503, "server_error", None),
    Fault.NOT_HTTP: _not_http,
    Fault.HUGE_HEADERS: _huge_headers,
    Fault.CLOSE_AT_REUSE: _close_at_reuse,
    Fault.SLOW_DRIP: _slow_drip,
    Fault.EARLY_HINTS: _early_hints,
    Fault.LONG_STREAM: _long_stream,
    Fault.ENDLESS: _endless,
}
