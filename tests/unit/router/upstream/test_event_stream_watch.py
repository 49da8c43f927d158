"""What the watch sees of a stream does not depend on how its bytes are split."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidegate_router.tickets.ticket import Usage
from tidegate_router.upstream.event_stream_watch import EventStreamWatch
from tidegate_router.upstream.usage import NotJsonError, checked_usage, usage_of

DONE = b"data: [DONE]\n\n"
USAGE = {"prompt_tokens": 12, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 8}}


def event(payload: object) -> bytes:
    return b"data: " + json.dumps(payload).encode() + b"\n\n"


def feed(stream: bytes, cuts: list[int]) -> tuple[bytes, EventStreamWatch]:
    watch = EventStreamWatch()
    edges = [0, *sorted({cut % (len(stream) + 1) for cut in cuts}), len(stream)]
    out = b"".join(watch.feed(stream[start:end]) for start, end in itertools.pairwise(edges) if end > start)
    return out + watch.finish(), watch


CUTS = st.lists(st.integers(0, 10_000), max_size=12)
TEXTS = st.lists(st.text(max_size=20) | st.sampled_from(['"error"', "data: [DONE]", '"usage"', "\n\n"]), max_size=6)


@given(TEXTS, CUTS)
def test_a_good_stream_passes_byte_for_byte(texts: list[str], cuts: list[int]) -> None:
    stream = b"".join(event({"choices": [{"delta": {"content": text}}], "usage": None}) for text in texts)
    stream += event({"choices": [], "usage": USAGE}) + DONE
    out, watch = feed(stream, cuts)
    assert out == stream
    assert (watch.done, watch.failed) == (True, False)
    assert watch.usage() == Usage(12, 3, 8)


@given(TEXTS, CUTS)
def test_a_stream_without_done_is_not_done(texts: list[str], cuts: list[int]) -> None:
    stream = b"".join(event({"choices": [{"delta": {"content": text}}]}) for text in texts)
    out, watch = feed(stream, cuts)
    assert out == stream
    assert not watch.done
    assert watch.usage() is None


@given(TEXTS, CUTS)
def test_an_error_event_is_the_last_thing_that_passes(texts: list[str], cuts: list[int]) -> None:
    before = b"".join(event({"choices": [{"delta": {"content": text}}]}) for text in texts)
    error = event({"error": {"message": "no"}})
    out, watch = feed(before + error + event({"late": 1}) + DONE, cuts)
    assert out == before + error
    assert (watch.done, watch.failed) == (False, True)


@given(st.binary(max_size=300).filter(lambda noise: b"[DONE]" not in noise), CUTS)
def test_noise_never_raises_and_never_looks_done(noise: bytes, cuts: list[int]) -> None:
    out, watch = feed(noise, cuts)
    assert noise.startswith(out)
    assert watch.done is False
    watch.usage()


@pytest.mark.parametrize("boundary", [b"\n\n", b"\r\n\r\n"])
@pytest.mark.parametrize("space", [b"", b" "])
def test_other_legal_spellings_of_the_end(boundary: bytes, space: bytes) -> None:
    stream = b'data: {"a":1}' + boundary + b"data:" + space + b"[DONE]" + boundary
    watch = EventStreamWatch()
    watch.feed(stream)
    assert watch.done


def test_half_an_event_waits_for_its_end() -> None:
    watch = EventStreamWatch()
    assert watch.feed(event(1) + b'data: {"cho') == event(1)
    assert watch.feed(b'ices": 1}') == b""
    assert watch.feed(b"\n") == b""
    assert watch.feed(b"\n") == b'data: {"choices": 1}\n\n'


def test_an_event_too_large_to_hold_passes_in_parts_and_is_marked() -> None:
    watch = EventStreamWatch()
    large = b"data: " + b"x" * (2 << 20)
    assert watch.feed(large) == large
    assert watch.mid_event
    assert watch.feed(b"\n\n") == b"\n\n"
    assert not watch.mid_event


def test_comments_pass() -> None:
    watch = EventStreamWatch()
    assert watch.feed(b": keep-alive\n\n") == b": keep-alive\n\n"


@pytest.mark.parametrize(
    "usage",
    [
        None,
        1,
        "x",
        [],
        {},
        {"prompt_tokens": "1"},
        {"prompt_tokens": -1},
        {"prompt_tokens": True},
        {"prompt_tokens": 1e9},
    ],
)
def test_usage_of_any_type_is_survived_and_unknown(usage: object) -> None:
    found = usage_of(json.dumps({"usage": usage}).encode())
    assert found is None or found == Usage()


def test_absent_cached_tokens_are_unknown_not_zero() -> None:
    assert usage_of(b'{"usage":{"prompt_tokens":5,"prompt_tokens_details":null}}') == Usage(prompt_tokens=5)


@pytest.mark.parametrize("body", [b"", b"{", b'{"a": ', b'{"a":1} x', b"<html>"])
def test_an_answer_that_is_no_json_is_told_apart(body: bytes) -> None:
    with pytest.raises(NotJsonError):
        checked_usage(body)
