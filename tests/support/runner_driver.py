"""Drives a `ModelRunner` without the engine: the smallest loop that turns prompts into tokens, for tests of runners."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tidegate_worker.engine.batch import ModelRunner, ScheduledBatch, ScheduledSequence
from tidegate_worker.engine.sampling_params import SamplingParams

GREEDY = SamplingParams(max_tokens=1_000_000, temperature=0.0)


@dataclass
class _Progress:
    sequence_id: int
    known: list[int]
    prompt_tokens: int
    block_ids: list[int]
    params: SamplingParams
    choice_index: int
    computed: int = 0
    output: list[int] = field(default_factory=list)

    def next_part(self, chunk_tokens: int) -> ScheduledSequence:
        end = min(len(self.known), self.computed + chunk_tokens)
        return ScheduledSequence(
            sequence_id=self.sequence_id,
            token_ids=self.known[self.computed : end],
            start=self.computed,
            block_ids=self.block_ids,
            sample=end == len(self.known),
            params=self.params,
            choice_index=self.choice_index,
            generated=len(self.output),
        )


def generate(
    runner: ModelRunner,
    prompts: Sequence[list[int]],
    new_tokens: int,
    *,
    params: SamplingParams = GREEDY,
    chunk_tokens: int = 1_000_000,
    scatter_blocks: bool = False,
) -> list[list[int]]:
    """Token ids for each prompt, all in one batch; `chunk_tokens` bounds each sequence's part of a step.

    `scatter_blocks` deals the blocks out in turn, so that no sequence has neighbouring ones.
    """
    running = _start(runner, prompts, new_tokens, params, scatter_blocks)
    while unfinished := [item for item in running if len(item.output) < new_tokens]:
        parts = [item.next_part(chunk_tokens) for item in unfinished]
        parts.sort(key=lambda part: len(part.token_ids) > 1)
        sampled = {token.sequence_id: token.token_id for token in runner.execute(ScheduledBatch(parts)).tokens}
        for part in parts:
            item = running[part.sequence_id]
            item.computed += len(part.token_ids)
            if part.sample:
                item.output.append(sampled[part.sequence_id])
                item.known.append(sampled[part.sequence_id])
    return [item.output for item in running]


def _start(
    runner: ModelRunner, prompts: Sequence[list[int]], new_tokens: int, params: SamplingParams, scatter_blocks: bool
) -> list[_Progress]:
    size = runner.info.block_size
    counts = [-(-(len(prompt) + new_tokens) // size) for prompt in prompts]
    if sum(counts) > runner.info.total_blocks:
        raise ValueError(f"the prompts need {sum(counts)} blocks, the runner has {runner.info.total_blocks}")
    tables: list[list[int]] = [[] for _ in prompts]
    if scatter_blocks:
        free = iter(range(sum(counts) - 1, -1, -1))
        for turn in range(max(counts)):
            for table, count in zip(tables, counts, strict=True):
                if turn < count:
                    table.append(next(free))
    else:
        first = 0
        for table, count in zip(tables, counts, strict=True):
            table.extend(range(first, first + count))
            first += count
    return [
        _Progress(index, list(prompt), len(prompt), tables[index], params, 0) for index, prompt in enumerate(prompts)
    ]
