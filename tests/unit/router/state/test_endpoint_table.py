import pytest
from router_state import make_table
from tidegate_router.state.endpoint_table import MAX_WITHOUT_MODELS, EndpointTable


def test_newcomer_is_not_ready_and_has_clean_columns() -> None:
    table = EndpointTable()
    endpoint = table.add("a", "127.0.0.1", 1)
    assert not endpoint.ready
    assert table.snapshot.endpoints == (endpoint,)
    assert (table.load.in_flight_requests, table.load.in_flight_tokens, table.load.waiting_requests) == ([0], [0], [-1])


def test_slot_is_reused_only_after_removal_and_starts_clean() -> None:
    table = make_table(3)
    table.load.in_flight_requests[1] = 7
    table.load.in_flight_tokens[1] = 70
    table.load.waiting_requests[1] = 3
    table.remove(1)
    assert [each.slot for each in table.snapshot.endpoints] == [0, 2]
    assert table.load.in_flight_requests[1] == 7, "what is in flight outlives the endpoint"
    newcomer = table.add("late", "127.0.0.1", 2)
    assert newcomer.slot == 1
    assert (table.load.in_flight_requests[1], table.load.in_flight_tokens[1], table.load.waiting_requests[1]) == (
        0,
        0,
        -1,
    )
    assert table.add("later", "127.0.0.1", 3).slot == 3


def test_a_name_belongs_to_one_endpoint() -> None:
    table = make_table(1)
    with pytest.raises(ValueError, match="exists already"):
        table.add("worker-0", "127.0.0.1", 1)
    table.remove(0)
    assert table.find("worker-0") is None
    assert table.add("worker-0", "127.0.0.1", 1).slot == 0


def test_snapshot_is_rebuilt_on_real_change_only() -> None:
    table = make_table(2)
    before = table.snapshot
    assert not table.set_ready(0, True)
    assert not table.set_ready(9, True)
    assert table.remove(9) is None
    assert table.snapshot is before
    assert table.set_ready(0, False)
    assert table.snapshot.version == before.version + 1
    assert table.set_models(1, ["m"])
    assert not table.set_models(1, ["m"])
    assert table.snapshot.version == before.version + 2


def test_readiness_flap_keeps_load() -> None:
    table = make_table(1)
    table.load.in_flight_requests[0] = 5
    table.set_ready(0, False)
    table.set_ready(0, True)
    assert table.load.in_flight_requests[0] == 5


def test_missing_model_is_remembered_until_the_list_is_read_again() -> None:
    table = make_table(1)
    table.add_without_model(0, "gone")
    assert not table.snapshot.endpoints[0].may_serve("gone")
    assert table.snapshot.endpoints[0].may_serve("other")
    table.set_models(0, ["gone"])
    assert table.snapshot.endpoints[0].may_serve("gone")
    assert not table.snapshot.endpoints[0].may_serve("other")


def test_missing_model_is_forgotten_when_the_worker_comes_back() -> None:
    table = make_table(1)
    table.set_models(0, ["gone"])
    table.add_without_model(0, "gone")
    assert table.snapshot.endpoints[0].contradicts_itself("gone")
    table.set_ready(0, False)
    assert not table.snapshot.endpoints[0].may_serve("gone")
    table.set_ready(0, True)
    assert table.snapshot.endpoints[0].may_serve("gone")


def test_memory_of_missing_models_is_bounded() -> None:
    table = make_table(1)
    for number in range(5 * MAX_WITHOUT_MODELS):
        table.add_without_model(0, f"made-up-{number}")
        assert len(table.snapshot.endpoints[0].without_models) <= MAX_WITHOUT_MODELS
    assert not table.snapshot.endpoints[0].may_serve(f"made-up-{5 * MAX_WITHOUT_MODELS - 1}")
