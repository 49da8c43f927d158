import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidegate_worker.server.errors import ClientGoneError, RequestRefusedError
from tidegate_worker.server.json_body import decode, read_body


class Example(msgspec.Struct):
    a: int = 0
    b: str = ""


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text().filter(lambda name: name not in ("a", "b")), JSON, max_size=6), st.integers(0, 3))
def test_any_object_without_repeats_is_accepted_with_all_its_members(members: dict[str, object], indent: int) -> None:
    body = msgspec.json.encode(members)
    _, seen = decode(msgspec.json.format(body, indent=indent), Example)
    assert list(seen) == list(members)


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":1,"a":2}',
        b'{"a":1,"a":1}',
        b'{"a":1,"b":"x","a":1}',
        b'{"a":1,"\\u0061":2}',
        b'{"b":"x" , "a" : 1 , "b" : "x" }',
        b'{"z":[1],"z":[1]}',
        b'{"z":{"a":1},"y":0,"z":{"a":1}}',
    ],
)
def test_a_member_that_occurs_twice_is_refused(body: bytes) -> None:
    with pytest.raises(RequestRefusedError) as refused:
        decode(body, Example)
    assert refused.value.error.status == 400
    assert "twice" in refused.value.error.message


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"hello",
        b"[1]",
        b"null",
        b'{"a":1}x',
        b'{"a":',
        b'{"a":NaN}',
        b'{"a":1e999}',
        b'{"a":' + b"9" * 5000 + b"}",
        b'{"b":"\xff"}',
        b'{"\xff":1}',
        b'{"unknown":"\xff"}',
        b'{"b":"\\ud800"}',
        b'{"b":"\\udc00 x"}',
        b'{"a":true}',
        b'{"a":"1"}',
        b'{"a":[' * 5000,
        b'{"c":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"c":' + b'{"c":' * 100_000 + b"1" + b"}" * 100_001,
        b"\xef\xbb\xbf{}",
        b"\xff\xfe{\x00}\x00",
    ],
)
def test_anything_else_than_a_good_object_is_a_400(body: bytes) -> None:
    with pytest.raises(RequestRefusedError) as refused:
        decode(body, Example)
    assert refused.value.error.status == 400


def test_a_wrong_type_is_named_by_its_path() -> None:
    class Outer(msgspec.Struct):
        items: list[Example]

    with pytest.raises(RequestRefusedError) as refused:
        decode(b'{"items":[{"a":1},{"a":"x"}]}', Outer)
    assert refused.value.error.param == "items[1].a"
    with pytest.raises(RequestRefusedError) as refused:
        decode(b"{}", Outer)
    assert refused.value.error.param == "items"


class Sender:
    def __init__(self, *chunks: bytes, gone: bool = False) -> None:
        self._messages = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]
        if gone:
            self._messages.append({"type": "http.disconnect"})
        else:
            self._messages.append({"type": "http.request", "body": b"", "more_body": False})
        self.reads = 0

    async def __call__(self) -> dict[str, object]:
        self.reads += 1
        return self._messages.pop(0)


async def test_a_body_in_pieces_is_joined() -> None:
    assert await read_body(Sender(b"ab", b"c"), None, 3) == b"abc"


async def test_a_declared_length_over_the_limit_is_refused_unread() -> None:
    sender = Sender(b"abcd")
    with pytest.raises(RequestRefusedError) as refused:
        await read_body(sender, "4", 3)
    assert (refused.value.error.status, sender.reads) == (413, 0)


async def test_an_undeclared_body_over_the_limit_is_refused_at_the_limit() -> None:
    sender = Sender(b"ab", b"cd", b"ef", b"gh")
    with pytest.raises(RequestRefusedError) as refused:
        await read_body(sender, None, 3)
    assert (refused.value.error.status, sender.reads) == (413, 2)


async def test_a_client_that_leaves_while_sending_is_gone() -> None:
    with pytest.raises(ClientGoneError):
        await read_body(Sender(b"ab", gone=True), "10", 100)
