from datetime import UTC, datetime
from typing import Any

import pytest
from tidegate_worker.model.chat_template import ChatTemplate
from tidegate_worker.model.errors import ChatTemplateError, ModelFormatError

USER = [{"role": "user", "content": "hi"}]


def test_chatml_is_used_when_the_model_has_no_template() -> None:
    assert ChatTemplate(None).render(USER) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert ChatTemplate(None).render(USER, add_generation_prompt=False) == "<|im_start|>user\nhi<|im_end|>\n"


def test_text_parts_are_joined_and_null_is_empty() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    template = ChatTemplate("{% for m in messages %}[{{ m.content }}]{% endfor %}")
    messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": None}]
    assert template.render(messages) == "[a\nb][]"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([{"type": "image_url", "image_url": {"url": "x"}}], r"messages\[0\].content\[0\].*image_url.*text only"),
        ([{"type": "text"}], "needs a string in 'text'"),
        ([7], "None' are not supported|None are not supported"),
        (7, "expected a string or a list of parts"),
    ],
)
def test_other_content_is_refused_with_its_place(content: Any, words: str) -> None:
    with pytest.raises(ChatTemplateError, match=words):
        ChatTemplate(None).render([{"role": "user", "content": content}])


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[3].content.x }}", "rejected the messages"),
        ("{{ 1 + 'a' }}", "rejected the messages"),
        ("{{ ''.__class__.__mro__ }}", "rejected the messages"),
        ("{% for i in range(100000000) %}x{% endfor %}", "range of more than"),
        ("{{ messages.append(1) }}", "rejected the messages"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "rejected the messages"),
    ],
)
def test_whatever_a_template_does_is_a_request_error(source: str, words: str) -> None:
    with pytest.raises(ChatTemplateError, match=words):
        ChatTemplate(source).render(USER)


def test_a_template_that_is_no_jinja_is_a_model_error() -> None:
    with pytest.raises(ModelFormatError, match="not valid Jinja"):
        ChatTemplate("{% for %}")


def test_the_functions_that_templates_use_are_there() -> None:
    template = ChatTemplate(
        "{{ bos_token }}{{ strftime_now('%Y-%m') }} {{ tools | tojson }} {{ extra }}"
        "{% for m in messages %}{% generation %}<{{ m.content }}>{% endgeneration %}{% break %}{% endfor %}",
        bos_token="<s>",  # noqa: S106
        now=lambda: datetime(2026, 12, 1, tzinfo=UTC),
    )
    tools = [{"name": "<é>", "b": 1, "a": 2}]
    assert template.render(USER, tools, extra="x") == '<s>2026-12 [{"name": "<é>", "b": 1, "a": 2}] x<hi>'


@pytest.mark.parametrize(
    ("source", "tool_source", "uses_tools"),
    [
        (None, None, False),
        ("{{ messages }} tools", None, False),
        ("{% if tools %}{{ tools | tojson }}{% endif %}", None, True),
        ("{% if tools is not defined %}{% set tools = none %}{% endif %}{{ tools }}", None, True),
        ("{% macro show() %}{{ tools }}{% endmacro %}{{ show() }}", None, True),
        ("plain", "{{ tools }}", True),
    ],
)
def test_a_template_tells_whether_it_has_a_place_for_tools(
    source: str | None, tool_source: str | None, uses_tools: bool
) -> None:
    assert ChatTemplate(source, tool_source=tool_source).uses_tools is uses_tools


def test_a_tool_template_serves_requests_with_tools() -> None:
    template = ChatTemplate("plain", tool_source="with tools")
    assert template.render(USER) == "plain"
    assert template.render(USER, [{"type": "function"}]) == "with tools"


def test_arguments_of_past_tool_calls_reach_the_template_as_objects() -> None:
    template = ChatTemplate("{{ messages[0].tool_calls[0].function.arguments.city }}")
    call = {"type": "function", "function": {"name": "f", "arguments": '{"city": "Oslo"}'}}
    assert template.render([{"role": "assistant", "content": None, "tool_calls": [call]}]) == "Oslo"
    call["function"] = {"name": "f", "arguments": "{"}
    with pytest.raises(ChatTemplateError, match="not valid JSON"):
        template.render([{"role": "assistant", "content": None, "tool_calls": [call]}])
