"""The worker between its HTTP clients and its engine: who is open, who is told what, and whether anyone may enter.

State: loading → ready → draining, or failed from any of them. A generation is opened once and closed exactly once,
whatever happened to it; closing aborts what still runs, counts the outcome and tells telemetry. All of it runs on the
event loop and never waits; only tokenising long prompts goes to a small thread pool.
"""

import asyncio
import enum
import functools
import itertools
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from tidegate_proto.openai_errors import ApiError, ApiErrorKind
from tidegate_proto.telemetry.v1 import telemetry_pb2 as pb

from tidegate_worker.engine.messages import ChoiceOutput, EngineLoad, EngineReady, StepOutput, Submit
from tidegate_worker.server.errors import unavailable
from tidegate_worker.server.generation import Generation
from tidegate_worker.server.metrics import WorkerCollector, WorkerCounts
from tidegate_worker.server.model_limits import ModelLimits
from tidegate_worker.server.plan import GenerationPlan
from tidegate_worker.server.telemetry import TelemetryHub
from tidegate_worker.server.text_codec import TextCodec

T = TypeVar("T")

STALLED_SECONDS = 60.0
"""An engine that owes an answer speaks after every step; no step of a healthy one takes near that long."""
INLINE_TEXT_BYTES = 4096
"""Bodies up to this size are tokenised on the event loop: about 2 ms, less than a thread hand-over under load costs."""
TEXT_THREADS = 2


