"""One engine, step by step: batching, chunks, prefix hits, choices, ends, aborts, preemption."""

import gc
from typing import Any

import pytest
from engine_builders import EngineBench, expected_tokens, make_info, make_submit
from tidegate_worker.engine.engine import Engine
from tidegate_worker.engine.messages import BlockStored, CacheCleared
from tidegate_worker.engine.sequence import Sequence
from tidegate_worker.engine.settings import SchedulerSettings

LONG = bytes(range(97, 123)) * 4  # 104 tokens


def test_a_request_alone_gets_its_text_and_one_end() -> None:
    bench = EngineBench()
    submit = make_submit("r", b"hello", max_tokens=5)
    bench.engine.submit(submit)
    answers = bench.run()
    assert answers.tokens["r", 0] == expected_tokens(submit)
    assert answers.reasons["r", 0] == ["length"]


def test_long_prompts_are_computed_in_chunks_of_the_budget() -> None:
    bench = EngineBench(max_batched_tokens=40)
    bench.engine.submit(make_submit("r", LONG, max_tokens=1))
    bench.run()
    assert [len(batch.sequences[0].token_ids) for batch in bench.runner.batches] == [40, 40, 24]
    assert [batch.sequences[0].sample for batch in bench.runner.batches] == [False, False, True]


def test_decodes_go_on_in_every_step_while_a_prompt_is_computed() -> None:
    bench = EngineBench(max_batched_tokens=20)
    bench.engine.submit(make_submit("early", b"abc", max_tokens=20))
    bench.step()
    bench.engine.submit(make_submit("late", LONG, max_tokens=2))
    for _ in range(5):
        output = bench.step()
        assert [choice.request_id for choice in output.choices if choice.request_id == "early"] == ["early"]
        assert (output.prefill_tokens, output.decode_tokens) == (19, 1)
        decode, prefill = bench.runner.batches[-1].sequences
        assert (len(decode.token_ids), len(prefill.token_ids)) == (1, 19)


def test_waiting_requests_are_served_first_come_first_served() -> None:
    bench = EngineBench(max_running=2)
    for name in ("a", "b", "c", "d"):
        bench.engine.submit(make_submit(name, name.encode() * 6, max_tokens=3))
    bench.run()
    first_seen = list(dict.fromkeys(choice.request_id for step in bench.steps for choice in step.choices))
    assert first_seen == ["a", "b", "c", "d"]
    assert max(len(batch.sequences) for batch in bench.runner.batches) == 2


def test_a_second_turn_finds_the_first_turn_and_its_answer_in_the_cache() -> None:
    bench = EngineBench()
    first = make_submit("1", LONG, max_tokens=9)
    bench.engine.submit(first)
    answer = bench.run().tokens["1", 0]
    second = make_submit("2", LONG + bytes(answer) + b"more?", max_tokens=4)
    bench.engine.submit(second)
    answers = bench.run()
    assert answers.cached["2"] == {112}  # 104 prompt and 8 computed answer tokens are 28 full blocks of 4
    assert answers.tokens["2", 0] == expected_tokens(second)
    assert bench.steps[-1].load.prefix_query_tokens_total == 104 + 118
    assert bench.steps[-1].load.prefix_hit_tokens_total == 112


def test_a_repeated_prompt_still_computes_its_last_block_for_logits() -> None:
    bench = EngineBench()
    for name in ("1", "2"):
        bench.engine.submit(make_submit(name, LONG))
        bench.run()
    assert bench.answers.cached == {"1": {0}, "2": {100}}
    assert bench.answers.tokens["1", 0] == bench.answers.tokens["2", 0]


@pytest.mark.parametrize("scope", [{"salt": "s"}, {"adapter": "a"}])
def test_another_salt_or_adapter_never_hits(scope: dict[str, str]) -> None:
    bench = EngineBench()
    bench.engine.submit(make_submit("1", LONG))
    bench.run()
    bench.engine.submit(make_submit("2", LONG, **scope))
    assert bench.run().cached["2"] == {0}


