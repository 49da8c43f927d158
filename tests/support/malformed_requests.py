"""Requests that no server should have to read, as bytes, and what may come back: the table of the malformed battery."""

import json
from dataclasses import dataclass
from typing import Any

from raw_http import get, post

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
SMUGGLED = "/smuggled"
MAX_BODY_BYTES = 65_536  # of the router that these are sent to


@dataclass(frozen=True, slots=True)
class Malformed:
    """One request. `statuses` may answer it, with OpenAI's JSON; `may_close`: a close without an answer is fine too."""

    name: str
    sent: bytes
    statuses: frozenset[int]
    may_close: bool = False


def _case(name: str, sent: bytes, *statuses: int, may_close: bool = False) -> Malformed:
    return Malformed(name, sent, frozenset(statuses or (400,)), may_close)


def chat(**fields: Any) -> bytes:
    """A good chat body with some fields changed."""
    document = {"model": "echo", "messages": [{"role": "user", "content": "hi"}], "user": "someone"}
    return json.dumps({**document, **fields}).encode()


def _body(name: str, body: bytes, *statuses: int, path: str = CHAT) -> Malformed:
    return _case(name, post(path, body), *statuses)


def _without(field: str) -> bytes:
    document = json.loads(chat())
    del document[field]
    return json.dumps(document).encode()


def _head(*lines: str, body: bytes = b"") -> bytes:
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def _post_head(*fields: str, body: bytes = b"") -> bytes:
    return _head(f"POST {CHAT} HTTP/1.1", "host: test", "content-type: application/json", *fields, body=body)


_NESTED = b'{"model":"echo","messages":%s,"x":%s}'

BODIES = [
    _body("no JSON", b"hello"),
    _body("JSON cut short", b'{"model":"echo","messages":[{"role":"user","con'),
    _body("bytes after the JSON", chat() + b"}"),
    _body("two documents", chat() + chat()),
    _body("empty body", b""),
    _body("blank body", b" \r\n\t "),
    _body("NUL bytes", b"\x00" * 64),
    _body("NUL inside a string", chat().replace(b"hi", b"h\x00i")),
    _body("control character inside a string", chat().replace(b"hi", b"h\x01i")),
    _body("a list", b"[1]"),
    _body("a string", b'"model"'),
    _body("a number", b"12"),
    _body("null", b"null"),
    _body("true", b"true"),
    _body("NaN", chat().replace(b'"user"', b'"temperature":NaN,"user"')),
    _body("Infinity", chat().replace(b'"user"', b'"top_p":-Infinity,"user"')),
    _body("single quotes", b"{'model':'echo'}"),
    _body("a comment", b"/* hi */" + chat()),
    _body("trailing comma", chat()[:-1] + b",}"),
    _body("bad escape", chat().replace(b"hi", b"\\x41")),
    _body("bad unicode escape", chat().replace(b"hi", b"\\u12g4")),
    _body("lone high surrogate in the model", chat().replace(b'"echo"', b'"\\ud800"')),
    _body("lone surrogate in a message", chat().replace(b"hi", b"\\ud800 and \\udc00")),
    _body("bad UTF-8 in a message", chat().replace(b"hi", b"\xff\xfe\xfa")),
    _body("bad UTF-8 in the model", chat().replace(b"echo", b"\xc3\x28")),
    _body("bad UTF-8 in an unknown field", chat().replace(b"someone", b"\xe2\x82")),
    _body("overlong UTF-8", chat().replace(b"hi", b"\xc0\x80")),
    _body("surrogate in UTF-8", chat().replace(b"hi", b"\xed\xa0\x80")),
    _body("UTF-16", chat().decode().encode("utf-16")),
    _body("byte order mark", b"\xef\xbb\xbf" + chat()),
    _body("nested lists in messages", _NESTED % (b"[" * 20_000 + b"]" * 20_000, b"1")),
    _body("nested lists never closed", _NESTED % (b"[" * 40_000, b"1")),
    _body("nested objects in an unknown field", _NESTED % (b"[{}]", b'{"a":' * 8_000 + b"1" + b"}" * 8_000)),
    _body("model missing", _without("model")),
    _body("model null", chat(model=None)),
    _body("model a number", chat(model=1)),
    _body("model a list", chat(model=["echo"])),
    _body("model empty", chat(model="")),
    _body("model of 30,000 characters", chat(model="m" * 30_000), 400, 404),
    _body("model twice", chat()[:-1] + b',"model":"other"}'),
    _body("unknown model", chat(model="no-such-model"), 404),
    _body("model with a NUL", chat(model="echo\x00"), 400, 404),
    _body("messages missing", _without("messages")),
    _body("messages null", chat(messages=None)),
    _body("messages a string", chat(messages="hi")),
    _body("messages an object", chat(messages={"role": "user", "content": "hi"})),
    _body("messages a number", chat(messages=1e300)),
    _body("messages empty", chat(messages=[])),
    _body("prompt missing", chat(), path=COMPLETIONS),
    _body("prompt a number", chat(prompt=3), path=COMPLETIONS),
    _body("prompt an object", chat(prompt={}), path=COMPLETIONS),
    _body("stream a string", chat(stream="yes")),
    _body("stream a number", chat(stream=1)),
    _body("stream_options a list", chat(stream_options=[1])),
    _body("include_usage a string", chat(stream_options={"include_usage": "yes"})),
    _body("max_tokens a string", chat(max_tokens="many")),
    _body("max_tokens a fraction", chat(max_tokens=1.5)),
    _body("max_tokens of 400 digits", chat().replace(b'"user"', b'"max_tokens":1' + b"0" * 400 + b',"user"')),
    _body("max_tokens 1e999", chat().replace(b'"user"', b'"max_tokens":1e999,"user"')),
    _body("cache_salt a number", chat(cache_salt=7)),
    _body("gzip without saying so", b"\x1f\x8b\x08\x00" + b"\x00" * 60),
    _body("body over maxBodyBytes", chat(user="u" * MAX_BODY_BYTES), 413),
]

