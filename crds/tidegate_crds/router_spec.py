"""`RouterSpec`: everything a router can be told; `spec.router` of a pool and the body of a `RouterConfig` alike."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

Port = Annotated[int, Meta(ge=0, le=65535)]
Seconds = Annotated[float, Meta(gt=0, le=86_400)]
Weight = Annotated[float, Meta(ge=0, le=1_000)]
Name = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=63,
        pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
        extra={"expected": "lower-case letters, digits and '-', with a letter or digit at both ends"},
    ),
]
"""A Kubernetes DNS label. `extra["expected"]` is what an error message says instead of the pattern."""


class ApiStruct(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """Base of every API type: immutable, camelCase on the wire, unknown fields are errors."""


class ListenSpec(ApiStruct, frozen=True, kw_only=True):
    """Where the gateway accepts HTTP."""

    host: Annotated[str, Meta(min_length=1)] = "127.0.0.1"
    """Address to bind. Loopback by default: what is open to others is said on purpose."""
    port: Port = 8080
    """TCP port; 0 takes a free one and prints it."""


class TimeoutsSpec(ApiStruct, frozen=True, kw_only=True):
    """Bounds on every phase of a request; nothing waits without one."""

    connect_seconds: Seconds = 2.0
    """TCP connect to a worker."""
    first_byte_seconds: Seconds = 300.0
    """From sending a request to the first byte of its answer: queueing and prefill of a long prompt fit in."""
    between_chunks_seconds: Seconds = 60.0
    """Between two pieces of an answer."""
    client_headers_seconds: Seconds = 10.0
    """From a client's first byte to the end of its headers (slow-loris)."""
    client_body_seconds: Seconds = 60.0
    """Between two pieces of a client's body."""
    client_idle_seconds: Seconds = 75.0
    """A client's keep-alive connection with nothing in flight."""
    client_stalled_seconds: Seconds = 300.0
    """A client that reads nothing of an answer that waits for it."""
    upstream_idle_seconds: Seconds = 4.0
    """A pooled connection to a worker; below the 5 s after which uvicorn closes its side."""
    drain_seconds: Seconds = 30.0
    """After SIGTERM: how long running requests may take before they are ended with an error."""


class LimitsSpec(ApiStruct, frozen=True, kw_only=True):
    """Bounds on what one client can make the router hold."""

    max_body_bytes: Annotated[int, Meta(ge=1_024, le=1 << 31)] = 64 << 20
    """Largest request body; beyond it 413."""
    max_header_bytes: Annotated[int, Meta(ge=1_024, le=1 << 20)] = 64 << 10
    """Request line and headers together; beyond it 431."""
    max_headers: Annotated[int, Meta(ge=8, le=10_000)] = 128
    """Number of header fields; beyond it 431."""
    max_connections: Annotated[int, Meta(ge=1, le=1_000_000)] = 16_384
    """Client connections; further ones are closed at once."""
    max_buffered_answer_bytes: Annotated[int, Meta(ge=0, le=1 << 30)] = 1 << 20
    """A non-streaming answer up to this size is held until complete, so that a broken one can be retried."""
    max_stream_buffer_bytes: Annotated[int, Meta(ge=4_096, le=1 << 30)] = 256 << 10
    """Unsent bytes per client after which the worker's connection is paused."""


class RetriesSpec(ApiStruct, frozen=True, kw_only=True):
    """What happens to a request whose attempt failed before the client got a byte."""

    max_attempts: Annotated[int, Meta(ge=1, le=16)] = 3
    """Attempts in all, each on another endpoint while there is one."""


class HealthCheckSpec(ApiStruct, frozen=True, kw_only=True):
    """Active checks of each endpoint."""

    path: Annotated[str, Meta(pattern="^/", extra={"expected": "a path that starts with '/'"})] = "/health"
    """GET path that answers 200 when the worker can serve."""
    interval_seconds: Seconds = 1.0
    """From one check of an endpoint to the next."""
    timeout_seconds: Seconds = 2.0
    """A check that takes longer has failed."""
    unhealthy_threshold: Annotated[int, Meta(ge=1, le=100)] = 2
    """Failed checks in a row, or faults of requests in a row, that take an endpoint out."""
    healthy_threshold: Annotated[int, Meta(ge=1, le=100)] = 1
    """Good checks in a row that bring it back."""


class PluginSpec(ApiStruct, frozen=True, kw_only=True):
    """One configured plugin instance (llm-d's vocabulary)."""

    type: Annotated[str, Meta(min_length=1)]
    """Registered kebab-case type, role last: `prefix-cache-scorer`."""
    name: str | None = None
    """How profiles refer to it; the type when unset."""
    parameters: dict[str, Any] = {}
    """The plugin's own settings."""


class PluginRefSpec(ApiStruct, frozen=True, kw_only=True):
    """A plugin in a profile."""

    plugin_ref: Annotated[str, Meta(min_length=1)]
    """The name of a configured plugin, or a plugin type to be used with its defaults."""
    weight: Weight = 1.0
    """Share of a scorer in the sum; filters and pickers ignore it."""


class SchedulingProfileSpec(ApiStruct, frozen=True, kw_only=True):
    """Filters, scorers and one picker, run in that order."""

    name: Annotated[str, Meta(min_length=1)]
    """Unique among the profiles."""
    plugins: Annotated[tuple[PluginRefSpec, ...], Meta(min_length=1)]
    """What the profile runs; among filters and among scorers the order is kept."""


class SchedulingSpec(ApiStruct, frozen=True, kw_only=True):
    """How an endpoint is chosen. Empty lists mean the built-in default profile."""

    plugins: tuple[PluginSpec, ...] = ()
    """Plugins with settings or names of their own."""
    profiles: tuple[SchedulingProfileSpec, ...] = ()
    """Which plugins decide together."""


class AccessLogSpec(ApiStruct, frozen=True, kw_only=True):
    """One JSON line per request."""

    path: str = "-"
    """File to append to; `-` is standard output, empty is off."""


class RouterSpec(ApiStruct, frozen=True, kw_only=True):
    """A router's settings, the same in a pool's `spec.router` and in a `RouterConfig`."""

    replicas: Annotated[int, Meta(ge=1, le=100)] = 1
    """Router processes. `tidegate up` runs one."""
    listen: ListenSpec = ListenSpec()
    timeouts: TimeoutsSpec = TimeoutsSpec()
    limits: LimitsSpec = LimitsSpec()
    retries: RetriesSpec = RetriesSpec()
    health_check: HealthCheckSpec = HealthCheckSpec()
    scheduling: SchedulingSpec = SchedulingSpec()
    access_log: AccessLogSpec = AccessLogSpec()
