"""From typed objects back to the documents that people and `tidegate-router --config` read."""

import msgspec
import yaml

from tidegate_crds.inference_pool import InferencePool
from tidegate_crds.router_config import RouterConfig
from tidegate_crds.router_spec import ApiStruct
from tidegate_crds.yaml_text import StrictLoader

_resolvers = (yaml.SafeDumper.yaml_implicit_resolvers, StrictLoader.yaml_implicit_resolvers)


class _Dumper(yaml.SafeDumper):
    """Quotes text that either YAML dialect, PyYAML's or this package's, would read as something else."""


_Dumper.yaml_implicit_resolvers = {
    first: [pair for resolvers in _resolvers for pair in resolvers.get(first, [])]
    for first in {first for resolvers in _resolvers for first in resolvers}
}


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # YAML folds these line breaks of Unicode into others unless they are escaped, which only double quotes can do
    style = '"' if any(character in text for character in "\x85\u2028\u2029\ufeff") else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def dump_router_config(config: RouterConfig) -> str:
    """The whole configuration as YAML, defaults included; `load_router_config` gives back an equal object."""
    return _dump(config)


def dump_pool(pool: InferencePool) -> str:
    """The whole pool as YAML, defaults included; `load_pool` gives back an equal object."""
    return _dump(pool)


def _dump(document: ApiStruct) -> str:
    plain = msgspec.to_builtins(document)
    header = {key: plain.pop(key) for key in ("apiVersion", "kind")}
    return str(yaml.dump(header | plain, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120))
