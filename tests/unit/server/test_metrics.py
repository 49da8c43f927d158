from prometheus_client.parser import text_string_to_metric_families
from server_builders import load
from tidegate_worker.server.metrics import METRICS, Buckets, WorkerCollector, WorkerCounts, exposition


def make_collector() -> tuple[WorkerCollector, WorkerCounts]:
    counts = WorkerCounts()
    collector = WorkerCollector(counts, "m")
    collector.block_size, collector.total_blocks = 16, 64
    return collector, counts


def samples(collector: WorkerCollector) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(exposition(collector).decode())
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def test_every_listed_metric_is_exported_with_its_kind_labels_and_help() -> None:
    collector, counts = make_collector()
    counts.respond(200)
    families = {family.name: family for family in text_string_to_metric_families(exposition(collector).decode())}
    assert set(families) == {spec.name for spec in METRICS}
    for spec in METRICS:
        family = families[spec.name]
        assert (family.type, family.documentation) == (spec.kind, spec.help)
        assert family.samples
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(spec.labels)


def test_metrics_before_the_model_is_loaded_are_valid() -> None:
    assert b"vllm:cache_config_info" in exposition(WorkerCollector(WorkerCounts(), "m"))


def test_values_reach_their_series() -> None:
    collector, counts = make_collector()
    counts.load = load(referenced=16, cached=8, running=3, waiting=2)
    counts.prompt_tokens, counts.generation_tokens, counts.in_flight = 11, 12, 4
    counts.finished["stop"] += 1
    counts.time_to_first_token.observe(0.02)
    values = samples(collector)
    name = ("model_name", "m")
    assert values["vllm:num_requests_running", (name,)] == 3
    assert values["vllm:num_requests_waiting", (name,)] == 2
    assert values["vllm:kv_cache_usage_perc", (name,)] == 0.25
    assert values["vllm:prompt_tokens_total", (name,)] == 11
    assert values["vllm:generation_tokens_total", (name,)] == 12
    assert values["vllm:cache_config_info", (("block_size", "16"), name, ("num_gpu_blocks", "64"))] == 1
    assert values["vllm:request_success_total", (("finished_reason", "stop"), name)] == 1
    assert values["vllm:time_to_first_token_seconds_bucket", (("le", "0.02"), name)] == 1
    assert values["vllm:time_to_first_token_seconds_bucket", (("le", "0.01"), name)] == 0
    assert values["tidegate_worker_requests_in_flight", ()] == 4
    states = {
        state: values["tidegate_worker_kv_blocks", (("state", state),)] for state in ("referenced", "cached", "free")
    }
    assert sum(states.values()) == values["tidegate_worker_kv_blocks", (("state", "total"),)] == 64


def test_buckets_count_values_at_their_upper_bound_inside() -> None:
    buckets = Buckets((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 3.0):
        buckets.observe(value)
    buckets.observe(10.0, times=2)
    assert buckets.cumulative() == [("1.0", 2.0), ("2.0", 4.0), ("+Inf", 7.0)]
    assert buckets.sum == 28.0
