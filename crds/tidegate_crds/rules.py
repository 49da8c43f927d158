"""Rules that hold between fields, which no type can say.

Each rule reads plain data that may be wrong in other ways as well: what it does not understand it leaves to the walk
over the types, so that one reading of a document reports the errors of both.
"""

import re
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

from tidegate_crds.errors import FieldError, child_path, quoted
from tidegate_crds.spelling import suggest

Rule = Callable[[object], Iterator[FieldError]]

_PLUGIN_TYPE = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*-(filter|scorer|picker|handler)")


def check_pool_rules(document: object) -> Iterator[FieldError]:
    """The rules of an `InferencePool`."""
    yield from _unique(document, "spec.workers", "name", "worker name")
    yield from _unique_items(document, "spec.model.servedNames", "served name")
    for path, worker in _items(document, "spec.workers"):
        cache = _field(worker, "kvCache")
        if _field(cache, "blocks") is not None and _field(cache, "memoryBytes") is not None:
            yield FieldError(child_path(path, "kvCache"), "set blocks or memoryBytes, not both")
    yield from _check_scheduling(document, "spec.router.scheduling")


def check_router_rules(document: object) -> Iterator[FieldError]:
    """The rules of a `RouterConfig`."""
    seen: dict[str, str] = {}
    for path, endpoint in _items(document, "endpoints"):
        for field in ("url", "telemetry"):
            yield from _check_address(_field(endpoint, field), child_path(path, field))
        url = _field(endpoint, "url")
        if isinstance(url, str):
            first = seen.setdefault(url.rstrip("/").lower(), path)
            if first != path:
                yield FieldError(child_path(path, "url"), f"{quoted(url)} is the endpoint at {first} already")
    yield from _unique(document, "endpoints", "name", "endpoint name")
    yield from _check_scheduling(document, "scheduling")


def _check_address(address: object, path: str) -> Iterator[FieldError]:
    if not isinstance(address, str):
        return
    try:
        parts = urlsplit(address if "://" in address else f"tcp://{address}")
        valid = parts.port is None or parts.port > 0
    except ValueError:
        valid = False
    if not valid:
        yield FieldError(path, f"expected a host and a port from 1 to 65535, got {quoted(address)}")


def _check_scheduling(document: object, path: str) -> Iterator[FieldError]:
    """Plugins have unique names, and profiles refer to them or to a bare plugin type."""
    named: dict[str, str] = {}
    for plugin_path, plugin in _items(document, f"{path}.plugins"):
        name = _field(plugin, "name")
        name = _field(plugin, "type") if name is None else name
        if not isinstance(name, str):
            continue
        first = named.setdefault(name, plugin_path)
        if first != plugin_path:
            yield FieldError(plugin_path, f"the plugin at {first} is called {quoted(name)} already; give one a name")
    yield from _unique(document, f"{path}.profiles", "name", "profile name")
    for profile_path, profile in _items(document, f"{path}.profiles"):
        for index, ref in enumerate(_list(_field(profile, "plugins"))):
            wanted = _field(ref, "pluginRef")
            if not isinstance(wanted, str) or not wanted or wanted in named or _PLUGIN_TYPE.fullmatch(wanted):
                continue
            guess = suggest(wanted, named)
            hint = f'; did you mean "{guess}"?' if guess else ""
            ref_path = f"{child_path(child_path(profile_path, 'plugins'), index)}.pluginRef"
            message = f"expected the name of a plugin in {path}.plugins or a plugin type, got {quoted(wanted)}{hint}"
            yield FieldError(ref_path, message)


def _unique(document: object, list_path: str, field: str, what: str) -> Iterator[FieldError]:
    first: dict[str, str] = {}
    for path, item in _items(document, list_path):
        value = _field(item, field)
        if isinstance(value, str) and first.setdefault(value, path) != path:
            yield FieldError(child_path(path, field), f"the {what} {quoted(value)} is used at {first[value]} already")


def _unique_items(document: object, list_path: str, what: str) -> Iterator[FieldError]:
    first: dict[str, str] = {}
    for path, item in _items(document, list_path):
        if isinstance(item, str) and first.setdefault(item, path) != path:
            yield FieldError(path, f"the {what} {quoted(item)} is used at {first[item]} already")


def _items(document: object, path: str) -> Iterator[tuple[str, object]]:
    """The items of the list at a dotted path with the path of each; none when there is no list."""
    value = document
    for name in path.split("."):
        value = _field(value, name)
    for index, item in enumerate(_list(value)):
        yield child_path(path, index), item


def _field(value: object, name: str) -> object:
    return value.get(name) if isinstance(value, dict) else None


def _list(value: object) -> list[object] | tuple[object, ...]:
    return value if isinstance(value, (list, tuple)) else []
