"""Builders for tests of the engine: requests, engines over the checking sim runner, and what text must come out."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from tidegate_worker.engine.batch import ModelInfo, ModelRunner, ScheduledBatch, StepResult
from tidegate_worker.engine.engine import Engine
from tidegate_worker.engine.messages import ChoiceOutput, StepOutput, Submit
from tidegate_worker.engine.sampling_params import SamplingParams
from tidegate_worker.engine.settings import SchedulerSettings, SimSettings
from tidegate_worker.sim.runner import (
    SIM_EOS_TOKEN_ID,
    SIM_VOCABULARY_SIZE,
    SimRunner,
    SimSampler,
    context_of,
    extend_context,
)


def make_info(*, block_size: int = 4, total_blocks: int = 64, max_model_tokens: int = 4096) -> ModelInfo:
    return ModelInfo(max_model_tokens, SIM_VOCABULARY_SIZE, (SIM_EOS_TOKEN_ID,), block_size, total_blocks)


def make_submit(request_id: str, prompt: bytes, *, salt: str = "", adapter: str = "", **params: object) -> Submit:
    """A request whose prompt is given as bytes (the sim's tokens); 8 greedy tokens unless said otherwise."""
    settings = {"max_tokens": 8, "temperature": 0.0, **params}
    return Submit(request_id, list(prompt), SamplingParams(**settings), salt=salt, adapter=adapter)  # type: ignore[arg-type]


def expected_tokens(submit: Submit, index: int = 0, *, mean_output_tokens: int = 0) -> list[int]:
    """What the sim must answer to a request alone, computed without engine, blocks or batches."""
    sampler, params = SimSampler(mean_output_tokens), submit.params
    context = context_of(submit.prompt_token_ids)
    tokens: list[int] = []
    while len(tokens) < params.max_tokens:
        token = sampler.sample(context, params, index, len(tokens))
        tokens.append(token)
        context = extend_context(context, token)
        stops = (*params.stop_token_ids, *(() if params.ignore_eos else (SIM_EOS_TOKEN_ID,)))
        if token in stops and len(tokens) >= params.min_tokens:
            break
    return tokens


class RecordingRunner:
    """Passes steps on to another runner and keeps them."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self.info = runner.info
        self.batches: list[ScheduledBatch] = []
        self.forgotten: list[int] = []

    def execute(self, batch: ScheduledBatch) -> StepResult:
        self.batches.append(batch)
        return self._runner.execute(batch)

    def forget(self, sequence_ids: list[int]) -> None:
        self.forgotten += sequence_ids
        self._runner.forget(sequence_ids)


@dataclass
class Answers:
    """Everything an engine said, by choice."""

    tokens: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    reasons: dict[tuple[str, int], list[str]] = field(default_factory=dict)
    cached: dict[str, set[int]] = field(default_factory=dict)
    errors: dict[tuple[str, int], str | None] = field(default_factory=dict)

    def hear(self, output: ChoiceOutput) -> None:
        key = (output.request_id, output.index)
        assert key not in self.reasons, f"output after the end of {key}"
        self.tokens.setdefault(key, []).extend(output.token_ids)
        if output.token_ids:
            self.cached.setdefault(output.request_id, set()).add(output.cached_tokens)
        if output.finish_reason is not None:
            self.reasons[key] = [output.finish_reason]
            self.errors[key] = output.error


class EngineBench:
    """An engine over a checking, recording sim runner, with everything it said."""

    def __init__(
        self,
        info: ModelInfo | None = None,
        *,
        max_batched_tokens: int = 64,
        max_running: int = 16,
        mean_output_tokens: int = 0,
    ) -> None:
        self.info = info or make_info()
        sim = SimRunner(self.info, SimSettings(mean_output_tokens=mean_output_tokens), sleep=lambda _seconds: None)
        self.runner = RecordingRunner(sim)
        self.budget = SchedulerSettings(max_batched_tokens=max_batched_tokens, max_running=max_running)
        ticks = count()
        self.engine = Engine(self.runner, self.budget, clock=lambda: float(next(ticks)))
        self.answers = Answers()
        self.steps: list[StepOutput] = []

    def step(self) -> StepOutput:
        """One step; checks that no block is lost or counted twice."""
        output = self.engine.step()
        load = output.load
        assert load.referenced_blocks + load.cached_blocks + load.free_blocks == self.info.total_blocks
        assert min(load.referenced_blocks, load.cached_blocks, load.free_blocks) >= 0
        for choice in output.choices:
            self.answers.hear(choice)
        self.steps.append(output)
        return output

    def run(self, limit: int = 20_000) -> Answers:
        """Step until nothing is left to do; checks that nothing is held then."""
        for _ in self._until_idle(limit):
            self.step()
        load = self.step().load
        assert (load.referenced_blocks, load.waiting_tokens) == (0, 0)
        return self.answers

    def _until_idle(self, limit: int) -> Iterator[int]:
        for number in range(limit):
            if not self.engine.has_work:
                return
            yield number
        raise AssertionError(f"still working after {limit} steps: {self.engine.load}")

    @property
    def computed_tokens(self) -> int:
        return sum(len(sequence.token_ids) for batch in self.runner.batches for sequence in batch.sequences)