def test_equal_prompts_that_arrive_together_are_computed_once() -> None:
    bench = EngineBench(make_info(total_blocks=400), max_batched_tokens=256)
    submits = [make_submit(str(i), LONG, max_tokens=2, seed=i, temperature=1.0) for i in range(40)]
    for submit in submits:
        bench.engine.submit(submit)
    answers = bench.run()
    assert {submit.request_id: answers.tokens[submit.request_id, 0] for submit in submits} == {
        submit.request_id: expected_tokens(submit) for submit in submits
    }
    # The prompt once, then for each twin the last block (needed for logits); 1 more token each.
    assert bench.computed_tokens == 104 + 39 * 4 + 40


def test_a_request_does_not_wait_for_a_small_shared_beginning() -> None:
    bench = EngineBench(max_batched_tokens=256)
    bench.engine.submit(make_submit("1", b"head" + LONG))
    bench.engine.submit(make_submit("2", b"head" + LONG[::-1]))
    bench.step()
    assert len(bench.runner.batches[0].sequences) == 2


def test_a_request_gives_way_to_those_who_compute_its_prefix_once() -> None:
    bench = EngineBench(max_batched_tokens=256)
    for name, prompt in {"1": LONG[:24] + b"!!!!", "2": LONG[:44] + b"?", "3": LONG[:45]}.items():
        bench.engine.submit(make_submit(name, prompt))
    bench.step()
    bench.step()
    assert [len(batch.sequences) for batch in bench.runner.batches] == [1, 3]


def test_choices_share_the_prompt_and_differ_by_their_streams() -> None:
    bench = EngineBench()
    submit = make_submit("r", LONG, n=3, temperature=1.0, seed=7, max_tokens=6)
    bench.engine.submit(submit)
    answers = bench.run()
    texts = [answers.tokens["r", index] for index in range(3)]
    assert texts == [expected_tokens(submit, index) for index in range(3)]
    assert len({tuple(text) for text in texts}) == 3
    assert answers.cached["r"] == {0}  # what siblings find of each other is not the user's cache hit
    assert bench.computed_tokens == 104 + 2 * 4 + 3 * 5
    shared = [set(sequence.block_ids) for sequence in bench.runner.batches[2].sequences]
    assert len(set.intersection(*shared)) == 25  # 100 tokens, all but the last full block


def test_a_seed_gives_the_same_text_beside_any_neighbours() -> None:
    submit = make_submit("r", LONG, temperature=0.8, seed=11, max_tokens=12)
    bench = EngineBench()
    bench.engine.submit(make_submit("other", LONG[:50], temperature=1.0, seed=3, max_tokens=20))
    bench.engine.submit(submit)
    assert bench.run().tokens["r", 0] == expected_tokens(submit)


def test_end_of_answer_token_ends_with_stop_and_is_delivered() -> None:
    bench = EngineBench(mean_output_tokens=10)
    submit = make_submit("r", LONG, max_tokens=150)
    bench.engine.submit(submit)
    answers = bench.run()
    assert answers.tokens["r", 0][-1] == 256
    assert answers.tokens["r", 0] == expected_tokens(submit, mean_output_tokens=10)
    assert answers.reasons["r", 0] == ["stop"]


def test_ignore_eos_and_min_tokens_keep_the_answer_going() -> None:
    bench = EngineBench(mean_output_tokens=4)
    bench.engine.submit(make_submit("ignored", LONG, max_tokens=60, ignore_eos=True))
    bench.engine.submit(make_submit("minimum", LONG, max_tokens=60, min_tokens=40))
    answers = bench.run()
    assert len(answers.tokens["ignored", 0]) == 60
    assert answers.reasons["ignored", 0] == ["length"]
    assert len(answers.tokens["minimum", 0]) > 40
    assert 256 not in answers.tokens["minimum", 0][:40]


