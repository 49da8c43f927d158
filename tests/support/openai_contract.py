"""What the `openai` Python client, unchanged, must be able to do with a server: one body for worker and router.

`exercise(base_url, model)` raises AssertionError at the first thing that differs from OpenAI's contract.
"""

from collections.abc import Iterable

import openai
import pytest
from openai.types.chat import ChatCompletionChunk

Messages = list["openai.types.chat.ChatCompletionMessageParam"]

CONVERSATION: Messages = [
    {"role": "system", "content": "You are terse."},
    {"role": "user", "content": "Name three rivers."},
]


def exercise(base_url: str, model: str) -> None:
    """Run the whole contract against `base_url` (which ends in /v1)."""
    with openai.OpenAI(base_url=base_url, api_key="unused", max_retries=0, timeout=60) as client:
        lists_the_model(client, model)
        answers_chat(client, model)
        streams_chat(client, model)
        serves_several_choices(client, model)
        stops_at_stop_strings(client, model)
        gives_chat_logprobs(client, model)
        serves_completions(client, model)
        streams_completions(client, model)
        repeats_with_a_seed(client, model)
        reports_errors(client, model)


def lists_the_model(client: openai.OpenAI, model: str) -> None:
    names = [entry.id for entry in client.models.list()]
    assert model in names, names


def answers_chat(client: openai.OpenAI, model: str) -> None:
    answer = client.chat.completions.create(model=model, messages=CONVERSATION, max_tokens=12)
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    choice = answer.choices[0]
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert choice.finish_reason in ("stop", "length")
    usage = answer.usage
    assert usage is not None
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert 1 <= usage.completion_tokens <= 12
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens is not None


def streams_chat(client: openai.OpenAI, model: str) -> None:
    request = {"model": model, "messages": CONVERSATION, "max_completion_tokens": 12, "temperature": 0}
    whole = client.chat.completions.create(**request)  # type: ignore[call-overload]
    with client.chat.completions.create(
        **request,  # type: ignore[call-overload]
        stream=True,
        stream_options={"include_usage": True},
    ) as stream:
        chunks = list(stream)
    first, last = chunks[0], chunks[-1]
    assert first.choices[0].delta.role == "assistant"
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == whole.usage.completion_tokens
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert {chunk.id for chunk in chunks} == {first.id}
    assert streamed_text(chunks) == whole.choices[0].message.content
    reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    assert reasons == [whole.choices[0].finish_reason]


def serves_several_choices(client: openai.OpenAI, model: str) -> None:
    answer = client.chat.completions.create(model=model, messages=CONVERSATION, max_tokens=16, n=2, seed=7)
    assert [choice.index for choice in answer.choices] == [0, 1]
    texts = [choice.message.content for choice in answer.choices]
    assert texts[0] != texts[1], "two choices of one seed are copies"
    with client.chat.completions.create(
        model=model,
        messages=CONVERSATION,
        max_tokens=16,
        n=2,
        seed=7,
        stream=True,
    ) as stream:
        chunks = list(stream)
    assert [streamed_text(chunks, index) for index in (0, 1)] == texts


def stops_at_stop_strings(client: openai.OpenAI, model: str) -> None:
    free = client.completions.create(model=model, prompt="Once upon a time", max_tokens=24, temperature=0)
    text = free.choices[0].text
    stop = text[6:9]
    stopped = client.completions.create(
        model=model,
        prompt="Once upon a time",
        max_tokens=24,
        temperature=0,
        stop=[stop, "\0never"],
    )
    assert stopped.choices[0].text == text[: text.index(stop)]
    assert stopped.choices[0].finish_reason == "stop"


def gives_chat_logprobs(client: openai.OpenAI, model: str) -> None:
    answer = client.chat.completions.create(
        model=model,
        messages=CONVERSATION,
        max_tokens=8,
        temperature=0,
        logprobs=True,
        top_logprobs=3,
    )
    choice = answer.choices[0]
    assert choice.logprobs is not None
    entries = choice.logprobs.content
    assert entries
    joined = b"".join(bytes(entry.bytes or []) for entry in entries)
    assert joined.decode("utf-8", "replace") == choice.message.content
    for entry in entries:
        assert entry.logprob <= 0
        assert len(entry.top_logprobs) == 3
        values = [top.logprob for top in entry.top_logprobs]
        assert values == sorted(values, reverse=True)
        assert entry.top_logprobs[0].token == entry.token, "greedy takes the likeliest token"


def serves_completions(client: openai.OpenAI, model: str) -> None:
    answer = client.completions.create(model=model, prompt=["One two", "Red green"], max_tokens=6, logprobs=2, n=2)
    assert answer.object == "text_completion"
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    for choice in answer.choices:
        logprobs = choice.logprobs
        assert logprobs is not None
        assert logprobs.tokens is not None
        assert logprobs.token_logprobs is not None
        assert logprobs.top_logprobs is not None
        assert logprobs.text_offset is not None
        tokens = len(logprobs.tokens)
        assert len(logprobs.token_logprobs) == len(logprobs.top_logprobs) == len(logprobs.text_offset) == tokens
        assert logprobs.text_offset[:1] == [0][:tokens]
    echoed = client.completions.create(model=model, prompt="One two", max_tokens=3, echo=True)
    assert echoed.choices[0].text.startswith("One two")


def streams_completions(client: openai.OpenAI, model: str) -> None:
    whole = client.completions.create(model=model, prompt="One two", max_tokens=9, temperature=0)
    with client.completions.create(
        model=model,
        prompt="One two",
        max_tokens=9,
        temperature=0,
        stream=True,
    ) as stream:
        text = "".join(choice.text for chunk in stream for choice in chunk.choices)
    assert text == whole.choices[0].text


def repeats_with_a_seed(client: openai.OpenAI, model: str) -> None:
    texts = {
        client.completions.create(model=model, prompt="A story:", max_tokens=12, temperature=1, seed=seed)
        .choices[0]
        .text
        for seed in (3, 3, 3)
    }
    assert len(texts) == 1, texts
    unseeded = {
        client.completions.create(model=model, prompt="A story:", max_tokens=12, temperature=1).choices[0].text
        for _ in range(3)
    }
    assert len(unseeded) > 1, "requests without a seed repeat each other"


def reports_errors(client: openai.OpenAI, model: str) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="no-such-model", messages=CONVERSATION)
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as out_of_range:
        client.chat.completions.create(model=model, messages=CONVERSATION, temperature=9)
    assert out_of_range.value.param == "temperature"
    assert out_of_range.value.type == "invalid_request_error"
    with pytest.raises(openai.BadRequestError) as too_long:
        client.completions.create(model=model, prompt="long " * 40_000, max_tokens=1)
    assert too_long.value.code == "context_length_exceeded"


def streamed_text(chunks: Iterable[ChatCompletionChunk], index: int = 0) -> str:
    """The text of one choice of a chat stream."""
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices if choice.index == index)
