"""How large this machine is for one user: cores by affinity and by the container's quota."""

import math
import os
from pathlib import Path

from tidegate_operator.plan.local import Machine

_CGROUP_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def this_machine() -> Machine:
    """The cores that processes started here may keep busy."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota = quota_cores(_CGROUP_QUOTA.read_text(encoding="ascii"))
    except OSError:
        quota = None
    return Machine(cores=cores if quota is None else max(1, min(cores, quota)))


def quota_cores(cpu_max: str) -> int | None:
    """Whole cores in a cgroup's `cpu.max` (`200000 100000` is 2), rounded up; None when there is no limit."""
    fields = cpu_max.split()
    if len(fields) != 2 or not all(field.isdigit() for field in fields):
        return None
    quota, period = (int(field) for field in fields)
    return math.ceil(quota / period) if period else None
