"""The bodies of `/v1/chat/completions`, `/v1/completions`, `/tokenize` and `/detokenize` as clients send them.

Types, ranges and closed vocabularies are checked while decoding; unknown members are accepted and ignored, except
those of `UNSUPPORTED`, which would change the answer and are refused unless they ask for what happens anyway.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from tidegate_worker.engine.sampling_params import MAX_LOGPROBS

MAX_CHOICES = 16
"""Most `n`: each choice holds its own blocks and a place in the batch for the whole answer."""
MAX_STOP_STRINGS = 16
"""OpenAI allows 4; agents send more. Every character of an answer is held against each of them."""
MAX_STOP_CHARACTERS = 4096
MAX_INT64 = 2**63 - 1

Role = Literal["system", "developer", "user", "assistant", "tool", "function"]
Stop = str | list[str] | None
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class ContentPart(msgspec.Struct):
    """A piece of a message; only text parts are served."""

    type: str
    text: str | None = None


class ChatMessage(msgspec.Struct, omit_defaults=True):
    """One turn of a conversation, as the chat template sees it."""

    role: Role
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None


class StreamOptions(msgspec.Struct):
    """`stream_options` of both APIs."""

    include_usage: bool | None = None


class GenerationBody(msgspec.Struct, kw_only=True):
    """What both generating APIs share."""

    model: str
    max_tokens: Annotated[int, Meta(le=MAX_INT64)] | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=MAX_INT64)] | None = None
    """Not OpenAI's: the end-of-sequence token is not sampled before so many tokens."""
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=MAX_INT64)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=MAX_INT64)] | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    stop: Stop = None
    stop_token_ids: list[TokenId] | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    cache_salt: str | None = None
    user: str | None = None


class ChatBody(GenerationBody, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    max_completion_tokens: Annotated[int, Meta(le=MAX_INT64)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    """Checked by `UNSUPPORTED`."""


class CompletionBody(GenerationBody, kw_only=True):
    """`POST /v1/completions`. `prompt` is decoded apart: JSON lists of text, ids and lists of ids look alike."""

    prompt: msgspec.Raw
    logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    echo: bool | None = None


class TokenizeBody(msgspec.Struct, kw_only=True):
    """`POST /tokenize`: either a prompt or a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Meta(min_length=1)] | None = None
    tools: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None


class DetokenizeBody(msgspec.Struct, kw_only=True):
    """`POST /detokenize`."""

    model: str | None = None
    tokens: list[TokenId]


UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    # member: the values (beside null) that ask for nothing out of the ordinary
    "response_format": ({"type": "text"},),
    "tool_choice": ("auto", "none"),
    "functions": ([],),
    "function_call": ("auto", "none"),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "min_p": (0,),
    "best_of": (1,),
    "use_beam_search": (False,),
    "suffix": ("",),
    "prompt_logprobs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "structured_outputs": (),
    "bad_words": ([],),
    "allowed_token_ids": (),
    "truncate_prompt_tokens": (),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "continue_final_message": (False,),
    "add_generation_prompt": (True,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
}
