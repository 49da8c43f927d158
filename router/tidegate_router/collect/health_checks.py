"""Active checks of endpoints, over the data path's own connections; whoever comes back has its models read.

The board decides, this carries out: it sends the checks that are due, reports what came of them, and applies what
changed to the endpoint table. A check that opens no connection or gets no answer in time fails like one answered 500.
"""

import asyncio
import time
from collections.abc import Callable

import msgspec
from tidegate_crds.router_spec import HealthCheckSpec

from tidegate_router.state.endpoint_table import EndpointTable
from tidegate_router.state.endpoints import Endpoint
from tidegate_router.state.health import HealthBoard, Transition
from tidegate_router.upstream.get_request import GetAnswer, GetRequest
from tidegate_router.upstream.pools import UpstreamPools

MODELS_REFRESH_SECONDS = 10.0
MODELS_RECHECK_SECONDS = 1.0
"""Between two readings of a list that a request has put in doubt."""
_MIN_PAUSE_SECONDS = 0.01


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _ModelList(msgspec.Struct):
    data: list[_Model]


class HealthChecks:
    """One timer for all endpoints. `on_transition` hears of every change after the table has it.

    `on_failing` hears of every failed check of an endpoint that is out, whatever put it out.
    """

    def __init__(
        self,
        spec: HealthCheckSpec,
        board: HealthBoard,
        table: EndpointTable,
        pools: UpstreamPools,
        on_transition: Callable[[Transition], None],
        on_failing: Callable[[Endpoint], None],
    ) -> None:
        self._spec = spec
        self._board = board
        self._table = table
        self._pools = pools
        self._on_transition = on_transition
        self._on_failing = on_failing
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._running: dict[tuple[int, str], GetRequest] = {}
        self._models_read_at: dict[int, float] = {}

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Check everything now and from now on."""
        self._loop = loop
        self._on_timer()

    def stop(self) -> None:
        """Check no more."""
        self._loop = None
        if self._timer is not None:
            self._timer.cancel()
        for request in self._running.values():
            request.cancel()
        self._running.clear()

    def hurry(self) -> None:
        """A request found nobody ready: check at once what may be checked."""
        self._board.hurry(time.monotonic())
        self._schedule()

    def doubt_models(self, model: str) -> None:
        """A request found nobody for a model that some list still names: read those lists again."""
        now = time.monotonic()
        for endpoint in self._table.snapshot.endpoints:
            read_at = self._models_read_at.get(endpoint.slot, now)
            if endpoint.ready and endpoint.contradicts_itself(model) and now - read_at > MODELS_RECHECK_SECONDS:
                self._read_models(endpoint.slot)

    def apply(self, transition: Transition | None) -> None:
        """Write a change of health to the table and tell of it."""
        if transition is not None:
            if not transition.ready:
                self._models_read_at.pop(transition.slot, None)
            self._table.set_ready(transition.slot, transition.ready)
            self._on_transition(transition)
        self._schedule()

    def _on_timer(self) -> None:
        self._timer = None
        now = time.monotonic()
        for slot in self._board.due(now):
            self._get(slot, self._spec.path, self._on_checked)
            if now - self._models_read_at.get(slot, now) > MODELS_REFRESH_SECONDS:
                self._read_models(slot)
        self._schedule()

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_at = self._board.next_due()
        if due_at is not None and self._loop is not None:
            pause = max(_MIN_PAUSE_SECONDS, due_at - time.monotonic())
            self._timer = self._loop.call_later(pause, self._on_timer)

    def _get(self, slot: int, path: str, on_done: Callable[[int, GetAnswer], None]) -> None:
        endpoint = self._table.get(slot)
        key = (slot, path)
        if endpoint is None or key in self._running:
            return

        def done(answer: GetAnswer) -> None:
            self._running.pop(key, None)
            on_done(slot, answer)

        request = GetRequest(self._pools.of(endpoint), path, self._spec.timeout_seconds, done)
        self._running[key] = request
        request.start()

    def _on_checked(self, slot: int, answer: GetAnswer) -> None:
        now = time.monotonic()
        if answer.status != 200:
            self.apply(self._board.check_failed(slot, now, gone=answer.gone))
            endpoint = self._table.get(slot)
            if endpoint is not None and not endpoint.ready:
                self._on_failing(endpoint)
            return
        transition = self._board.check_passed(slot, now)
        self.apply(transition)
        if transition is not None:
            self._read_models(slot)

    def _read_models(self, slot: int) -> None:
        self._models_read_at[slot] = time.monotonic()
        self._get(slot, "/v1/models", self._on_models)

    def _on_models(self, slot: int, answer: GetAnswer) -> None:
        if answer.status != 200:
            return
        try:
            models = msgspec.json.decode(answer.body, type=_ModelList)
        except (msgspec.MsgspecError, RecursionError):
            return
        self._table.set_models(slot, {model.id: model.max_model_len for model in models.data})
