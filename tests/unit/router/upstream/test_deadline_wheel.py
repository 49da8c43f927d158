"""Deadlines expire once, never early, at most two ticks late."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st
from tidegate_router.upstream.deadline_wheel import Deadline, DeadlineWheel

TICK = 0.1


class VirtualClock:
    """Runs what is scheduled as time is advanced."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._scheduled: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[[], None], /) -> None:
        self._scheduled.append((self.now + delay, callback))

    def advance(self, seconds: float) -> None:
        until = self.now + seconds
        while self._scheduled and min(self._scheduled)[0] <= until:
            due = min(self._scheduled, key=lambda each: each[0])
            self._scheduled.remove(due)
            self.now = due[0]
            due[1]()
        self.now = until


def wheel() -> tuple[VirtualClock, DeadlineWheel]:
    clock = VirtualClock()
    made = DeadlineWheel(clock, TICK)
    made.start()
    return clock, made


@given(st.lists(st.tuples(st.floats(0.01, 9), st.floats(0, 3)), min_size=1, max_size=12))
def test_the_last_arming_counts(armings: list[tuple[float, float]]) -> None:
    clock, made = wheel()
    expired: list[float] = []
    deadline = Deadline(made, lambda: expired.append(clock.now))
    due = float("inf")
    for seconds, pause in armings:
        if expired:
            break
        due = clock.now + seconds
        deadline.arm(seconds)
        clock.advance(pause)
    clock.advance(12)
    assert len(expired) == 1
    assert due - TICK <= expired[0] <= due + 2.5 * TICK


def test_a_cleared_deadline_never_expires_and_can_be_armed_again() -> None:
    clock, made = wheel()
    expired: list[float] = []
    deadline = Deadline(made, lambda: expired.append(clock.now))
    deadline.arm(0.5)
    deadline.clear()
    clock.advance(3)
    assert expired == []
    deadline.arm(0.5)
    clock.advance(3)
    assert len(expired) == 1


def test_a_stalled_loop_expires_everything_that_is_due() -> None:
    clock, made = wheel()
    expired: list[int] = []
    for number in range(30):
        Deadline(made, lambda number=number: expired.append(number)).arm(number * 0.2)  # type: ignore[misc]
    clock.now += 60
    clock.advance(3)
    assert sorted(expired) == list(range(30))


def test_one_failing_callback_does_not_hurt_the_others() -> None:
    clock, made = wheel()
    expired: list[int] = []

    def fail() -> None:
        raise ValueError

    Deadline(made, fail).arm(0.5)
    Deadline(made, lambda: expired.append(1)).arm(0.5)
    clock.advance(2)
    assert expired == [1]


def test_entries_do_not_pile_up_when_a_deadline_is_moved_often() -> None:
    clock, made = wheel()
    deadline = Deadline(made, lambda: None)
    for _ in range(1000):
        deadline.arm(300)
        deadline.arm(4)
        clock.advance(0.01)
    assert sum(len(slot) for slot in made._ring) <= 2