HEADS = [
    _case(
        "gzip and saying so", _post_head("content-encoding: gzip", "content-length: 4", body=b"\x1f\x8b\x08\x00"), 415
    ),
    _case("no content-length", _post_head(), 400, 411),
    _case("content-length over maxBodyBytes", _post_head(f"content-length: {MAX_BODY_BYTES + 1}"), 413),
    _case("content-length of 30 digits", _post_head("content-length: " + "9" * 30), 400, 413),
    _case("content-length beyond 64 bits", _post_head("content-length: 18446744073709551616"), 400, 413),
    _case("content-length negative", _post_head("content-length: -1")),
    _case("content-length with a plus", _post_head("content-length: +2", body=b"{}")),
    _case("content-length in hex", _post_head("content-length: 0x2", body=b"{}")),
    _case("content-length empty", _post_head("content-length:", body=b"{}"), 400, 411),
    _case("content-length a list", _post_head("content-length: 2, 2", body=b"{}")),
    _case("content-length with a space inside", _post_head("content-length: 1 0", body=b"{}" * 5)),
    _case("two content-lengths", _post_head("content-length: 2", "content-length: 3", body=b"{} ")),
    _case("two equal content-lengths", _post_head("content-length: 2", "content-length: 2", body=b"{}")),
    _case(
        "chunked beyond maxBodyBytes",
        _post_head("transfer-encoding: chunked", body=(b"4000\r\n" + b" " * 0x4000 + b"\r\n") * 5),
        413,
    ),
    _case("chunk size that is no number", _post_head("transfer-encoding: chunked", body=b"zz\r\n{}\r\n0\r\n\r\n")),
    _case("chunk size negative", _post_head("transfer-encoding: chunked", body=b"-2\r\n{}\r\n0\r\n\r\n")),
    _case("chunk size with 0x", _post_head("transfer-encoding: chunked", body=b"0x2\r\n{}\r\n0\r\n\r\n")),
    _case("chunk size beyond 64 bits", _post_head("transfer-encoding: chunked", body=b"f" * 17 + b"\r\n{}"), 400, 413),
    _case("chunk size empty", _post_head("transfer-encoding: chunked", body=b"\r\n{}\r\n0\r\n\r\n")),
    _case("chunk longer than its size", _post_head("transfer-encoding: chunked", body=b"2\r\n{}{}\r\n0\r\n\r\n")),
    _case(
        "trailer flood",
        _post_head("transfer-encoding: chunked", body=b"2\r\n{}\r\n0\r\n" + b"x: y\r\n" * 20_000 + b"\r\n"),
        400,
        413,
        431,
        may_close=True,
    ),
    _case("header flood", _post_head(*(f"x-{number}: y" for number in range(5_000)), "content-length: 0"), 431),
    _case("one header of 200 KB", _post_head("x-long: " + "y" * 200_000, "content-length: 0"), 431),
    _case("header name of 200 KB", _post_head("y" * 200_000 + ": x", "content-length: 0"), 400, 431),
    _case("request line of 200 KB", _head("GET /" + "a" * 200_000 + " HTTP/1.1", "host: test"), 400, 414, 431),
    _case("endless header", b"GET / HTTP/1.1\r\nx-endless: " + b"z" * 2_000_000, 400, 431),
    _case("header without a colon", _head("GET /health HTTP/1.1", "host: test", "nocolon")),
    _case("header without a name", _head("GET /health HTTP/1.1", "host: test", ": value")),
    _case("space before the colon", _head("GET /health HTTP/1.1", "host : test")),
    _case("space in a header's name", _head("GET /health HTTP/1.1", "host: test", "x y: z")),
    _case("folded header", _head("GET /health HTTP/1.1", "host: test", "x-a: b", " c")),
    _case("NUL in a header", _head("GET /health HTTP/1.1", "host: test", "x-a: b\x00c")),
    _case("bare CR in a header", _head("GET /health HTTP/1.1", "host: test", "x-a: b\rx-b: c")),
    _case("two hosts", _head("GET /health HTTP/1.1", "host: test", "host: other")),
    _case(
        "an expectation that nobody knows", _post_head("expect: 200-maybe", "content-length: 2", body=b"{}"), 400, 417
    ),
]

