"""Waiting for something to become true, without a sleep in a test."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(read: Callable[[], T], accept: Callable[[T], bool], *, seconds: float = 10.0) -> T:
    """Read until a value is accepted and return it; AssertionError with the last value when time runs out."""
    deadline = time.monotonic() + seconds
    while True:
        value = read()
        if accept(value):
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s; last value: {value!r}")
        time.sleep(0.02)
