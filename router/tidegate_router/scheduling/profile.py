"""From the `scheduling` part of a config to the plugins that run, or to every error in it. Pure."""

from dataclasses import dataclass
from typing import Any, cast

import msgspec
from tidegate_crds.errors import FieldError, ManifestError, child_path, quoted
from tidegate_crds.router_spec import PluginSpec, SchedulingProfileSpec, SchedulingSpec
from tidegate_crds.spelling import suggest
from tidegate_crds.validation import check

from tidegate_router.scheduling.plugin import Filter, Picker, Scorer
from tidegate_router.scheduling.plugins.max_score_picker import MaxScorePicker
from tidegate_router.scheduling.plugins.model_filter import ModelFilter
from tidegate_router.scheduling.plugins.ready_filter import ReadyFilter
from tidegate_router.scheduling.registry import PLUGIN_TYPES, PluginType

DEFAULT_WEIGHTS = {"prefix-cache-scorer": 1.0, "active-request-scorer": 0.5, "queue-scorer": 0.5}
"""Work in flight counts half of a token to recompute: on average half of it is done already."""


@dataclass(frozen=True, slots=True)
class Profile:
    """The plugins of one profile, in the order in which they run."""

    filters: tuple[Filter, ...]
    """Begins with readiness and model: no profile can do without them."""
    scorers: tuple[tuple[Scorer, float], ...]
    """With their weights; zero weights are left out."""
    picker: Picker


@dataclass(frozen=True, slots=True)
class _Instance:
    type: PluginType
    plugin: Any


def build_profile(spec: SchedulingSpec, path: str = "scheduling") -> Profile:
    """The profile that a config describes; the built-in one when it has none.

    Raises:
        ManifestError: with a path below `path` for every unknown type, bad parameter and dangling reference.
    """
    errors: list[FieldError] = []
    instances: dict[str, _Instance] = {}
    for index, plugin in enumerate(spec.plugins):
        instance = _instantiate(plugin, child_path(f"{path}.plugins", index), errors)
        if instance is not None:
            instances[plugin.name or plugin.type] = instance
    if len(spec.profiles) > 1:
        errors.append(FieldError(f"{path}.profiles", f"expected one profile, got {len(spec.profiles)}"))
    profile = _assemble(spec.profiles[0], instances, f"{path}.profiles[0]", errors) if spec.profiles else None
    if errors:
        raise ManifestError(tuple(errors))
    return profile or _default_profile(instances)


def _default_profile(instances: dict[str, _Instance]) -> Profile:
    """The built-in scorers, each with the parameters of a plugin of that type where the config gives some."""
    scorers = [(_by_type(kind, instances), weight) for kind, weight in DEFAULT_WEIGHTS.items()]
    return _profile([], [(cast("Scorer", scorer), weight) for scorer, weight in scorers], None)


def _profile(filters: list[Filter], scorers: list[tuple[Scorer, float]], picker: Picker | None) -> Profile:
    chosen = [each for each in filters if not isinstance(each, (ReadyFilter, ModelFilter))]
    return Profile((ReadyFilter(), ModelFilter(), *chosen), tuple(scorers), picker or MaxScorePicker())


def _assemble(
    spec: SchedulingProfileSpec,
    instances: dict[str, _Instance],
    path: str,
    errors: list[FieldError],
) -> Profile:
    filters: list[Filter] = []
    scorers: list[tuple[Scorer, float]] = []
    pickers: list[Picker] = []
    for index, reference in enumerate(spec.plugins):
        reference_path = f"{child_path(f'{path}.plugins', index)}.pluginRef"
        name = reference.plugin_ref
        instance = instances.get(name)
        if instance is None:
            instance = _instantiate(PluginSpec(type=name), reference_path, errors, of_reference=True)
        if instance is None:
            continue
        if instance.type.role == "filter":
            filters.append(instance.plugin)
        elif instance.type.role == "picker":
            pickers.append(instance.plugin)
            if len(pickers) > 1:
                errors.append(FieldError(reference_path, "a profile has one picker, and this is another"))
        elif reference.weight > 0:
            scorers.append((instance.plugin, reference.weight))
    return _profile(filters, scorers, pickers[0] if pickers else None)


def _by_type(kind: str, instances: dict[str, _Instance]) -> Any:
    plugin_type = PLUGIN_TYPES[kind]
    for instance in instances.values():
        if instance.type is plugin_type:
            return instance.plugin
    return plugin_type.make(plugin_type.parameters())


def _instantiate(
    spec: PluginSpec,
    path: str,
    errors: list[FieldError],
    *,
    of_reference: bool = False,
) -> _Instance | None:
    plugin_type = PLUGIN_TYPES.get(spec.type)
    if plugin_type is None:
        guess = suggest(spec.type, PLUGIN_TYPES)
        hint = f'did you mean "{guess}"?' if guess else f"known types: {', '.join(sorted(PLUGIN_TYPES))}"
        where = path if of_reference else f"{path}.type"
        errors.append(FieldError(where, f"no plugin type {quoted(spec.type)}; {hint}"))
        return None
    found = check(spec.parameters, plugin_type.parameters)
    if found:
        base = f"{path}.parameters"
        errors += [FieldError(f"{base}.{each.path}" if each.path else base, each.message) for each in found]
        return None
    return _Instance(plugin_type, plugin_type.make(msgspec.convert(spec.parameters, plugin_type.parameters)))