def test_stop_token_ids_end_with_stop() -> None:
    bench = EngineBench()
    free = expected_tokens(make_submit("r", LONG, max_tokens=30))
    submit = make_submit("r", LONG, max_tokens=30, stop_token_ids=(free[9],))
    bench.engine.submit(submit)
    answers = bench.run()
    assert answers.tokens["r", 0] == free[: free.index(free[9]) + 1]
    assert answers.reasons["r", 0] == ["stop"]


def test_logprobs_come_one_per_token_when_asked_for() -> None:
    bench = EngineBench()
    bench.engine.submit(make_submit("r", b"hello", max_tokens=3, logprobs=2))
    bench.run()
    logprobs = [choice.logprobs for step in bench.steps for choice in step.choices if choice.token_ids]
    assert [len(one) for one in logprobs if one is not None] == [1, 1, 1]
    assert all(len(one[0].top) == 2 for one in logprobs if one is not None)


@pytest.mark.parametrize(
    ("prompt", "params", "words"),
    [
        (b"", {}, "no tokens"),
        (b"x" * 250, {"max_tokens": 8}, "256 tokens per request, but the prompt has 250 and max_tokens is 8"),
        (b"x", {"max_tokens": 256}, "shorten the prompt or lower max_tokens"),
        (b"x", {"max_tokens": 0}, "at least 1"),
        (b"x", {"n": 0}, "at least 1"),
    ],
)
def test_what_can_never_run_is_refused_in_words(prompt: bytes, params: dict[str, Any], words: str) -> None:
    bench = EngineBench(make_info(total_blocks=64, block_size=4))  # 256 tokens: less than the model's context
    bench.engine.submit(make_submit("r", prompt, **params))
    assert not bench.engine.has_work
    output = bench.step()
    assert bench.answers.reasons["r", 0] == ["error"]
    assert words in (bench.answers.errors["r", 0] or "")
    assert output.step_seconds == 0


def test_token_ids_outside_the_vocabulary_are_refused() -> None:
    bench = EngineBench()
    submit = make_submit("r", b"x")
    submit.prompt_token_ids.append(512)
    bench.engine.submit(submit)
    bench.step()
    assert "vocabulary of 512" in (bench.answers.errors["r", 0] or "")


def test_the_largest_request_that_is_not_refused_is_served_in_a_full_pool() -> None:
    bench = EngineBench(make_info(total_blocks=32))
    bench.engine.submit(make_submit("other", LONG[:60], max_tokens=40))
    bench.step()
    submit = make_submit("r", LONG, max_tokens=24)  # 128 tokens: every block
    bench.engine.submit(submit)
    assert bench.run().tokens["r", 0] == expected_tokens(submit)


@pytest.mark.parametrize("steps_before", [0, 1, 2, 3, 8])
def test_abort_in_any_state_frees_all_choices_within_one_step(steps_before: int) -> None:
    bench = EngineBench(max_batched_tokens=64)
    bench.engine.submit(make_submit("r", LONG, n=4, max_tokens=50))
    for _ in range(steps_before):
        bench.step()
    bench.engine.abort("r")
    load = bench.step().load
    assert (load.referenced_blocks, load.running_requests, load.waiting_requests, load.waiting_tokens) == (0, 0, 0, 0)
    assert {key: reason for key, [reason] in bench.answers.reasons.items()} == {("r", i): "abort" for i in range(4)}
    assert sorted(bench.runner.forgotten) == [0, 1, 2, 3]


def test_one_choice_can_be_dropped_alone() -> None:
    bench = EngineBench()
    submit = make_submit("r", LONG, n=3, temperature=1.0, max_tokens=10)
    bench.engine.submit(submit)
    bench.step()
    bench.engine.abort("r", 0)
    answers = bench.run()
    assert answers.reasons == {("r", 0): ["abort"], ("r", 1): ["length"], ("r", 2): ["length"]}
    assert answers.tokens["r", 2] == expected_tokens(submit, 2)


