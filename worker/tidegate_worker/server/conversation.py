"""From the messages of a chat to tokens under the model's chat template."""

from collections.abc import Sequence
from typing import Any

import msgspec

from tidegate_worker.server.errors import invalid
from tidegate_worker.server.model_limits import ModelLimits, most_text_bytes, too_long
from tidegate_worker.server.request_types import ChatMessage
from tidegate_worker.server.text_codec import TextCodec, TextTooLongError, utf8_bytes


def encode_conversation(
    messages: Sequence[ChatMessage],
    tools: Sequence[dict[str, Any]] | None,
    codec: TextCodec,
    limits: ModelLimits,
    most_bytes: int | None = None,
) -> list[int]:
    """Token ids of a conversation under the chat template; 400 when the template refuses it.

    `most_bytes` bounds its text; None takes what the context can hold (see `check_text`).
    """
    if tools and not codec.uses_tools:
        message = "'tools': this model's chat template has no place for tools; leave it out or serve another model"
        raise invalid(message, "tools", "unsupported_parameter")
    most_bytes = most_text_bytes(codec, limits) if most_bytes is None else most_bytes
    if len(messages) > limits.context_tokens:
        raise too_long(f"{len(messages)} messages", "messages", limits)
    # A template may leave out parts of the assistant's earlier turns, of the others' it does not.
    size = sum(_content_bytes(message) for message in messages if message.role != "assistant")
    if size > most_bytes:
        raise too_long(f"{size} bytes of text", "messages", limits)
    turns = [_template_turn(message, f"messages[{index}]") for index, message in enumerate(messages)]
    try:
        return codec.encode_chat(turns, tools or None, most_bytes)
    except TextTooLongError as error:
        raise too_long(str(error), "messages", limits) from None
    except ValueError as error:
        raise invalid(f"the model's chat template refuses this conversation: {error}", "messages") from None
    except RecursionError:
        raise invalid("'messages' or 'tools' are nested too deeply", "messages") from None


def _content_bytes(message: ChatMessage) -> int:
    content = message.content
    if isinstance(content, list):
        return sum(utf8_bytes(part.text or "") for part in content)
    return utf8_bytes(content or "")


def _template_turn(message: ChatMessage, path: str) -> dict[str, Any]:
    content = message.content
    if isinstance(content, list):
        for index, part in enumerate(content):
            if part.type != "text" or part.text is None:
                where = f"{path}.content[{index}]"
                raise invalid(f"'{where}': only parts of type \"text\" with a 'text' are supported", where)
        content = "\n".join(part.text or "" for part in content)
    if content is None and message.role != "assistant":
        raise invalid(f"'{path}.content' is required for role {message.role}", f"{path}.content")
    turn: dict[str, Any] = msgspec.to_builtins(message)
    turn["content"] = content or ""
    # OpenAI's newer name for the same role; templates know only the older one.
    turn["role"] = "system" if message.role == "developer" else message.role
    return turn
