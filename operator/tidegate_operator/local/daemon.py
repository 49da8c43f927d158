"""A supervisor that outlives the terminal: started as its own session, watched until its pool is Ready."""

import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tidegate_operator.local.launch import LaunchOptions
from tidegate_operator.local.lifecycle import Phase
from tidegate_operator.local.state import PoolFolder, PoolState

_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Detached:
    """How the start of a detached supervisor went."""

    code: int
    """0 when the pool is Ready; otherwise the supervisor's exit code."""
    message: str
    state: PoolState | None


def start_detached(
    manifest: Path, pool: str, options: LaunchOptions, progress: Callable[[PoolState], None]
) -> Detached:
    """Start a supervisor in its own session and wait until its pool is Ready or it gave up.

    `progress` sees every state it writes. Interrupting the wait ends the supervisor as well.
    """
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            _arguments(manifest, options),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
        try:
            state = _follow(process, PoolFolder(options.home, pool), progress)
        except BaseException:
            process.terminate()
            process.wait()
            raise
        code = process.poll()
        if code is None:
            # Not ours to wait for any more; without this Popen would warn about a running child.
            process.returncode = 0
            return Detached(0, "", state)
        said.seek(0)
        message = said.read().decode(errors="replace").strip()
        return Detached(code or 1, message or (state.message if state else ""), state)


def _follow(
    process: subprocess.Popen[bytes], folder: PoolFolder, progress: Callable[[PoolState], None]
) -> PoolState | None:
    shown: PoolState | None = None
    while True:
        ended = process.poll() is not None
        state = folder.read()
        if state is not None and state.supervisor.pid == process.pid:
            if state != shown:
                shown = state
                progress(state)
            if state.phase is Phase.READY and not ended:
                return shown
        if ended:
            return shown
        time.sleep(_POLL_SECONDS)


def _arguments(manifest: Path, options: LaunchOptions) -> list[str]:
    arguments = [options.programs.python, "-P", "-m", "tidegate_operator.local", str(manifest)]
    arguments += ["--state-home", str(options.home.absolute())]
    arguments += ["--worker-module", options.programs.worker, "--router-module", options.programs.router]
    if options.settings.ready_timeout_seconds is not None:
        arguments += ["--timeout-seconds", str(options.settings.ready_timeout_seconds)]
    return arguments
