"""What the worker counts, and how Prometheus reads it.

Hot paths add to plain integers and bisected buckets; prometheus-client only renders them, through a custom collector.
vLLM's names stand beside our own so that existing dashboards and routers read this worker.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from tidegate_worker.engine.messages import EngineLoad

Kind = Literal["counter", "gauge", "histogram"]

TTFT_BUCKETS = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
TOKEN_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0, 2.5)
REQUEST_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
STEP_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One exported metric; counters get `_total` in the exposition."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str


_MODEL = ("model_name",)

METRICS: tuple[MetricSpec, ...] = (
    MetricSpec("vllm:num_requests_running", "gauge", _MODEL, "Requests with a sequence in the running batch."),
    MetricSpec("vllm:num_requests_waiting", "gauge", _MODEL, "Requests waiting for their first step."),
    MetricSpec("vllm:kv_cache_usage_perc", "gauge", _MODEL, "Part of the KV blocks that requests hold, 0 to 1."),
    MetricSpec(
        "vllm:cache_config_info",
        "gauge",
        (*_MODEL, "block_size", "num_gpu_blocks"),
        "Always 1; the labels tell tokens per block and blocks in all.",
    ),
    MetricSpec("vllm:prefix_cache_queries", "counter", _MODEL, "Prompt tokens looked up in the prefix cache."),
    MetricSpec("vllm:prefix_cache_hits", "counter", _MODEL, "Prompt tokens found in the prefix cache."),
    MetricSpec("vllm:prompt_tokens", "counter", _MODEL, "Prompt tokens of requests that began."),
    MetricSpec("vllm:generation_tokens", "counter", _MODEL, "Tokens generated."),
    MetricSpec("vllm:num_preemptions", "counter", _MODEL, "Sequences set back to be recomputed for want of blocks."),
    MetricSpec("vllm:request_success", "counter", (*_MODEL, "finished_reason"), "Requests by how they ended."),
    MetricSpec("vllm:time_to_first_token_seconds", "histogram", _MODEL, "From a request's arrival to its first token."),
    MetricSpec("vllm:inter_token_latency_seconds", "histogram", _MODEL, "Between two tokens of a choice."),
    MetricSpec("vllm:e2e_request_latency_seconds", "histogram", _MODEL, "From a request's arrival to its last token."),
    MetricSpec("tidegate_worker_requests_in_flight", "gauge", (), "Generation requests that HTTP clients have open."),
    MetricSpec("tidegate_worker_waiting_tokens", "gauge", (), "Prompt tokens of known requests not yet computed."),
    MetricSpec(
        "tidegate_worker_kv_blocks",
        "gauge",
        ("state",),
        "KV blocks: referenced + cached + free = total, always.",
    ),
    MetricSpec("tidegate_worker_step_seconds", "histogram", (), "Duration of a step of the engine."),
    MetricSpec("tidegate_worker_step_tokens", "counter", ("phase",), "Tokens computed: prefill or decode."),
    MetricSpec("tidegate_worker_http_responses", "counter", ("code",), "Answers to HTTP requests by status."),
    MetricSpec("tidegate_worker_telemetry_watchers", "gauge", (), "Routers that watch this worker's telemetry."),
    MetricSpec(
        "tidegate_worker_telemetry_resyncs",
        "counter",
        (),
        "Times that a slow watcher got a new snapshot for its backlog.",
    ),
)

FINISHED_REASONS = ("stop", "length", "abort", "error")
_NO_LOAD = EngineLoad(0, 0, 0, 0, 0, 0, 0, 0, 0)


class Buckets:
    """A histogram over fixed upper bounds."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count `value` that many times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def cumulative(self) -> list[tuple[str, float]]:
        """Prometheus buckets: (upper bound, observations at or below it)."""
        total = 0
        buckets = []
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            total += count
            buckets.append((bound, float(total)))
        return buckets


