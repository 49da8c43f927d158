"""Phases, and what follows an exit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidegate_operator.local.lifecycle import (
    CrashHistory,
    GiveUp,
    Phase,
    RestartAfter,
    RestartPolicy,
    describe_exit,
    pool_phase,
)

POLICY = RestartPolicy(initial_seconds=1, factor=2, max_seconds=5, healthy_seconds=30, max_user_errors=3)


def test_the_wait_doubles_with_every_crash_up_to_a_limit() -> None:
    history = CrashHistory(POLICY)
    assert [history.exited(1, 0) for _ in range(5)] == [RestartAfter(wait) for wait in (1, 2, 4, 5, 5)]


def test_a_time_of_health_forgives_earlier_crashes() -> None:
    history = CrashHistory(POLICY)
    history.exited(1, 0)
    history.exited(1, 29.9)
    assert history.exited(-9, 30) == RestartAfter(1)


def test_user_errors_in_a_row_end_the_attempts() -> None:
    history = CrashHistory(POLICY)
    assert [type(history.exited(2, 0)) for _ in range(3)] == [RestartAfter, RestartAfter, GiveUp]


def test_another_exit_between_user_errors_starts_the_count_anew() -> None:
    history = CrashHistory(POLICY)
    verdicts = [history.exited(code, 0) for code in (2, 2, 1, 2, 2)]
    assert GiveUp() not in verdicts


@given(st.lists(st.tuples(st.integers(-15, 255).filter(lambda code: code != 2), st.floats(0, 100)), max_size=200))
def test_a_crash_is_always_followed_by_a_bounded_wait(exits: list[tuple[int, float]]) -> None:
    history = CrashHistory(POLICY)
    for code, ready_seconds in exits:
        verdict = history.exited(code, ready_seconds)
        assert isinstance(verdict, RestartAfter)
        assert POLICY.initial_seconds <= verdict.seconds <= POLICY.max_seconds


@pytest.mark.parametrize(
    ("phases", "expected"),
    [
        ([], Phase.STOPPED),
        ([Phase.READY, Phase.READY], Phase.READY),
        ([Phase.READY, Phase.STARTING], Phase.STARTING),
        ([Phase.READY, Phase.UNREADY], Phase.UNREADY),
        ([Phase.STARTING, Phase.RESTARTING], Phase.RESTARTING),
        ([Phase.READY, Phase.FAILED, Phase.RESTARTING], Phase.FAILED),
        ([Phase.STOPPED, Phase.STOPPING], Phase.STOPPING),
        ([Phase.STOPPED, Phase.STOPPED], Phase.STOPPED),
    ],
)
def test_a_pool_is_as_well_as_its_worst_process(phases: list[Phase], expected: Phase) -> None:
    router = phases[-1] if phases else Phase.STOPPED
    assert pool_phase(phases[:-1], router, was_ready=False) is expected


@pytest.mark.parametrize(
    ("workers", "router", "expected"),
    [
        ([Phase.READY, Phase.READY], Phase.READY, Phase.READY),
        ([Phase.READY, Phase.STARTING], Phase.READY, Phase.DEGRADED),
        ([Phase.FAILED, Phase.READY], Phase.READY, Phase.DEGRADED),
        ([Phase.RESTARTING, Phase.FAILED], Phase.READY, Phase.FAILED),
        ([Phase.READY, Phase.READY], Phase.STARTING, Phase.STARTING),
        ([Phase.RESTARTING], Phase.READY, Phase.RESTARTING),
    ],
)
def test_a_pool_that_was_ready_is_degraded_while_some_of_it_serves(
    workers: list[Phase], router: Phase, expected: Phase
) -> None:
    assert pool_phase(workers, router, was_ready=True) is expected


@pytest.mark.parametrize(("code", "text"), [(1, "exit code 1"), (-9, "signal 9")])
def test_exits_are_described(code: int, text: str) -> None:
    assert describe_exit(code) == text
