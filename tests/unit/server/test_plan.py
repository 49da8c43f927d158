"""What a body becomes, and what is refused with which path."""

from typing import Any

import pytest
from server_builders import CODEC, LIMITS, chat_body, chat_plan, completion_body, completion_plan
from tidegate_proto.openai_errors import ApiErrorKind
from tidegate_worker.engine.sampling_params import SamplingParams
from tidegate_worker.server.errors import RequestRefusedError
from tidegate_worker.server.plan import plan_chat, plan_completion
from tidegate_worker.server.request_types import UNSUPPORTED
from tidegate_worker.sim.tokenizer import ByteCodec

HI_TOKENS = 21
"""Of the conversation that is one user message "hi"."""


def test_defaults_are_resolved() -> None:
    plan = chat_plan()
    assert plan.prompts[0].params == SamplingParams(max_tokens=100 - HI_TOKENS, seed=11)
    assert not plan.stream
    assert plan.logprobs is None
    assert completion_plan().prompts[0].params.max_tokens == 16
    assert completion_plan(prompt="x" * 95).prompts[0].params.max_tokens == 5


def test_every_sampling_setting_reaches_the_engine() -> None:
    plan = chat_plan(
        max_completion_tokens=9,
        max_tokens=99,
        min_tokens=2,
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        seed=-3,
        n=2,
        stop="x",
        stop_token_ids=[7, 8],
        ignore_eos=True,
        logprobs=True,
        top_logprobs=4,
        stream=True,
        stream_options={"include_usage": True},
        cache_salt="s",
    )
    assert plan.prompts[0].params == SamplingParams(
        max_tokens=9,
        min_tokens=2,
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        seed=-3,
        n=2,
        stop_token_ids=(7, 8),
        ignore_eos=True,
        logprobs=4,
    )
    assert plan.stops.strings == ("x",)
    assert (plan.stream, plan.include_usage, plan.salt, plan.logprobs) == (True, True, "s", 4)


def test_null_means_absent() -> None:
    names = ["max_tokens", "temperature", "top_p", "top_k", "seed", "n", "stop", "stop_token_ids", "stream", "logprobs"]
    assert chat_plan(**dict.fromkeys(names)).prompts == chat_plan().prompts


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [
        ("ab", [[97, 98]]),
        (["ab", "c"], [[97, 98], [99]]),
        ([97, 98], [[97, 98]]),
        ([[97], [98, 99]], [[97], [98, 99]]),
    ],
)
def test_the_four_forms_of_a_prompt(prompt: Any, tokens: list[list[int]]) -> None:
    assert [prompt.token_ids for prompt in completion_plan(prompt=prompt).prompts] == tokens


def test_each_prompt_without_a_seed_draws_its_own() -> None:
    seeds = iter([1, 2])
    plan = plan_completion(completion_body(prompt=["a", "a"]), CODEC, LIMITS, lambda: next(seeds))
    assert [prompt.params.seed for prompt in plan.prompts] == [1, 2]


def test_messages_become_template_turns() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    plan = chat_plan(messages=[{"role": "developer", "content": parts}, {"role": "user", "content": "q"}])
    text = b"".join(map(CODEC.token_bytes, plan.prompts[0].token_ids)).decode()
    assert text == "<|im_start|>system\na\nb<|im_end|>\n<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n"


def test_tools_reach_the_template() -> None:
    plan = chat_plan(tools=[{"type": "function", "function": {"name": "f"}}], tool_choice="auto")
    assert b'"name"' in b"".join(map(CODEC.token_bytes, plan.prompts[0].token_ids))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": 1}, "model"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "narrator", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "messages[0].content[0].type"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.01}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"top_k": 1.5}, "top_k"),
        ({"seed": "x"}, "seed"),
        ({"seed": 2**70}, "seed"),
        ({"n": 0}, "n"),
        ({"n": 17}, "n"),
        ({"n": True}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 10**30}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": ["x" * 5000]}, "stop"),
        ({"stop": [1]}, "stop[0]"),
        ({"stop_token_ids": [512]}, "stop_token_ids[0]"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
        ({"logprobs": 1}, "logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"tools": "x"}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
    ],
)
def test_a_bad_chat_field_is_a_400_that_names_it(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestRefusedError) as refused:
        chat_plan(**fields)
    assert refused.value.error.status == 400
    assert refused.value.error.param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt[1]"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"prompt": [1.5]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [5, 512]}, "prompt[1]"),
        ({"prompt": [[5], [6, 600]]}, "prompt[1][1]"),
        ({"prompt": ["x"] * 129}, "prompt"),
        ({"prompt": ["x"] * 20, "n": 16}, "prompt"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"echo": True, "logprobs": 1}, "echo"),
        ({"best_of": 4}, "best_of"),
        ({"suffix": "x"}, "suffix"),
    ],
)
def test_a_bad_completion_field_is_a_400_that_names_it(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestRefusedError) as refused:
        completion_plan(**fields)
    assert refused.value.error.status == 400
    assert refused.value.error.param == param


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "text"}},
        {"frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}},
        {"tool_choice": "none", "user": "u", "store": False, "metadata": {"a": "b"}, "made_up": [1]},
        {"n": 16, "temperature": 2, "top_p": 1, "top_k": -1},
        dict.fromkeys(UNSUPPORTED),
    ],
)
def test_fields_that_ask_for_nothing_special_are_accepted(fields: dict[str, Any]) -> None:
    assert chat_plan(**fields).prompts