@dataclass(slots=True)
class WorkerCounts:
    """Everything counted since the process began. Only the event loop touches it."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    in_flight: int = 0
    telemetry_watchers: int = 0
    telemetry_resyncs: int = 0
    finished: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FINISHED_REASONS, 0))
    responses: dict[int, int] = field(default_factory=dict)
    load: EngineLoad = _NO_LOAD
    time_to_first_token: Buckets = field(default_factory=lambda: Buckets(TTFT_BUCKETS))
    inter_token: Buckets = field(default_factory=lambda: Buckets(TOKEN_BUCKETS))
    request: Buckets = field(default_factory=lambda: Buckets(REQUEST_BUCKETS))
    step: Buckets = field(default_factory=lambda: Buckets(STEP_BUCKETS))

    def respond(self, status: int) -> None:
        """One HTTP answer went out."""
        self.responses[status] = self.responses.get(status, 0) + 1


_Sample = tuple[tuple[str, ...], "float | Buckets"]


class WorkerCollector(Collector):
    """Renders `WorkerCounts` as the families of `METRICS`."""

    def __init__(self, counts: WorkerCounts, model_name: str) -> None:
        self._counts = counts
        self._model_name = model_name
        self.block_size = 0
        self.total_blocks = 0

    def collect(self) -> Iterator[Metric]:
        for spec in METRICS:
            yield _family(spec, self._samples(spec))

    def _samples(self, spec: MetricSpec) -> list[_Sample]:
        head = (self._model_name,) if "model_name" in spec.labels else ()
        return [((*head, *labels), value) for labels, value in self._values(spec.name)]

    def _values(self, name: str) -> list[_Sample]:
        counts, load = self._counts, self._counts.load
        match name:
            case "vllm:cache_config_info":
                return [((str(self.block_size), str(self.total_blocks)), 1)] if self.total_blocks else []
            case "vllm:request_success":
                return [((reason,), count) for reason, count in counts.finished.items()]
            case "tidegate_worker_kv_blocks":
                states = {"referenced": load.referenced_blocks, "cached": load.cached_blocks, "free": load.free_blocks}
                return [((state,), count) for state, count in {**states, "total": self.total_blocks}.items()]
            case "tidegate_worker_step_tokens":
                return [(("prefill",), counts.prefill_tokens), (("decode",), counts.decode_tokens)]
            case "tidegate_worker_http_responses":
                return [((str(code),), count) for code, count in sorted(counts.responses.items())]
        single: dict[str, float | Buckets] = {
            "vllm:num_requests_running": load.running_requests,
            "vllm:num_requests_waiting": load.waiting_requests,
            "vllm:kv_cache_usage_perc": load.referenced_blocks / self.total_blocks if self.total_blocks else 0.0,
            "vllm:prefix_cache_queries": load.prefix_query_tokens_total,
            "vllm:prefix_cache_hits": load.prefix_hit_tokens_total,
            "vllm:prompt_tokens": counts.prompt_tokens,
            "vllm:generation_tokens": counts.generation_tokens,
            "vllm:num_preemptions": load.preemptions_total,
            "vllm:time_to_first_token_seconds": counts.time_to_first_token,
            "vllm:inter_token_latency_seconds": counts.inter_token,
            "vllm:e2e_request_latency_seconds": counts.request,
            "tidegate_worker_requests_in_flight": counts.in_flight,
            "tidegate_worker_waiting_tokens": load.waiting_tokens,
            "tidegate_worker_step_seconds": counts.step,
            "tidegate_worker_telemetry_watchers": counts.telemetry_watchers,
            "tidegate_worker_telemetry_resyncs": counts.telemetry_resyncs,
        }
        return [((), single[name])]


def exposition(collector: WorkerCollector) -> bytes:
    """The `/metrics` body, Prometheus text format 0.0.4."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return generate_latest(registry)


def _family(spec: MetricSpec, samples: list[_Sample]) -> Metric:
    if spec.kind == "histogram":
        histogram = HistogramMetricFamily(spec.name, spec.help, labels=spec.labels)
        for labels, value in samples:
            if isinstance(value, Buckets):
                histogram.add_metric(labels, value.cumulative(), value.sum)
        return histogram
    kind = CounterMetricFamily if spec.kind == "counter" else GaugeMetricFamily
    family = kind(spec.name, spec.help, labels=spec.labels)
    for labels, value in samples:
        if not isinstance(value, Buckets):
            family.add_metric(labels, value)
    return family
