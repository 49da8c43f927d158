"""The local plan: an `InferencePool` as worker processes and one router process on loopback.

Pure: ports, file names and the machine's size come in, argument lists and a `RouterConfig` come out. The same input
gives the same plan, so a restarted process always gets the arguments its peers already know it by.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec
from tidegate_crds.inference_pool import InferencePool, WorkerSpec
from tidegate_crds.router_config import EndpointSpec, RouterConfig
from tidegate_crds.router_spec import ListenSpec

LOOPBACK = "127.0.0.1"
ROUTER_NAME = "router"
WORKER_MODULE = "tidegate_worker"
ROUTER_MODULE = "tidegate_router"
MAX_ENDPOINT_NAME = 63
MAX_NAMES_SHOWN = 3
MAX_PARTS_SHOWN = 20
MAX_WORKERS_PER_CORE = 8
MIN_WORKER_BYTES = 256 << 20
"""What a worker's two processes take before they hold any model."""

# Logs in time, and no import from whatever folder the command was given in (`python -m` would look there first).
_PYTHON_ENVIRONMENT = {"PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"}

Role = Literal["worker", "router"]


class PlanError(Exception):
    """A valid manifest that cannot run as local processes; the message names the field and what to change."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What the plan must fit on."""

    cores: int
    """CPU cores that this user may keep busy, at least 1."""
    memory_bytes: int | None = None
    """Memory of the machine or of the container; None where that is unknown."""


@dataclass(frozen=True, slots=True)
class WorkerPorts:
    """The two ports of one worker, kept over its restarts."""

    http: int
    telemetry: int


@dataclass(frozen=True, slots=True)
class Programs:
    """What is run: `python -m worker` and `python -m router`."""

    python: str
    worker: str = WORKER_MODULE
    router: str = ROUTER_MODULE


@dataclass(frozen=True, slots=True)
class Placement:
    """Everything that the machine decides and the manifest does not."""

    router_port: int
    """The router's port, never 0: a free one is chosen before planning."""
    worker_ports: tuple[WorkerPorts, ...]
    """One entry per worker process, in the order of `worker_names`."""
    config_path: str
    """Where the router will find its `RouterConfig`."""
    programs: Programs


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    """One process that should run."""

    name: str
    role: Role
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    """Added to the supervisor's own environment."""
    url: str
    """`http://host:port`; GET `/ready` there answers 200 once it serves."""
    drain_seconds: float
    """How long it may take from SIGTERM to its exit."""


@dataclass(frozen=True, slots=True)
class LocalPlan:
    """All processes of a pool, and the document its router reads."""

    pool: str
    model: str
    """The canonical served name, for requests."""
    workers: tuple[ProcessPlan, ...]
    router: ProcessPlan
    router_config: RouterConfig

    @property
    def endpoint(self) -> str:
        """The URL that clients use."""
        return self.router.url

    @property
    def processes(self) -> tuple[ProcessPlan, ...]:
        """Workers first, then the router."""
        return (*self.workers, self.router)


def worker_names(pool: InferencePool) -> tuple[str, ...]:
    """Names of the pool's worker processes, set by set: `cpu-0`, `cpu-1`, `big-0`.

    Raises PlanError when there is none, or when a name would be too long for the router.
    """
    for index, workers in enumerate(pool.spec.workers):
        longest = f"{workers.name}-{max(workers.replicas - 1, 0)}"
        if len(longest) > MAX_ENDPOINT_NAME:
            allowed = MAX_ENDPOINT_NAME - (len(longest) - len(workers.name))
            raise PlanError(f"spec.workers[{index}].name: at most {allowed} characters, as replicas are numbered")
    names = tuple(name for _, name in _replicas(pool))
    if not names:
        raise PlanError("spec.workers: no worker has replicas; set spec.workers[0].replicas to 1 or more")
    return names


