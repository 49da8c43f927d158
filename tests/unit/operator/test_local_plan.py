"""The local plan: argument lists, threads, names and the router's configuration."""

from typing import Any

import pytest
from local_pool import make_pool, pool_document
from tidegate_crds.decoding import decode_pool, load_router_config
from tidegate_crds.encoding import dump_router_config
from tidegate_operator.plan.local import (
    LocalPlan,
    Machine,
    Placement,
    PlanError,
    Programs,
    WorkerPorts,
    check_fits,
    local_notes,
    plan_local,
    worker_names,
    workers_summary,
)


def plan(pool: Any, cores: int = 8, router_port: int = 8080) -> LocalPlan:
    ports = tuple(WorkerPorts(21_000 + 2 * index, 21_001 + 2 * index) for index in range(len(worker_names(pool))))
    return plan_local(
        pool, Machine(cores), Placement(router_port, ports, "/state/local/router.yaml", Programs("/usr/bin/python"))
    )


def flags(argv: tuple[str, ...]) -> list[tuple[str, str]]:
    rest = argv[3:]
    return list(zip(rest[::2], rest[1::2], strict=True))


def test_golden_plan_of_a_full_manifest() -> None:
    document = pool_document(
        "hf://org/model@main", name="chat", replicas=2, worker={"threads": 3, "args": ["--a", "1"]}
    )
    document["spec"]["model"] |= {"servedNames": ["m", "m:latest"], "dtype": "bfloat16", "contextTokens": 2048}
    document["spec"]["engine"] = {"args": ["--b", "2"]}
    document["spec"]["workers"][0]["kvCache"] = {"blocks": 512}
    document["spec"]["router"]["limits"] = {"maxBodyBytes": 4096}
    got = plan(decode_pool(document))

    assert [process.name for process in got.processes] == ["cpu-0", "cpu-1", "router"]
    assert got.workers[1].argv == (
        *("/usr/bin/python", "-m", "tidegate_worker"),
        *("--model", "hf://org/model@main", "--host", "127.0.0.1"),
        *("--port", "21002", "--telemetry-port", "21003"),
        *("--served-name", "m", "--served-name", "m:latest"),
        *("--threads", "3", "--drain-seconds", "30", "--dtype", "bfloat16"),
        *("--context-tokens", "2048", "--kv-blocks", "512"),
        *("--b", "2", "--a", "1"),
    )
    assert dict(got.workers[1].environment) == {
        "OMP_NUM_THREADS": "3",
        "PYTHONSAFEPATH": "1",
        "PYTHONUNBUFFERED": "1",
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
    }
    assert got.router.argv == ("/usr/bin/python", "-m", "tidegate_router", "--config", "/state/local/router.yaml")
    assert (got.endpoint, got.model) == ("http://127.0.0.1:8080", "m")
    assert [(each.name, each.url, each.telemetry) for each in got.router_config.endpoints] == [
        ("cpu-0", "http://127.0.0.1:21000", "127.0.0.1:21001"),
        ("cpu-1", "http://127.0.0.1:21002", "127.0.0.1:21003"),
    ]
    assert got.router_config.limits.max_body_bytes == 4096


@pytest.mark.parametrize(
    ("cores", "replicas", "threads"), [(1, 1, 1), (8, 1, 8), (8, 2, 4), (8, 3, 2), (2, 2, 1), (2, 5, 1)]
)
def test_workers_share_the_cores_and_never_get_none(cores: int, replicas: int, threads: int) -> None:
    got = plan(make_pool(replicas=replicas), cores)
    assert {dict(flags(worker.argv))["--threads"] for worker in got.workers} == {str(threads)}


def test_threads_of_a_set_win_over_the_share() -> None:
    got = plan(make_pool(replicas=4, worker={"threads": 6}), cores=2)
    assert {dict(flags(worker.argv))["--threads"] for worker in got.workers} == {"6"}


def test_memory_for_the_cache_becomes_a_flag() -> None:
    got = plan(make_pool(worker={"kvCache": {"memoryBytes": 1 << 30}}))
    assert dict(flags(got.workers[0].argv))["--kv-memory-bytes"] == str(1 << 30)


def test_the_dtype_is_left_to_the_worker_unless_it_is_said() -> None:
    assert "--dtype" not in dict(flags(plan(make_pool()).workers[0].argv))


