"""What a worker shows before it has loaded anything: its settings, and its last words. Imports nothing heavy."""

import sys
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The outside of a worker."""

    host: str
    port: int
    """0 takes a free one."""
    telemetry_port: int
    served_names: tuple[str, ...]
    max_body_bytes: int
    drain_seconds: float


def say(message: str) -> None:
    """One line for the person who started the worker."""
    print(f"tidegate-worker: {' '.join(message.split())}", file=sys.stderr, flush=True)  # noqa: T201 (last words)
