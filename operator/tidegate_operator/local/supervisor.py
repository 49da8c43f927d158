"""The supervisor of one local pool: all children started, watched and, at the end, drained in order.

The router goes first, so that no new request reaches a worker that is leaving; then the workers; what does not end
within its drain time is killed. When `run` returns, no process is left and no port bound.
"""

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from tidegate_crds.encoding import dump_router_config

from tidegate_operator.local import logs
from tidegate_operator.local.child import Child, ChildSettings, ProbePolicy
from tidegate_operator.local.errors import StateError
from tidegate_operator.local.guard import Guard
from tidegate_operator.local.identity import ProcessIdentity
from tidegate_operator.local.lifecycle import Phase, RestartPolicy, pool_phase
from tidegate_operator.local.state import PoolFolder, PoolState, ProcessState, unwritable
from tidegate_operator.plan.local import LocalPlan

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Observer(Protocol):
    """Sees what happens, to show it; must not block for long."""

    def changed(self, process: ProcessState) -> None:
        """A process entered another phase."""

    def ready(self, pool: PoolState) -> None:
        """All processes are Ready for the first time."""

    def stopping(self) -> None:
        """The shutdown begins."""

    def notice(self, text: str) -> None:
        """Something that a person should know and that ends nothing."""


class Ending(StrEnum):
    """Why `run` returned."""

    STOPPED = "stopped"
    FAILED = "failed"
    TIMED_OUT = "timed out"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run of a pool ended."""

    ending: Ending
    message: str = ""
    """What to tell a person; empty after a stop that was asked for."""


@dataclass(frozen=True, slots=True)
class SupervisorSettings:
    """A supervisor's patience."""

    ready_timeout_seconds: float | None = None
    """From the start until all are Ready; no limit when None."""
    restarts: RestartPolicy = field(default_factory=RestartPolicy)
    probes: ProbePolicy = field(default_factory=ProbePolicy)
    kill_after_drain_seconds: float = 5.0
    """What a process gets on top of its own drain time before it is killed."""
    state_retry_seconds: float = 1.0
    """Between two attempts to write a state that could not be written."""
    log_check_seconds: float = 30.0
    """Between two looks at the size of logs."""


