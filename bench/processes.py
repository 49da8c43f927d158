"""Child processes of a benchmark: pinned to a core, logged to a file, and gone when the benchmark is."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

import psutil

STOP_SECONDS = 5.0


class BenchError(Exception):
    """The benchmark cannot run here; the message says what to change."""


class PinnedProcess:
    """One child on one CPU core. Leaving the context ends it and everything it started.

    The kernel kills the child if the benchmark dies (parent-death signal), so nothing outlives it.
    """

    def __init__(
        self, command: Sequence[str], *, core: int | None, log: Path, environment: dict[str, str] | None = None
    ) -> None:
        self.log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [*pinned(core), *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **(environment or {})},
            )

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def cpu_seconds(self) -> float:
        """CPU time used so far by the child and its children."""
        root = psutil.Process(self._process.pid)
        times = [process.cpu_times() for process in [root, *root.children(recursive=True)]]
        return sum(used.user + used.system for used in times)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._signal_group(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=STOP_SECONDS)
        self._signal_group(signal.SIGKILL)
        self._process.wait()

    def _signal_group(self, number: signal.Signals) -> None:
        # The child leads its own process group, and a group id stays reserved while any member lives.
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return

    def tail(self, lines: int = 8) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def pinned(core: int | None) -> list[str]:
    """The command prefix that dies with its parent and, given a core, stays on it."""
    prefix = ["setpriv", "--pdeathsig", "KILL", "--"] if shutil.which("setpriv") else []
    return prefix if core is None else [*prefix, "taskset", "-c", str(core)]


def two_cores() -> tuple[int, int] | None:
    """Two cores that this process may use, or None where there is one only."""
    allowed = sorted(os.sched_getaffinity(0))
    return (allowed[0], allowed[1]) if len(allowed) > 1 and shutil.which("taskset") else None


def free_ports(count: int) -> list[int]:
    """Distinct TCP ports of loopback that nothing listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def await_http_ok(url: str, process: PinnedProcess, *, seconds: float = 30.0) -> None:
    """Wait until a GET of url answers 200; BenchError when the process ends or the time does."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if process.exit_code is not None:
            raise BenchError(f"it ended with exit code {process.exit_code}:\n{process.tail()}")
        try:
            with urllib.request.urlopen(url, timeout=1) as answer:  # noqa: S310 - a loopback http URL made here
                if answer.status == 200:
                    return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.05)
    raise BenchError(f"{url} did not answer 200 within {seconds:.0f} s:\n{process.tail()}")


def interrupt_on_sigterm() -> None:
    """Make SIGTERM unwind like Ctrl-C, so that every context ends its children."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
