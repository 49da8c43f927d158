"""Requests are the same however the socket cuts them."""

import itertools

from hypothesis import given
from hypothesis import strategies as st
from tidegate_crds.router_spec import LimitsSpec
from tidegate_router.gateway.request_reader import Arrived, RequestReader

STREAM = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\nx-request-id: one\r\n\r\nhello"
    b"POST /x?y HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n3;e=1\r\nabc\r\n2\r\nde\r\n0\r\nt: 1\r\n\r\n"
    b"\r\nGET /health HTTP/1.1\r\nconnection: keep-alive, x-hop\r\nx-hop: 1\r\nx-kept: 2\r\n\r\n"
    b"POST /up HTTP/1.1\r\nconnection: upgrade\r\nupgrade: h2c\r\ncontent-length: 4\r\n\r\nbody"
    b"GET /last HTTP/1.0\r\n\r\n"
)


@given(st.lists(st.integers(1, len(STREAM) - 1), max_size=20))
def test_any_split_gives_the_same_requests(cuts: list[int]) -> None:
    arrived: list[Arrived] = []
    reader = RequestReader(LimitsSpec(), arrived.append)
    edges = [0, *sorted(set(cuts)), len(STREAM)]
    for start, end in itertools.pairwise(edges):
        reader.feed(STREAM[start:end])
    assert [(head.path, body, error) for head, body, error in arrived] == [
        ("/v1/chat/completions", b"hello", None),
        ("/x", b"abcde", None),
        ("/health", b"", None),
        ("/up", b"body", None),
        ("/last", b"", None),
    ]
    assert arrived[0][0].request_id == "one"
    assert arrived[2][0].forwarded == b"x-kept: 2\r\n"
    assert [head.keep_alive for head, _, _ in arrived] == [True, True, True, True, False]
    assert not reader.in_message


@given(st.lists(st.binary(max_size=200), max_size=8))
def test_noise_is_refused_once_and_never_raises(pieces: list[bytes]) -> None:
    arrived: list[Arrived] = []
    reader = RequestReader(LimitsSpec(), arrived.append)
    for piece in pieces:
        reader.feed(piece)
    assert sum(error is not None for _, _, error in arrived) == int(reader.refused)


@given(st.integers(1, 3000))
def test_a_partial_head_is_bounded_wherever_it_is_cut(cut: int) -> None:
    arrived: list[Arrived] = []
    reader = RequestReader(LimitsSpec(max_header_bytes=4096), arrived.append)
    message = b"GET / HTTP/1.1\r\nx: " + b"y" * 9000
    for start in range(0, len(message), cut):
        reader.feed(message[start : start + cut])
    assert [error.status for _, _, error in arrived if error] == [431]