class WorkerState(enum.Enum):
    """Whether requests may enter."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


class EngineLink(Protocol):
    """What the service says to the engine process. Neither call waits."""

    @property
    def silent_seconds(self) -> float:
        """How long the engine has owed an answer and said nothing."""
        ...

    def submit(self, message: Submit, on_output: Callable[[ChoiceOutput], None]) -> None:
        """Start a request; every output of its choices goes to `on_output`, later, on the event loop."""
        ...

    def abort(self, request_id: str, index: int | None = None) -> None:
        """Drop a request or one of its choices; nothing more is heard of it. Unknown ones are ignored."""
        ...


class WorkerService:
    """Everything that one worker process knows of its requests."""

    def __init__(self, served_names: tuple[str, ...], hub: TelemetryHub, counts: WorkerCounts) -> None:
        self.served_names = served_names
        self.hub = hub
        self.counts = counts
        self.collector = WorkerCollector(counts, served_names[0])
        self.created = int(time.time())
        self.state = WorkerState.LOADING
        self.idle = asyncio.Event()
        """Set while no generation is open."""
        self.idle.set()
        self.limits = ModelLimits(served_names, 0, 0)
        self._codec: TextCodec | None = None
        self._engine: EngineLink | None = None
        self._open: set[Generation] = set()
        self._engine_ids = itertools.count()
        self._random = random.SystemRandom()
        self._threads = ThreadPoolExecutor(TEXT_THREADS, thread_name_prefix="text")

    @property
    def codec(self) -> TextCodec:
        """The tokenizer. Raises `RequestRefusedError` (503) before the model is loaded."""
        if self._codec is None:
            raise unavailable("the model is still loading; try again in a few seconds", "model_loading")
        return self._codec

    def engine_ready(self, ready: EngineReady, codec: TextCodec, engine: EngineLink) -> None:
        """Open the doors."""
        cache_tokens = ready.block_size * ready.total_blocks
        context_tokens = min(ready.max_model_tokens, cache_tokens)
        self.limits = ModelLimits(self.served_names, context_tokens, ready.vocabulary_size)
        self._codec = codec
        self._engine = engine
        self.collector.block_size = ready.block_size
        self.collector.total_blocks = ready.total_blocks
        if self.counts.load.free_blocks == 0:
            self.counts.load = EngineLoad(0, 0, 0, 0, 0, ready.total_blocks, 0, 0, 0)
        self.hub.engine_ready(ready)
        if self.state is WorkerState.LOADING:
            self.state = WorkerState.READY

    @property
    def stalled(self) -> bool:
        """The engine's process lives but makes no progress."""
        return self._engine is not None and self._engine.silent_seconds > STALLED_SECONDS

    def drain(self) -> None:
        """Let nobody in any more; whoever is inside may finish."""
        if self.state is not WorkerState.FAILED:
            self.state = WorkerState.DRAINING

    def fail(self, message: str) -> None:
        """The engine is gone: end every open generation with an error."""
        self.state = WorkerState.FAILED
        self.end_all(ApiError(ApiErrorKind.UNAVAILABLE, message, code="engine_failed"))

    def end_all(self, error: ApiError) -> None:
        """End every open generation with `error`."""
        for generation in list(self._open):
            generation.fail(error)

    def admit(self) -> None:
        """Raises `RequestRefusedError` (503) when no new request may enter now."""
        match self.state:
            case WorkerState.LOADING:
                raise unavailable("the model is still loading; try again in a few seconds", "model_loading")
            case WorkerState.DRAINING:
                raise unavailable("this worker is shutting down; send the request to another one", "draining")
            case WorkerState.FAILED:
                raise unavailable("this worker's engine has failed; send the request to another one", "engine_failed")
            case WorkerState.READY:
                return

    def draw_seed(self) -> int:
        """A seed for a prompt whose client gave none."""
        return self._random.getrandbits(63)

    async def with_text(self, text_bytes: int, work: Callable[[], T]) -> T:
        """Run tokenising work: at once when short, in a thread when long."""
        if text_bytes <= INLINE_TEXT_BYTES:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def open(self, plan: GenerationPlan, request_id: str, started_at: float) -> Generation:
        """Hand a request to the engine. `close` must follow, whatever happens."""
        self.admit()
        engine = self._engine
        if engine is None:
            raise unavailable("the engine is not running", "engine_failed")
        generation = Generation(plan, self.codec, request_id, started_at)
        self._open.add(generation)
        self.idle.clear()
        self.counts.in_flight += 1
        self.counts.prompt_tokens += plan.prompt_tokens
        for index, prompt in enumerate(plan.prompts):
            engine_id = str(next(self._engine_ids))
            generation.engine_ids.append(engine_id)
            hear = functools.partial(self._on_output, generation, index)
            engine.submit(Submit(engine_id, prompt.token_ids, prompt.params, plan.salt), hear)
        return generation

    def close(self, generation: Generation) -> None:
        """The request is over for its client, well or not. Idempotent."""
        if generation not in self._open:
            return
        self._open.remove(generation)
        if self._engine is not None:
            for engine_id in generation.engine_ids:
                self._engine.abort(engine_id)
        if generation.finished and generation.error is None:
            reason = generation.finish_reason or "stop"
            self.counts.request.observe(time.monotonic() - generation.started_at)
        else:
            reason = "error" if generation.error is not None else "abort"
        self.counts.finished[reason] = self.counts.finished.get(reason, 0) + 1
        self.counts.in_flight -= 1
        if not self._open:
            self.idle.set()
        self.hub.request_finished(
            pb.RequestFinished(
                request_id=generation.request_id,
                prompt_tokens=generation.usage.prompt_tokens,
                cached_tokens=generation.usage.cached_tokens,
                completion_tokens=generation.usage.completion_tokens,
                finish_reason=reason,
            ),
        )

    def on_step(self, step: StepOutput) -> None:
        """Count a step and pass it on to telemetry; its requests have heard their part already."""
        counts = self.counts
        counts.load = step.load
        counts.prefill_tokens += step.prefill_tokens
        counts.decode_tokens += step.decode_tokens
        if step.step_seconds > 0:
            counts.step.observe(step.step_seconds)
        self.hub.on_step(step.block_events, step.load)

    def stop(self) -> None:
        """Let go of the threads; the process is about to end."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _on_output(self, generation: Generation, prompt: int, output: ChoiceOutput) -> None:
        counts = self.counts
        counts.generation_tokens += len(output.token_ids)
        heard = generation.on_output(prompt, output, time.monotonic())
        if heard.first is not None:
            counts.time_to_first_token.observe(heard.first)
        for seconds, tokens in heard.gaps:
            counts.inter_token.observe(seconds, tokens)
        # Stop strings are found here, not in the engine, which then has to be told.
        if heard.stopped_early and self._engine is not None:
            self._engine.abort(output.request_id, output.index)