def check_fits(pool: InferencePool, machine: Machine) -> None:
    """Raise PlanError for more workers than could get anything done on `machine`.

    The bounds are generous, 8 workers a core and 256 MiB for each: they stop slips, and leave sizing to people.
    """
    count = sum(workers.replicas for workers in pool.spec.workers)
    most, why = machine.cores * MAX_WORKERS_PER_CORE, f"{MAX_WORKERS_PER_CORE} for each of {machine.cores} cores"
    if machine.memory_bytes is not None and machine.memory_bytes // MIN_WORKER_BYTES < most:
        most = max(1, machine.memory_bytes // MIN_WORKER_BYTES)
        why = f"at least {MIN_WORKER_BYTES >> 20} MiB for each out of {machine.memory_bytes / (1 << 30):.1f} GiB"
    if count > most:
        raise PlanError(
            f"spec.workers: {count} workers are too many for this machine, at most {most} ({why}); "
            "lower spec.workers[].replicas"
        )


def workers_summary(pool: InferencePool) -> str:
    """The names of the pool's worker processes, long runs of them shortened: `big-0, cpu-0 … cpu-99 (100)`."""
    parts = []
    for workers in pool.spec.workers:
        names = [f"{workers.name}-{replica}" for replica in range(min(workers.replicas, MAX_NAMES_SHOWN))]
        if workers.replicas > MAX_NAMES_SHOWN:
            last = workers.replicas - 1
            names = [f"{workers.name}-0 … {workers.name}-{last} ({workers.replicas})"]
        parts += names
    if len(parts) > MAX_PARTS_SHOWN:
        parts = [*parts[:MAX_PARTS_SHOWN], f"… and {len(parts) - MAX_PARTS_SHOWN} more"]
    return ", ".join(parts)


def local_notes(pool: InferencePool) -> tuple[str, ...]:
    """What this pool asks for and one machine does not do, each in one line for people."""
    replicas = pool.spec.router.replicas
    if replicas > 1:
        return (f"spec.router.replicas is {replicas}; on one machine a single router is run",)
    return ()


def plan_local(pool: InferencePool, machine: Machine, placement: Placement) -> LocalPlan:
    """The processes that realise `pool` on one machine.

    A worker gets max(1, cores ÷ workers) threads unless its set says otherwise: two workers with all cores each run
    several times slower than two that share them. Raises PlanError as `worker_names` does.
    """
    names = worker_names(pool)
    if len(placement.worker_ports) != len(names):
        raise ValueError(f"{len(names)} workers need as many port pairs, got {len(placement.worker_ports)}")
    share = max(1, machine.cores // len(names))
    workers = tuple(
        _worker(pool, workers, name, ports, workers.threads or share, placement.programs)
        for (workers, name), ports in zip(_replicas(pool), placement.worker_ports, strict=True)
    )
    config = _router_config(pool, workers, placement)
    router = ProcessPlan(
        name=ROUTER_NAME,
        role="router",
        argv=(placement.programs.python, "-m", placement.programs.router, "--config", placement.config_path),
        environment=_PYTHON_ENVIRONMENT,
        url=f"http://{_reachable(config.listen.host)}:{placement.router_port}",
        drain_seconds=config.timeouts.drain_seconds,
    )
    return LocalPlan(
        pool=pool.metadata.name,
        model=_served_names(pool)[0],
        workers=workers,
        router=router,
        router_config=config,
    )


def _replicas(pool: InferencePool) -> Iterator[tuple[WorkerSpec, str]]:
    for workers in pool.spec.workers:
        for replica in range(workers.replicas):
            yield workers, f"{workers.name}-{replica}"


def _served_names(pool: InferencePool) -> tuple[str, ...]:
    return pool.spec.model.served_names or (pool.metadata.name,)


def _worker(
    pool: InferencePool, workers: WorkerSpec, name: str, ports: WorkerPorts, threads: int, programs: Programs
) -> ProcessPlan:
    return ProcessPlan(
        name=name,
        role="worker",
        argv=(programs.python, "-m", programs.worker, *_worker_flags(pool, workers, ports, threads)),
        environment={
            "OMP_NUM_THREADS": str(threads),
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
            **_PYTHON_ENVIRONMENT,
        },
        url=f"http://{LOOPBACK}:{ports.http}",
        drain_seconds=pool.spec.router.timeouts.drain_seconds,
    )


def _worker_flags(pool: InferencePool, workers: WorkerSpec, ports: WorkerPorts, threads: int) -> Iterator[str]:
    model = pool.spec.model
    yield from ("--model", model.uri, "--host", LOOPBACK)
    yield from ("--port", str(ports.http), "--telemetry-port", str(ports.telemetry))
    for served_name in _served_names(pool):
        yield from ("--served-name", served_name)
    yield from ("--threads", str(threads), "--drain-seconds", f"{pool.spec.router.timeouts.drain_seconds:g}")
    if model.dtype != "auto":
        yield from ("--dtype", model.dtype)
    if model.context_tokens is not None:
        yield from ("--context-tokens", str(model.context_tokens))
    if workers.kv_cache.blocks is not None:
        yield from ("--kv-blocks", str(workers.kv_cache.blocks))
    if workers.kv_cache.memory_bytes is not None:
        yield from ("--kv-memory-bytes", str(workers.kv_cache.memory_bytes))
    yield from pool.spec.engine.args
    yield from workers.args


def _router_config(pool: InferencePool, workers: tuple[ProcessPlan, ...], placement: Placement) -> RouterConfig:
    router = pool.spec.router
    endpoints = tuple(
        EndpointSpec(url=worker.url, telemetry=f"{LOOPBACK}:{ports.telemetry}", name=worker.name)
        for worker, ports in zip(workers, placement.worker_ports, strict=True)
    )
    fields = msgspec.structs.asdict(router)
    fields["listen"] = ListenSpec(host=router.listen.host, port=placement.router_port)
    fields["replicas"] = 1
    return RouterConfig(api_version="router.tidegate.dev/v1alpha1", kind="RouterConfig", endpoints=endpoints, **fields)


def _reachable(host: str) -> str:
    if host in ("0.0.0.0", ""):
        return LOOPBACK
    if ":" in host:
        return "[::1]" if host == "::" else f"[{host}]"
    return host