class Supervisor:
    """Owns every process of one pool from start to end."""

    def __init__(
        self,
        plan: LocalPlan,
        folder: PoolFolder,
        identity: ProcessIdentity,
        observer: Observer,
        settings: SupervisorSettings,
    ) -> None:
        self.plan = plan
        self._folder = folder
        self._identity = identity
        self._observer = observer
        self._settings = settings
        self._children: list[Child] = []
        self._shown: dict[str, tuple[Phase, str]] = {}
        self._wake = asyncio.Event()
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._message = ""
        self._was_ready = False
        self._unwritten = False

    @property
    def stopping(self) -> bool:
        """Whether the shutdown was asked for or has begun."""
        return self._stop.is_set()

    def request_stop(self) -> None:
        """Begin the shutdown; asked again, kill at once."""
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()
        self._wake.set()

    async def run(self, when_ready: Callable[[], Awaitable[None]] | None = None) -> Outcome:
        """Serve until a signal, `request_stop`, or a failure before the pool was ever Ready.

        `when_ready` runs once beside the pool when all processes are Ready; an exception in it ends the pool and is
        raised from here after the shutdown. Raises StateError, before anything is started, when the state folder
        cannot be written.
        """
        self._folder.write_router_config(dump_router_config(self.plan.router_config))
        guard = Guard()
        begun = False
        try:
            self._children = self._make_children(guard)
            self._folder.write(self.state())
            begun = True
            with _signal_handlers(self.request_stop):
                return await self._run_children(when_ready)
        finally:
            guard.close()
            if begun:
                self._publish_last()

    def state(self) -> PoolState:
        """The pool as it is now."""
        processes = tuple(child.state for child in self._children)
        stopping = self._stop.is_set() and any(child.identity is not None for child in processes)
        return PoolState(
            pool=self.plan.pool,
            phase=Phase.STOPPING if stopping else self._phase(),
            endpoint=self.plan.endpoint,
            model=self.plan.model,
            supervisor=self._identity,
            processes=processes,
            message=self._message,
        )

    def _phase(self) -> Phase:
        phases = {child.plan.name: child.state.phase for child in self._children}
        router = phases.pop(self.plan.router.name, Phase.STOPPED)
        return pool_phase(phases.values(), router, was_ready=self._was_ready)

    def _make_children(self, guard: Guard) -> list[Child]:
        settings = ChildSettings(
            restarts=self._settings.restarts, probes=self._settings.probes, groups=guard, changed=self._changed
        )
        children = []
        for process in self.plan.processes:
            log = self._folder.log(process.name)
            try:
                logs.rotate(log)
            except OSError as error:
                raise unwritable(self._folder.path, error) from error
            children.append(Child(process, log, settings))
        return children

    async def _run_children(self, when_ready: Callable[[], Awaitable[None]] | None) -> Outcome:
        tasks = [asyncio.create_task(child.run(), name=child.plan.name) for child in self._children]
        upkeep = [
            asyncio.create_task(self._bound_logs(), name="logs"),
            asyncio.create_task(self._retry_publishing(), name="state"),
        ]
        tasks += upkeep
        for task in tasks:
            task.add_done_callback(lambda _: self._wake.set())
        beside: asyncio.Task[None] | None = None
        try:
            outcome = await self._until_ready(tasks)
            if outcome is None:
                self._was_ready = True
                with contextlib.suppress(OSError):
                    self._observer.ready(self.state())
                if when_ready is not None:
                    beside = asyncio.create_task(_awaited(when_ready))
                    beside.add_done_callback(lambda done: self.request_stop() if _raised(done) else None)
                outcome = await self._until_stop(tasks)
        finally:
            await self._shut_down(tasks, upkeep)
            if beside is not None:
                await _ended(beside)
        if beside is not None and not beside.cancelled() and (error := beside.exception()) is not None:
            raise error
        return outcome

    async def _until_ready(self, tasks: list[asyncio.Task[None]]) -> Outcome | None:
        """None once all are Ready; why not, otherwise."""
        try:
            async with asyncio.timeout(self._settings.ready_timeout_seconds):
                while not self._stop.is_set():
                    self._wake.clear()
                    _raise_bugs(tasks)
                    phase = self.state().phase
                    if phase is Phase.READY:
                        return None
                    if phase is Phase.FAILED:
                        return self._gave_up(Ending.FAILED, self._failure())
                    await self._wake.wait()
        except TimeoutError:
            limit = f"not Ready within {self._settings.ready_timeout_seconds:g} s"
            return self._gave_up(Ending.TIMED_OUT, f"{limit}\n{self._laggards()}")
        return Outcome(Ending.STOPPED)

    async def _until_stop(self, tasks: list[asyncio.Task[None]]) -> Outcome:
        while not self._stop.is_set():
            self._wake.clear()
            _raise_bugs(tasks)
            await self._wake.wait()
        return Outcome(Ending.STOPPED)

    def _gave_up(self, ending: Ending, message: str) -> Outcome:
        self._message = message
        return Outcome(ending, message)

    def _failure(self) -> str:
        failed = [child for child in self._children if child.state.phase is Phase.FAILED]
        return "\n".join(self._with_log(child, "failed") for child in failed)

    def _laggards(self) -> str:
        late = [child for child in self._children if child.state.phase is not Phase.READY]
        return "\n".join(self._with_log(child, f"is {child.state.phase}") for child in late)

    def _with_log(self, child: Child, what: str) -> str:
        head = f"{child.plan.name} {what}; the last lines of {child.log}:"
        lines = child.last_words() or "(nothing)"
        return head + "".join(f"\n  {line}" for line in lines.splitlines())

    async def _shut_down(self, tasks: list[asyncio.Task[None]], upkeep: list[asyncio.Task[None]]) -> None:
        self._stop.set()
        with contextlib.suppress(OSError):
            self._observer.stopping()
        drain = asyncio.create_task(self._drain(), name="drain")
        hurry = asyncio.create_task(self._hurry.wait(), name="hurry")
        await asyncio.wait({drain, hurry}, return_when=asyncio.FIRST_COMPLETED)
        if not drain.done():
            for child in self._children:
                child.kill()
        await drain
        hurry.cancel()
        for task in upkeep:
            task.cancel()
        await asyncio.gather(*tasks, hurry, return_exceptions=True)

    async def _drain(self) -> None:
        routers = [child for child in self._children if child.plan.role == "router"]
        workers = [child for child in self._children if child.plan.role != "router"]
        for group in (routers, workers):
            await asyncio.gather(
                *(child.stop(child.plan.drain_seconds + self._settings.kill_after_drain_seconds) for child in group)
            )

    async def _bound_logs(self) -> None:
        while True:
            await asyncio.sleep(self._settings.log_check_seconds)
            for child in self._children:
                await asyncio.to_thread(logs.shorten, child.log)

    def _changed(self) -> None:
        self._publish()
        for child in self._children:
            now = (child.state.phase, child.state.message)
            if self._shown.get(child.plan.name, (Phase.PENDING, "")) != now:
                self._shown[child.plan.name] = now
                # A terminal that went away takes the view, not the pool.
                with contextlib.suppress(OSError):
                    self._observer.changed(child.state)
        self._wake.set()

    async def _retry_publishing(self) -> None:
        while True:
            await asyncio.sleep(self._settings.state_retry_seconds)
            if self._unwritten:
                self._publish()

    def _publish(self) -> None:
        """Write the state for other terminals. A full disk takes away what they see, not the pool."""
        try:
            self._folder.write(self.state())
        except StateError as error:
            self._folder.mark_stale()
            if not self._unwritten:
                self._notice(f"{error}; until then `tidegate status` is out of date")
            self._unwritten = True
            return
        if self._unwritten:
            self._notice("the state folder can be written again")
        self._unwritten = False

    def _publish_last(self) -> None:
        try:
            self._folder.write_last(self.state())
        except StateError as error:
            self._notice(str(error))

    def _notice(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._observer.notice(text)


@contextlib.contextmanager
def _signal_handlers(handler: Callable[[], None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


async def _awaited(call: Callable[[], Awaitable[None]]) -> None:
    await call()


async def _ended(task: asyncio.Task[None]) -> None:
    """Wait for a task that works with the pool: with the pool gone it ends by itself, or is cancelled."""
    await asyncio.wait({task}, timeout=5.0)
    task.cancel()
    await asyncio.wait({task})


def _raised(task: asyncio.Task[None]) -> bool:
    return not task.cancelled() and task.exception() is not None


def _raise_bugs(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        if task.done():
            task.result()
