"""Request bodies: read within a bound, decoded into typed structs, refused with the path of what is wrong.

A body that two parsers could read differently (the same member twice) is refused: the router in front decides by the
same bytes, and must not be shown another request than the engine.
"""

import re
from asyncio import timeout
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import msgspec
from tidegate_proto.openai_errors import ApiError, ApiErrorKind

from tidegate_worker.server.errors import ClientGoneError, RequestRefusedError, invalid

Receive = Callable[[], Awaitable[Mapping[str, Any]]]
T = TypeVar("T")

BODY_CHUNK_TIMEOUT_SECONDS = 60.0

_MEMBER = re.compile(rb'[\s{,]*"((?:[^"\\]|\\.)*)"\s*:\s*', re.DOTALL)
_PATH = re.compile(r"^(?P<what>.*?)(?: - at (?:the key in )?`\$\.?(?P<path>[^`]*)`)?$", re.DOTALL)
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])


async def read_body(receive: Receive, content_length: str | None, limit_bytes: int) -> bytes:
    """The whole request body. 413 over the limit (before reading, when the length is declared), 408 when it stalls."""
    if content_length is not None and content_length.isascii() and content_length.isdigit():
        _check_size(int(content_length), limit_bytes)
    body = bytearray()
    while True:
        try:
            async with timeout(BODY_CHUNK_TIMEOUT_SECONDS):
                message = await receive()
        except TimeoutError:
            raise RequestRefusedError(
                ApiError(ApiErrorKind.TIMEOUT, "the request body did not arrive in time")
            ) from None
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        body += message.get("body", b"")
        _check_size(len(body), limit_bytes)
        if not message.get("more_body", False):
            return bytes(body)


def decode(body: bytes, request_type: type[T]) -> tuple[T, dict[str, msgspec.Raw]]:
    """The typed request, and every top-level member as raw JSON (also those the type does not know).

    Raises `RequestRefusedError` (400) for anything that is not one JSON object of the right shape.
    """
    try:
        if not body.isascii():
            body.decode()  # the decoder skips members that it does not know without reading their text
        members = _members.decode(body)
        _refuse_repeated_members(body, members)
        return msgspec.json.decode(body, type=request_type), members
    except msgspec.ValidationError as error:
        raise _wrong_shape(error) from None
    except msgspec.DecodeError as error:
        raise invalid(f"the request body is not valid JSON: {error}") from None
    except UnicodeDecodeError:
        raise invalid("the request body is not valid UTF-8") from None
    except RecursionError:
        raise invalid("the request body is nested too deeply") from None


def _check_size(size: int, limit_bytes: int) -> None:
    if size > limit_bytes:
        raise RequestRefusedError(
            ApiError(
                ApiErrorKind.TOO_LARGE, f"the request body is larger than this worker's limit of {limit_bytes} bytes"
            ),
        )


def _refuse_repeated_members(body: bytes, members: dict[str, msgspec.Raw]) -> None:
    """Walks the object with the decoded members: a member that occurs twice leaves bytes the walk cannot explain."""
    position = 0
    for name, raw in members.items():
        key = _MEMBER.match(body, position)
        value = bytes(raw)
        if key is None or not body.startswith(value, key.end()):
            raise invalid("a member of the request body occurs twice; send each only once", name)
        position = key.end() + len(value)
    if body[position:].strip(b" \t\r\n").lstrip(b"{").strip(b" \t\r\n") != b"}":
        raise invalid("a member of the request body occurs twice; send each only once")


def _wrong_shape(error: msgspec.ValidationError) -> RequestRefusedError:
    match = _PATH.match(str(error))
    what, path = (match["what"], match["path"]) if match else (str(error), None)
    missing = re.match(r"Object missing required field `(\w+)`", what)
    if missing:
        path = f"{path}.{missing[1]}" if path else missing[1]
        return invalid(f"'{path}' is required", path)
    what = what[:1].lower() + what[1:].replace("`", "")
    if not path:
        return invalid(f"the request body must be a JSON object of the documented shape: {what}")
    return invalid(f"'{path}': {what}", path)
