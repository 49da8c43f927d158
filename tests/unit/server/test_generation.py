"""Deltas of a request's choices: order, coalescing, ends, and what is told to the engine."""

import asyncio
from typing import Any

import msgspec
import pytest
from server_builders import CODEC, LIMITS, ScriptedEngine, chat_plan, completion_plan, output, ready
from tidegate_proto.openai_errors import ApiError, ApiErrorKind
from tidegate_worker.server.answers import StreamAnswer, WholeAnswer
from tidegate_worker.server.errors import RequestRefusedError
from tidegate_worker.server.generation import Generation
from tidegate_worker.server.metrics import WorkerCounts
from tidegate_worker.server.plan import GenerationPlan
from tidegate_worker.server.service import STALLED_SECONDS, WorkerService, WorkerState
from tidegate_worker.server.telemetry import TelemetryHub


def generation(plan: GenerationPlan) -> Generation:
    return Generation(plan, CODEC, "req", 0.0)


def events(data: bytes) -> list[Any]:
    parts = [part.removeprefix(b"data: ") for part in data.split(b"\n\n") if part]
    return [part.decode() if part == b"[DONE]" else msgspec.json.decode(part) for part in parts]


def service() -> tuple[WorkerService, ScriptedEngine]:
    counts = WorkerCounts()
    made = WorkerService(LIMITS.served_names, TelemetryHub(1, LIMITS.served_names, counts), counts)
    engine = ScriptedEngine()
    made.engine_ready(ready(), CODEC, engine)
    return made, engine


async def test_deltas_coalesce_while_nobody_takes_and_keep_choice_order() -> None:
    open_request = generation(completion_plan(n=2, stream=True))
    open_request.on_output(0, output(b"x", index=1, cached_tokens=5), 1.0)
    open_request.on_output(0, output(b"a"), 1.0)
    open_request.on_output(0, output(b"b"), 1.5)
    deltas = open_request.take()
    assert [(delta.index, delta.text, delta.first) for delta in deltas] == [(0, "ab", True), (1, "x", True)]
    assert open_request.take() == []
    open_request.on_output(0, output(b"c", "length"), 2.0)
    (delta,) = open_request.take()
    assert (delta.text, delta.finish_reason, delta.first) == ("c", "length", False)
    assert open_request.usage.completion_tokens == 4
    assert open_request.usage.cached_tokens == 5
    assert not open_request.finished


async def test_an_end_token_counts_but_is_no_text() -> None:
    for plan, last in ((chat_plan(), 256), (chat_plan(stop_token_ids=[33]), 33)):
        open_request = generation(plan)
        open_request.on_output(0, output([97, last], "stop"), 1.0)
        (delta,) = open_request.take()
        assert (delta.text, delta.finish_reason) == ("a", "stop")
        assert open_request.usage.completion_tokens == 2


async def test_special_tokens_are_never_text() -> None:
    open_request = generation(chat_plan(ignore_eos=True, logprobs=True))
    open_request.on_output(0, output([97, 256, 98], "length", logprobs=True), 1.0)
    (delta,) = open_request.take()
    assert delta.text == "ab"
    assert [entry.token_id for entry in delta.entries] == [97, 256, 98]


async def test_latency_is_counted_from_the_request_and_between_tokens_of_a_choice() -> None:
    open_request = generation(completion_plan(n=2))
    assert open_request.on_output(0, output(b"a"), 1.5).first == 1.5
    heard = open_request.on_output(0, output(b"b", index=1), 1.6)
    assert (heard.first, heard.gaps) == (None, [])
    assert open_request.on_output(0, output(b"cd"), 2.5).gaps == [(0.5, 2)]


async def test_an_unstreamed_request_wakes_its_reader_only_when_all_is_there() -> None:
    open_request = generation(completion_plan(n=2))
    waiting = asyncio.create_task(open_request.changed())
    open_request.on_output(0, output(b"a", "length"), 1.0)
    await asyncio.sleep(0)
    assert not waiting.done()
    open_request.on_output(0, output(b"b", "length", index=1), 1.0)
    await waiting


async def test_the_first_failure_is_the_one_that_is_raised() -> None:
    open_request = generation(completion_plan())
    open_request.fail(ApiError(ApiErrorKind.SERVER, "first"))
    open_request.fail(ApiError(ApiErrorKind.SERVER, "second"))
    with pytest.raises(RequestRefusedError, match="first"):
        await open_request.changed()


async def test_a_chat_stream_has_role_then_text_then_reason_then_usage_then_done() -> None:
    open_request = generation(chat_plan(stream=True, stream_options={"include_usage": True}))
    answer = StreamAnswer(open_request, CODEC, 5)
    open_request.on_output(0, output(b"hey", "length", cached_tokens=16), 1.0)
    *chunks, usage, done = events(answer.events(open_request.take()) + answer.end())
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
        {"role": "assistant", "content": ""},
        {"content": "hey"},
        {},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, "length"]
    assert all(chunk["usage"] is None and chunk["id"] == "chatcmpl-req" for chunk in chunks)
    assert usage["choices"] == []
    assert usage["usage"] == {
        "prompt_tokens": 21,
        "completion_tokens": 3,
        "total_tokens": 24,
        "prompt_tokens_details": {"cached_tokens": 16},
    }
    assert done == "[DONE]"