LINES = [
    _case("blank request line", b"\r\n\r\n \r\n\r\n"),
    _case("only a method", b"POST\r\n\r\n"),
    _case("HTTP/0.9", b"GET /health\r\n\r\n", 400, 505, may_close=True),
    _case("HTTP/1.2", _head("GET /health HTTP/1.2", "host: test"), 400, 505),
    _case("HTTP/3.0", _head("GET /health HTTP/3.0", "host: test"), 400, 505),
    _case("HTTP/99999999", _head("GET /health HTTP/99999999.1", "host: test"), 400, 505),
    _case("lower-case protocol", _head("GET /health http/1.1", "host: test")),
    _case("HTTP/2 preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00", 400, 405, 505),
    _case("TLS hello", bytes.fromhex("16030100f8010000f40303") + b"\x5a" * 240, may_close=True),
    _case("SSH banner", b"SSH-2.0-OpenSSH_9.2\r\n", may_close=True),
    _case("Redis", b"*1\r\n$4\r\nPING\r\n", may_close=True),
    _case("a binary flood", bytes(range(256)) * 400, may_close=True),
    _case("unknown method", _head("BREW /coffee HTTP/1.1", "host: test"), 400, 405, 501),
    _case("lower-case method", _head("get /health HTTP/1.1", "host: test")),
    _case("CONNECT", _head("CONNECT test:443 HTTP/1.1", "host: test"), 400, 404, 405, 501),
    _case("TRACE", _head(f"TRACE {CHAT} HTTP/1.1", "host: test"), 400, 404, 405, 501),
    _case("GET where only POST is", get(CHAT), 405),
    _case(
        "PUT where only POST is",
        _head(f"PUT {CHAT} HTTP/1.1", "host: test", f"content-length: {len(chat())}", body=chat()),
        405,
    ),
    _case("DELETE where only POST is", _head(f"DELETE {CHAT} HTTP/1.1", "host: test"), 405),
    _case("target without a slash", _head("GET health HTTP/1.1", "host: test"), 400, 404),
    _case("asterisk target", _head("GET * HTTP/1.1", "host: test"), 400, 404, 405),
    _case("space in the target", _head("GET /a b HTTP/1.1", "host: test")),
    _case("NUL in the target", _head("GET /a\x00b HTTP/1.1", "host: test")),
    _case("bytes above ASCII in the target", b"GET /\xff\xfe HTTP/1.1\r\nhost: test\r\n\r\n", 400, 404),
    _case("unknown path", get("/v2/nothing"), 404),
    _case("path out of the root", get("/v1/../../etc/passwd"), 400, 404, 405),
    _case("percent-encoded NUL in the path", get("/v1/%00"), 400, 404, 405),
]

_HIDDEN = _head(f"GET {SMUGGLED} HTTP/1.1", "host: test")

# Each holds a second request for whoever takes the length from the other header.
SMUGGLING = [
    _case(
        "both framings, chunked last",
        _post_head(f"content-length: {len(_HIDDEN) + 5}", "transfer-encoding: chunked", body=b"0\r\n\r\n" + _HIDDEN),
    ),
    _case(
        "both framings, length last",
        _post_head("transfer-encoding: chunked", f"content-length: {len(_HIDDEN) + 5}", body=b"0\r\n\r\n" + _HIDDEN),
    ),
    _case(
        "two lengths, the second hides a request",
        _post_head("content-length: 0", f"content-length: {len(_HIDDEN)}", body=_HIDDEN),
    ),
    *(
        _case(
            f"transfer-encoding {value!r}",
            _post_head(f"transfer-encoding: {value}", body=b"0\r\n\r\n" + _HIDDEN),
            400,
            411,
            501,
        )
        for value in (
            "xchunked",
            "chunked, identity",
            "identity, chunked",
            "gzip, chunked",
            "chunked, chunked",
            "\x0bchunked",
            "chunked\x00",
            '"chunked"',
            "identity",
            "chunked;q=1",
        )
    ),
    _case(
        "transfer-encoding twice",
        _post_head("transfer-encoding: chunked", "transfer-encoding: identity", body=b"0\r\n\r\n" + _HIDDEN),
    ),
    _case(
        "space before transfer-encoding's colon",
        _post_head("transfer-encoding : chunked", f"content-length: {len(_HIDDEN)}", body=_HIDDEN),
    ),
    _case(
        "chunked in HTTP/1.0", _head(f"POST {CHAT} HTTP/1.0", "transfer-encoding: chunked", body=b"0\r\n\r\n" + _HIDDEN)
    ),
    _case("bare LF between chunk lines", _post_head("transfer-encoding: chunked", body=b"2\n{}\n0\n\n" + _HIDDEN)),
    _case(
        "chunk extension with a bare LF",
        _post_head("transfer-encoding: chunked", body=b"2;a=\nb\r\n{}\r\n0\r\n\r\n" + _HIDDEN),
    ),
]

ALL = [*BODIES, *HEADS, *LINES, *SMUGGLING]
