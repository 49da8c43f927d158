"""Ends what a killed supervisor leaves behind: the process groups of its children, grandchildren included.

The tether already kills direct children; a worker's engine process is not one. The watchdog reads `+PGID` and `-PGID`
lines from a pipe whose only writer is the supervisor; when the pipe ends it kills every group still listed. A clean
shutdown empties the list first.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Iterable


def groups_left(lines: Iterable[str]) -> set[int]:
    """The groups added and not removed by the end of `lines`; a torn last line is ignored."""
    groups: set[int] = set()
    for line in lines:
        sign, number = line[:1], line[1:].strip()
        if not line.endswith("\n") or not number.isdigit():
            continue
        if sign == "+":
            groups.add(int(number))
        elif sign == "-":
            groups.discard(int(number))
    return groups


def main() -> None:
    """Wait for the supervisor's end, then kill what it left."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for group in groups_left(sys.stdin):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
