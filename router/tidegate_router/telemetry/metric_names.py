"""The router's metrics by name: what exists, with which labels, and which values a label may take.

`docs/metrics.md` lists the same; a test compares them. Label values outside a closed set are counted as `other`.
"""

from typing import Final, Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram"]


class Metric(NamedTuple):
    """One exposed metric."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str


METRICS: Final = (
    Metric("tidegate_router_requests_total", "counter", ("model", "code"), "Requests answered, by HTTP status."),
    Metric(
        "tidegate_router_request_duration_seconds",
        "histogram",
        ("model",),
        "From a request's last byte to the last byte of its answer.",
    ),
    Metric(
        "tidegate_router_time_to_first_byte_seconds",
        "histogram",
        ("model",),
        "From a request's last byte to the first byte of its answer.",
    ),
    Metric("tidegate_router_in_flight_requests", "gauge", ("endpoint",), "Attempts running at an endpoint."),
    Metric("tidegate_router_in_flight_tokens", "gauge", ("endpoint",), "Estimated uncached prompt tokens of those."),
    Metric("tidegate_router_endpoint_ready", "gauge", ("endpoint",), "1 while an endpoint gets requests."),
    Metric(
        "tidegate_router_attempts_total",
        "counter",
        ("endpoint", "outcome"),
        "Attempts at an endpoint, by how they ended.",
    ),
    Metric("tidegate_router_retries_total", "counter", ("reason",), "Further attempts, by why the last one failed."),
    Metric("tidegate_router_prompt_tokens_total", "counter", ("model",), "Prompt tokens, as workers counted them."),
    Metric("tidegate_router_cached_tokens_total", "counter", ("model",), "Prompt tokens that workers had cached."),
    Metric("tidegate_router_completion_tokens_total", "counter", ("model",), "Tokens generated."),
    Metric(
        "tidegate_router_predicted_cached_tokens_total",
        "counter",
        ("model",),
        "Prompt tokens that the router expected to be cached; compare with cached tokens.",
    ),
    Metric("tidegate_router_client_disconnects_total", "counter", (), "Requests whose client left before the end."),
    Metric("tidegate_router_rejected_total", "counter", ("reason",), "Requests that no worker was asked to answer."),
    Metric(
        "tidegate_router_upstream_faults_total",
        "counter",
        ("endpoint", "reason"),
        "Attempts that failed by the worker's fault.",
    ),
    Metric(
        "tidegate_router_stream_errors_total",
        "counter",
        ("reason",),
        "Answers that broke after their first byte and ended with an error.",
    ),
    Metric("tidegate_router_connections", "gauge", (), "Client connections open now."),
    Metric("tidegate_router_access_log_dropped_total", "counter", (), "Access log lines given up for lack of room."),
)

OTHER: Final = "other"

ATTEMPT_OUTCOMES: Final = frozenset({"answered", "failed", "busy", "model-missing", "abandoned"})
FAULT_REASONS: Final = frozenset(
    {
        "connect",
        "reset",
        "first-byte-timeout",
        "between-chunks-timeout",
        "cut",
        "overlong",
        "malformed",
        "status",
        "error-event",
        "unhealthy",
    },
)
RETRY_REASONS: Final = FAULT_REASONS | {"busy", "model-missing"}
STREAM_ERROR_REASONS: Final = FAULT_REASONS | {"draining", "client-stalled"}
REJECTION_REASONS: Final = frozenset(
    {
        "no-endpoints",
        "model-not-found",
        "all-tried",
        "busy",
        "invalid",
        "too-large",
        "headers-too-large",
        "timeout",
        "not-found",
        "method-not-allowed",
        "too-many-connections",
        "draining",
    },
)

MAX_MODEL_LABELS: Final = 100

_MILLISECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5)
LATENCY_BOUNDS_SECONDS: Final = (*_MILLISECONDS, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