def test_aborting_what_is_unknown_or_over_does_nothing() -> None:
    bench = EngineBench()
    bench.engine.abort("never")
    bench.engine.submit(make_submit("r", b"x", max_tokens=1))
    bench.run()
    bench.engine.abort("r")
    assert bench.step().choices == []
    bench.engine.submit(make_submit("r", b"x", max_tokens=1))  # an ended id may come again
    assert bench.engine.has_work


def test_an_id_in_use_is_a_bug_of_the_caller() -> None:
    bench = EngineBench()
    bench.engine.submit(make_submit("r", b"x"))
    with pytest.raises(ValueError, match="in use"):
        bench.engine.submit(make_submit("r", b"y"))


def test_preemption_changes_no_text_and_keeps_the_queue_order() -> None:
    bench = EngineBench(make_info(total_blocks=24))
    submits = [make_submit(str(i), bytes([97 + i]) * 9, temperature=1.0, seed=i, max_tokens=60) for i in range(4)]
    for submit in submits:
        bench.engine.submit(submit)
    answers = bench.run()
    assert bench.engine.load.preemptions_total > 0
    for submit in submits:
        assert answers.tokens[submit.request_id, 0] == expected_tokens(submit)
        assert answers.cached[submit.request_id] == {0}
    ends = [c.request_id for step in bench.steps for c in step.choices if c.finish_reason]
    assert ends == ["0", "1", "2", "3"]


def test_admission_waits_for_room_rather_than_cause_a_preemption() -> None:
    bench = EngineBench(make_info(total_blocks=16))
    bench.engine.submit(make_submit("old", LONG[:39], max_tokens=8))
    bench.step()
    # 6 blocks are left and "new" needs 6, but "old" is about to ask for one.
    bench.engine.submit(make_submit("new", LONG[::-1][:20], max_tokens=8))
    bench.run()
    assert bench.engine.load.preemptions_total == 0


def test_waiting_tokens_count_what_is_left_to_compute() -> None:
    bench = EngineBench(max_batched_tokens=40)
    bench.engine.submit(make_submit("a", LONG, max_tokens=4))
    bench.engine.submit(make_submit("b", LONG[::-1], n=2, max_tokens=4))
    assert bench.engine.load.waiting_tokens == 208
    assert bench.step().load.waiting_tokens == 168
    bench.run()
    assert bench.engine.load.waiting_tokens == 0


def test_an_ended_request_leaves_no_garbage_for_the_cycle_collector() -> None:
    def sequences() -> int:
        # By type alone: isinstance would ask foreign objects for their class, and some of them warn.
        return sum(type(thing) is Sequence for thing in gc.get_objects())

    bench = EngineBench()
    gc.disable()
    try:
        before = sequences()
        bench.engine.submit(make_submit("r", LONG, n=2))
        assert sequences() == before + 2
        bench.run()
        assert sequences() == before
    finally:
        gc.enable()


def test_block_events_tell_of_the_prompt_and_of_the_answer() -> None:
    bench = EngineBench()
    bench.engine.submit(make_submit("r", LONG, max_tokens=9))
    bench.run()
    stored = [event for step in bench.steps for event in step.block_events if isinstance(event, BlockStored)]
    assert [token for event in stored for token in event.token_ids] == list(LONG) + bench.answers.tokens["r", 0][:8]
    bench.engine.clear_cache()
    assert bench.step().block_events == [CacheCleared()]


def test_step_time_is_the_clocks_and_zero_without_work() -> None:
    bench = EngineBench()
    assert bench.step().step_seconds == 0
    bench.engine.submit(make_submit("r", b"x"))
    assert bench.step().step_seconds == 1.0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (SchedulerSettings(max_running=0), "max_running must be at least 1"),
        (SchedulerSettings(max_running=8, max_batched_tokens=7), "must be at least max_running"),
    ],
)
def test_settings_that_would_starve_are_refused(settings: SchedulerSettings, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Engine(EngineBench().runner, settings, clock=lambda: 0.0)
