"""Exactly-once release, whatever the order of events."""

import functools
import operator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidegate_router.state.endpoints import LoadColumns
from tidegate_router.tickets.lease import EndpointLease
from tidegate_router.tickets.ticket import Outcome, Ticket, Usage

SLOTS = 3


def columns() -> LoadColumns:
    return LoadColumns([0] * SLOTS, [0] * SLOTS, [-1] * SLOTS)


class FailingLease:
    """Counts its releases."""

    def __init__(self) -> None:
        self.releases = 0

    def release(self) -> None:
        self.releases += 1


def test_lease_counts_from_its_making_and_gives_back_once() -> None:
    load = columns()
    lease = EndpointLease(load, 1, 40)
    assert (load.in_flight_requests, load.in_flight_tokens) == ([0, 1, 0], [0, 40, 0])
    lease.release()
    lease.release()
    assert lease.released
    assert (load.in_flight_requests, load.in_flight_tokens) == ([0, 0, 0], [0, 0, 0])


def test_close_releases_what_is_open_and_only_the_first_counts() -> None:
    ended: list[Ticket] = []
    ticket = Ticket(ended.append)
    lease = ticket.hold(FailingLease())
    usage = Usage(prompt_tokens=3)
    assert ticket.close(Outcome.COMPLETED, usage)
    assert not ticket.close(Outcome.CLIENT_GONE)
    assert (ticket.outcome, ticket.usage, lease.releases, ended) == (Outcome.COMPLETED, usage, 1, [ticket])


def test_a_lease_taken_after_the_end_is_given_back_at_once() -> None:
    load = columns()
    ticket = Ticket()
    ticket.close(Outcome.CLIENT_GONE)
    ticket.hold(EndpointLease(load, 0, 10))
    assert load.in_flight_requests == [0, 0, 0]
    assert ticket.open_leases == 0


def test_an_attempt_that_ended_is_not_released_again_by_close() -> None:
    ticket = Ticket()
    lease = ticket.hold(FailingLease())
    ticket.release(lease)
    ticket.close(Outcome.FAILED)
    assert lease.releases == 1


# An event is (what, which ticket, slot or lease number, tokens).
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["open", "release", "double release", "close", "abort"]),
        st.integers(0, 4),
        st.integers(0, 7),
        st.integers(0, 100_000),
    ),
    max_size=120,
)


@given(EVENTS)
def test_columns_never_go_below_zero_and_end_at_zero(events: list[tuple[str, int, int, int]]) -> None:
    load = columns()
    tickets = [Ticket() for _ in range(5)]
    leases: list[list[EndpointLease]] = [[] for _ in range(5)]
    for what, number, which, tokens in events:
        ticket, held = tickets[number], leases[number]
        if what == "open":
            held.append(ticket.hold(EndpointLease(load, which % SLOTS, tokens)))
        elif what == "close":
            ticket.close(Outcome.COMPLETED)
        elif what == "abort":
            ticket.close(Outcome.CLIENT_GONE)
        elif held:
            lease = held[which % len(held)]
            ticket.release(lease)
            if what == "double release":
                lease.release()
        assert min(load.in_flight_requests) >= 0
        assert min(load.in_flight_tokens) >= 0
        open_leases = [each for each in functools.reduce(operator.iadd, leases, []) if not each.released]
        assert sum(load.in_flight_requests) == len(open_leases)
        assert sum(load.in_flight_tokens) == sum(each.tokens for each in open_leases)
    for ticket in tickets:
        ticket.close(Outcome.FAILED)
    assert (load.in_flight_requests, load.in_flight_tokens) == ([0] * SLOTS, [0] * SLOTS)


@pytest.mark.parametrize("outcome", list(Outcome))
def test_outcomes_are_kebab_case_words(outcome: Outcome) -> None:
    assert outcome.value.replace("-", "").isalpha()
