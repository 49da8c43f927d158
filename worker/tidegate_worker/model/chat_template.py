"""Renders a conversation to the text a model was trained on, through the model's own Jinja template.

Templates come with the model, from outside: they run in Jinja's immutable sandbox with bounded `range`, and whatever
goes wrong in one is a `ChatTemplateError`, the answer to which is HTTP 400. Torch-free.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import CallBlock, ContextReference, Name, Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tidegate_worker.model.errors import ChatTemplateError, ModelFormatError
from tidegate_worker.model.tokenizer import Tokenizer

MAX_RANGE = 10_000
CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

Message = Mapping[str, Any]


class ChatTemplate:
    """One model's chat template, compiled once. Falls back to ChatML when the model has none."""

    def __init__(
        self,
        source: str | None,
        *,
        tool_source: str | None = None,
        bos_token: str = "",
        eos_token: str = "",
        now: Callable[[], datetime] = lambda: datetime.now().astimezone(),
    ) -> None:
        self.source = source or CHATML
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        environment = _environment(now)
        try:
            self.uses_tools = any(
                name.name == "tools" for name in environment.parse(tool_source or self.source).find_all(Name)
            )
            """False when no tool would ever reach the model."""
            self._template = environment.from_string(self.source)
            self._tool_template = environment.from_string(tool_source or self.source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise ModelFormatError(f"the model's chat template is not valid Jinja: {error}") from error

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "ChatTemplate":
        """The template that came with a tokenizer."""
        return cls(
            tokenizer.chat_template,
            tool_source=tokenizer.tool_chat_template,
            bos_token=tokenizer.bos_token,
            eos_token=tokenizer.eos_token,
        )

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **extra: Any,
    ) -> str:
        """The conversation as one text, special tokens written out.

        Content may be a string, null, or a list of text parts; other parts and whatever the template itself refuses
        raise ChatTemplateError.
        """
        return self.render_plain(plain_messages(messages), tools, add_generation_prompt, **extra)

    def render_plain(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **extra: Any,
    ) -> str:
        """`render` for messages that have been through `plain_messages`."""
        variables = {**self._tokens, **extra, "messages": list(messages), "tools": list(tools) if tools else None}
        try:
            template = self._tool_template if tools else self._template
            return template.render(**variables, add_generation_prompt=add_generation_prompt)
        except ChatTemplateError:
            raise
        except Exception as error:  # a template is foreign code and may raise anything
            raise ChatTemplateError(f"the model's chat template rejected the messages: {error}") from error


def plain_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as templates want them: content as one string, arguments of tool calls as objects. Idempotent.

    Whoever looks for something in the clients' strings looks here: JSON inside a string can spell it with escapes.
    """
    return [_plain_message(message, index) for index, message in enumerate(messages)]


def _plain_message(message: Message, index: int) -> dict[str, Any]:
    plain = dict(message)
    content = plain.get("content")
    if content is None:
        plain["content"] = ""
    elif isinstance(content, list | tuple):
        plain["content"] = "\n".join(
            _part_text(part, f"messages[{index}].content[{at}]") for at, part in enumerate(content)
        )
    elif not isinstance(content, str):
        raise ChatTemplateError(f"messages[{index}].content: expected a string or a list of parts")
    if isinstance(plain.get("tool_calls"), list):
        plain["tool_calls"] = [_parsed_call(call) for call in plain["tool_calls"]]
    return plain


def _part_text(part: Any, where: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind not in ("text", "input_text", "output_text", "refusal"):
        raise ChatTemplateError(f"{where}: parts of type {kind!r} are not supported; this model reads text only")
    text = part.get("refusal" if kind == "refusal" else "text")
    if not isinstance(text, str):
        raise ChatTemplateError(f"{where}: a text part needs a string in 'text'")
    return text


def _parsed_call(call: Any) -> Any:
    # OpenAI sends a call's arguments as JSON text; templates expect the object.
    if not isinstance(call, Mapping) or not isinstance(call.get("function"), Mapping):
        return call
    function = dict(call["function"])
    if isinstance(function.get("arguments"), str):
        try:
            function["arguments"] = json.loads(function["arguments"])
        except (ValueError, RecursionError) as error:
            raise ChatTemplateError("tool_calls[].function.arguments: not valid JSON") from error
    return {**call, "function": function}


def _environment(now: Callable[[], datetime]) -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationBlock]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda pattern: now().strftime(pattern)
    environment.globals["range"] = _bounded_range
    return environment


def _bounded_range(*bounds: int) -> range:
    steps = range(*bounds)
    if len(steps) > MAX_RANGE:
        raise ChatTemplateError(f"the model's chat template asked for a range of more than {MAX_RANGE} steps")
    return steps


def _refuse(message: str) -> NoReturn:
    raise ChatTemplateError(f"the model's chat template rejected the messages: {message}")


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Unlike Jinja's own filter: no HTML escapes, keys in their given order.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class _GenerationBlock(Extension):
    """`{% generation %}…{% endgeneration %}` marks an assistant's words for training; here it renders its body."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_body", [ContextReference()])
        return CallBlock(call, [], [], body).set_lineno(line)

    def _body(self, _context: Any, caller: Callable[[], str]) -> str:
        return caller()
