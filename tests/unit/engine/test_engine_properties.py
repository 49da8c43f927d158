"""Whatever arrives, leaves and fits: blocks are conserved, every choice ends once, and text depends on nothing else."""

from collections.abc import Iterable

from engine_builders import EngineBench, expected_tokens, make_info, make_submit
from hypothesis import given, settings
from hypothesis import strategies as st
from tidegate_worker.engine.messages import Submit

# Prompts share beginnings of different lengths, so that hits, duplicates and deferrals all occur.
PROMPTS = st.builds(
    lambda head, tail: (b"the same long beginning of every prompt"[:head] + tail) or b"?",
    st.integers(0, 39),
    st.binary(max_size=12),
)


@st.composite
def requests(draw: st.DrawFn, most: int = 8) -> list[Submit]:
    return [
        make_submit(
            f"r{number}",
            draw(PROMPTS),
            max_tokens=draw(st.integers(1, 24)),
            n=draw(st.integers(1, 3)),
            seed=draw(st.integers(0, 3)),
            temperature=draw(st.sampled_from([0.0, 1.0])),
            salt=draw(st.sampled_from(["", "", "salt"])),
        )
        for number in range(draw(st.integers(1, most)))
    ]


def choices_of(submits: Iterable[Submit]) -> set[tuple[str, int]]:
    return {(submit.request_id, index) for submit in submits for index in range(submit.params.n)}


BENCHES = st.builds(
    lambda blocks, size, running, extra: EngineBench(
        make_info(block_size=size, total_blocks=-(-80 // size) + blocks),
        max_running=running,
        max_batched_tokens=running + extra,
        mean_output_tokens=12,
    ),
    blocks=st.integers(0, 24),
    size=st.integers(1, 5),
    running=st.integers(1, 6),
    extra=st.integers(0, 40),
)


@settings(max_examples=80, deadline=None)
@given(bench=BENCHES, submits=requests(), data=st.data())
def test_text_is_that_of_each_request_alone(bench: EngineBench, submits: list[Submit], data: st.DataObject) -> None:
    for submit in submits:
        bench.engine.submit(submit)
        for _ in range(data.draw(st.integers(0, 6))):
            bench.step()
    answers = bench.run(limit=4000)
    assert set(answers.reasons) == choices_of(submits)
    for submit in submits:
        for index in range(submit.params.n):
            expected = expected_tokens(submit, index, mean_output_tokens=12)
            assert answers.tokens[submit.request_id, index] == expected


@settings(max_examples=80, deadline=None)
@given(bench=BENCHES, submits=requests(), data=st.data())
def test_aborts_at_any_moment_lose_nothing_and_disturb_nobody(
    bench: EngineBench,
    submits: list[Submit],
    data: st.DataObject,
) -> None:
    aborted: set[str] = set()
    for submit in submits:
        bench.engine.submit(submit)
        for _ in range(data.draw(st.integers(0, 4))):
            bench.step()
        if data.draw(st.booleans()):
            victim = data.draw(st.sampled_from(submits)).request_id
            aborted.add(victim)
            bench.engine.abort(victim, data.draw(st.sampled_from([None, None, 0, 1])))
    answers = bench.run(limit=4000)
    assert set(answers.reasons) == choices_of(submits)
    for submit in submits:
        for index in range(submit.params.n):
            expected = expected_tokens(submit, index, mean_output_tokens=12)
            got = answers.tokens[submit.request_id, index]
            if submit.request_id in aborted:
                assert got == expected[: len(got)]
            else:
                assert got == expected
                assert answers.reasons[submit.request_id, index] != ["abort"]


@settings(max_examples=30, deadline=None)
@given(arrivals=st.lists(st.integers(0, 3), min_size=10, max_size=60))
def test_the_first_in_line_is_not_starved_by_a_stream_of_others(arrivals: list[int]) -> None:
    bench = EngineBench(make_info(total_blocks=24), max_running=4, max_batched_tokens=16)
    big = make_submit("big", b"B" * 64, max_tokens=20)
    for number in range(4):
        bench.engine.submit(make_submit(f"before{number}", bytes([number]) * 9, max_tokens=12))
    bench.engine.submit(big)
    for number, count in enumerate(arrivals):
        for twin in range(count):
            bench.engine.submit(make_submit(f"{number}.{twin}", bytes([number, twin]) * 5, max_tokens=6))
        bench.step()
    bench.run(limit=4000)
    starts = [choice.request_id for step in bench.steps for choice in step.choices]
    assert starts.index("big") < min((starts.index(name) for name in starts if "." in name), default=len(starts))


@settings(max_examples=30, deadline=None)
@given(bench=BENCHES, submits=requests())
def test_a_step_stays_within_budget_and_places(bench: EngineBench, submits: list[Submit]) -> None:
    for submit in submits:
        bench.engine.submit(submit)
    bench.run(limit=4000)
    scheduler = bench.budget
    for batch in bench.runner.batches:
        assert len(batch.sequences) <= scheduler.max_running
        assert sum(len(sequence.token_ids) for sequence in batch.sequences) <= scheduler.max_batched_tokens
