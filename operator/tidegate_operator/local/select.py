"""Which pool or process a person means, and what other terminals may do with it."""

import signal
import time
from dataclasses import dataclass
from pathlib import Path

from tidegate_operator.local.errors import LocalError, UnknownPoolError
from tidegate_operator.local.lifecycle import Phase
from tidegate_operator.local.state import PoolFolder, PoolState, pool_folders

_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class KnownPool:
    """A pool with a state on disk."""

    folder: PoolFolder
    state: PoolState
    owned: bool
    """Whether its supervisor lives; the state is a memory otherwise."""

    @property
    def died(self) -> bool:
        """The supervisor ended without saying so."""
        return not self.owned and self.state.phase not in (Phase.STOPPED, Phase.FAILED)


def known_pools(home: Path) -> list[KnownPool]:
    """All pools with a state on disk, by name."""
    pools = []
    for folder in pool_folders(home):
        # Asked before reading: a state read afterwards is at least as new as the answer.
        owned = folder.owned()
        state = folder.read()
        if state is not None:
            pools.append(KnownPool(folder, state, owned))
    return pools


def running_pool(home: Path, name: str | None) -> KnownPool:
    """The running pool of that name, or the only one; raises UnknownPoolError."""
    running = [pool for pool in known_pools(home) if pool.owned or pool.died]
    if name is not None:
        for pool in running:
            if pool.folder.pool == name:
                return pool
        raise UnknownPoolError(f"no pool {name} is running; {_running(running)}")
    if len(running) != 1:
        hint = "say which: " + ", ".join(pool.folder.pool for pool in running) if running else _running(running)
        raise UnknownPoolError(hint)
    return running[0]


def log_of(home: Path, target: str) -> tuple[KnownPool, Path]:
    """The log that `PROCESS` or `POOL/PROCESS` means; the pool may be stopped when it is the only one.

    Raises UnknownPoolError with the names that exist.
    """
    pool_name, _, process = target.rpartition("/")
    pools = known_pools(home)
    if pool_name:
        candidates = [pool for pool in pools if pool.folder.pool == pool_name]
    else:
        candidates = [pool for pool in pools if pool.owned] or pools
    if not candidates:
        raise UnknownPoolError(f"no pool {pool_name} is known here" if pool_name else "no pool was ever up here")
    if len(candidates) > 1:
        which = ", ".join(f"{pool.folder.pool}/{process}" for pool in candidates)
        raise UnknownPoolError(f"say which: {which}")
    pool = candidates[0]
    names = [known.name for known in pool.state.processes]
    if pool.folder.log(SUPERVISOR_LOG).exists():
        names.append(SUPERVISOR_LOG)
    if process not in names:
        raise UnknownPoolError(f"pool {pool.folder.pool} has no process {process}; it has {', '.join(names)}")
    return pool, pool.folder.log(process)


SUPERVISOR_LOG = "supervisor"
"""Name of the log that a detached supervisor writes."""


def stop_pool(pool: KnownPool, timeout_seconds: float) -> bool:
    """Have the pool's supervisor drain and end everything; whether it did so by itself within the time.

    When it did not, it is killed, and its children end with it.
    """
    supervisor = pool.state.supervisor
    deadline = time.monotonic() + timeout_seconds
    supervisor.signal(signal.SIGTERM)
    while pool.folder.owned() or supervisor.alive():
        if time.monotonic() >= deadline:
            supervisor.signal(signal.SIGKILL)
            _await_death(pool)
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _await_death(pool: KnownPool) -> None:
    deadline = time.monotonic() + 10.0
    while pool.folder.owned() and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    if pool.folder.owned():
        raise LocalError(f"the supervisor of pool {pool.folder.pool} (pid {pool.state.supervisor.pid}) cannot be ended")


def _running(running: list[KnownPool]) -> str:
    return "running: " + ", ".join(pool.folder.pool for pool in running) if running else "no pool is running"
