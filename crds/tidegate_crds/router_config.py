"""`RouterConfig` (router.tidegate.dev/v1alpha1): the file that `tidegate-router --config` reads."""

from typing import Annotated, Literal

from msgspec import Meta

from tidegate_crds.router_spec import ApiStruct, Name, RouterSpec

ROUTER_API_VERSION = "router.tidegate.dev/v1alpha1"


class EndpointSpec(ApiStruct, frozen=True, kw_only=True):
    """A worker at a fixed address."""

    url: Annotated[str, Meta(pattern="^http://[^/ ]+:[0-9]+/?$", extra={"expected": "http://host:port"})]
    """`http://host:port` of its OpenAI API."""
    telemetry: Annotated[str, Meta(pattern="^[^/ ]+:[0-9]+$", extra={"expected": "host:port"})] | None = None
    """`host:port` of its Telemetry service; unset for engines that have none."""
    name: Name | None = None
    """Shown in headers, logs and metrics; `host:port` when unset."""


class RouterConfig(RouterSpec, frozen=True, kw_only=True):
    """The fields of `spec.router`, beside a list of endpoints."""

    api_version: Literal["router.tidegate.dev/v1alpha1"]
    """Version of this document's shape."""
    kind: Literal["RouterConfig"]
    """What the document describes."""
    endpoints: Annotated[tuple[EndpointSpec, ...], Meta(min_length=1)]
    """Static endpoints; their URLs are unique."""
