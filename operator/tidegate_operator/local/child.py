"""One supervised process: started, probed, restarted, stopped.

A child leads its own session, so that Ctrl-C in the terminal reaches the supervisor alone, and its process group can be
ended as one. After every exit the rest of the group is killed: an orphaned engine would hold memory and cores that
the restarted worker needs.
"""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from tidegate_operator.local import logs, probe
from tidegate_operator.local.identity import identify
from tidegate_operator.local.lifecycle import (
    CrashHistory,
    GiveUp,
    Phase,
    RestartPolicy,
    describe_exit,
)
from tidegate_operator.local.state import ProcessState
from tidegate_operator.plan.local import ProcessPlan

NOT_STARTED_EXIT = 127
_TETHER = "tidegate_operator.local.tether"


@dataclass(frozen=True, slots=True)
class ProbePolicy:
    """How often a process is asked whether it is ready."""

    first_seconds: float = 0.1
    """Between the first two probes after a start."""
    factor: float = 1.5
    """Growth of the wait with every further probe until it is ready."""
    ready_seconds: float = 1.0
    """Between two probes at most, and from then on."""
    timeout_seconds: float = 2.0
    failures: int = 3
    """Failed probes in a row that make a Ready process Unready; it is not killed for that."""


class GroupRegistry(Protocol):
    """Told of process groups that must not outlive the supervisor."""

    def add(self, group: int) -> None: ...
    def remove(self, group: int) -> None: ...


@dataclass(frozen=True, slots=True)
class ChildSettings:
    """What all children of a supervisor share."""

    restarts: RestartPolicy
    probes: ProbePolicy
    groups: GroupRegistry
    changed: Callable[[], None]
    """Called after every change of a child's state."""


class Child:
    """Owns one process and its restarts; `state` is always current."""

    def __init__(self, plan: ProcessPlan, log: Path, settings: ChildSettings) -> None:
        self.plan = plan
        self.log = log
        self.state = ProcessState(
            name=plan.name, role=plan.role, phase=Phase.PENDING, url=plan.url, since_unix_seconds=time.time()
        )
        self._settings = settings
        self._history = CrashHistory(settings.restarts)
        self._process: asyncio.subprocess.Process | None = None
        self._ready_at: float | None = None
        self._log_start = 0
        self._start_error = ""
        self._stop = asyncio.Event()

    async def run(self) -> None:
        """Keep the process running until `stop`, or until it fails for good."""
        while not self._stop.is_set():
            code = await self._run_once()
            if self._stop.is_set():
                break
            ready_seconds = 0.0 if self._ready_at is None else time.monotonic() - self._ready_at
            verdict = self._history.exited(code, ready_seconds)
            reason = self._reason(code)
            if isinstance(verdict, GiveUp):
                self._set(Phase.FAILED, reason)
                return
            self._set(Phase.RESTARTING, f"{reason}; next start in {verdict.seconds:g} s")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), verdict.seconds)
            self.state = msgspec.structs.replace(self.state, restarts=self.state.restarts + 1)
        self._set(Phase.STOPPED)

    async def stop(self, bound_seconds: float) -> None:
        """SIGTERM, and SIGKILL for the whole group when it has not ended within the bound."""
        self._stop.set()
        process = self._process
        if process is None or process.returncode is not None:
            return
        self._set(Phase.STOPPING)
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), bound_seconds)
        except TimeoutError:
            self.kill()
            await process.wait()

    def kill(self) -> None:
        """SIGKILL for the whole group, at once."""
        self._stop.set()
        process = self._process
        if process is not None and process.returncode is None:
            _kill_group(process.pid)

    def last_words(self, count: int = 8) -> str:
        """The last lines that the process wrote since its latest start."""
        return logs.reason_lines(self.log, count, begin=self._log_start)

    async def _run_once(self) -> int:
        """Start the process, probe it while it runs, clean up after it; its return code."""
        self._ready_at = None
        self._start_error = ""
        self._log_start = logs.size(self.log)
        try:
            process = await self._start()
        except OSError as error:
            # No memory or no process slot: as passing as a crash, and answered like one.
            self._start_error = f"cannot start {self.plan.name}: {error.strerror}"
            with contextlib.suppress(OSError), self.log.open("a") as log:
                log.write(f"{self._start_error}\n")
            return NOT_STARTED_EXIT
        self._process = process
        self._settings.groups.add(process.pid)
        self.state = msgspec.structs.replace(self.state, identity=identify(process.pid))
        self._set(Phase.STARTING)
        if self._stop.is_set():
            _kill_group(process.pid)
        prober = asyncio.create_task(self._probe(), name=f"probe {self.plan.name}")
        try:
            return await process.wait()
        finally:
            prober.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await prober
            # The kernel reuses no pid that still names a group: this meets the orphans, or nobody.
            _kill_group(process.pid)
            self._settings.groups.remove(process.pid)
            self.state = msgspec.structs.replace(self.state, identity=None)

    async def _start(self) -> asyncio.subprocess.Process:
        with self.log.open("ab") as log:
            return await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                "-m",
                _TETHER,
                str(os.getpid()),
                *self.plan.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.plan.environment},
                start_new_session=True,
            )

    async def _probe(self) -> None:
        policy = self._settings.probes
        failures = 0
        wait = policy.first_seconds
        while True:
            if await probe.ready(self.plan.url, policy.timeout_seconds):
                failures = 0
                if self._ready_at is None:
                    self._ready_at = time.monotonic()
                if self.state.phase in (Phase.STARTING, Phase.UNREADY):
                    self._set(Phase.READY)
            else:
                failures += 1
                if self.state.phase is Phase.READY and failures >= policy.failures:
                    self._set(Phase.UNREADY, "GET /ready does not answer 200")
            await asyncio.sleep(wait if self.state.phase is Phase.STARTING else policy.ready_seconds)
            wait = min(wait * policy.factor, policy.ready_seconds)

    def _reason(self, code: int) -> str:
        """One line: the exit, and the log's last line where that is likely to be the cause.

        A process that a signal ended after it was ready had no time to say why.
        """
        if self._start_error:
            return self._start_error
        reason = f"ended with {describe_exit(code)}"
        if code > 0 or self._ready_at is None:
            line = self.last_words(1)
            return f"{reason} ({line})" if line else reason
        return reason

    def _set(self, phase: Phase, message: str = "") -> None:
        self.state = msgspec.structs.replace(self.state, phase=phase, message=message, since_unix_seconds=time.time())
        self._settings.changed()


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
