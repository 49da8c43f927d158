"""Builders for the router's pure core: requests, endpoint tables, schedulers."""

import random

import msgspec
from tidegate_crds.router_spec import SchedulingSpec
from tidegate_router.gateway.openai_request import CHAT_PATH, parse_request
from tidegate_router.scheduling.decision import Decision
from tidegate_router.scheduling.placement import Placement
from tidegate_router.scheduling.profile import build_profile
from tidegate_router.scheduling.scheduler import Scheduler
from tidegate_router.state.endpoint_table import EndpointTable
from tidegate_router.state.prefix_index import TextPrefixIndex
from tidegate_router.state.request import Request


def make_table(endpoints: int = 4, *, ready: bool = True) -> EndpointTable:
    """`worker-0`, `worker-1`, … at ports from 9000, with unknown models."""
    table = EndpointTable()
    for number in range(endpoints):
        endpoint = table.add(f"worker-{number}", "127.0.0.1", 9_000 + number)
        table.set_ready(endpoint.slot, ready)
    return table


def make_request(messages: object = "", *, model: str = "m", tools: bytes = b"", salt: str = "") -> Request:
    """A chat request: a list of messages, or the text of one user message."""
    turns = messages if isinstance(messages, list) else [{"role": "user", "content": messages}]
    raw = msgspec.json.encode(turns)
    estimate = (len(raw) + len(tools)) // 4 + 1
    return Request(
        id="r", api=CHAT_PATH, model=model, messages=raw, head=tools, salt=salt, prompt_tokens_estimate=estimate
    )


def parse_chat(body: bytes) -> Request:
    """The request of a valid chat body."""
    request = parse_request(CHAT_PATH, body, "r")
    if not isinstance(request, Request):
        raise TypeError(request.message)
    return request


class Fleet:
    """A scheduler whose dispatches are counted in the load columns, as Tickets do."""

    def __init__(self, endpoints: int = 4, seed: int = 0, scheduling: SchedulingSpec | None = None) -> None:
        self.table = make_table(endpoints)
        self.index = TextPrefixIndex()
        profile = build_profile(scheduling or SchedulingSpec())
        self.scheduler = Scheduler(profile, self.table, self.index, random.Random(seed).random)

    def open(self, request: Request, tried: int = 0) -> tuple[Placement, Decision]:
        """Place a request and hold it open."""
        placement = self.scheduler.prepare(request)
        decision = self.scheduler.schedule(placement, tried)
        if not isinstance(decision, Decision):
            raise TypeError(decision.reason)
        load, slot = self.table.load, decision.endpoint.slot
        load.in_flight_requests[slot] += 1
        load.in_flight_tokens[slot] += decision.uncached_tokens
        self.scheduler.observe_dispatch(placement, decision)
        return placement, decision

    def close(self, decision: Decision) -> None:
        """End a request."""
        load, slot = self.table.load, decision.endpoint.slot
        load.in_flight_requests[slot] -= 1
        load.in_flight_tokens[slot] -= decision.uncached_tokens
