import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from router_state import make_table
from tidegate_router.scheduling.plugin import Candidates, SchedulingContext
from tidegate_router.scheduling.plugins.active_request_scorer import ActiveRequestScorer
from tidegate_router.scheduling.plugins.max_score_picker import MaxScorePicker
from tidegate_router.scheduling.plugins.model_filter import ModelFilter
from tidegate_router.scheduling.plugins.prefix_cache_scorer import PrefixCacheParameters, PrefixCacheScorer
from tidegate_router.scheduling.plugins.queue_scorer import QueueParameters, QueueScorer
from tidegate_router.scheduling.plugins.ready_filter import ReadyFilter
from tidegate_router.state.endpoint_table import EndpointTable


def context_of(table: EndpointTable, prompt: int = 1_000, cached: dict[int, int] | None = None) -> SchedulingContext:
    return SchedulingContext(prompt, cached or {}, table.load, Candidates(table.snapshot.endpoints))


def test_filters_read_readiness_and_models() -> None:
    table = make_table(2)
    table.set_ready(0, False)
    table.set_models(1, ["m"])
    out, serving = table.snapshot.endpoints
    assert [ReadyFilter().keeps(each, "m") for each in (out, serving)] == [False, True]
    assert [ModelFilter().keeps(serving, model) for model in ("m", "other", "")] == [True, False, True]
    assert ModelFilter().keeps(out, "anything")


def test_queue_prefers_the_shorter_and_takes_the_unknown_for_average() -> None:
    table = make_table(4)
    scorer = QueueScorer(QueueParameters())
    assert scorer.score(context_of(table)) is None
    table.load.waiting_requests[:] = [0, 4, -1, 8]
    assert scorer.score(context_of(table)) == [1.0, 0.5, 0.5, 0.0]
    table.load.waiting_requests[:] = [0, 0, 1, 80]
    scores = scorer.score(context_of(table))
    assert scores is not None
    assert scores[2] > 0.9
    assert scores[3] == 0.0


def test_active_requests_count_tokens_and_requests() -> None:
    table = make_table(3)
    assert ActiveRequestScorer().score(context_of(table)) is None
    table.load.in_flight_requests[:] = [0, 1, 1]
    table.load.in_flight_tokens[:] = [0, 0, 500]
    scores = ActiveRequestScorer().score(context_of(table))
    assert scores is not None
    assert scores[0] == 1.0 > scores[1] > scores[2] >= 0.0


def test_prefix_credit_fades_for_the_busier_holder_alone() -> None:
    table = make_table(3)
    scorer = PrefixCacheScorer(PrefixCacheParameters())
    cached = {0: 900, 1: 900}
    credit = []
    for busy in range(8):
        table.load.in_flight_requests[0] = busy
        context = context_of(table, cached=cached)
        scores = scorer.score(context)
        assert scores is not None
        assert scores[2] == 0.0
        assert scores[1] * context.scale == pytest.approx(900.0)
        credit.append(scores[0] * context.scale)
    assert credit == sorted(credit, reverse=True)
    assert credit[1] == pytest.approx(900.0)
    assert credit[-1] == 0.0
    assert scorer.score(context_of(table)) is None


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 500), st.integers(0, 10**7), st.integers(-1, 10**4), st.integers(0, 1_000)),
        min_size=1,
        max_size=20,
    ),
    st.integers(0, 1_000),
)
def test_every_score_is_between_zero_and_one(columns: list[tuple[int, int, int, int]], extra: int) -> None:
    table = make_table(len(columns))
    load = table.load
    load.in_flight_requests[:] = [each[0] for each in columns]
    load.in_flight_tokens[:] = [each[1] for each in columns]
    load.waiting_requests[:] = [each[2] for each in columns]
    cached = {slot: each[3] for slot, each in enumerate(columns) if each[3]}
    context = context_of(table, max(cached.values(), default=0) + extra, cached)
    scorers = (PrefixCacheScorer(PrefixCacheParameters()), ActiveRequestScorer(), QueueScorer(QueueParameters()))
    for scorer in scorers:
        scores = scorer.score(context)
        assert scores is None or (len(scores) == len(columns) and all(0.0 <= score <= 1.0 for score in scores))


def test_picker_draws_between_equals_and_only_between_them() -> None:
    rng = random.Random(1)
    picks = Counter(MaxScorePicker().pick([0.5, 1.0, 0.2, 1.0, 1.0], rng.random) for _ in range(3_000))
    assert set(picks) == {1, 3, 4}
    assert min(picks.values()) > 850
