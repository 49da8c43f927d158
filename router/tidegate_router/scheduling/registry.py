"""The plugin types that a router config may name: kebab-case, role last, each with the parameters it takes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from tidegate_crds.router_spec import ApiStruct

from tidegate_router.scheduling.plugins.active_request_scorer import ActiveRequestScorer
from tidegate_router.scheduling.plugins.max_score_picker import MaxScorePicker
from tidegate_router.scheduling.plugins.model_filter import ModelFilter
from tidegate_router.scheduling.plugins.prefix_cache_scorer import PrefixCacheParameters, PrefixCacheScorer
from tidegate_router.scheduling.plugins.queue_scorer import QueueParameters, QueueScorer
from tidegate_router.scheduling.plugins.ready_filter import ReadyFilter

Role = Literal["filter", "scorer", "picker"]


class NoParameters(ApiStruct, frozen=True, kw_only=True):
    """For plugins without settings."""


@dataclass(frozen=True, slots=True)
class PluginType:
    """How instances of one type are made."""

    role: Role
    parameters: type[ApiStruct]
    make: Callable[[Any], Any]
    """From an instance of `parameters` to the plugin."""


PLUGIN_TYPES: dict[str, PluginType] = {
    "ready-filter": PluginType("filter", NoParameters, lambda _: ReadyFilter()),
    "model-filter": PluginType("filter", NoParameters, lambda _: ModelFilter()),
    "prefix-cache-scorer": PluginType("scorer", PrefixCacheParameters, PrefixCacheScorer),
    "queue-scorer": PluginType("scorer", QueueParameters, QueueScorer),
    "active-request-scorer": PluginType("scorer", NoParameters, lambda _: ActiveRequestScorer()),
    "max-score-picker": PluginType("picker", NoParameters, lambda _: MaxScorePicker()),
}
