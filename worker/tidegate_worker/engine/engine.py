"""The engine: requests in, steps out. No I/O, no thread, no clock of its own."""

from collections.abc import Callable

from tidegate_worker.engine.batch import ModelRunner, SampledToken, ScheduledBatch, ScheduledSequence
from tidegate_worker.engine.block_pool import BlockPool
from tidegate_worker.engine.limits import EngineLimits
from tidegate_worker.engine.messages import ChoiceOutput, EngineLoad, FinishReason, StepOutput, Submit
from tidegate_worker.engine.scheduler import Assignment, Scheduler
from tidegate_worker.engine.sequence import Request, Sequence, SequenceState
from tidegate_worker.engine.settings import SchedulerSettings


class Engine:
    """Continuous batching over one runner.

    Every choice of every submitted request ends exactly once, with one `ChoiceOutput` that carries a finish reason:
    refused (`error`), aborted, or ended by its tokens. After it, the choice holds no block. An exception from `step`
    is a bug in engine or runner and leaves the engine unusable.
    """

    def __init__(self, runner: ModelRunner, settings: SchedulerSettings, clock: Callable[[], float]) -> None:
        problem = settings.problem()
        if problem is not None:
            raise ValueError(problem)
        info = runner.info
        self.limits = EngineLimits(
            max_model_tokens=min(info.max_model_tokens, info.total_blocks * info.block_size),
            vocabulary_size=info.vocabulary_size,
        )
        self._runner = runner
        self._clock = clock
        self._eos_token_ids = info.eos_token_ids
        self._pool = BlockPool(info.total_blocks)
        self._scheduler = Scheduler(self._pool, settings, info.block_size)
        self._requests: dict[str, Request] = {}
        self._next_sequence_id = 0
        self._outputs: list[ChoiceOutput] = []
        self._ended: list[int] = []

    @property
    def has_work(self) -> bool:
        """Whether `step` would compute something."""
        return self._scheduler.waiting_count + self._scheduler.running_count > 0

    @property
    def load(self) -> EngineLoad:
        """The load now. Waiting and running count choices: each takes a place in the batch of its own."""
        scheduler, pool = self._scheduler, self._pool
        return EngineLoad(
            waiting_requests=scheduler.waiting_count,
            running_requests=scheduler.running_count,
            waiting_tokens=scheduler.backlog_tokens,
            referenced_blocks=pool.referenced,
            cached_blocks=pool.cached,
            free_blocks=pool.free,
            preemptions_total=scheduler.preemptions_total,
            prefix_query_tokens_total=scheduler.prefix_query_tokens_total,
            prefix_hit_tokens_total=scheduler.prefix_hit_tokens_total,
        )

    def submit(self, message: Submit) -> None:
        """Queue a request, or refuse it: each of its choices then ends with `error` in the next `StepOutput`.

        Raises:
            ValueError: the id is in use.
        """
        if message.request_id in self._requests:
            raise ValueError(f"request id {message.request_id} is in use")
        refusal = self.limits.refusal(message)
        if refusal is not None:
            self._outputs.extend(
                ChoiceOutput(message.request_id, index, [], None, "error", 0, refusal)
                for index in range(max(1, message.params.n))
            )
            return
        request = Request(message, self._next_sequence_id)
        self._next_sequence_id += message.params.n
        self._requests[message.request_id] = request
        for choice in request.choices:
            self._scheduler.enqueue(choice)

    def abort(self, request_id: str, index: int | None = None) -> None:
        """End a request, or one choice of it, in whatever state; its blocks are released at once.

        Unknown ids, finished choices and indices out of range are ignored.
        """
        request = self._requests.get(request_id)
        if request is None:
            return
        for choice in request.choices:
            if index in (None, choice.index) and choice.state is not SequenceState.FINISHED:
                self._outputs.append(_output(choice, [], None, "abort"))
                self._end(choice)

    def clear_cache(self) -> None:
        """Forget every reusable block, as new weights require."""
        self._pool.clear()

    def step(self) -> StepOutput:
        """Compute one step and tell everything that changed since the last one; without work only the latter."""
        began = self._clock()
        assignments = self._scheduler.schedule()
        decode_tokens = sum(a.tokens == 1 and a.sequence.generated > 0 for a in assignments)
        if assignments:
            result = self._runner.execute(ScheduledBatch([_scheduled(assignment) for assignment in assignments]))
            self._scheduler.complete(assignments)
            self._take(assignments, result.tokens)
        self._forget_ended()
        outputs, self._outputs = self._outputs, []
        return StepOutput(
            choices=outputs,
            block_events=self._pool.drain_events(),
            load=self.load,
            step_seconds=self._clock() - began if assignments else 0.0,
            prefill_tokens=sum(a.tokens for a in assignments) - decode_tokens,
            decode_tokens=decode_tokens,
        )

    def _take(self, assignments: list[Assignment], tokens: list[SampledToken]) -> None:
        sampling = [assignment.sequence for assignment in assignments if assignment.sample]
        if [token.sequence_id for token in tokens] != [sequence.sequence_id for sequence in sampling]:
            raise RuntimeError("the runner's tokens are not those of the batch's sampling sequences, in their order")
        for sequence, token in zip(sampling, tokens, strict=True):
            sequence.token_ids.append(token.token_id)
            reason = sequence.finish_reason(self._eos_token_ids, self.limits.max_model_tokens)
            self._outputs.append(_output(sequence, [token.token_id], token, reason))
            if reason is not None:
                self._end(sequence)

    def _end(self, sequence: Sequence) -> None:
        self._scheduler.remove(sequence)
        self._ended.append(sequence.sequence_id)
        if sequence.request.finished:
            del self._requests[sequence.request.request_id]
            # Requests and choices refer to each other: without this their tokens would wait for the cycle collector.
            sequence.request.choices = []

    def _forget_ended(self) -> None:
        if self._ended:
            self._runner.forget(self._ended)
            self._ended = []


def _scheduled(assignment: Assignment) -> ScheduledSequence:
    sequence = assignment.sequence
    start = sequence.computed
    return ScheduledSequence(
        sequence_id=sequence.sequence_id,
        token_ids=sequence.token_ids[start : start + assignment.tokens],
        start=start,
        block_ids=list(sequence.block_ids),
        sample=assignment.sample,
        params=sequence.params,
        choice_index=sequence.index,
        generated=sequence.generated,
    )


def _output(
    sequence: Sequence,
    token_ids: list[int],
    token: SampledToken | None,
    reason: FinishReason | None,
) -> ChoiceOutput:
    logprobs = None
    if token is not None and token.logprob is not None:
        logprobs = [token.logprob]
    return ChoiceOutput(
        request_id=sequence.request.request_id,
        index=sequence.index,
        token_ids=token_ids,
        logprobs=logprobs,
        finish_reason=reason,
        cached_tokens=sequence.request.cached_tokens or 0,
    )
