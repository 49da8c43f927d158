"""Workers that say no: a client's mistake is nobody's fault, a busy worker is passed over, a dark pool wakes soon."""

import asyncio

import pytest
from chat_load import Ending, run_load
from fault_bed import CONNECTIONS, MODELS_REFRESH_SECONDS, REQUESTS, UNHEALTHY_THRESHOLD, FaultBed, chats
from waiting import eventually
from worker_faults import Fault


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_400_reaches_its_client_and_counts_against_no_worker(bed: FaultBed, *, stream: bool) -> None:
    for worker in bed.workers:
        worker.fault = Fault.BAD_REQUEST
    outcome = await bed.load(stream=stream)
    assert outcome.endings == {Ending.ERROR: REQUESTS}, outcome.summary()
    assert {verdict.status for verdict in outcome.verdicts.values()} == {400}
    for worker in bed.workers:
        worker.fault = Fault.NONE
    await bed.assert_one_ok(within_seconds=1)


async def test_a_400_of_one_worker_is_not_asked_again_elsewhere(bed: FaultBed) -> None:
    before = sum(bed.completions)
    bed.faulty.fault = Fault.BAD_REQUEST
    outcome = await bed.load(stream=False)
    assert set(outcome.endings) == {Ending.OK, Ending.ERROR}, outcome.summary()
    assert {verdict.status for verdict in outcome.of(Ending.ERROR).values()} == {400}
    assert sum(bed.completions) == before + REQUESTS


async def test_all_busy_passes_on_the_smallest_retry_after_and_locks_nobody_out(bed: FaultBed) -> None:
    for worker, seconds in zip(bed.workers, ("7", "3", "5"), strict=True):
        worker.fault, worker.retry_after = Fault.TOO_MANY_REQUESTS, seconds
    outcome = await bed.load(stream=False, count=CONNECTIONS)
    assert outcome.endings == {Ending.ERROR: CONNECTIONS}, outcome.summary()
    assert {(each.status, each.retry_after) for each in outcome.verdicts.values()} == {(429, "3")}
    for worker in bed.workers:
        worker.fault = Fault.NONE
    await bed.assert_one_ok(within_seconds=1)


async def test_a_busy_worker_keeps_its_place(bed: FaultBed) -> None:
    bed.faulty.fault = Fault.TOO_MANY_REQUESTS
    outcome = await bed.load(stream=False)
    assert outcome.endings == {Ending.OK: REQUESTS}, outcome.summary()
    bed.faulty.fault = Fault.NONE
    before = bed.faulty.received.completions
    outcome = await bed.load(stream=False)
    assert outcome.endings == {Ending.OK: REQUESTS}, outcome.summary()
    assert bed.faulty.received.completions > before


async def test_a_worker_without_the_model_is_asked_for_it_no_more_until_its_list_is_read_again(bed: FaultBed) -> None:
    bed.faulty.fault = Fault.MODEL_NOT_FOUND
    await bed.load(stream=False, count=CONNECTIONS)
    before = bed.faulty.received.completions
    outcome = await bed.load(stream=False, count=48)
    assert outcome.endings == {Ending.OK: 48}, outcome.summary()
    assert bed.faulty.received.completions <= before + UNHEALTHY_THRESHOLD
    await bed.heal(seconds=MODELS_REFRESH_SECONDS + 5)


async def test_a_model_that_no_worker_has_any_more_is_a_404(bed: FaultBed) -> None:
    for worker in bed.workers:
        worker.fault = Fault.MODEL_NOT_FOUND
    outcome = await bed.load(stream=False, count=CONNECTIONS)
    assert outcome.endings == {Ending.ERROR: CONNECTIONS}, outcome.summary()
    assert {verdict.status for verdict in outcome.verdicts.values()} == {404}
    await bed.restart(bed.workers)
    # Workers that came back serve at once, but for the moment that reading their lists takes.
    await asyncio.to_thread(eventually, lambda: serves(bed), bool, seconds=2)


def serves(bed: FaultBed) -> bool:
    outcome = asyncio.run(run_load(bed.router.port, chats(1, stream=False), connections=1))
    return set(outcome.endings) == {Ending.OK}


async def test_when_every_worker_was_out_the_first_that_heals_serves_at_once(bed: FaultBed) -> None:
    for worker in bed.workers:
        worker.fault, worker.health = Fault.SERVER_ERROR, 503
    outcome = await bed.load(stream=False, count=2 * CONNECTIONS)
    assert set(outcome.endings) == {Ending.ERROR}, outcome.summary()
    assert {verdict.status for verdict in outcome.verdicts.values()} <= {500, 502, 503}
    bed.workers[1].fault, bed.workers[1].health = Fault.NONE, 200
    await bed.assert_one_ok(within_seconds=1.5)


async def test_workers_that_were_gone_are_used_again_on_the_same_port(bed: FaultBed) -> None:
    for worker in bed.workers:
        worker.stop()
    outcome = await bed.load(stream=True, count=CONNECTIONS)
    assert outcome.endings == {Ending.ERROR: CONNECTIONS}, outcome.summary()
    assert {verdict.status for verdict in outcome.verdicts.values()} <= {502, 503}
    for worker in bed.workers:
        worker.start()
    await bed.assert_one_ok(within_seconds=1.5)
    await bed.heal()
