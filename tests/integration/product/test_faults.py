"""One faulty worker of three: nothing hangs, nothing wrong looks right, what no client has seen goes elsewhere.

The list of faults is that of proxies in the field (see `worker_faults`); every answer is judged on the wire.
"""

import pytest
from chat_load import Ending
from fault_bed import CONNECTIONS, REQUESTS, UNHEALTHY_THRESHOLD, FaultBed
from worker_faults import STREAMS_ONLY, Fault

# A client that was given part of a stream cannot be saved; these faults show only afterwards.
SHOW_IN_MID_STREAM = {
    Fault.STREAM_WITHOUT_DONE,
    Fault.STREAM_CUT_SHORT,
    Fault.STREAM_CUT_IN_EVENT,
    Fault.STREAM_CLOSED,
    Fault.ERROR_EVENT_MIDDLE,
    Fault.TOO_FEW_BYTES,
    Fault.TOO_MANY_BYTES,
    Fault.BROKEN_CHUNK,
    Fault.RESET_AFTER_FIRST_BYTE,
    Fault.STALL_BETWEEN_CHUNKS,
}
GO_ELSEWHERE = set(Fault) - {Fault.BAD_REQUEST, Fault.LONG_STREAM, Fault.ENDLESS}
OUT_FOR_LONG = {Fault.MODEL_NOT_FOUND}  # until the worker's list of models is read again


def named(faults: set[Fault]) -> list[Fault]:
    return sorted(faults, key=lambda fault: fault.name)


async def recover(bed: FaultBed, fault: Fault) -> None:
    if fault in OUT_FOR_LONG:
        await bed.restart([bed.faulty])
    await bed.heal()


@pytest.mark.parametrize("fault", named(GO_ELSEWHERE - STREAMS_ONLY), ids=lambda fault: fault.name)
async def test_every_whole_answer_is_right_whatever_one_worker_does(bed: FaultBed, fault: Fault) -> None:
    reached = bed.faulty.received.completions
    bed.faulty.fault = fault
    outcome = await bed.load(stream=False)
    assert outcome.endings == {Ending.OK: REQUESTS}, outcome.summary()
    assert bed.faulty.received.completions > reached, "the faulty worker was never asked"
    await recover(bed, fault)


@pytest.mark.parametrize("fault", named(GO_ELSEWHERE - SHOW_IN_MID_STREAM), ids=lambda fault: fault.name)
async def test_every_stream_is_right_when_the_fault_shows_before_its_first_byte(bed: FaultBed, fault: Fault) -> None:
    reached = bed.faulty.received.completions
    bed.faulty.fault = fault
    outcome = await bed.load(stream=True)
    assert outcome.endings == {Ending.OK: REQUESTS}, outcome.summary()
    assert bed.faulty.received.completions > reached, "the faulty worker was never asked"
    await recover(bed, fault)


@pytest.mark.parametrize("fault", named(SHOW_IN_MID_STREAM), ids=lambda fault: fault.name)
async def test_a_stream_that_breaks_ends_with_one_error_event(bed: FaultBed, fault: Fault) -> None:
    reached = bed.faulty.received.completions
    bed.faulty.fault = fault
    outcome = await bed.load(stream=True)
    assert set(outcome.endings) <= {Ending.OK, Ending.ERROR_EVENT}, outcome.summary()
    assert all(verdict.events for verdict in outcome.of(Ending.ERROR_EVENT).values()), outcome.summary()
    assert bed.faulty.received.completions > reached, "the faulty worker was never asked"
    await recover(bed, fault)


@pytest.mark.parametrize(
    "fault",
    [Fault.RESET_AFTER_FIRST_BYTE, Fault.ERROR_EVENT_MIDDLE, Fault.STREAM_CUT_SHORT, Fault.TOO_FEW_BYTES],
    ids=lambda fault: fault.name,
)
async def test_breaks_in_mid_stream_take_the_worker_out(bed: FaultBed, fault: Fault) -> None:
    bed.faulty.fault, bed.faulty.health = fault, 503
    outcome = await bed.load(stream=True, count=2 * REQUESTS)
    assert set(outcome.endings) <= {Ending.OK, Ending.ERROR_EVENT}, outcome.summary()
    assert len(outcome.of(Ending.ERROR_EVENT)) <= UNHEALTHY_THRESHOLD + CONNECTIONS, outcome.summary()


@pytest.mark.parametrize(
    "fault", [Fault.RESET_AFTER_FIRST_BYTE, Fault.ERROR_EVENT_MIDDLE], ids=lambda fault: fault.name
)
async def test_a_worker_that_breaks_streams_and_looks_healthy_gets_few_of_them(bed: FaultBed, fault: Fault) -> None:
    bed.faulty.fault = fault
    outcome = await bed.load(stream=True, count=10 * REQUESTS)
    assert set(outcome.endings) <= {Ending.OK, Ending.ERROR_EVENT}, outcome.summary()
    # It is tried again after a hold that doubles from 0.2 s; a third of the requests would be 320.
    assert len(outcome.of(Ending.ERROR_EVENT)) <= 5 * CONNECTIONS, outcome.summary()
