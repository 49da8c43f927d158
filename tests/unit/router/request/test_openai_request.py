import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from router_state import parse_chat
from tidegate_proto.openai_errors import ApiError
from tidegate_router.gateway.openai_request import (
    CHAT_PATH,
    COMPLETIONS_PATH,
    HeaderFields,
    classify,
    parse_passthrough,
    parse_request,
)
from tidegate_router.state.request import Request

MESSAGES = [{"role": "user", "content": "hi"}]


def chat(**fields: object) -> bytes:
    return json.dumps({"model": "m", "messages": MESSAGES} | fields).encode()


def without(name: str) -> bytes:
    return json.dumps(
        {key: value for key, value in {"model": "m", "messages": MESSAGES}.items() if key != name}
    ).encode()


def test_fields_that_routing_needs() -> None:
    body = chat(
        tools=[{"type": "function"}],
        stream=True,
        stream_options={"include_usage": True},
        max_tokens=5,
        max_completion_tokens=7,
        cache_salt="s",
        temperature=0.1,
        anything={"else": [1]},
    )
    headers = HeaderFields(session="chat-1", tenant="t", priority=2)
    request = parse_request(CHAT_PATH, body, "id-1", headers, bytes_per_token=2.0)
    assert isinstance(request, Request)
    assert json.loads(request.messages) == MESSAGES
    assert json.loads(request.head) == [{"type": "function"}]
    assert (request.id, request.api, request.model, request.salt) == ("id-1", CHAT_PATH, "m", "s")
    assert (request.stream, request.wants_usage, request.max_tokens) == (True, True, 7)
    assert (request.session, request.tenant, request.priority) == ("chat-1", "t", 2)
    assert request.prompt_tokens_estimate == (len(request.messages) + len(request.head)) // 2 + 1
    assert request.body is body


@pytest.mark.parametrize("prompt", ["hello", ["a", "b"], [1, 2, 3], [[1, 2], [3]]])
def test_prompts_of_completions(prompt: object) -> None:
    body = json.dumps({"model": "m", "prompt": prompt}).encode()
    request = parse_request(COMPLETIONS_PATH, body, "r")
    assert isinstance(request, Request)
    assert json.loads(request.messages) == prompt


def test_nulls_are_what_was_not_said() -> None:
    body = chat(stream=None, stream_options=None, max_tokens=None, tools=None, cache_salt=None)
    request = parse_chat(body)
    assert (request.stream, request.wants_usage, request.max_tokens, request.head, request.salt) == (
        False,
        False,
        0,
        b"",
        "",
    )


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        (b"", None, "empty"),
        (b"   ", None, "empty"),
        (b"{", None, "not valid JSON"),
        (b"[]", None, "expected `object`, got `array`"),
        (b"null", None, "expected `object`, got `null`"),
        (b'"x"', None, "expected `object`"),
        (chat() + b"x", None, "trailing characters"),
        (chat()[:-1], None, "truncated"),
        (b"\xef\xbb\xbf" + chat(), None, "not valid JSON"),
        (chat().replace(b"hi", b"\xff"), None, "not valid UTF-8 at byte"),
        (chat().replace(b"hi", b"\xed\xa0\x80"), None, "not valid UTF-8 at byte"),
        (chat().replace(b"hi", b"a\x00b"), None, "not valid JSON"),
        (chat(x=1).replace(b'"x": 1', b'"x": NaN'), None, "not valid JSON"),
        (chat(x=1).replace(b'"x": 1', b'"x": 01'), None, "not valid JSON"),
        (chat().replace(b"hi", b"\\ud800"), None, "surrogate"),
        (chat(model="m").replace(b'"m"', b'"\\ud800"'), None, "surrogate"),
        (chat(model="m").replace(b'"m"', b'"\xff"'), None, "UTF-8"),
        (b'{"model":"m","messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}", None, "nested too deeply"),
        (
            b'{"model":"m","messages":[],"x":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}",
            None,
            "nested too deeply",
        ),
        (without("model"), "model", "required"),
        (chat(model=None), "model", "required"),
        (chat(model=""), "model", "1 to 256 characters"),
        (chat(model="m" * 257), "model", "1 to 256 characters"),
        (chat(model=3), "model", "expected `str"),
        (chat(model=["m"]), "model", "expected `str"),
        (b'{"model":"a","model":"b","messages":[{}]}', "model", "twice"),
        (without("messages"), "messages", "required"),
        (chat(messages=None), "messages", "expected a list of messages, got null"),
        (chat(messages="hi"), "messages", "got a string"),
        (chat(messages={}), "messages", "got an object"),
        (chat(messages=1), "messages", "got a number"),
        (chat(messages=-1), "messages", "got a number"),
        (chat(messages=True), "messages", "got a boolean"),
        (chat(messages=[]), "messages", "empty list"),
        (chat().replace(json.dumps(MESSAGES).encode(), b"[ \n ]"), "messages", "empty list"),
        (chat(stream="true"), "stream", "expected `bool"),
        (chat(stream=1), "stream", "expected `bool"),
        (chat(stream_options=1), "stream_options", "expected `object"),
        (chat(stream_options={"include_usage": "yes"}), "stream_options.include_usage", "expected `bool"),
        (chat(max_tokens="5"), "max_tokens", "expected `int"),
        (chat(max_tokens=1.5), "max_tokens", "expected `int"),
        (chat(max_tokens=10**400), "max_tokens", "<= 2147483647"),
        (chat(max_tokens=1).replace(b": 1}", b": 1" + b"0" * 5_000 + b"}"), "max_tokens", "out of range"),
        (chat(max_completion_tokens=-1), "max_completion_tokens", ">= 0"),
        (chat(max_tokens=1).replace(b'"max_tokens": 1', b'"max_tokens": 1e999'), "max_tokens", "out of range"),
        (chat(cache_salt=5), "cache_salt", "expected `str"),
    ],
)
def test_malformed_bodies_get_a_400_that_says_what_to_change(body: bytes, param: str | None, says: str) -> None:
    error = parse_request(CHAT_PATH, body, "r")
    assert isinstance(error, ApiError)
    assert error.status == 400
    assert error.param == param
    assert says.lower() in error.message.lower()
    assert error.message.startswith(f"{param or 'body'}: ")
    assert len(error.message) < 300


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({}, "required"),
        ({"prompt": None}, "got null"),
        ({"prompt": 5}, "got a number"),
        ({"prompt": {}}, "got an object"),
    ],
)
def test_prompt_of_completions_is_checked(fields: dict[str, object], says: str) -> None:
    error = parse_request(COMPLETIONS_PATH, json.dumps({"model": "m"} | fields).encode(), "r")
    assert isinstance(error, ApiError)
    assert error.param == "prompt"
    assert says in error.message


