"""Which process is meant: a pid together with its start time, which no later process of the same pid shares."""

import contextlib
import os
import signal
from pathlib import Path

import msgspec

_STATE_FIELD = 0
_START_FIELD = 19


class ProcessIdentity(msgspec.Struct, frozen=True):
    """A process for as long as the machine is up."""

    pid: int
    started_ticks: int
    """Clock ticks from boot to its start (field 22 of `/proc/PID/stat`)."""

    def alive(self) -> bool:
        """Whether that very process still runs; a zombie does not."""
        fields = _stat_fields(self.pid)
        return fields is not None and fields[_STATE_FIELD] not in ("Z", "X") and _ticks(fields) == self.started_ticks

    def signal(self, number: int) -> bool:
        """Send a signal to that very process and no other; whether it was there to get it.

        The handle is opened before the identity is checked, so that the pid cannot change hands in between.
        """
        try:
            handle = os.pidfd_open(self.pid)
        except (ProcessLookupError, OSError):
            return False
        try:
            if not self.alive():
                return False
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, number)
            return True
        finally:
            os.close(handle)

    def kill_group(self) -> None:
        """SIGKILL for the process and, where it leads a group, for the whole group; nothing if it is gone."""
        if not self.alive():
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getpgid(self.pid) == self.pid:
                os.killpg(self.pid, signal.SIGKILL)
            else:
                os.kill(self.pid, signal.SIGKILL)


def identify(pid: int) -> ProcessIdentity | None:
    """The identity of a process that runs now; None when there is none of that pid."""
    fields = _stat_fields(pid)
    return None if fields is None else ProcessIdentity(pid=pid, started_ticks=_ticks(fields))


def _stat_fields(pid: int) -> list[str] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    # The second field is the program's name in brackets, and may hold spaces and brackets itself.
    return text[text.rfind(")") + 2 :].split()


def _ticks(fields: list[str]) -> int:
    return int(fields[_START_FIELD])
