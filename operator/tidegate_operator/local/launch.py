"""From a manifest to a supervisor that may start: the pool is owned, the port is free, nothing stale is left."""

import os
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import msgspec
from tidegate_crds.inference_pool import InferencePool

from tidegate_operator.local.errors import PortInUseError, StateError
from tidegate_operator.local.identity import ProcessIdentity, identify
from tidegate_operator.local.lifecycle import Phase
from tidegate_operator.local.machine import this_machine
from tidegate_operator.local.ports import check_bindable, choose_ports
from tidegate_operator.local.state import PoolFolder
from tidegate_operator.local.supervisor import Observer, Supervisor, SupervisorSettings
from tidegate_operator.plan.local import (
    LocalPlan,
    Placement,
    PlanError,
    Programs,
    WorkerPorts,
    check_fits,
    plan_local,
    worker_names,
)
from tidegate_operator.plan.worker_args import planned_flag_errors


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """What is asked of a launch beside the manifest."""

    home: Path
    """Folder of all pools' state."""
    programs: Programs
    """The worker and router modules, and the interpreter for them."""
    settings: SupervisorSettings = field(default_factory=SupervisorSettings)
    other_port_if_taken: bool = False
    """Take a free router port when the manifest's is in use, instead of PortInUseError."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A pool that this process owns and may now run."""

    plan: LocalPlan
    folder: PoolFolder
    lock: BinaryIO
    """Closing it gives the pool up."""
    settings: SupervisorSettings
    identity: ProcessIdentity

    def supervisor(self, observer: Observer) -> Supervisor:
        """The supervisor; to be made inside the event loop that runs it."""
        return Supervisor(self.plan, self.folder, self.identity, observer, self.settings)


def launch(pool: InferencePool, options: LaunchOptions) -> Launch:
    """Own the pool and plan it; nothing is started yet.

    Raises PlanError, AlreadyRunningError, PortInUseError or StateError, each before any process exists.
    """
    check_fits(pool, this_machine())
    if errors := planned_flag_errors(pool):
        raise PlanError("\n".join(errors))
    count = len(worker_names(pool))
    _check_access_log(pool)
    identity = _own_identity()
    folder = PoolFolder(options.home, pool.metadata.name)
    lock = folder.acquire()
    try:
        end_survivors(folder)
        rng = random.SystemRandom()
        router_port = _router_port(pool, rng, other_if_taken=options.other_port_if_taken)
        ports = choose_ports(2 * count, rng, avoid=frozenset({router_port}))
        placement = Placement(
            router_port=router_port,
            worker_ports=tuple(WorkerPorts(*pair) for pair in zip(ports[::2], ports[1::2], strict=True)),
            config_path=str(folder.router_config),
            programs=options.programs,
        )
        plan = plan_local(pool, this_machine(), placement)
    except BaseException:
        lock.close()
        raise
    return Launch(plan=plan, folder=folder, lock=lock, settings=options.settings, identity=identity)


def end_survivors(folder: PoolFolder) -> int:
    """Kill what a dead supervisor left, if anything; how many processes. The caller owns the pool.

    Raises StateError when that cannot be written down; all have ended then, too.
    """
    state = folder.read()
    if state is None:
        return 0
    left = [process.identity for process in state.processes if process.identity is not None]
    alive = [identity for identity in left if identity.alive()]
    for identity in alive:
        identity.kill_group()
    processes = tuple(
        msgspec.structs.replace(process, identity=None, phase=Phase.STOPPED) for process in state.processes
    )
    folder.write_last(msgspec.structs.replace(state, phase=Phase.STOPPED, processes=processes))
    return len(alive)


def _check_access_log(pool: InferencePool) -> None:
    """Raise PlanError where the router could not append to its access log."""
    written = pool.spec.router.access_log.path
    if written in ("", "-"):
        return
    path = Path(written)
    if path.is_dir():
        raise PlanError(f"spec.router.accessLog.path: {written} is a folder; name a file in it")
    if not path.parent.is_dir():
        raise PlanError(f"spec.router.accessLog.path: there is no folder {path.parent}; make it, or name another file")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise PlanError(f"spec.router.accessLog.path: {written} cannot be written")


def _own_identity() -> ProcessIdentity:
    identity = identify(os.getpid())
    if identity is None:
        raise StateError("local pools need Linux with /proc mounted, to tell processes apart")
    return identity


def _router_port(pool: InferencePool, rng: random.Random, *, other_if_taken: bool) -> int:
    listen = pool.spec.router.listen
    if listen.port != 0:
        try:
            check_bindable(listen.host, listen.port)
        except PortInUseError:
            if not other_if_taken:
                raise
        else:
            return listen.port
    return choose_ports(1, rng, host=listen.host)[0]
