import gc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from router_state import make_request
from tidegate_router.state.prefix_index import CHUNK_ENDS, TextPrefixIndex, chunk_hashes, covered_bytes
from tidegate_router.state.request import Request

CHAT = [{"role": "system", "content": "You are a careful assistant. " * 30}]


def turns(count: int) -> list[dict[str, str]]:
    chat = list(CHAT)
    for turn in range(count):
        chat += [
            {"role": "user", "content": f"Question {turn}? " * 9},
            {"role": "assistant", "content": "Because. " * 40},
        ]
    return [*chat, {"role": "user", "content": "And then?"}]


def test_next_turn_extends_the_hashes_of_the_last() -> None:
    for turn in range(8):
        # The last question stays as it was; the answer and a new question follow.
        shorter = [*turns(turn)[:-1], {"role": "user", "content": f"Question {turn}? " * 9}]
        before, after = chunk_hashes(make_request(shorter)), chunk_hashes(make_request(turns(turn + 1)))
        assert after[: len(before)] == before
        assert len(after) >= len(before)


@pytest.mark.parametrize(
    "other",
    [
        make_request(CHAT, model="another"),
        make_request(CHAT, salt="tenant-b"),
        make_request(CHAT, tools=b'[{"type":"function"}]'),
        make_request([{"role": "system", "content": "x" + CHAT[0]["content"]}]),
    ],
    ids=["model", "salt", "tools", "first bytes"],
)
def test_what_the_worker_would_not_share_has_no_hash_in_common(other: Request) -> None:
    assert not set(chunk_hashes(make_request(CHAT))) & set(chunk_hashes(other))


def test_identity_fields_are_not_confused_by_their_lengths() -> None:
    assert chunk_hashes(make_request(CHAT, model="ab", salt="c")) != chunk_hashes(
        make_request(CHAT, model="a", salt="bc")
    )


def test_tools_are_the_first_chunk_even_when_messages_are_short() -> None:
    tools = b"[" + b'{"type":"function"},' * 100 + b"{}]"
    request = make_request("hi", tools=tools)
    hashes = chunk_hashes(request)
    assert len(hashes) == 1
    assert covered_bytes(request, 1) == len(tools)


def test_chunks_are_few_at_any_size() -> None:
    sizes = {2_048: 9, 65_536: 37, CHUNK_ENDS[-1]: 181}
    assert {size: sum(end <= size for end in CHUNK_ENDS) for size in sizes} == sizes
    request = make_request("x" * (5 << 20))
    assert len(chunk_hashes(request)) == len(CHUNK_ENDS)


def test_match_gives_the_longest_contiguous_prefix_per_endpoint() -> None:
    index = TextPrefixIndex()
    index.insert(0, [1, 2, 3, 4])
    index.insert(5, [1, 2])
    index.insert(70, [1])
    index.insert(3, [2, 3, 4])
    assert index.match([1, 2, 3, 9, 4]) == {0: 3, 5: 2, 70: 1}
    assert index.match([9, 1, 2]) == {}
    assert index.match([]) == {}


def test_least_recent_prefixes_make_room_tails_first() -> None:
    index = TextPrefixIndex(capacity_chunks=5)
    index.insert(0, [1, 2, 3])
    index.insert(0, [11, 12, 13])
    assert index.match([1, 2, 3]) == {0: 2}
    index.insert(0, [1, 2])
    index.insert(0, [21, 22])
    assert index.match([1, 2, 3]) == {0: 2}
    assert index.match([11, 12, 13]) == {0: 1}
    index.insert(0, list(range(100, 120)))
    assert index.match(list(range(100, 120))) == {0: 5}
    assert len(index) == 5


def test_forgotten_endpoint_leaves_nothing() -> None:
    index = TextPrefixIndex()
    index.insert(0, [1, 2])
    index.insert(1, [1, 2, 3])
    index.forget(1)
    index.forget(7)
    assert index.match([1, 2, 3]) == {0: 2}
    assert len(index) == 2


def test_one_miss_is_an_eviction_and_heals() -> None:
    index = TextPrefixIndex()
    hashes = list(range(1, 11))
    index.insert(0, hashes)
    index.correct(0, hashes, predicted_chunks=10, actual_chunks=1)
    assert index.match(hashes) == {0: 10}
    index.correct(0, hashes, predicted_chunks=10, actual_chunks=10)
    index.correct(0, hashes, predicted_chunks=10, actual_chunks=1)
    assert index.match(hashes) == {0: 10}, "a hit in between clears the doubt"


def test_second_miss_at_the_same_chunk_drops_the_claim() -> None:
    index = TextPrefixIndex()
    hashes = list(range(1, 11))
    index.insert(0, hashes)
    index.insert(1, hashes)
    index.correct(0, hashes, predicted_chunks=10, actual_chunks=3)
    index.correct(0, hashes, predicted_chunks=10, actual_chunks=3)
    assert index.match(hashes) == {0: 3, 1: 10}


def test_entries_are_nothing_to_the_garbage_collector() -> None:
    gc.collect()
    before = len(gc.get_objects())
    index = TextPrefixIndex()
    for start in range(0, 20_000, 10):
        index.insert(start % 4, list(range(start, start + 10)))
    assert len(index) == 20_000
    assert len(gc.get_objects()) - before < 100


chains = st.lists(st.integers(0, 2), min_size=1, max_size=8).map(
    # Chained: an integer stands for everything up to it.
    lambda path: [hash(tuple(path[: depth + 1])) for depth in range(len(path))],
)
operations = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(["insert", "insert", "insert", "forget", "tail", "correct"]), chains),
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(operations, chains, st.integers(1, 12))
def test_predicts_only_what_was_sent_within_bounds_and_leaves_nothing(
    steps: list[tuple[int, str, list[int]]],
    asked: list[int],
    capacity: int,
) -> None:
    index = TextPrefixIndex(capacity)
    sent: dict[int, set[int]] = {slot: set() for slot in range(4)}
    for slot, operation, chain in steps:
        if operation == "insert":
            index.insert(slot, chain)
            sent[slot].update(chain)
        elif operation == "forget":
            index.forget(slot)
            sent[slot].clear()
        elif operation == "tail":
            index.forget_tail(slot, chain, 1)
            sent[slot].difference_update(chain[1:])
        else:
            index.correct(slot, chain, len(chain), len(chain) // 3)
        assert all(index.held(each) <= capacity for each in range(4))
        assert len(index) <= sum(index.held(each) for each in range(4))
    for slot, depth in index.match(asked).items():
        assert depth >= 1
        assert set(asked[:depth]) <= sent[slot]
    for slot in range(4):
        index.forget(slot)
    assert len(index) == 0
    assert not index._doubts
    assert not index._recency


def test_an_insert_is_found_again() -> None:
    index = TextPrefixIndex()
    hashes = chunk_hashes(make_request(turns(5)))
    index.insert(2, hashes)
    assert index.match(hashes) == {2: len(hashes)}
