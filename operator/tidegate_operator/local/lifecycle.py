"""Pure: the phases of a process and of a pool, and what follows when a process ends by itself."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

USER_ERROR_EXIT = 2


class Phase(StrEnum):
    """Where a process or a pool stands.

    Pending → Starting → Ready ⇄ Unready; an exit leads to Restarting and Starting again, or to Failed; the end is
    Stopping → Stopped. A pool, never a process, is Degraded while it serves with less than it should have.
    """

    PENDING = "Pending"
    STARTING = "Starting"
    READY = "Ready"
    UNREADY = "Unready"
    DEGRADED = "Degraded"
    RESTARTING = "Restarting"
    FAILED = "Failed"
    STOPPING = "Stopping"
    STOPPED = "Stopped"


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How patient a supervisor is with a process that ends by itself."""

    initial_seconds: float = 0.5
    """Wait before the first restart."""
    factor: float = 2.0
    """Growth of the wait with every further crash."""
    max_seconds: float = 30.0
    """Longest wait."""
    healthy_seconds: float = 30.0
    """After being Ready this long, earlier crashes are forgiven."""
    max_user_errors: int = 3
    """Exits with code 2 in a row after which the process is left Failed: its arguments will not mend themselves."""


@dataclass(frozen=True, slots=True)
class RestartAfter:
    """Start it again after a wait."""

    seconds: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Leave it ended until a person changes something."""


class CrashHistory:
    """What the exits of one process so far lead to. Holds no clock."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._crashes = 0
        self._user_errors = 0

    def exited(self, code: int, ready_seconds: float) -> RestartAfter | GiveUp:
        """What to do after an exit with `code`, having been Ready for `ready_seconds` (0 when it never was)."""
        policy = self._policy
        if ready_seconds >= policy.healthy_seconds:
            self._crashes = 0
        self._user_errors = self._user_errors + 1 if code == USER_ERROR_EXIT else 0
        if self._user_errors >= policy.max_user_errors:
            return GiveUp()
        # Capped in the exponent too, so that a process which crashes for a week does not overflow a float.
        wait = policy.initial_seconds * policy.factor ** min(self._crashes, 32)
        self._crashes += 1
        return RestartAfter(min(wait, policy.max_seconds))


def describe_exit(code: int) -> str:
    """`exit code 1` or `signal 9`, from a return code as `subprocess` gives it."""
    return f"signal {-code}" if code < 0 else f"exit code {code}"


_WORST_FIRST = (Phase.STOPPING, Phase.FAILED, Phase.RESTARTING, Phase.UNREADY, Phase.STARTING, Phase.PENDING)


def pool_phase(workers: Iterable[Phase], router: Phase, *, was_ready: bool) -> Phase:
    """The phase of a pool: the worst among its processes', Ready only when all are.

    One that was Ready is Degraded while its router and any of its workers are.
    """
    serving = set(workers)
    present = {*serving, router}
    if was_ready and Phase.READY in serving and router is Phase.READY and len(present) > 1:
        return Phase.DEGRADED
    for phase in _WORST_FIRST:
        if phase in present:
            return phase
    return Phase.READY if Phase.READY in present else Phase.STOPPED
