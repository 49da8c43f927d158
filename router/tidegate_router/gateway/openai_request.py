"""From an OpenAI request body to a `Request`, or to the 400 that says what to change. Pure.

Only the fields that routing needs are decoded; `messages`, `prompt` and `tools` stay raw bytes, so the cost is one pass
over the body and no objects for its content. Unknown fields are the worker's business. Everything that a worker could
read differently from the router (bad UTF-8, two `model` keys) is refused here.
"""

import re
from json import JSONDecoder
from typing import Annotated, Final, Literal

import msgspec
from tidegate_proto.openai_errors import ApiError, ApiErrorKind

from tidegate_router.state.request import Request

CHAT_PATH: Final = "/v1/chat/completions"
COMPLETIONS_PATH: Final = "/v1/completions"
MODELS_PATH: Final = "/v1/models"

Route = Literal["inference", "models", "passthrough"]

DEFAULT_BYTES_PER_TOKEN = 4.0
MAX_MODEL_CHARACTERS = 256

_MESSAGES_PROBE_BYTES = 48
_MAX_EMPTY_LIST_BYTES = 64
_PATH_IN_ERROR = re.compile(r"^(?P<what>.*) - at `\$\.?(?P<path>.*)`$")
_OPENINGS = {ord("["): "a list", ord('"'): "a string", ord("{"): "an object", ord("n"): "null", ord("t"): "a boolean"}
_OPENINGS[ord("f")] = "a boolean"
_ABSENT: Final = msgspec.Raw()


