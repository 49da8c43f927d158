"""Reads what a worker says about tokens, whatever types it uses."""

from typing import Annotated, Any

import msgspec

from tidegate_router.tickets.ticket import Usage

_Count = Annotated[int, msgspec.Meta(ge=0)] | None


class _Details(msgspec.Struct, gc=False):
    cached_tokens: _Count = None


class _Counts(msgspec.Struct, gc=False):
    prompt_tokens: _Count = None
    completion_tokens: _Count = None
    prompt_tokens_details: _Details | None = None


class _Answer(msgspec.Struct, gc=False):
    """The one field of an answer that is looked at; the rest is checked to be JSON and skipped."""

    usage: _Counts | None = None


class _OddAnswer(msgspec.Struct):
    """An answer whose usage is not what it should be."""

    usage: Any = None


_decode = msgspec.json.Decoder(_Answer).decode
_decode_odd = msgspec.json.Decoder(_OddAnswer).decode


class NotJsonError(ValueError):
    """An answer that claims to be JSON and is not: cut short, or never whole."""


def usage_of(payload: bytes) -> Usage | None:
    """The usage in a JSON object, None when it has none or the bytes are no JSON."""
    try:
        return checked_usage(payload)
    except NotJsonError:
        return None


def checked_usage(payload: bytes) -> Usage | None:
    """The usage in a JSON answer; raises NotJsonError when the bytes are not one complete JSON value.

    Counts of a wrong type are unknown, never an error: an answer is the client's whatever its usage looks like.
    """
    try:
        counts = _decode(payload).usage
    except msgspec.ValidationError:
        return _odd_usage(payload)
    except (ValueError, RecursionError) as error:
        raise NotJsonError(str(error)) from error
    if counts is None:
        return None
    details = counts.prompt_tokens_details
    return Usage(counts.prompt_tokens, counts.completion_tokens, None if details is None else details.cached_tokens)


def _odd_usage(payload: bytes) -> Usage | None:
    try:
        usage = _decode_odd(payload).usage
    except msgspec.ValidationError:
        return None
    except (ValueError, RecursionError) as error:
        raise NotJsonError(str(error)) from error
    if not isinstance(usage, dict):
        return None
    details = usage.get("prompt_tokens_details")
    prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    # Exactly int: a bool is one too, and no count.
    return Usage(
        prompt_tokens=prompt if type(prompt) is int and prompt >= 0 else None,
        completion_tokens=completion if type(completion) is int and completion >= 0 else None,
        cached_tokens=cached if type(cached) is int and cached >= 0 else None,
    )
