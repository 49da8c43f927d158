"""`RouterMetrics`: counts on the hot path with plain integers, and shows them to Prometheus only when asked.

Gauges of endpoints are read from the endpoint table at that moment, so nothing is counted twice. Label values are
bounded: closed sets (`metric_names`), configured endpoints, and models that have answered at least one request.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from tidegate_router.state.endpoint_table import EndpointTable
from tidegate_router.telemetry.metric_names import (
    ATTEMPT_OUTCOMES,
    FAULT_REASONS,
    LATENCY_BOUNDS_SECONDS,
    MAX_MODEL_LABELS,
    METRICS,
    OTHER,
    REJECTION_REASONS,
    RETRY_REASONS,
    STREAM_ERROR_REASONS,
)

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

_Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
_Labels = tuple[str, ...]
_LE = (*(repr(bound) for bound in LATENCY_BOUNDS_SECONDS), "+Inf")


class Histogram:
    """Counts per bucket and the sum of what was observed; buckets are made cumulative when shown."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * len(_LE)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        """Count one value into its bucket."""
        self.counts[bisect_left(LATENCY_BOUNDS_SECONDS, seconds)] += 1
        self.total += seconds

    def cumulative(self) -> list[tuple[str, float]]:
        """(`le`, count of values at most that), as Prometheus wants buckets."""
        running = 0
        buckets: list[tuple[str, float]] = []
        for bound, count in zip(_LE, self.counts, strict=True):
            running += count
            buckets.append((bound, running))
        return buckets


class ModelCounts:
    """What is counted per model."""

    __slots__ = ("cached", "codes", "completion", "duration", "predicted", "prompt", "time_to_first_byte")

    def __init__(self) -> None:
        self.codes: dict[int, int] = {}
        self.duration = Histogram()
        self.time_to_first_byte = Histogram()
        self.prompt = 0
        self.cached = 0
        self.completion = 0
        self.predicted = 0


class RouterMetrics(Collector):
    """All metrics of one router process; not thread-safe, one event loop owns it."""

    def __init__(self, table: EndpointTable, *, with_process: bool = True) -> None:
        self.connections = 0
        """Client connections open now; the gateway adds and takes away."""
        self.client_disconnects = 0
        self.access_log_dropped: Callable[[], int] = lambda: 0
        """Where the number of dropped access log lines is read from."""
        self._table = table
        self._models: dict[str, ModelCounts] = {}
        self._other_models = ModelCounts()
        self._attempts: dict[_Labels, int] = {}
        self._faults: dict[_Labels, int] = {}
        self._retries: dict[_Labels, int] = {}
        self._rejected: dict[_Labels, int] = {}
        self._stream_errors: dict[_Labels, int] = {}
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        if with_process:
            ProcessCollector(registry=self._registry)

    def request_finished(self, model: str, code: int, duration: float, time_to_first_byte: float | None) -> None:
        """Count an answered request; seconds. `model` may be empty, and is a label only once it has worked."""
        counts = self._models.get(model) or self._counts(model, known=code < 400)
        codes = counts.codes
        codes[code] = codes.get(code, 0) + 1
        counts.duration.observe(duration)
        if time_to_first_byte is not None:
            counts.time_to_first_byte.observe(time_to_first_byte)

    def tokens_used(self, model: str, prompt: int, cached: int, completion: int, predicted: int) -> None:
        """Add a request's tokens: three as the worker counted them, and the cached ones that were predicted."""
        counts = self._models.get(model) or self._counts(model, known=True)
        counts.prompt += prompt
        counts.cached += cached
        counts.completion += completion
        counts.predicted += predicted

    def attempt_ended(self, endpoint: str, outcome: str) -> None:
        """Count an attempt at an endpoint; `outcome` is one of `ATTEMPT_OUTCOMES`."""
        labels = (endpoint, outcome if outcome in ATTEMPT_OUTCOMES else OTHER)
        self._attempts[labels] = self._attempts.get(labels, 0) + 1

    def fault(self, endpoint: str, reason: str) -> None:
        """Count a fault of a worker; `reason` is one of `FAULT_REASONS`."""
        _add(self._faults, (endpoint, reason if reason in FAULT_REASONS else OTHER))

    def retried(self, reason: str) -> None:
        """Count another attempt for a request; `reason` is one of `RETRY_REASONS`."""
        _add(self._retries, (reason if reason in RETRY_REASONS else OTHER,))

    def rejected(self, reason: str) -> None:
        """Count a request that no worker was asked to answer; `reason` is one of `REJECTION_REASONS`."""
        _add(self._rejected, (reason if reason in REJECTION_REASONS else OTHER,))

    def stream_failed(self, reason: str) -> None:
        """Count an answer that broke after its first byte; `reason` is one of `STREAM_ERROR_REASONS`."""
        _add(self._stream_errors, (reason if reason in STREAM_ERROR_REASONS else OTHER,))

    def forget_endpoint(self, name: str) -> None:
        """Drop the series of an endpoint that was removed."""
        for counters in (self._attempts, self._faults):
            for labels in [labels for labels in counters if labels[0] == name]:
                del counters[labels]

    def render(self) -> bytes:
        """All metrics in Prometheus' text format; `CONTENT_TYPE` goes with it."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[_Family]:
        """The families that Prometheus' client asks a collector for, in the order of `METRICS`."""
        values = self._counter_values() | self._gauge_values()
        histograms = self._histograms()
        for metric in METRICS:
            if metric.kind == "histogram":
                histogram = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
                for labels, observed in histograms[metric.name]:
                    histogram.add_metric(labels, observed.cumulative(), observed.total)
                yield histogram
                continue
            family_type = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            family = family_type(metric.name, metric.help, labels=metric.labels)
            for labels, value in values[metric.name].items():
                family.add_metric(labels, value)
            yield family

    def _counts(self, model: str, *, known: bool) -> ModelCounts:
        counts = self._models.get(model)
        if counts is not None:
            return counts
        if not known or not model or len(self._models) >= MAX_MODEL_LABELS:
            return self._other_models
        counts = self._models[model] = ModelCounts()
        return counts

    def _rows(self) -> list[tuple[str, ModelCounts]]:
        return [*self._models.items(), (OTHER, self._other_models)]

    def _counter_values(self) -> dict[str, dict[_Labels, int]]:
        rows = self._rows()
        return {
            "tidegate_router_requests_total": {
                (model, str(code)): count for model, row in rows for code, count in row.codes.items()
            },
            "tidegate_router_prompt_tokens_total": {(model,): row.prompt for model, row in rows},
            "tidegate_router_cached_tokens_total": {(model,): row.cached for model, row in rows},
            "tidegate_router_completion_tokens_total": {(model,): row.completion for model, row in rows},
            "tidegate_router_predicted_cached_tokens_total": {(model,): row.predicted for model, row in rows},
            "tidegate_router_attempts_total": self._attempts,
            "tidegate_router_upstream_faults_total": self._faults,
            "tidegate_router_retries_total": self._retries,
            "tidegate_router_rejected_total": self._rejected,
            "tidegate_router_stream_errors_total": self._stream_errors,
            "tidegate_router_client_disconnects_total": {(): self.client_disconnects},
            "tidegate_router_access_log_dropped_total": {(): self.access_log_dropped()},
        }

    def _gauge_values(self) -> dict[str, dict[_Labels, int]]:
        endpoints, load = self._table.snapshot.endpoints, self._table.load
        return {
            "tidegate_router_connections": {(): self.connections},
            "tidegate_router_endpoint_ready": {(each.name,): int(each.ready) for each in endpoints},
            "tidegate_router_in_flight_requests": {
                (each.name,): load.in_flight_requests[each.slot] for each in endpoints
            },
            "tidegate_router_in_flight_tokens": {(each.name,): load.in_flight_tokens[each.slot] for each in endpoints},
        }

    def _histograms(self) -> dict[str, list[tuple[_Labels, Histogram]]]:
        rows = self._rows()
        return {
            "tidegate_router_request_duration_seconds": [((model,), row.duration) for model, row in rows],
            "tidegate_router_time_to_first_byte_seconds": [((model,), row.time_to_first_byte) for model, row in rows],
        }


def _add(counters: dict[_Labels, int], labels: _Labels) -> None:
    counters[labels] = counters.get(labels, 0) + 1
