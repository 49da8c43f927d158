"""Frames survive any splitting of the stream."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidegate_worker.engine.frames import MAX_FRAME_BYTES, FrameDecoder, frame


@given(payloads=st.lists(st.binary(max_size=50), max_size=10), cuts=st.lists(st.integers(1, 40), max_size=30))
def test_payloads_come_whole_and_in_order_however_the_bytes_are_cut(payloads: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(map(frame, payloads))
    decoder = FrameDecoder()
    received: list[bytes] = []
    for cut in cuts:
        received += decoder.feed(stream[:cut])
        stream = stream[cut:]
    received += decoder.feed(stream)
    assert received == payloads


def test_a_length_that_no_message_has_is_refused_before_it_is_buffered() -> None:
    with pytest.raises(ValueError, match="limit"):
        FrameDecoder().feed((MAX_FRAME_BYTES + 1).to_bytes(4, "little"))
