"""The state folder: what a supervisor tells other terminals, and how only one of them owns a pool.

One folder a pool holds `lock`, `state.json`, `router.yaml` and `logs/`. The supervisor holds an exclusive `flock` on
`lock` for as long as it lives; the kernel lets go of it however the supervisor ends, so a lock that can be had means
that the state is stale. `state.json` is replaced atomically: a reader sees an old state or a new one, no half of one.
A supervisor that cannot write it (a full disk) dates it 1970, which needs no room: what it says is then out of date.
"""

import contextlib
import errno
import fcntl
import os
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import msgspec

from tidegate_operator.local.errors import AlreadyRunningError, StateError
from tidegate_operator.local.identity import ProcessIdentity
from tidegate_operator.local.lifecycle import Phase
from tidegate_operator.plan.local import Role


class ProcessState(msgspec.Struct, frozen=True, kw_only=True):
    """One process as its supervisor sees it."""

    name: str
    role: Role
    phase: Phase
    url: str
    identity: ProcessIdentity | None = None
    """The running process; None while there is none."""
    restarts: int = 0
    since_unix_seconds: float
    """When the phase began."""
    message: str = ""
    """Why it is in this phase, in one line for people."""


class PoolState(msgspec.Struct, frozen=True, kw_only=True):
    """One pool as its supervisor sees it."""

    pool: str
    phase: Phase
    endpoint: str
    model: str
    supervisor: ProcessIdentity
    processes: tuple[ProcessState, ...]
    message: str = ""
    """Why the supervisor gave up, for people."""


def state_home(environ: Mapping[str, str]) -> Path:
    """The folder that holds every pool's: $TIDEGATE_STATE_HOME, $XDG_STATE_HOME/tidegate or ~/.local/state/tidegate."""
    if own := environ.get("TIDEGATE_STATE_HOME"):
        return Path(own)
    if shared := environ.get("XDG_STATE_HOME"):
        return Path(shared) / "tidegate"
    return Path(environ.get("HOME") or Path.home()) / ".local" / "state" / "tidegate"


def unwritable(folder: Path, error: OSError) -> StateError:
    """What to say of a state folder that cannot be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        todo = "make room, or set TIDEGATE_STATE_HOME to a folder on another disk"
    else:
        todo = "set TIDEGATE_STATE_HOME to another"
    return StateError(f"cannot write the state folder {folder}: {error.strerror}; {todo}")


class PoolFolder:
    """The state folder of one pool."""

    def __init__(self, home: Path, pool: str) -> None:
        self.pool = pool
        self.path = home / pool
        self.logs = self.path / "logs"
        self.router_config = self.path / "router.yaml"
        self._state = self.path / "state.json"
        self._lock = self.path / "lock"

    def log(self, process: str) -> Path:
        """The log file of a process, whether it exists or not."""
        return self.logs / f"{process}.log"

    def acquire(self) -> BinaryIO:
        """Become the pool's supervisor; hold the returned file open for as long as that is so.

        Raises AlreadyRunningError when another process is, StateError when the folder cannot be written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.logs.mkdir(exist_ok=True)
            lock = self._lock.open("ab")
        except OSError as error:
            raise self._unwritable(error) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.close()
            raise AlreadyRunningError(
                f"pool {self.pool} is up already; stop it with `tidegate down {self.pool}`"
            ) from error
        return lock

    def owned(self) -> bool:
        """Whether a supervisor owns the pool now."""
        try:
            lock = self._lock.open("rb")
        except OSError:
            return False
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return True
        return False

    def read(self) -> PoolState | None:
        """The last state written, stale or not; None when there is none or it is of another version."""
        try:
            return msgspec.json.decode(self._state.read_bytes(), type=PoolState)
        except (OSError, msgspec.DecodeError):
            return None

    def marked_stale(self) -> bool:
        """Whether the state's writer said that it could not write a newer one."""
        try:
            return self._state.stat().st_mtime == 0
        except OSError:
            return False

    def mark_stale(self) -> None:
        """Tell readers that the state on disk is out of date; takes no room there."""
        with contextlib.suppress(OSError):
            os.utime(self._state, (0, 0))

    def write(self, state: PoolState) -> None:
        """Replace the state; raises StateError, and leaves the old one, when it cannot be written."""
        self._replace(self._state, msgspec.json.format(msgspec.json.encode(state), indent=2))

    def write_last(self, state: PoolState) -> None:
        """Replace the state of a pool that has ended; without room for it there is no state, rather than a wrong one.

        Raises StateError when not even that is possible.
        """
        try:
            self.write(state)
        except StateError:
            try:
                self._state.unlink(missing_ok=True)
            except OSError as error:
                raise self._unwritable(error) from error
            # The old state's room may be enough for the new one.
            with contextlib.suppress(StateError):
                self.write(state)

    def write_router_config(self, text: str) -> None:
        """Replace the file that the router reads; raises StateError."""
        self._replace(self.router_config, text.encode())

    def _replace(self, path: Path, content: bytes) -> None:
        draft = path.with_suffix(".draft")
        try:
            draft.write_bytes(content)
            draft.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> StateError:
        return unwritable(self.path, error)


def pool_folders(home: Path) -> list[PoolFolder]:
    """Folders of all pools that ever ran here, by name."""
    try:
        return [PoolFolder(home, path.name) for path in sorted(home.iterdir()) if (path / "lock").exists()]
    except OSError:
        return []
