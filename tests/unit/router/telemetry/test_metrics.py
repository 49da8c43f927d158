import pytest
from prometheus_client.parser import text_string_to_metric_families
from router_state import make_table
from tidegate_router.telemetry.metric_names import FAULT_REASONS, MAX_MODEL_LABELS, METRICS
from tidegate_router.telemetry.metrics import Histogram, RouterMetrics
from tidegate_router.upstream.faults import Fault


def samples_of(metrics: RouterMetrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = metrics.render().decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def make_metrics(endpoints: int = 2) -> RouterMetrics:
    return RouterMetrics(make_table(endpoints), with_process=False)


def test_exposition_has_every_metric_as_listed_and_no_other() -> None:
    metrics = make_metrics()
    metrics.request_finished("m", 200, 0.2, 0.1)
    metrics.attempt_ended("worker-0", "answered")
    metrics.fault("worker-0", "cut")
    metrics.retried("busy")
    metrics.rejected("invalid")
    metrics.stream_failed("cut")
    families = {family.name: family for family in text_string_to_metric_families(metrics.render().decode())}
    assert set(families) == {metric.name.removesuffix("_total") for metric in METRICS}
    for metric in METRICS:
        family = families[metric.name.removesuffix("_total")]
        assert (family.type, family.documentation) == (metric.kind, metric.help)
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        assert labels == set(metric.labels)


def test_every_fault_has_a_label() -> None:
    assert {fault.value for fault in Fault} == FAULT_REASONS


def test_requests_and_latencies() -> None:
    metrics = make_metrics()
    metrics.request_finished("m", 200, 0.2, 0.1)
    metrics.request_finished("m", 502, 3.0, None)
    samples = samples_of(metrics)
    model = ("model", "m")
    assert samples["tidegate_router_requests_total", (("code", "200"), model)] == 1
    assert samples["tidegate_router_requests_total", (("code", "502"), model)] == 1
    assert samples["tidegate_router_request_duration_seconds_count", (model,)] == 2
    assert samples["tidegate_router_request_duration_seconds_sum", (model,)] == pytest.approx(3.2)
    assert samples["tidegate_router_time_to_first_byte_seconds_count", (model,)] == 1
    assert samples["tidegate_router_time_to_first_byte_seconds_bucket", (("le", "0.1"), model)] == 1
    assert samples["tidegate_router_time_to_first_byte_seconds_bucket", (("le", "0.05"), model)] == 0


def test_histogram_bounds_are_inclusive_and_the_last_is_open() -> None:
    histogram = Histogram()
    for seconds in (0.0, 0.001, 0.0011, 300.0, 301.0):
        histogram.observe(seconds)
    buckets = dict(histogram.cumulative())
    assert (buckets["0.001"], buckets["0.0025"], buckets["300.0"], buckets["+Inf"]) == (2, 3, 4, 5)


def test_tokens() -> None:
    metrics = make_metrics()
    metrics.tokens_used("m", prompt=100, cached=60, completion=7, predicted=64)
    samples = samples_of(metrics)
    values = [
        samples[f"tidegate_router_{name}_tokens_total", (("model", "m"),)]
        for name in ("prompt", "cached", "completion", "predicted_cached")
    ]
    assert values == [100, 60, 7, 64]


def test_endpoint_gauges_are_read_from_the_table() -> None:
    table = make_table(1)
    metrics = RouterMetrics(table, with_process=False)
    table.load.in_flight_requests[0] = 3
    table.load.in_flight_tokens[0] = 30
    table.set_ready(0, False)
    samples = samples_of(metrics)
    endpoint = (("endpoint", "worker-0"),)
    assert samples["tidegate_router_in_flight_requests", endpoint] == 3
    assert samples["tidegate_router_in_flight_tokens", endpoint] == 30
    assert samples["tidegate_router_endpoint_ready", endpoint] == 0
    table.remove(0)
    assert ("tidegate_router_endpoint_ready", endpoint) not in samples_of(metrics)


def test_model_label_is_bounded_and_only_for_models_that_worked() -> None:
    metrics = make_metrics()
    for number in range(500):
        metrics.request_finished(f"made-up-{number}", 404, 0.1, None)
    assert samples_of(metrics)["tidegate_router_requests_total", (("code", "404"), ("model", "other"))] == 500
    for number in range(500):
        metrics.request_finished(f"real-{number}", 200, 0.1, None)
    models = {dict(labels).get("model") for _, labels in samples_of(metrics)} - {None}
    assert len(models) == MAX_MODEL_LABELS + 1


def test_unknown_reasons_are_other() -> None:
    metrics = make_metrics()
    metrics.attempt_ended("worker-0", "?")
    metrics.fault("worker-0", "?")
    metrics.retried("?")
    metrics.rejected("?")
    metrics.stream_failed("?")
    samples = samples_of(metrics)
    for name in ("retries", "rejected", "stream_errors"):
        assert samples[f"tidegate_router_{name}_total", (("reason", "other"),)] == 1
    assert samples["tidegate_router_attempts_total", (("endpoint", "worker-0"), ("outcome", "other"))] == 1
    assert samples["tidegate_router_upstream_faults_total", (("endpoint", "worker-0"), ("reason", "other"))] == 1


def test_removed_endpoint_leaves_no_series() -> None:
    metrics = make_metrics()
    metrics.attempt_ended("worker-0", "answered")
    metrics.attempt_ended("worker-1", "answered")
    metrics.fault("worker-0", "cut")
    metrics.forget_endpoint("worker-0")
    names = {dict(labels).get("endpoint") for name, labels in samples_of(metrics) if name.endswith("_total")} - {None}
    assert names == {"worker-1"}


def test_model_names_are_escaped() -> None:
    metrics = make_metrics()
    metrics.request_finished('a"b\\c\nd', 200, 0.1, None)
    assert ("tidegate_router_requests_total", (("code", "200"), ("model", 'a"b\\c\nd'))) in samples_of(metrics)


def test_process_metrics_come_along() -> None:
    assert b"process_cpu_seconds_total" in RouterMetrics(make_table(0)).render()
