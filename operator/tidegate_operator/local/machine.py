"""How large this machine is for one user: cores by affinity, cores and memory also by the container's bounds."""

import math
import os
from pathlib import Path

from tidegate_operator.plan.local import Machine

_CGROUP = Path("/sys/fs/cgroup")


def this_machine() -> Machine:
    """The cores that processes started here may keep busy, and the memory that they share."""
    cores = len(os.sched_getaffinity(0))
    quota = quota_cores(_bound("cpu.max"))
    limit = _bound("memory.max").strip()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(
        cores=cores if quota is None else max(1, min(cores, quota)),
        memory_bytes=min(memory, int(limit)) if limit.isdigit() else memory,
    )


def _bound(name: str) -> str:
    try:
        return (_CGROUP / name).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return ""


def quota_cores(cpu_max: str) -> int | None:
    """Whole cores in a cgroup's `cpu.max` (`200000 100000` is 2), rounded up; None when there is no limit."""
    fields = cpu_max.split()
    if len(fields) != 2 or not all(field.isdigit() for field in fields):
        return None
    quota, period = (int(field) for field in fields)
    return math.ceil(quota / period) if period else None
