"""The supervisor's end of the watchdog: one small process that outlives it just long enough to clean up."""

import contextlib
import subprocess
import sys

_WATCHDOG = "tidegate_operator.local.watchdog"
_EXIT_SECONDS = 5.0


class Guard:
    """Tells a watchdog which process groups to kill should this process die without a word."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", _WATCHDOG],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def add(self, group: int) -> None:
        """Kill this group, should the supervisor be gone."""
        self._tell(f"+{group}\n")

    def remove(self, group: int) -> None:
        """The group has ended."""
        self._tell(f"-{group}\n")

    def close(self) -> None:
        """End the watchdog; groups still listed are killed now."""
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        try:
            self._process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _tell(self, line: str) -> None:
        # Without its watchdog a supervisor still has the tethers: not a reason to stop serving.
        with contextlib.suppress(OSError, ValueError):
            if self._process.stdin is not None:
                self._process.stdin.write(line.encode())
                self._process.stdin.flush()
