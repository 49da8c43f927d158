"""Reads what a worker says about tokens, whatever types it uses."""

from typing import Any

import msgspec

from tidegate_router.tickets.ticket import Usage


class _Answer(msgspec.Struct):
    """The one field of an answer that is looked at; the rest is checked to be JSON and skipped."""

    usage: Any = None


_DECODER = msgspec.json.Decoder(_Answer)


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
        usage = _DECODER.decode(payload).usage
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