class HeaderFields(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a client's headers, not its body, say about a request."""

    session: str = ""
    parent_session: str = ""
    tenant: str = ""
    priority: int = 0
    slo_ttft_ms: int = 0
    slo_tpot_ms: int = 0


NO_HEADER_FIELDS: Final = HeaderFields()


_Tokens = Annotated[int, msgspec.Meta(ge=0, le=(1 << 31) - 1)]


class _StreamOptions(msgspec.Struct, gc=False):
    include_usage: bool | None = None


class _InferenceBody(msgspec.Struct, gc=False):
    model: str | None = None
    messages: msgspec.Raw = _ABSENT
    prompt: msgspec.Raw = _ABSENT
    tools: msgspec.Raw = _ABSENT
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    max_tokens: _Tokens | None = None
    max_completion_tokens: _Tokens | None = None
    cache_salt: str | None = None


class _AnyBody(msgspec.Struct, gc=False):
    model: str | None = None


_decode_inference = msgspec.json.Decoder(_InferenceBody).decode
_decode_any = msgspec.json.Decoder(_AnyBody).decode


def classify(path: str) -> Route:
    """How a path (without query) is served: scheduled inference, the merged model list, or any worker as it is."""
    if path in (CHAT_PATH, COMPLETIONS_PATH):
        return "inference"
    return "models" if path == MODELS_PATH else "passthrough"


def parse_request(
    path: str,
    body: bytes,
    request_id: str,
    headers: HeaderFields = NO_HEADER_FIELDS,
    bytes_per_token: float = DEFAULT_BYTES_PER_TOKEN,
) -> Request | ApiError:
    """Parse an inference request for `CHAT_PATH` or `COMPLETIONS_PATH`. Never raises; O(bytes of the body)."""
    try:
        if not body.isascii():
            str(body, "utf-8")  # Raw fields are skipped, not decoded: a lone check, nothing is kept.
        fields = _decode_inference(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return _invalid_body(body, error)
    tools = b"" if fields.tools is _ABSENT else bytes(fields.tools)
    field, raw = ("messages", fields.messages) if path == CHAT_PATH else ("prompt", fields.prompt)
    prompt = bytes(raw)
    model = fields.model or ""
    if not 0 < len(model) <= MAX_MODEL_CHARACTERS or (prompt[:1] != b"[" and (prompt[:1] != b'"' or path == CHAT_PATH)):
        return _missing_or_wrong(fields.model, field, prompt)
    if len(prompt) < _MAX_EMPTY_LIST_BYTES and prompt[1:].strip() == b"]":
        return _invalid(field, "expected at least one element, got an empty list")
    searched = _outside(body, prompt)
    if tools:
        searched = _outside(searched, tools)
    if searched.count(b'"model"') > 1 and _repeats_model(body):
        return _invalid("model", "this key stands twice in the body; keep one")
    max_tokens = fields.max_completion_tokens if fields.max_completion_tokens is not None else fields.max_tokens
    options = fields.stream_options
    request = Request(
        id=request_id,
        api=path,
        model=model,
        salt=fields.cache_salt or "",
        head=b"" if tools in (b"null", b"[]") else tools,
        messages=prompt,
        prompt_tokens_estimate=int((len(prompt) + len(tools)) / bytes_per_token) + 1,
        max_tokens=max_tokens or 0,
        stream=fields.stream is True,
        wants_usage=options is not None and options.include_usage is True,
        body=body,
    )
    return request if headers is NO_HEADER_FIELDS else _with_headers(request, headers)


def parse_passthrough(path: str, body: bytes, request_id: str) -> Request:
    """A request that any ready worker may answer; only `model` is read, and only where the body has one."""
    model: str | None = None
    if body[:1] == b"{":
        try:
            model = _decode_any(body).model
        except (msgspec.MsgspecError, RecursionError):
            model = None  # The worker knows this API's body, and answers for it.
    return Request(id=request_id, api=path, model=model or "", prompt_tokens_estimate=1, body=body)


def _with_headers(request: Request, headers: HeaderFields) -> Request:
    return msgspec.structs.replace(
        request,
        session=headers.session,
        parent_session=headers.parent_session,
        tenant=headers.tenant,
        priority=headers.priority,
        slo_ttft_ms=headers.slo_ttft_ms,
        slo_tpot_ms=headers.slo_tpot_ms,
    )


def _missing_or_wrong(model: str | None, field: str, prompt: bytes) -> ApiError:
    if model is None:
        return _invalid("model", "this field is required: name the model that should answer")
    if not 0 < len(model) <= MAX_MODEL_CHARACTERS:
        return _invalid("model", f"expected 1 to {MAX_MODEL_CHARACTERS} characters, got {len(model)}")
    if not prompt:
        return _invalid(field, "this field is required")
    expected = "a list of messages" if field == "messages" else "a string or a list"
    return _invalid(field, f"expected {expected}, got {_OPENINGS.get(prompt[0], 'a number')}")


def _outside(body: bytes, part: bytes) -> bytes:
    """`body` without `part`, when it is found quickly: long prompts need no search for keys."""
    if len(part) < _MESSAGES_PROBE_BYTES:
        return body
    start = body.find(part[:_MESSAGES_PROBE_BYTES])
    end = start + len(part)
    return body[:start] + body[end:] if start >= 0 and body.startswith(part, start) else body


def _repeats_model(body: bytes) -> bool:
    """Whether the outermost object has more than one `model`; the slow, exact look after a cheap suspicion."""
    names: list[str] = []

    def remember(pairs: list[tuple[str, object]]) -> None:
        names[:] = [name for name, _ in pairs]  # Objects end inside out, so the outermost is the last.

    try:
        JSONDecoder(object_pairs_hook=remember).decode(str(body, "utf-8"))
    except (ValueError, RecursionError):
        return True
    return names.count("model") > 1


def _invalid(param: str, message: str) -> ApiError:
    return ApiError(ApiErrorKind.INVALID, f"{param}: {message}", param=param)


def _invalid_body(body: bytes, error: Exception) -> ApiError:
    if isinstance(error, RecursionError):
        return ApiError(ApiErrorKind.INVALID, "body: JSON is nested too deeply")
    if isinstance(error, UnicodeDecodeError):
        return ApiError(ApiErrorKind.INVALID, f"body: not valid UTF-8 at byte {error.start}")
    text = str(error)
    located = _PATH_IN_ERROR.match(text)
    if located:
        path, what = located["path"], located["what"]
        return _invalid(path, _lower_first(what))
    if isinstance(error, msgspec.ValidationError):
        return ApiError(ApiErrorKind.INVALID, f"body: {_lower_first(text)}")
    if not body.strip():
        return ApiError(ApiErrorKind.INVALID, "body: empty; send a JSON object")
    hint = " (or a \\u escape holds half of a surrogate pair)" if "truncated" in text and b"\\u" in body else ""
    return ApiError(ApiErrorKind.INVALID, f"body: not valid JSON: {_lower_first(text)}{hint}")


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:] if not text.startswith("JSON") else text
