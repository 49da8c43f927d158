import pytest
from router_state import Fleet, make_request
from tidegate_router.scheduling.decision import Decision, Rejected

LONG = "All hands on deck; the tide will not wait for anyone. " * 80


def test_nobody_there() -> None:
    fleet = Fleet(0)
    assert fleet.scheduler.schedule(fleet.scheduler.prepare(make_request("hi"))) == Rejected("no-endpoints")


def test_nobody_ready_is_no_endpoints_even_for_the_best_cache() -> None:
    fleet = Fleet(2)
    _, decision = fleet.open(make_request(LONG))
    fleet.table.set_ready(decision.endpoint.slot, False)
    other = fleet.open(make_request(LONG))[1]
    assert other.endpoint.slot != decision.endpoint.slot
    fleet.table.set_ready(other.endpoint.slot, False)
    placement = fleet.scheduler.prepare(make_request(LONG))
    assert fleet.scheduler.schedule(placement) == Rejected("no-endpoints")
    fleet.table.set_ready(0, True)
    assert isinstance(fleet.scheduler.schedule(placement), Decision)


def test_model_that_nobody_serves() -> None:
    fleet = Fleet(2)
    fleet.table.set_models(0, ["a"])
    fleet.table.add_without_model(1, "b")
    schedule, prepare = fleet.scheduler.schedule, fleet.scheduler.prepare
    assert schedule(prepare(make_request("hi", model="b"))) == Rejected("model-not-found")
    only_first = schedule(prepare(make_request("hi", model="a")), tried=0b10)
    assert isinstance(only_first, Decision)
    assert only_first.endpoint.slot == 0
    fleet.table.set_ready(0, False)
    fleet.table.set_ready(1, False)
    assert schedule(prepare(make_request("hi", model="a"))) == Rejected("no-endpoints")
    assert schedule(prepare(make_request("hi", model="b"))) == Rejected("model-not-found")
    assert schedule(prepare(make_request("hi", model=""))) == Rejected("no-endpoints")


def test_tried_endpoints_are_not_used_again() -> None:
    fleet = Fleet(3)
    placement, first = fleet.open(make_request(LONG))
    tried = 1 << first.endpoint.slot
    second = fleet.scheduler.schedule(placement, tried)
    assert isinstance(second, Decision)
    assert second.endpoint.slot != first.endpoint.slot
    assert fleet.scheduler.schedule(placement, 0b111) == Rejected("all-tried")


def test_prediction_counts_the_tokens_that_were_sent_there() -> None:
    fleet = Fleet(2)
    _, first = fleet.open(make_request(LONG))
    assert first.predicted_cached_tokens == 0
    request = make_request(LONG + "And then?")
    _, second = fleet.open(request)
    assert second.endpoint.slot == first.endpoint.slot
    assert second.predicted_cached_tokens + second.uncached_tokens == request.prompt_tokens_estimate
    assert second.predicted_cached_tokens > 0.8 * request.prompt_tokens_estimate
    assert dict(second.scores)[second.endpoint.name] == max(score for _, score in second.scores)


def test_failed_attempt_leaves_no_prediction() -> None:
    fleet = Fleet(2)
    placement, decision = fleet.open(make_request(LONG))
    fleet.scheduler.observe_failure(placement, decision)
    assert fleet.open(make_request(LONG))[1].predicted_cached_tokens == 0


def test_bytes_per_token_are_learned_from_usage_within_reason() -> None:
    fleet = Fleet(1)
    placement, decision = fleet.open(make_request(LONG))
    size = len(placement.request.messages)
    for _ in range(200):
        fleet.scheduler.observe_usage(placement, decision, size // 2, 0)
    assert fleet.scheduler.bytes_per_token == pytest.approx(2.0, abs=0.01)
    for _ in range(500):
        fleet.scheduler.observe_usage(placement, decision, 1, None)
    assert fleet.scheduler.bytes_per_token <= 16.0
    fleet.scheduler.observe_usage(placement, decision, 0, 0)
    assert fleet.scheduler.bytes_per_token <= 16.0


def test_engine_that_never_caches_loses_its_claim_and_one_that_does_keeps_it() -> None:
    for cached_share, keeps in ((0.0, False), (0.95, True)):
        fleet = Fleet(1)
        request = make_request(LONG)
        fleet.open(request)
        for _ in range(3):
            placement, decision = fleet.open(request)
            fleet.scheduler.observe_usage(placement, decision, 1_000, int(1_000 * cached_share))
        predicted = fleet.scheduler.schedule(fleet.scheduler.prepare(request))
        assert isinstance(predicted, Decision)
        assert (predicted.predicted_cached_tokens > 0) is keeps


def test_engine_that_caches_after_all_is_believed_again() -> None:
    fleet = Fleet(1)
    request = make_request(LONG)
    for _ in range(4):
        placement, decision = fleet.open(request)
        fleet.scheduler.observe_usage(placement, decision, 1_000, 0)
    assert fleet.open(request)[1].predicted_cached_tokens == 0
    fleet.scheduler.observe_usage(placement, decision, 1_000, 900)
    fleet.open(request)
    assert fleet.open(request)[1].predicted_cached_tokens > 0


def test_rounding_of_short_prompts_is_no_miss() -> None:
    fleet = Fleet(1)
    request = make_request("Hello there, how are you today? " * 6)
    for _ in range(6):
        placement, decision = fleet.open(request)
        fleet.scheduler.observe_usage(placement, decision, 60, 0)
    assert fleet.index.match(placement.hashes) == {0: len(placement.hashes)}


def test_answers_about_models_are_remembered_within_bounds() -> None:
    fleet = Fleet(2)
    for number in range(1_000):
        fleet.scheduler.schedule(fleet.scheduler.prepare(make_request("hi", model=f"m{number}")))
    assert len(fleet.scheduler._eligible) <= 128
