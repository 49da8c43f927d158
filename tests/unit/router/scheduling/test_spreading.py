"""Where requests go under the default profile: chats stay, shared prefixes spread, nobody idles."""

import collections

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from router_state import Fleet, make_request
from tidegate_router.scheduling.decision import Decision


def text_of(size: int, seed: int) -> str:
    return "".join(f"word{(seed * 7_919 + number) % 10_007} " for number in range(size // 9 + 1))[:size]


def chat_turn(chat: int, turn: int, system: str, size: int = 400) -> list[dict[str, str]]:
    messages = [{"role": "system", "content": system}]
    for past in range(turn):
        messages.append({"role": "user", "content": text_of(size, 1_000 * chat + past)})
        messages.append({"role": "assistant", "content": text_of(size, 2_000 * chat + past)})
    return [*messages, {"role": "user", "content": text_of(size, 1_000 * chat + turn)}]


@settings(max_examples=25, deadline=None)
@given(st.integers(16, 160), st.integers(20, 60_000), st.integers(0, 1_000))
def test_one_shared_prefix_held_open_spreads_over_the_fleet(requests: int, prompt_bytes: int, seed: int) -> None:
    fleet = Fleet(4, seed)
    request = make_request(text_of(prompt_bytes, 1))
    shares = collections.Counter(fleet.open(request)[1].endpoint.slot for _ in range(requests))
    assert max(shares.values()) <= 1.5 * requests / 4
    assert len(shares) == 4, "nobody idles beside a hot worker"


@settings(max_examples=15, deadline=None)
@given(st.integers(2, 8), st.integers(0, 1_000))
def test_shared_system_prompt_with_own_tails_spreads_at_any_fleet_size(endpoints: int, seed: int) -> None:
    fleet = Fleet(endpoints, seed)
    system = text_of(6_000, 1)
    shares: collections.Counter[int] = collections.Counter()
    for chat in range(endpoints * 12):
        shares[fleet.open(make_request(chat_turn(chat, 0, system)))[1].endpoint.slot] += 1
    assert max(shares.values()) <= 1.5 * 12


@pytest.mark.parametrize("endpoints", [2, 4, 16, 40])
@pytest.mark.parametrize("system_bytes", [60, 3_000])
def test_ten_turn_chat_alone_stays_on_its_worker(endpoints: int, system_bytes: int) -> None:
    for seed in range(20):
        fleet = Fleet(endpoints, seed)
        slots = set()
        for turn in range(10):
            _, decision = fleet.open(make_request(chat_turn(seed, turn, text_of(system_bytes, 1), 200)))
            slots.add(decision.endpoint.slot)
            fleet.close(decision)
        assert len(slots) == 1


def test_interleaved_chats_at_low_load_stay_on_their_workers() -> None:
    fleet = Fleet(4, seed=3)
    homes: dict[int, set[int]] = collections.defaultdict(set)
    open_decisions: collections.deque[Decision] = collections.deque()
    for turn in range(10):
        for chat in range(6):
            _, decision = fleet.open(make_request(chat_turn(chat, turn, text_of(200, chat), 1_500)))
            homes[chat].add(decision.endpoint.slot)
            open_decisions.append(decision)
            if len(open_decisions) > 2:
                fleet.close(open_decisions.popleft())
    assert {chat: len(slots) for chat, slots in homes.items()} == dict.fromkeys(range(6), 1)


def test_prompts_without_history_go_to_the_least_loaded() -> None:
    fleet = Fleet(4)
    for number in range(40):
        fleet.open(make_request(text_of(500, number)))
    assert fleet.table.load.in_flight_requests == [10, 10, 10, 10]


def test_large_fleet_is_even_though_only_a_sample_is_scored() -> None:
    fleet = Fleet(100)
    request = make_request(text_of(4_000, 1))
    for _ in range(1_000):
        fleet.open(request)
    assert max(fleet.table.load.in_flight_requests) <= 15


def test_long_history_outweighs_a_short_queue_of_prefill_but_not_a_long_one() -> None:
    fleet = Fleet(2)
    history = text_of(16_000, 1)
    _, first = fleet.open(make_request(history))
    fleet.close(first)
    home = first.endpoint.slot
    fleet.table.load.in_flight_requests[home] = 1
    fleet.table.load.in_flight_tokens[home] = 2_000
    assert fleet.open(make_request(history + "more"))[1].endpoint.slot == home
    fleet.table.load.in_flight_tokens[home] = 20_000
    assert fleet.open(make_request(history + "yet more"))[1].endpoint.slot != home
