"""Which pool or process a person means, and what other terminals may do with it."""

import signal
import time
from dataclasses import dataclass
from pathlib import Path

from tidegate_operator.local.errors import LocalError, UnknownPoolError
from tidegate_operator.local.identity import ProcessIdentity
from tidegate_operator.local.lifecycle import Phase
from tidegate_operator.local.state import PoolFolder, PoolState, pool_folders

SUPERVISOR_LOG = "supervisor"
"""Name of the log that a detached supervisor writes."""

_POLL_SECONDS = 0.1
_KILL_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class KnownPool:
    """A pool with a state on disk."""

    folder: PoolFolder
    state: PoolState
    owned: bool
    """Whether its supervisor lives; the state is a memory otherwise."""

    stale: bool = False
    """Whether the state on disk is out of date although its supervisor lives: it cannot write a newer one."""

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
            pools.append(KnownPool(folder, state, owned, stale=owned and folder.marked_stale()))
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
        candidates = [pool for pool in candidates if process in _log_names(pool)] or candidates
    if len(candidates) > 1:
        which = ", ".join(f"{pool.folder.pool}/{process}" for pool in candidates)
        raise UnknownPoolError(f"say which: {which}")
    pool = candidates[0]
    names = _log_names(pool)
    if process not in names:
        raise UnknownPoolError(f"pool {pool.folder.pool} has no process {process}; it has {', '.join(names)}")
    return pool, pool.folder.log(process)


def _log_names(pool: KnownPool) -> list[str]:
    names = [known.name for known in pool.state.processes]
    return [*names, SUPERVISOR_LOG] if pool.folder.log(SUPERVISOR_LOG).exists() else names


def stop_pool(pool: KnownPool, timeout_seconds: float) -> bool:
    """Have the pool's supervisor drain and end everything; whether it did so by itself within the time.

    When it did not, it is killed, and its children end with it.
    """
    if _signal_until_gone(pool.folder, signal.SIGTERM, timeout_seconds):
        return True
    if not _signal_until_gone(pool.folder, signal.SIGKILL, _KILL_SECONDS):
        raise LocalError(f"the supervisor of pool {pool.folder.pool} (pid {pool.state.supervisor.pid}) cannot be ended")
    return False


def _signal_until_gone(folder: PoolFolder, number: int, timeout_seconds: float) -> bool:
    """Signal the supervisor once and wait until nobody owns the pool; whether that was so in time.

    The state is read anew each time: one that has just taken over the pool is written a moment after the lock is had.
    """
    signalled: set[ProcessIdentity] = set()
    deadline = time.monotonic() + timeout_seconds
    while folder.owned():
        state = folder.read()
        if state is not None and state.supervisor not in signalled:
            signalled.add(state.supervisor)
            state.supervisor.signal(number)
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _running(running: list[KnownPool]) -> str:
    return "running: " + ", ".join(pool.folder.pool for pool in running) if running else "no pool is running"
