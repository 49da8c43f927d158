from hypothesis import given, settings
from hypothesis import strategies as st
from tidegate_router.state.health import MAX_HOLD_SECONDS, MAX_PROBE_SECONDS, HealthBoard, HealthPolicy, Transition


def board_of(*slots: int, interval: float = 1.0, unhealthy: int = 2, healthy: int = 1) -> HealthBoard:
    board = HealthBoard(HealthPolicy(interval, unhealthy, healthy))
    for slot in slots:
        board.add(slot, 0.0)
    return board


def admitted(*slots: int, interval: float = 1.0, unhealthy: int = 2) -> HealthBoard:
    board = board_of(*slots, interval=interval, unhealthy=unhealthy)
    for slot in board.due(0.0):
        board.check_passed(slot, 0.0)
    return board


def test_endpoint_starts_out_and_is_checked_at_once() -> None:
    board = board_of(0, 1)
    assert board.is_dark
    assert board.due(0.0) == [0, 1]
    assert board.due(0.0) == [], "a check that runs is not started again"
    assert board.check_passed(0, 0.1) == Transition(0, ready=True, cause="check", cache_lost=False)
    assert not board.is_dark
    assert board.next_due() == 1.1


def test_healthy_threshold_counts_good_checks_in_a_row() -> None:
    board = board_of(0, healthy=2)
    assert board.check_passed(0, 0.0) is None
    board.check_failed(0, 0.1)
    assert board.check_passed(0, 0.2) is None
    assert board.check_passed(0, 0.3) is not None


def test_failed_checks_in_a_row_put_out() -> None:
    board = admitted(0, 1)
    assert board.check_failed(0, 1.0) is None
    assert board.check_passed(0, 1.1) is None
    assert board.check_failed(0, 2.0) is None
    assert board.check_failed(0, 2.1) == Transition(0, ready=False, cause="check", cache_lost=False)


def test_first_failed_check_is_repeated_soon() -> None:
    board = admitted(0, interval=30.0)
    board.due(30.0)
    board.check_failed(0, 30.0)
    assert board.next_due() == 30.1


def test_faults_in_a_row_put_out_and_an_answer_clears_them() -> None:
    board = admitted(0, 1)
    assert board.fault(0, 1.0, 0.9) is None
    board.answered(0)
    assert board.fault(0, 1.1, 0.9) is None
    assert board.fault(0, 1.2, 0.9) == Transition(0, ready=False, cause="fault", cache_lost=False)
    assert board.fault(0, 1.3, 0.9) is None, "one that is out cannot go out again"


def test_a_fault_has_the_endpoint_checked_at_once() -> None:
    board = admitted(0, 1, interval=30.0)
    board.fault(0, 5.0, 4.0)
    assert board.due(5.0) == [0]


def test_faults_of_requests_sent_before_the_return_do_not_count() -> None:
    board = admitted(0, 1, unhealthy=1)
    assert board.fault(0, 1.0, 0.5, gone=True) == Transition(0, ready=False, cause="fault", cache_lost=True)
    assert board.check_passed(0, 5.0) == Transition(0, ready=True, cause="check", cache_lost=True)
    assert board.fault(0, 5.1, 0.5) is None
    assert board.fault(0, 5.2, 5.05) is not None


def test_faulty_worker_with_good_checks_is_held_longer_each_time() -> None:
    board = admitted(0, 1)
    now, holds = 1.0, []
    for _ in range(6):
        while board.fault(0, now, now) is None:
            pass
        out_at = now
        while board.check_passed(0, now) is None:
            now += 0.05
        holds.append(now - out_at)
    assert holds == sorted(holds)
    assert 0.2 <= holds[0] <= 0.3
    assert holds[-1] <= MAX_HOLD_SECONDS + 0.1


def test_after_faults_the_first_new_one_puts_out_again() -> None:
    board = admitted(0, 1, unhealthy=3)
    for _ in range(3):
        board.fault(0, 1.0, 1.0)
    assert board.check_passed(0, 2.0) is not None
    assert board.fault(0, 2.1, 2.05) is not None


def test_probes_of_an_endpoint_that_is_out_slow_down_to_a_bound() -> None:
    board = admitted(0, 1)
    now, gaps = 10.0, []
    board.check_failed(0, now)
    board.check_failed(0, now)
    for _ in range(8):
        board.due(now)
        board.check_passed(1, now)
        board.check_failed(0, now)
        due = min(each for each in [board.next_due()] if each is not None)
        gaps.append(due - now)
        now = due
    assert max(gaps) <= MAX_PROBE_SECONDS + 1e-6
    assert 0 in board.due(now)


def test_every_endpoint_out_is_probed_at_once_and_not_held() -> None:
    board = admitted(0, 1)
    for slot in (0, 1):
        for _ in range(2):
            board.fault(slot, 5.0, 4.0)
    assert board.is_dark
    assert sorted(board.due(5.0)) == [0, 1]
    assert board.check_passed(0, 5.01) is not None, "with nobody left, a good check is enough"


def test_hurry_asks_for_checks_only_in_the_dark_and_not_too_often() -> None:
    board = board_of(0)
    board.due(0.0)
    board.check_failed(0, 0.0)
    for now in (0.1, 0.3, 0.7):
        board.due(now)
        board.check_failed(0, now)
    assert board.next_due() == 0.7 + 0.8
    assert board.hurry(0.71) == 0.75
    assert board.due(0.75) == [0]
    board.check_passed(0, 0.75)
    assert board.hurry(0.8) == 1.75


def test_what_is_removed_is_forgotten() -> None:
    board = admitted(0)
    board.remove(0)
    board.remove(0)
    assert board.is_dark
    assert board.next_due() is None
    assert board.check_passed(0, 1.0) is None
    assert board.check_failed(0, 1.0) is None
    assert board.fault(0, 1.0, 0.0) is None


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from(["pass", "fail", "fault", "answer", "hurry"]), st.floats(0, 3)),
        max_size=60,
    ),
)
def test_transitions_alternate_and_something_is_always_due_soon(events: list[tuple[int, str, float]]) -> None:
    board = board_of(0, 1, 2)
    ready = dict.fromkeys(range(3), False)
    now = 0.0
    for slot, event, pause in events:
        now += pause
        board.due(now)
        transition: Transition | None = None
        match event:
            case "pass":
                transition = board.check_passed(slot, now)
            case "fail":
                transition = board.check_failed(slot, now)
            case "fault":
                transition = board.fault(slot, now, now)
            case "answer":
                board.answered(slot)
            case _:
                board.hurry(now)
        if transition:
            assert transition.ready is not ready[transition.slot]
            ready[transition.slot] = transition.ready
        assert board.is_dark is not any(ready.values())
        due = board.next_due()
        assert due is None or due <= now + max(1.0, MAX_HOLD_SECONDS)


def test_checks_of_many_endpoints_drift_apart_within_a_tenth_of_the_interval() -> None:
    chances = iter([0.0, 0.25, 0.999])
    board = HealthBoard(HealthPolicy(10.0, 2, 1), lambda: next(chances))
    due = []
    for slot in range(3):
        board.add(slot, 0.0)
        board.due(0.0)
        board.check_passed(slot, 0.0)
        due.append(min(at for at in [board.next_due()] if at is not None))
        board.remove(slot)
    assert due == sorted(due)
    assert due[0] == 9.0
    assert 9.0 < due[1] < due[2] < 11.0