def test_the_word_model_elsewhere_is_no_second_model() -> None:
    tools = [{"type": "function", "function": {"parameters": {"properties": {"model": {"type": "string"}}}}}]
    for body in (
        chat(tools=tools),
        chat(metadata={"model": "x"}),
        chat(messages=[{"role": "user", "content": 'say "model" and {"model":"b"} ' * 20}]),
        chat(messages=[{"role": "user", "content": [{"type": "x", "model": "b"}]}]),
        chat(user="model"),
    ):
        assert parse_chat(body).model == "m"


def test_second_model_is_found_before_and_behind_a_long_prompt() -> None:
    prompt = json.dumps([{"role": "user", "content": "long " * 2_000}]).encode()
    for body in (
        b'{"model":"a","messages":' + prompt + b',"model":"b"}',
        b'{"model":"a","model":"b","messages":' + prompt + b"}",
        b'{"messages":' + prompt + b',"x":{"model":1},"model":"a","model":"b"}',
    ):
        error = parse_request(CHAT_PATH, body, "r")
        assert isinstance(error, ApiError)
        assert "twice" in error.message


def test_unicode_is_kept_byte_for_byte() -> None:
    body = '{"model":"โมเดล","messages":[{"role":"user","content":"สวัสดี 🌊"}]}'.encode()
    request = parse_chat(body)
    assert request.model == "โมเดล"
    assert request.messages in body


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/v1/chat/completions", "inference"),
        ("/v1/completions", "inference"),
        ("/v1/models", "models"),
        ("/tokenize", "passthrough"),
        ("/v1/embeddings", "passthrough"),
        ("/v1/chat/completions/", "passthrough"),
    ],
)
def test_paths(path: str, route: str) -> None:
    assert classify(path) == route


@pytest.mark.parametrize(
    ("body", "model"),
    [
        (b'{"model":"m","prompt":"x"}', "m"),
        (b"{}", ""),
        (b"", ""),
        (b"{broken", ""),
        (b'{"model":3}', ""),
        (b"\xff", ""),
    ],
)
def test_passthrough_reads_the_model_if_there_is_one(body: bytes, model: str) -> None:
    request = parse_passthrough("/tokenize", body, "r")
    assert (request.model, request.api, request.body) == (model, "/tokenize", body)


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_get_an_answer(body: bytes) -> None:
    assert isinstance(parse_request(CHAT_PATH, body, "r"), ApiError)
    parse_passthrough("/x", body, "r")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=10,
)
FIELDS = ["model", "messages", "prompt", "tools", "stream", "stream_options", "max_tokens", "cache_salt", "x"]


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.sampled_from(FIELDS), json_values))
def test_any_object_gets_a_request_or_a_400(fields: dict[str, object]) -> None:
    body = json.dumps(fields).encode()
    for path in (CHAT_PATH, COMPLETIONS_PATH):
        answer = parse_request(path, body, "r")
        assert isinstance(answer, Request) or answer.status == 400
