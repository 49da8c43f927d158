"""`tidegate up`: a pool in the foreground, or left running behind."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from rich.console import Console
from tidegate_crds.inference_pool import InferencePool
from tidegate_operator.local.daemon import start_detached
from tidegate_operator.local.launch import Launch, LaunchOptions, launch
from tidegate_operator.local.lifecycle import Phase
from tidegate_operator.local.state import PoolState, ProcessState
from tidegate_operator.local.supervisor import Ending, Outcome, Supervisor
from tidegate_operator.plan.local import worker_names

from tidegate_cli.console import ConsoleObserver, say

EXIT_CODES = {Ending.STOPPED: 0, Ending.FAILED: 2, Ending.TIMED_OUT: 1}

WhenReady = Callable[[Supervisor], Awaitable[None]]


def run_foreground(pool: InferencePool, options: LaunchOptions, out: Console, err: Console) -> int:
    """Run a pool until Ctrl-C or SIGTERM; the exit code. Raises LocalError when it cannot start."""
    outcome = serve(launch(pool, options), out)
    if outcome.message:
        say(err, f"error: pool {pool.metadata.name}: {outcome.message}")
    return EXIT_CODES[outcome.ending]


def serve(started: Launch, console: Console, when_ready: WhenReady | None = None) -> Outcome:
    """Run an owned pool to its end, shown on `console`; `when_ready` gets the supervisor, to stop it if it wants."""
    plan = started.plan
    with started.lock, ConsoleObserver(console, plan.pool, len(plan.processes)) as observer:
        return asyncio.run(_supervise(started, observer, when_ready))


async def _supervise(started: Launch, observer: ConsoleObserver, when_ready: WhenReady | None) -> Outcome:
    supervisor = started.supervisor(observer)
    if when_ready is None:
        return await supervisor.run()
    return await supervisor.run(lambda: when_ready(supervisor))


def run_detached(manifest: Path, pool: InferencePool, options: LaunchOptions, out: Console, err: Console) -> int:
    """Leave a pool running behind once it is Ready; the exit code."""
    name = pool.metadata.name
    with ConsoleObserver(out, name, len(worker_names(pool)) + 1) as observer:
        shown: dict[str, ProcessState] = {}

        def progress(state: PoolState) -> None:
            for process in state.processes:
                before = shown.get(process.name)
                entered = (process.phase, process.message)
                if entered != ((before.phase, before.message) if before else (Phase.PENDING, "")):
                    observer.changed(process)
                shown[process.name] = process

        started = start_detached(manifest, name, options, progress)
        if started.code == 0 and started.state is not None:
            observer.ready(started.state)
            say(out, f"it runs on; `tidegate status`, `tidegate logs router`, `tidegate down {name}`", "dim")
            return 0
    say(err, f"error: pool {name}: {started.message or 'its supervisor ended'}")
    return started.code or 1
