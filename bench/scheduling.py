"""Microseconds per scheduling step: `python bench/scheduling.py`. CPU time of one core, best of forty runs."""

import random
import time
import timeit
from collections.abc import Callable
from functools import partial

import msgspec
from tidegate_crds.router_spec import SchedulingSpec
from tidegate_router.gateway.openai_request import CHAT_PATH, parse_request
from tidegate_router.scheduling.decision import Decision
from tidegate_router.scheduling.profile import build_profile
from tidegate_router.scheduling.scheduler import Scheduler
from tidegate_router.state.endpoint_table import EndpointTable
from tidegate_router.state.prefix_index import TextPrefixIndex, chunk_hashes
from tidegate_router.state.request import Request

WORDS = [
    "the ",
    "tide ",
    "turns ",
    "at ",
    "noon ",
    "and ",
    "every ",
    "boat ",
    "waits ",
    'for "it", ',
    "then ",
    "sails.\n",
]


def body_of(size: int, seed: int) -> bytes:
    """A chat request of about `size` bytes: a shared system prompt of a quarter, then text of its own."""
    shared, own = random.Random(1), random.Random(seed)
    system = "".join(shared.choices(WORDS, k=size // 24))
    user = "".join(own.choices(WORDS, k=size // 8))[: max(1, size - len(system) - 120)]
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    return msgspec.json.encode({"model": "m", "messages": messages, "stream": True})


def make_scheduler(endpoints: int) -> Scheduler:
    """A scheduler over that many ready endpoints."""
    table = EndpointTable()
    for number in range(endpoints):
        endpoint = table.add(f"worker-{number}", "127.0.0.1", 9_000 + number)
        table.set_ready(endpoint.slot, ready=True)
    return Scheduler(build_profile(SchedulingSpec()), table, TextPrefixIndex(), random.Random(2).random)


def parsed(body: bytes) -> Request:
    request = parse_request(CHAT_PATH, body, "r")
    if not isinstance(request, Request):
        raise TypeError(request.message)
    return request


def cycle(scheduler: Scheduler, requests: list[Request]) -> Callable[[], None]:
    """Hash, schedule and note one request after the other, as the gateway does."""
    turn = 0

    def step() -> None:
        nonlocal turn
        turn = (turn + 1) % len(requests)
        placement = scheduler.prepare(requests[turn])
        decision = scheduler.schedule(placement)
        if isinstance(decision, Decision):
            scheduler.observe_dispatch(placement, decision)

    return step


def report(label: str, statement: Callable[[], object], number: int) -> None:
    best = min(timeit.repeat(statement, timer=time.process_time, number=number, repeat=40)) / number * 1e6
    print(f"{label:<58}{best:9.2f} µs")


def main() -> None:
    for size in (2_048, 65_536):
        number = 1_000 if size < 10_000 else 100
        body = body_of(size, 3)
        request = parsed(body)
        hashes = chunk_hashes(request)
        print(f"prompt of {len(body)} bytes, {len(hashes)} chunks")
        report("  parse_request", partial(parse_request, CHAT_PATH, body, "r"), number)
        index = TextPrefixIndex()
        for slot in range(4):
            index.insert(slot, hashes[: len(hashes) // (slot + 1)])
        report("  chunk_hashes", partial(chunk_hashes, request), number)
        report("  match", partial(index.match, hashes), number)
        report("  insert", partial(index.insert, 0, hashes), number)
        for endpoints in (4, 100):
            requests = [parsed(body_of(size, seed)) for seed in range(64)]
            label = f"  prepare + schedule + observe_dispatch, {endpoints} endpoints"
            report(label, cycle(make_scheduler(endpoints), requests), number)
            scheduler = make_scheduler(endpoints)
            cycle(scheduler, requests)()
            placement = scheduler.prepare(request)
            label = f"  schedule alone, {endpoints} endpoints"
            report(label, partial(scheduler.schedule, placement), number)


if __name__ == "__main__":
    main()
