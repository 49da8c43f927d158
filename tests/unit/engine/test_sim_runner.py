"""The sim runner refuses whatever would read or write wrong KV, takes its time, and draws tokens from context alone."""

import dataclasses

import pytest
from engine_builders import make_info
from tidegate_worker.engine.batch import ScheduledBatch, ScheduledSequence
from tidegate_worker.engine.sampling_params import SamplingParams
from tidegate_worker.engine.settings import SimSettings
from tidegate_worker.sim.runner import InvalidBatchError, SimRunner, SimSampler, context_of
from tidegate_worker.sim.time_model import TimeModel

PARAMS = SamplingParams(max_tokens=8, temperature=0.0)


def make_runner(**settings: object) -> tuple[SimRunner, list[float]]:
    slept: list[float] = []
    return SimRunner(make_info(total_blocks=8), SimSettings(**settings), slept.append), slept  # type: ignore[arg-type]


def part(
    tokens: bytes,
    blocks: list[int],
    *,
    sequence_id: int = 1,
    start: int = 0,
    generated: int = 0,
    sample: bool = False,
) -> ScheduledSequence:
    return ScheduledSequence(sequence_id, list(tokens), start, blocks, sample, PARAMS, 0, generated)


def execute(runner: SimRunner, *parts: ScheduledSequence) -> list[int]:
    return [token.token_id for token in runner.execute(ScheduledBatch(list(parts))).tokens]


def test_chunks_and_a_whole_prompt_give_the_same_token() -> None:
    whole, _ = make_runner()
    chunked, _ = make_runner()
    execute(chunked, part(b"abc", [3]))
    execute(chunked, part(b"def", [3, 5], start=3))
    assert execute(chunked, part(b"g", [3, 5], start=6, sample=True)) == execute(
        whole,
        part(b"abcdefg", [0, 1], sample=True),
    )


def test_another_sequences_full_blocks_can_be_read() -> None:
    runner, _ = make_runner()
    first = execute(runner, part(b"abcdefg", [0, 1], sample=True))
    assert execute(runner, part(b"efg", [0, 2], sequence_id=2, start=4, sample=True)) == first


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([], "empty batch"),
        ([part(b"", [0])], "computes nothing"),
        ([part(b"abcde", [0])], "do not cover 5 tokens"),
        ([part(b"abcde", [0, 0])], "twice"),
        ([part(b"a", [8])], "does not exist"),
        ([part(b"a", [-1])], "does not exist"),
        ([part(b"ab", [0]), part(b"ab", [0], sequence_id=2)], "another one writes"),
        ([part(b"e", [0], start=4)], "do not cover"),
        ([part(b"e", [0, 1], start=4)], "does not hold its tokens"),
        ([part(b"ab", [0]), part(b"c", [1], sequence_id=2, generated=1, sample=True)], "after prefill chunks"),
        ([part(b"a", [0], generated=3, sample=True)], "has 0 tokens, not 3"),
    ],
)
def test_impossible_batches_are_refused(parts: list[ScheduledSequence], words: str) -> None:
    runner, _ = make_runner()
    with pytest.raises(InvalidBatchError, match=words):
        execute(runner, *parts)


def test_a_token_outside_the_vocabulary_is_refused() -> None:
    runner, _ = make_runner()
    with pytest.raises(InvalidBatchError, match="token id 512"):
        execute(runner, dataclasses.replace(part(b"a", [0]), token_ids=[512]))


def test_a_block_overwritten_by_someone_else_is_noticed() -> None:
    runner, _ = make_runner()
    execute(runner, part(b"abcdef", [0, 1]))
    execute(runner, part(b"wxyz", [0], sequence_id=2))
    with pytest.raises(InvalidBatchError, match="does not hold its tokens"):
        execute(runner, part(b"g", [0, 1], start=6))


def test_a_block_read_by_one_and_written_by_another_is_noticed() -> None:
    runner, _ = make_runner()
    execute(runner, part(b"abcd", [0]))
    with pytest.raises(InvalidBatchError, match="another one writes"):
        execute(runner, part(b"e", [0, 1], start=4), part(b"d", [0], sequence_id=2, start=3))


def test_blocks_in_the_wrong_order_are_noticed() -> None:
    runner, _ = make_runner()
    execute(runner, part(b"abcdefgh", [0, 1]))
    with pytest.raises(InvalidBatchError, match="does not hold its tokens"):
        execute(runner, part(b"i", [1, 0, 2], start=8))


def test_the_beginning_of_another_prompt_is_noticed() -> None:
    runner, _ = make_runner()
    execute(runner, part(b"abcd", [0]))
    execute(runner, part(b"wxyz", [1], sequence_id=2))
    with pytest.raises(InvalidBatchError, match="another context than before"):
        execute(runner, part(b"e", [1, 2], start=4))


def test_a_recomputation_with_other_tokens_is_noticed() -> None:
    runner, _ = make_runner()
    execute(runner, part(b"abcd", [0]))
    with pytest.raises(InvalidBatchError, match="another context than before"):
        execute(runner, part(b"abcxe", [2, 3]))


def test_forgotten_sequences_leave_nothing_behind() -> None:
    runner, _ = make_runner()
    execute(runner, part(b"abcd", [0], sample=True))
    runner.forget([1, 7])
    execute(runner, part(b"wxyz", [0], sample=True))


def test_a_step_takes_the_time_of_its_work() -> None:
    time = TimeModel(
        base_seconds=1.0,
        prefill_token_seconds=0.1,
        decode_sequence_seconds=0.01,
        context_token_seconds=0.001,
    )
    runner, slept = make_runner(time=time)
    execute(runner, part(b"abcd", [0], sample=True))
    execute(runner, part(b"e", [0, 1], start=4, generated=1, sample=True), part(b"xyz", [2], sequence_id=2))
    assert slept == [pytest.approx(1.4), pytest.approx(1.314)]


def test_instant_steps_do_not_sleep_at_all() -> None:
    runner, slept = make_runner()
    execute(runner, part(b"abcd", [0]))
    assert slept == []


def test_text_is_printable_words() -> None:
    sampler = SimSampler()
    text = bytes(sampler.sample(context_of([number]), PARAMS, 0, 0) for number in range(2000)).decode("ascii")
    assert text.isprintable()
    assert 100 < text.count(" ") < 400


def test_answers_end_on_average_where_asked() -> None:
    sampler = SimSampler(mean_output_tokens=20)
    ends = sum(sampler.sample(context_of([number]), PARAMS, 0, 0) == 256 for number in range(20_000))
    assert 800 < ends < 1200


def test_stop_tokens_are_not_drawn_before_min_tokens() -> None:
    sampler = SimSampler()
    params = SamplingParams(max_tokens=8, min_tokens=2, stop_token_ids=tuple(b"etao "))
    drawn = {sampler.sample(context_of([number]), params, 0, 1) for number in range(500)}
    assert not drawn & set(b"etao ")
    assert {sampler.sample(context_of([number]), params, 0, 2) for number in range(500)} & set(b"etao ")


def test_seed_and_choice_matter_only_above_temperature_zero() -> None:
    sampler = SimSampler()

    def draws(**params: float) -> set[tuple[int, ...]]:
        return {
            tuple(
                sampler.sample(context_of([n]), SamplingParams(max_tokens=8, seed=seed, **params), choice, 0)  # type: ignore[arg-type]
                for n in range(20)
            )
            for seed in (1, 2)
            for choice in (0, 1)
        }

    assert len(draws(temperature=0.0)) == 1
    assert len(draws(temperature=1.0)) == 4