def test_the_pool_gives_its_name_to_a_model_without_served_names() -> None:
    got = plan(make_pool(name="chat"))
    assert (dict(flags(got.workers[0].argv))["--served-name"], got.model) == ("chat", "chat")


def test_sets_are_numbered_apart_and_empty_ones_have_no_process() -> None:
    document = pool_document()
    document["spec"]["workers"] = [
        {"name": "big", "replicas": 1},
        {"name": "none", "replicas": 0},
        {"name": "small", "replicas": 2},
    ]
    assert worker_names(decode_pool(document)) == ("big-0", "small-0", "small-1")


def test_a_pool_without_any_worker_says_what_to_change() -> None:
    with pytest.raises(PlanError, match=r"spec\.workers: no worker has replicas"):
        worker_names(make_pool(replicas=0))


def test_a_name_too_long_to_be_numbered_says_how_long_it_may_be() -> None:
    document = pool_document()
    document["spec"]["workers"][0] |= {"name": "w" * 62, "replicas": 1}
    with pytest.raises(PlanError, match=r"spec\.workers\[0\]\.name: at most 61 characters"):
        worker_names(decode_pool(document))


@pytest.mark.parametrize(
    ("host", "endpoint"),
    [
        ("127.0.0.1", "http://127.0.0.1:8080"),
        ("0.0.0.0", "http://127.0.0.1:8080"),
        ("::", "http://[::1]:8080"),
        ("::1", "http://[::1]:8080"),
        ("localhost", "http://localhost:8080"),
    ],
)
def test_the_endpoint_is_an_address_that_clients_here_can_reach(host: str, endpoint: str) -> None:
    document = pool_document()
    document["spec"]["router"]["listen"]["host"] = host
    got = plan(decode_pool(document))
    assert got.endpoint == endpoint
    assert got.router_config.listen.host == host


def test_the_routers_configuration_is_valid_and_holds_the_pools_settings() -> None:
    pool = make_pool(replicas=2, router={"replicas": 3, "timeouts": {"drainSeconds": 7}})
    got = plan(pool, router_port=9_000)
    assert load_router_config(dump_router_config(got.router_config)) == got.router_config
    assert (got.router_config.listen.port, got.router_config.replicas) == (9_000, 1)
    assert got.router_config.timeouts.drain_seconds == 7
    assert got.router.drain_seconds == got.workers[0].drain_seconds == 7


def test_the_same_input_gives_the_same_plan() -> None:
    assert plan(make_pool(replicas=3)) == plan(make_pool(replicas=3))


@pytest.mark.parametrize(
    ("machine", "most", "why"),
    [
        (Machine(2), 16, "8 for each of 2 cores"),
        (Machine(8, 8 << 30), 32, "at least 256 MiB for each out of 8.0 GiB"),
        (Machine(1, 100 << 20), 1, "at least 256 MiB"),
    ],
)
def test_more_workers_than_the_machine_can_make_sense_of_are_refused(machine: Machine, most: int, why: str) -> None:
    check_fits(make_pool(replicas=most), machine)
    with pytest.raises(PlanError, match=rf"spec\.workers: {most + 1} workers are too many .* at most {most} \({why}"):
        check_fits(make_pool(replicas=most + 1), machine)


@pytest.mark.parametrize(
    ("replicas", "text"),
    [(1, "cpu-0"), (3, "cpu-0, cpu-1, cpu-2"), (4, "cpu-0 … cpu-3 (4)"), (10_000, "cpu-0 … cpu-9999 (10000)")],
)
def test_a_summary_of_workers_stays_short(replicas: int, text: str) -> None:
    assert workers_summary(make_pool(replicas=replicas)) == text


def test_a_summary_of_many_sets_stays_short() -> None:
    document = pool_document()
    document["spec"]["workers"] = [{"name": f"set{number}"} for number in range(50)]
    assert workers_summary(decode_pool(document)).endswith("set19-0, … and 30 more")


def test_routers_beyond_the_first_are_said_not_to_run_here() -> None:
    assert local_notes(make_pool()) == ()
    [note] = local_notes(make_pool(router={"replicas": 3}))
    assert note.startswith("spec.router.replicas is 3; on one machine a single router is run")
