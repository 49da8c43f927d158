"""From a client's body to what the engine is asked: pure decisions about one request.

`plan_chat` and `plan_completion` raise `RequestRefusedError` (400, 404) for whatever the engine cannot do; what they
return is complete, nothing is left to a default further on.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from tidegate_worker.engine.sampling_params import SamplingParams
from tidegate_worker.server.conversation import encode_conversation
from tidegate_worker.server.detokenizer import StopStrings
from tidegate_worker.server.errors import invalid
from tidegate_worker.server.json_body import decode
from tidegate_worker.server.model_limits import ModelLimits, check_model, check_text, too_long
from tidegate_worker.server.request_types import (
    MAX_STOP_CHARACTERS,
    MAX_STOP_STRINGS,
    UNSUPPORTED,
    ChatBody,
    CompletionBody,
    GenerationBody,
    Stop,
    TokenId,
)
from tidegate_worker.server.text_codec import TextCodec, utf8_bytes

MAX_SEQUENCES = 128
"""Most prompts x n of one request: a list of prompts is one client's turn, not a batch job."""
COMPLETION_DEFAULT_MAX_TOKENS = 16
"""What OpenAI's completions API gives when `max_tokens` is absent."""

Api = Literal["chat", "completions"]

_PROMPT_FORMS: tuple[msgspec.json.Decoder[Any], ...] = (
    msgspec.json.Decoder(str),
    msgspec.json.Decoder(list[TokenId]),
    msgspec.json.Decoder(list[str]),
    msgspec.json.Decoder(list[list[TokenId]]),
)
_LIST_OF_NUMBERS = re.compile(rb"\s*\[\s*\d")


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt of a request, and how its choices are sampled."""

    token_ids: list[int]
    params: SamplingParams
    echo: str = ""
    """Text to put before every choice."""


@dataclass(frozen=True, slots=True)
class GenerationPlan:
    """A request that can run. Choice index = prompt index x n + choice of that prompt."""

    api: Api
    model: str
    prompts: list[Prompt]
    stops: StopStrings
    salt: str
    stream: bool
    include_usage: bool
    logprobs: int | None

    @property
    def choices_per_prompt(self) -> int:
        return self.prompts[0].params.n

    @property
    def prompt_tokens(self) -> int:
        return sum(len(prompt.token_ids) for prompt in self.prompts)


def plan_chat(body: bytes, codec: TextCodec, limits: ModelLimits, draw_seed: Callable[[], int]) -> GenerationPlan:
    """A conversation: one prompt, `n` choices."""
    chat, members = decode(body, ChatBody)
    _check_common(chat, members, limits)
    if chat.top_logprobs is not None and not chat.logprobs:
        raise invalid("'top_logprobs' needs 'logprobs': true", "top_logprobs")
    # Nobody is to call them, so a model that cannot see them does what is asked.
    unseen = chat.tool_choice == "none" and not codec.uses_tools
    tokens = encode_conversation(chat.messages, None if unseen else chat.tools, codec, limits)
    logprobs = (chat.top_logprobs or 0) if chat.logprobs else None
    field = "max_tokens" if chat.max_completion_tokens is None else "max_completion_tokens"
    wanted = chat.max_tokens if chat.max_completion_tokens is None else chat.max_completion_tokens
    budget = _token_budget(len(tokens), (field, wanted), None, ("messages", limits))
    prompt = Prompt(tokens, _sampling(chat, budget, logprobs, draw_seed()))
    return _plan("chat", chat, [prompt], logprobs)


def plan_completion(body: bytes, codec: TextCodec, limits: ModelLimits, draw_seed: Callable[[], int]) -> GenerationPlan:
    """One or more prompts, `n` choices each."""
    completion, members = decode(body, CompletionBody)
    _check_common(completion, members, limits)
    if completion.echo and completion.logprobs is not None:
        raise invalid("'echo' together with 'logprobs' is not supported: leave one out", "echo")
    prompts = []
    for path, text_or_ids in _prompts_of(completion.prompt, limits):
        if isinstance(text_or_ids, str):
            check_text(utf8_bytes(text_or_ids), path, codec, limits)
            tokens, echo = codec.encode(text_or_ids, add_special_tokens=True), text_or_ids
        else:
            tokens, echo = text_or_ids, ""
            _check_token_ids(tokens, limits, path)
            if completion.echo:
                echo = decode_tokens(tokens, codec)
        default = COMPLETION_DEFAULT_MAX_TOKENS
        budget = _token_budget(len(tokens), ("max_tokens", completion.max_tokens), default, (path, limits))
        params = _sampling(completion, budget, completion.logprobs, draw_seed())
        prompts.append(Prompt(tokens, params, echo if completion.echo else ""))
    if len(prompts) * (completion.n or 1) > MAX_SEQUENCES:
        raise invalid(f"prompts x n may be at most {MAX_SEQUENCES}; send several requests", "prompt")
    return _plan("completions", completion, prompts, completion.logprobs)


def decode_tokens(token_ids: Sequence[int], codec: TextCodec) -> str:
    """The text of tokens, special ones spelled out."""
    return b"".join(map(codec.token_bytes, token_ids)).decode("utf-8", "replace")


def check_supported(members: dict[str, msgspec.Raw]) -> None:
    """400 for a member that asks for something this worker would silently leave out."""
    for name in UNSUPPORTED.keys() & members.keys():
        value = msgspec.json.decode(members[name])
        if value is not None and value not in UNSUPPORTED[name]:
            allowed = " or ".join(msgspec.json.encode(ok).decode() for ok in UNSUPPORTED[name])
            hint = f"leave it out or send {allowed}" if allowed else "leave it out"
            raise invalid(f"'{name}' with this value is not supported: {hint}", name, "unsupported_parameter")


def _check_common(body: GenerationBody, members: dict[str, msgspec.Raw], limits: ModelLimits) -> None:
    check_model(body.model, limits)
    try:
        check_supported(members)
    except msgspec.DecodeError as error:
        raise invalid(f"the request body is not valid JSON: {error}") from None
    if body.stream_options is not None and not body.stream:
        raise invalid("'stream_options' needs 'stream': true", "stream_options")
    for index, token_id in enumerate(body.stop_token_ids or ()):
        if token_id >= limits.vocabulary_size:
            path = f"stop_token_ids[{index}]"
            raise invalid(f"'{path}': the vocabulary ends at {limits.vocabulary_size - 1}", path)


def _sampling(body: GenerationBody, budget: int, logprobs: int | None, seed: int) -> SamplingParams:
    min_tokens = body.min_tokens or 0
    if min_tokens > budget:
        raise invalid(f"'min_tokens' may be at most the {budget} tokens that can be generated", "min_tokens")
    return SamplingParams(
        max_tokens=budget,
        min_tokens=min_tokens,
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=max(0, body.top_k or 0),
        seed=seed if body.seed is None else body.seed,
        n=body.n or 1,
        stop_token_ids=tuple(body.stop_token_ids or ()),
        ignore_eos=bool(body.ignore_eos),
        logprobs=logprobs,
    )


def _plan(api: Api, body: GenerationBody, prompts: list[Prompt], logprobs: int | None) -> GenerationPlan:
    return GenerationPlan(
        api=api,
        model=body.model,
        prompts=prompts,
        stops=_stop_strings(body.stop),
        salt=body.cache_salt or "",
        stream=bool(body.stream),
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
        logprobs=logprobs,
    )


def _stop_strings(stop: Stop) -> StopStrings:
    strings = [stop] if isinstance(stop, str) else stop or []
    if len(strings) > MAX_STOP_STRINGS:
        raise invalid(f"'stop' may hold at most {MAX_STOP_STRINGS} strings, got {len(strings)}", "stop")
    if "" in strings:
        raise invalid("'stop' may not hold an empty string", "stop")
    if sum(map(len, strings)) > MAX_STOP_CHARACTERS:
        raise invalid(f"'stop' may hold at most {MAX_STOP_CHARACTERS} characters in all", "stop")
    return StopStrings(list(dict.fromkeys(strings)))


def _token_budget(
    prompt_tokens: int,
    wanted: tuple[str, int | None],
    default: int | None,
    where: tuple[str, ModelLimits],
) -> int:
    """Most new tokens; `wanted` is (member, value), `where` (the prompt's path, limits).

    The default gives way to the context's end, a client's own wish is refused beyond it.
    """
    path, limits = where
    name, value = wanted
    if prompt_tokens == 0:
        raise invalid(f"'{path}': the prompt is empty; it must hold at least one token", path)
    if value is not None and value < 1:
        raise invalid(f"'{name}' must be at least 1, got {value}", name)
    room = limits.context_tokens - prompt_tokens
    if room < 1 or (value is not None and value > room):
        asked = f"{name} is {value}" if value is not None else f"{name} is not set (at least 1)"
        raise invalid(
            f"this model's context is {limits.context_tokens} tokens, but the prompt has {prompt_tokens} tokens and "
            f"{asked}; shorten the prompt or lower {name}",
            path if room < 1 else name,
            "context_length_exceeded",
        )
    return value if value is not None else min(room, default or room)


def _prompts_of(raw: msgspec.Raw, limits: ModelLimits) -> list[tuple[str, str | list[int]]]:
    """(path, text or token ids) of each prompt in any of the four forms the API knows."""
    if _LIST_OF_NUMBERS.match(raw):
        count = bytes(raw).count(b",") + 1
        if count > limits.context_tokens:
            raise too_long(f"{count} token ids", "prompt", limits)
    for form in _PROMPT_FORMS:
        try:
            value = form.decode(raw)
        except msgspec.ValidationError:
            continue
        except msgspec.DecodeError as error:
            raise invalid(f"the request body is not valid JSON: {error}", "prompt") from None
        if not value:
            raise invalid("'prompt' is empty; it must hold at least one token", "prompt")
        if isinstance(value, str) or isinstance(value[0], int):
            return [("prompt", value)]
        if len(value) > MAX_SEQUENCES:
            raise invalid(f"'prompt' may hold at most {MAX_SEQUENCES} prompts", "prompt")
        return [(f"prompt[{index}]", item) for index, item in enumerate(value)]
    raise invalid(
        "'prompt' must be a string, a list of strings, a list of token ids, or a list of lists of token ids",
        "prompt",
    )


def _check_token_ids(token_ids: Sequence[int], limits: ModelLimits, path: str) -> None:
    if token_ids and max(token_ids) >= limits.vocabulary_size:
        where = next(index for index, token_id in enumerate(token_ids) if token_id >= limits.vocabulary_size)
        raise invalid(f"'{path}[{where}]': the vocabulary ends at {limits.vocabulary_size - 1}", f"{path}[{where}]")