async def test_text_held_back_sends_the_role_and_no_empty_text() -> None:
    open_request = generation(chat_plan(stream=True, stop="zz"))
    answer = StreamAnswer(open_request, CODEC, 5)
    open_request.on_output(0, output(b"z"), 1.0)
    assert [chunk["choices"][0]["delta"] for chunk in events(answer.events(open_request.take()))] == [
        {"role": "assistant", "content": ""},
    ]
    open_request.on_output(0, output(b"\xc3"), 1.0)
    assert [chunk["choices"][0]["delta"] for chunk in events(answer.events(open_request.take()))] == []
    open_request.on_output(0, output(b"\xa9"), 1.0)
    assert [chunk["choices"][0]["delta"] for chunk in events(answer.events(open_request.take()))] == [{"content": "zé"}]


async def test_completion_logprobs_carry_offsets_across_chunks_and_behind_the_echo() -> None:
    open_request = generation(completion_plan(stream=True, logprobs=1))
    answer = StreamAnswer(open_request, CODEC, 5)
    open_request.on_output(0, output(b"ab", logprobs=True), 1.0)
    first = events(answer.events(open_request.take()))
    open_request.on_output(0, output(b"c", "length", logprobs=True), 1.0)
    second = events(answer.events(open_request.take()))
    logprobs = [chunk["choices"][0]["logprobs"] for chunk in first + second]
    assert [item["text_offset"] for item in logprobs] == [[0, 1], [2]]
    assert [item["tokens"] for item in logprobs] == [["a", "b"], ["c"]]
    assert logprobs[1]["top_logprobs"] == [{"c": -0.5}]


async def test_completion_logprobs_inside_a_character_share_its_offset_and_keep_their_bytes() -> None:
    for stream in (True, False):
        open_request = generation(completion_plan(stream=stream, logprobs=1, stop="never"))
        tokens = [b"a", b"\xc3", b"\xa9", b"n", b"z"]
        found: list[dict[str, Any]] = []
        answer = StreamAnswer(open_request, CODEC, 5)
        for number, token in enumerate(tokens):
            last = number == len(tokens) - 1
            open_request.on_output(0, output(token, "length" if last else None, logprobs=True), 1.0)
            if stream:
                found += [chunk["choices"][0]["logprobs"] for chunk in events(answer.events(open_request.take()))]
        if not stream:
            found = [msgspec.json.decode(WholeAnswer(open_request, CODEC, 5).body())["choices"][0]["logprobs"]]
        assert [token for item in found for token in item["tokens"]] == ["a", r"bytes:\xc3", r"bytes:\xa9", "n", "z"]
        assert [offset for item in found for offset in item["text_offset"]] == [0, 1, 1, 2, 3]


async def test_whole_answers_list_choices_of_all_prompts_in_order() -> None:
    open_request = generation(completion_plan(prompt=["p", "q"], n=2, echo=True))
    for prompt, index, text in ((1, 1, b"d"), (0, 0, b"a"), (1, 0, b"c"), (0, 1, b"b")):
        open_request.on_output(prompt, output(text, "length", index=index), 1.0)
    assert open_request.finished
    body = msgspec.json.decode(WholeAnswer(open_request, CODEC, 5).body())
    assert [(choice["index"], choice["text"]) for choice in body["choices"]] == [
        (0, "pa"),
        (1, "pb"),
        (2, "qc"),
        (3, "qd"),
    ]


async def test_a_stop_string_drops_its_choice_in_the_engine_and_no_other() -> None:
    made, engine = service()
    open_request = made.open(completion_plan(n=2, stop="!"), "r", 0.0)
    engine.say(output(b"a!b", index=1))
    assert engine.aborted == [("0", 1)]
    engine.say(output(b"c", index=1))
    engine.say(output(b"x", "length"))
    assert open_request.finished
    assert [delta.text for delta in open_request.take()] == ["x", "a"]


async def test_closing_aborts_every_prompt_counts_once_and_tells_telemetry() -> None:
    made, engine = service()
    open_request = made.open(completion_plan(prompt=["a", "b"]), "r", 0.0)
    assert not made.idle.is_set()
    made.close(open_request)
    made.close(open_request)
    assert engine.aborted == [("0", None), ("1", None)]
    assert made.counts.in_flight == 0
    assert made.counts.finished["abort"] == 1
    assert made.idle.is_set()


@pytest.mark.parametrize("state", [WorkerState.LOADING, WorkerState.DRAINING, WorkerState.FAILED])
async def test_nobody_enters_unless_ready(state: WorkerState) -> None:
    made, _ = service()
    made.state = state
    with pytest.raises(RequestRefusedError) as refused:
        made.open(completion_plan(), "r", 0.0)
    assert refused.value.error.status == 503
    assert made.counts.in_flight == 0


async def test_a_failing_engine_ends_every_open_request() -> None:
    made, _ = service()
    requests = [made.open(completion_plan(), str(number), 0.0) for number in range(3)]
    made.fail("gone")
    for request in requests:
        with pytest.raises(RequestRefusedError, match="gone"):
            await request.changed()
        made.close(request)
    assert made.counts.finished["error"] == 3


async def test_the_context_is_the_whole_cache_where_that_is_smaller() -> None:
    counts = WorkerCounts()
    made = WorkerService(("m",), TelemetryHub(1, ("m",), counts), counts)
    made.engine_ready(ready(total_blocks=2, max_model_tokens=4096), CODEC, ScriptedEngine())
    assert made.limits.context_tokens == 32


async def test_an_engine_that_owes_an_answer_for_too_long_is_stalled() -> None:
    made, engine = service()
    assert not made.stalled
    engine.silent_seconds = STALLED_SECONDS + 1
    assert made.stalled
