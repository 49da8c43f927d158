"""Exec wrapper: ties a process to its parent's life, then becomes the program.

Run as `python -m tidegate_operator.local.tether PARENT_PID PROGRAM ARG…`. The kernel sends SIGKILL when the parent
ends, however it ends; the setting survives `exec`. Nothing is imported that the program does not pay for anyway.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(argv: list[str]) -> None:
    """Replace this process by `argv[1:]`; ends with 127 when there is no such program, or the parent is gone."""
    parent = int(argv[0])
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        # The parent ended before the signal was armed: nobody would ever stop this process.
        sys.exit(127)
    try:
        os.execvp(argv[1], argv[1:])  # noqa: S606 - an argument list, no shell
    except OSError as error:
        sys.stderr.write(f"cannot run {argv[1]}: {error.strerror}\n")
        sys.exit(127)


if __name__ == "__main__":
    main(sys.argv[1:])
