"""Whom to ask next, and what to say at the end."""

from tidegate_proto.openai_errors import ApiError, ApiErrorKind
from tidegate_router.gateway.retry_state import RetryState
from tidegate_router.upstream.faults import Fault

FAILED = ApiError(ApiErrorKind.BAD_GATEWAY, "failed")
MISSING = ApiError(ApiErrorKind.MODEL_NOT_FOUND, "missing")


def test_failures_use_the_budget_and_refusals_do_not() -> None:
    state = RetryState(2)
    for slot in range(5):
        state.asking(slot)
        state.busy(slot, None)
    assert state.may_ask
    for slot in (5, 6):
        state.asking(slot)
        state.failed(slot, Fault.STATUS, FAILED)
    assert not state.may_ask
    assert state.tried == 0b1111111


def test_starting_over_allows_only_those_that_never_began() -> None:
    state = RetryState(9)
    for slot, fault in ((0, Fault.CONNECT), (1, Fault.STATUS), (2, Fault.RESET), (3, Fault.FIRST_BYTE_TIMEOUT)):
        state.asking(slot)
        state.failed(slot, fault, FAILED)
    assert state.start_over()
    assert state.tried == 0b1010
    assert not state.start_over()


def test_the_most_useful_error_wins() -> None:
    state = RetryState(3)
    assert state.final_error() is None
    state.without_model(0, MISSING)
    assert state.final_error() is MISSING
    state.failed(1, Fault.CUT, FAILED)
    assert state.final_error() is FAILED
    state.busy(2, 9)
    state.busy(3, 4)
    state.busy(4, None)
    error = state.final_error()
    assert error is not None
    assert error.kind is ApiErrorKind.RATE_LIMITED
    assert state.retry_after == 4
