"""A head that was seen before is read as the parser reads it, whatever the bytes and however they are cut."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st
from tidegate_crds.router_spec import LimitsSpec
from tidegate_router.gateway.request_head import RequestHead
from tidegate_router.gateway.request_reader import Arrived, RequestReader
from tidegate_router.upstream.known_heads import KnownHeads, take_apart

LIMITS = LimitsSpec(max_header_bytes=1_024, max_headers=8, max_body_bytes=4_096)
HEADS = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\naccept: */*\r\n\r\n",
    b"POST /v1/completions?q HTTP/1.1\r\nContent-Length: %d\r\nHost: a\r\nX-Request-Id: mine-1\r\n\r\n",
    b"POST /x HTTP/1.1\r\nx-request-id: abc\r\ncontent-length: %d\r\nconnection: keep-alive, x-hop\r\nx-hop: 1\r\n\r\n",
    b"POST /x HTTP/1.1\r\nx-request-id: abc\r\nX-request-id: d e\r\ncontent-length: %d\r\n\r\n",
    b"POST /x HTTP/1.1\r\nx-my-length: 7\r\ncontent-length: %d\r\nx-request-start: 5\r\n\r\n",
    b"POST /x HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: %d\r\n\r\n",
    b"POST /x HTTP/1.1\r\nconnection: close\r\ncontent-length: %d\r\n\r\n",
    b"POST /x HTTP/1.0\r\ncontent-length: %d\r\n\r\n",
    b"POST /x HTTP/1.1\r\nconnection: upgrade\r\nupgrade: h2c\r\ncontent-length: %d\r\n\r\n",
    b"GET /health HTTP/1.1\r\ncontent-length: %d\r\n\r\n",
)
PLAIN = HEADS[0]


class Forgetful(KnownHeads[RequestHead]):
    """Knows nothing, so that everything is parsed."""

    def __init__(self) -> None:
        super().__init__()
        self.get = lambda *_: None


messages = st.builds(lambda head, body: head % len(body) + body, st.sampled_from(HEADS), st.binary(max_size=40))
mutations = st.lists(
    st.tuples(
        st.integers(0, 400),
        st.sampled_from(
            [b"\r", b"\n", b"\r\n", b" ", b":", b"0", b"9", b"-", b"\x00", b"x", b"GET ", b"equest-", b"ength: "]
        ),
        st.booleans(),
    ),
    max_size=2,
)


def mutated(stream: bytes, changes: list[tuple[int, bytes, bool]]) -> bytes:
    for at, put, over in changes:
        where = at % (len(stream) + 1)
        stream = stream[:where] + put + stream[where + (len(put) if over else 0) :]
    return stream


def warm() -> KnownHeads[RequestHead]:
    known: KnownHeads[RequestHead] = KnownHeads()
    for head in HEADS:
        reader = RequestReader(LIMITS, lambda _: None, known)
        if reader.take_whole(head % 4 + b"body") is None:
            reader.feed(head % 4 + b"body")
    return known


def told(reader: RequestReader, arrived: list[Arrived], asked: list[bool], pieces: list[bytes]) -> list[object]:
    """What a client connection would see of these reads; `asked` says in which it is free to take a whole request."""
    seen: list[object] = []
    for piece, free in zip(pieces, itertools.cycle(asked), strict=False):
        taken = reader.take_whole(piece) if free else None
        if taken is not None:
            arrived.append(taken)
        else:
            reader.feed(piece)
        waiting = reader.in_body, reader.in_message, reader.refused, reader.expects_continue, reader.body_bytes
        seen.append((waiting, len(arrived)))
    for head, body, error in arrived:
        minted = head.request_id.startswith("req-")
        named = None if minted else head.request_id
        fields = head.method, head.target, head.path, head.forwarded, head.content_length, head.debug, head.chunked
        flags = head.http10, head.keep_alive, head.expects_continue, head.upgrade
        seen.append((fields, flags, named, body, error and (error.status, error.message)))
    return seen


@settings(max_examples=300, deadline=None)
@given(
    st.lists(messages, min_size=1, max_size=4),
    st.lists(st.integers(1, 700), max_size=6),
    mutations,
    st.lists(st.booleans(), min_size=1, max_size=4),
)
def test_known_heads_are_read_as_the_parser_reads_them(
    sent: list[bytes], cuts: list[int], changes: list[tuple[int, bytes, bool]], asked: list[bool]
) -> None:
    stream = mutated(b"".join(sent), changes)
    ends = {0, len(stream), *(cut for cut in cuts if cut < len(stream))}
    ends |= {end for end in itertools.accumulate(map(len, sent)) if end < len(stream) and len(cuts) % 2}
    pieces = [stream[start:end] for start, end in itertools.pairwise(sorted(ends))]
    fast: list[Arrived] = []
    slow: list[Arrived] = []
    by_memory = told(RequestReader(LIMITS, fast.append, warm()), fast, asked, pieces)
    by_parser = told(RequestReader(LIMITS, slow.append, Forgetful()), slow, [False], pieces)
    assert by_memory == by_parser


def test_a_head_seen_before_is_known_with_another_length_and_id() -> None:
    arrived: list[Arrived] = []
    reader = RequestReader(LIMITS, arrived.append, warm())
    first = reader.take_whole(PLAIN % 2 + b"ab")
    second = reader.take_whole(HEADS[1].replace(b"mine-1", b"mine-2") % 3 + b"abc")
    assert first is not None
    assert second is not None
    assert (first[0].content_length, first[1]) == (2, b"ab")
    assert (second[0].request_id, second[1]) == ("mine-2", b"abc")
    assert first[0].request_id != reader.take_whole(PLAIN % 2 + b"ab")[0].request_id  # type: ignore[index]


def test_what_comes_while_a_request_is_answered_is_read_afresh() -> None:
    arrived: list[Arrived] = []
    reader = RequestReader(LIMITS, arrived.append, warm())
    assert reader.take_whole(PLAIN % 2 + b"ab") is not None
    reader.feed(PLAIN % 3 + b"cde")
    assert [body for _, body, _ in arrived] == [b"cde"]


def test_a_known_head_beyond_the_bounds_is_left_to_the_parser() -> None:
    arrived: list[Arrived] = []
    reader = RequestReader(LIMITS, arrived.append, warm())
    message = PLAIN % 5_000 + b"x" * 5_000
    assert reader.take_whole(message) is None
    reader.feed(message)
    assert [error.status for _, _, error in arrived if error] == [413]


def test_what_only_looks_like_a_known_head_is_refused() -> None:
    for odd in (
        (b"content-length: %d\r\n", b"content-length: %d\r\r\n"),
        (b"content-length: %d", b"content-length: %d\0"),
        (b"content-length: %d", b"content-length: +%d"),
        (b"content-length: %d", b"content-length: %d\r\ncontent-length: 9"),
    ):
        arrived: list[Arrived] = []
        reader = RequestReader(LIMITS, arrived.append, warm())
        for head in (PLAIN, b"POST /x HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n"):
            assert reader.take_whole(head % 4 + b"body") or reader.feed(head % 4 + b"body") is None
            message = head.replace(*odd) % 4 + b"body"
            other = RequestReader(LIMITS, arrived.append, reader._known)
            assert other.take_whole(message) is None
            other.feed(message)
            assert arrived[-1][2] is not None


def test_memory_of_heads_is_bounded() -> None:
    known: KnownHeads[int] = KnownHeads()
    keys = []
    for number in range(2_000):
        parts = take_apart(b"POST /%d HTTP/1.1\r\ncontent-length: 4\r\n\r\n" % number)
        assert parts is not None
        known.keep(parts, number)
        assert known.get(parts.key) == number
        keys.append(parts.key)
    assert sum(known.get(key) is not None for key in keys) <= 512
    assert take_apart(b"POST / HTTP/1.1\r\ncontent-length: 4\r\nx: " + b"x" * 5_000 + b"\r\n\r\n") is None
