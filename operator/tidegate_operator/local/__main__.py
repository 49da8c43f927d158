"""A detached supervisor: `python -m tidegate_operator.local POOL.yaml`, as `tidegate up --detach` starts it.

What stops it from starting is said on the caller's standard error; from then on its own log is written.
"""

import argparse
import asyncio
import contextlib
import os
import sys
import time
from pathlib import Path

from tidegate_crds.decoding import load_pool
from tidegate_crds.errors import ManifestError

from tidegate_operator.local import logs
from tidegate_operator.local.errors import LocalError
from tidegate_operator.local.launch import Launch, LaunchOptions, launch
from tidegate_operator.local.select import SUPERVISOR_LOG
from tidegate_operator.local.state import PoolState, ProcessState
from tidegate_operator.local.supervisor import Ending, Outcome, SupervisorSettings
from tidegate_operator.plan.local import ROUTER_MODULE, WORKER_MODULE, PlanError, Programs

_EXIT_CODES = {Ending.STOPPED: 0, Ending.FAILED: 2, Ending.TIMED_OUT: 1}


class LogObserver:
    """Writes one line per event."""

    def changed(self, process: ProcessState) -> None:
        """A process entered another phase."""
        self._say(f"{process.name} {process.phase} {process.message}".rstrip())

    def ready(self, pool: PoolState) -> None:
        """All processes are Ready."""
        self._say(f"pool {pool.pool} Ready at {pool.endpoint}")

    def stopping(self) -> None:
        """The shutdown begins."""
        self._say("stopping")

    def notice(self, text: str) -> None:
        """Something that a person should know."""
        self._say(text)

    def _say(self, line: str) -> None:
        print(time.strftime("%Y-%m-%dT%H:%M:%S%z"), line, flush=True)


def main() -> int:
    """Run the pool until SIGTERM; 2 for what a person must mend, 1 when it was not Ready in time."""
    parser = argparse.ArgumentParser(prog="python -m tidegate_operator.local")
    parser.add_argument("manifest", type=Path)
    parser.add_argument("--state-home", type=Path, required=True)
    parser.add_argument("--worker-module", default=WORKER_MODULE)
    parser.add_argument("--router-module", default=ROUTER_MODULE)
    parser.add_argument("--timeout-seconds", type=float, default=None)
    arguments = parser.parse_args()
    options = LaunchOptions(
        home=arguments.state_home,
        programs=Programs(sys.executable, arguments.worker_module, arguments.router_module),
        settings=SupervisorSettings(ready_timeout_seconds=arguments.timeout_seconds),
    )
    try:
        started = launch(load_pool(arguments.manifest.read_text(encoding="utf-8")), options)
    except (ManifestError, PlanError, LocalError, OSError, UnicodeDecodeError) as error:
        print(error, file=sys.stderr)
        return 2
    caller = os.dup(sys.stderr.fileno())
    try:
        with started.lock:
            _log_from_here(started)
            outcome = asyncio.run(_run(started))
    except (LocalError, OSError) as error:
        os.write(caller, f"{error}\n".encode(errors="replace"))
        return 2
    finally:
        os.close(caller)
    if outcome.message:
        with contextlib.suppress(OSError):
            print(outcome.message, flush=True)
    return _EXIT_CODES[outcome.ending]


async def _run(started: Launch) -> Outcome:
    return await started.supervisor(LogObserver()).run()


def _log_from_here(started: Launch) -> None:
    log = started.folder.log(SUPERVISOR_LOG)
    logs.rotate(log)
    with log.open("ab") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())


if __name__ == "__main__":
    sys.exit(main())