def test_a_prompt_that_does_not_fit_says_limit_prompt_and_max_tokens() -> None:
    for fields in ({"prompt": "x" * 100}, {"prompt": "x" * 90, "max_tokens": 11}):
        with pytest.raises(RequestRefusedError) as refused:
            completion_plan(**fields)
        error = refused.value.error
        assert (error.status, error.code) == (400, "context_length_exceeded")
        for part in ("100 tokens", f"{len(fields['prompt'])} tokens", "max_tokens"):  # type: ignore[arg-type]
            assert part in error.message
    assert completion_plan(prompt="x" * 90, max_tokens=10).prompts[0].params.max_tokens == 10


class Untouched(ByteCodec):
    """A codec whose use is an error: what it would be asked is refused before."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        raise AssertionError(text[:10], add_special_tokens)

    def encode_chat(self, *_: Any) -> list[int]:
        raise AssertionError


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"prompt": "x" * 101}, "101 bytes of text cannot fit this model's context of 100 tokens"),
        ({"prompt": "é" * 51}, "102 bytes"),
        ({"prompt": ["a" * 101]}, "101 bytes"),
        ({"prompt": [7] * 101}, "101 token ids cannot fit"),
        ({"messages": [{"role": "user", "content": "x" * 101}]}, "101 bytes"),
        ({"messages": [{"role": "tool", "content": [{"type": "text", "text": "x" * 51}] * 2}]}, "102 bytes"),
        ({"messages": [{"role": "user", "content": ""}] * 101}, "101 messages cannot fit"),
    ],
)
def test_what_cannot_fit_by_its_size_alone_is_refused_before_it_is_tokenized(
    fields: dict[str, Any], words: str
) -> None:
    chat = "messages" in fields
    body, plan = (chat_body(**fields), plan_chat) if chat else (completion_body(**fields), plan_completion)
    with pytest.raises(RequestRefusedError, match=words) as refused:
        plan(body, Untouched(), LIMITS, lambda: 0)
    assert (refused.value.error.status, refused.value.error.code) == (400, "context_length_exceeded")


def test_what_a_template_makes_too_long_is_refused_as_well() -> None:
    with pytest.raises(RequestRefusedError, match="bytes of text cannot fit") as refused:
        chat_plan(messages=[{"role": "user", "content": "x" * 99}])
    assert refused.value.error.code == "context_length_exceeded"


def test_long_tokens_let_longer_text_pass() -> None:
    class Halving(ByteCodec):
        longest_token_bytes = 2

        def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
            return super().encode(text, add_special_tokens=add_special_tokens)[::2]

    plan = plan_completion(completion_body(prompt="x" * 180), Halving(), LIMITS, lambda: 0)
    assert plan.prompt_tokens == 90


def test_tools_that_the_model_cannot_see_are_refused_unless_none_is_to_be_called() -> None:
    class Blind(ByteCodec):
        uses_tools = False

    tools = [{"type": "function", "function": {"name": "f"}}]
    for choice in ("auto", None):
        with pytest.raises(RequestRefusedError, match="chat template has no place for tools") as refused:
            plan_chat(chat_body(tools=tools, tool_choice=choice), Blind(), LIMITS, lambda: 0)
        assert (refused.value.error.param, refused.value.error.code) == ("tools", "unsupported_parameter")
    for fields in ({"tools": tools, "tool_choice": "none"}, {"tools": []}):
        plan = plan_chat(chat_body(**fields), Blind(), LIMITS, lambda: 0)
        assert plan.prompt_tokens == HI_TOKENS


def test_an_unknown_model_is_a_404() -> None:
    for body in (chat_body(model="other"), chat_body(model="x" * 10_000)):
        with pytest.raises(RequestRefusedError) as refused:
            plan_chat(body, CODEC, LIMITS, lambda: 0)
        assert refused.value.error.kind is ApiErrorKind.MODEL_NOT_FOUND
        assert len(refused.value.error.message) < 300
    assert chat_plan(model="alias").model == "alias"


def test_a_template_that_refuses_is_a_400() -> None:
    class Refusing(type(CODEC)):  # type: ignore[misc]
        def encode_chat(self, *_: Any) -> list[int]:
            raise ValueError("roles must alternate")

    with pytest.raises(RequestRefusedError, match="roles must alternate"):
        plan_chat(chat_body(), Refusing(), LIMITS, lambda: 0)
