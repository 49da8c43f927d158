"""From YAML text or plain data to typed objects, with every error of a document reported at once.

An object read back from a cluster decodes as well: `status` and the metadata that Kubernetes owns are dropped.
"""

from collections.abc import Callable, Iterator
from typing import TypeVar

import msgspec

from tidegate_crds.errors import FieldError, ManifestError
from tidegate_crds.inference_pool import POOL_API_VERSION, InferencePool
from tidegate_crds.router_config import ROUTER_API_VERSION, RouterConfig
from tidegate_crds.rules import check_pool_rules, check_router_rules
from tidegate_crds.validation import check
from tidegate_crds.yaml_text import load_yaml

KUBERNETES_METADATA = frozenset(
    {
        "creationTimestamp",
        "deletionGracePeriodSeconds",
        "deletionTimestamp",
        "finalizers",
        "generateName",
        "generation",
        "managedFields",
        "ownerReferences",
        "resourceVersion",
        "selfLink",
        "uid",
    }
)
"""Metadata that the API server or controllers write; a person's manifest has none of it."""

_T = TypeVar("_T", bound=msgspec.Struct)


def load_pool(text: str) -> InferencePool:
    """The `InferencePool` in one YAML document. Raises ManifestError, as `decode_pool` does and on bad YAML."""
    return decode_pool(load_yaml(text))


def load_router_config(text: str) -> RouterConfig:
    """The `RouterConfig` in one YAML document. Raises ManifestError, as `decode_router_config` does and on bad YAML."""
    return decode_router_config(load_yaml(text))


def decode_pool(document: object) -> InferencePool:
    """The `InferencePool` that plain data describes.

    Raises:
        ManifestError: with every error of the document, or with those of `apiVersion` and `kind` alone when it is an
            object of another kind.
    """
    header = (POOL_API_VERSION, "InferencePool")
    return _decode(_without_kubernetes_fields(document), InferencePool, header, check_pool_rules)


def decode_router_config(document: object) -> RouterConfig:
    """The `RouterConfig` that plain data describes. Raises ManifestError as `decode_pool` does."""
    return _decode(document, RouterConfig, (ROUTER_API_VERSION, "RouterConfig"), check_router_rules)


def _decode(
    document: object,
    api_type: type[_T],
    header: tuple[str, str],
    rules: Callable[[object], Iterator[FieldError]],
) -> _T:
    errors = check(document, api_type)
    if _is_another_kind(document, header[1]):
        errors = [error for error in errors if error.path in ("apiVersion", "kind")]
    else:
        errors += rules(document)
    if errors:
        raise ManifestError(tuple(errors))
    try:
        return msgspec.convert(document, api_type)
    except (msgspec.ValidationError, RecursionError) as error:
        # the walk is meant to find everything first; what it ever misses still is an error and no traceback
        raise ManifestError((FieldError("", f"not a valid {header[1]}: {error}"),)) from error


def _is_another_kind(document: object, kind: str) -> bool:
    return isinstance(document, dict) and isinstance(document.get("kind"), str) and document["kind"] != kind


def _without_kubernetes_fields(document: object) -> object:
    if not isinstance(document, dict):
        return document
    kept = {key: value for key, value in document.items() if key != "status"}
    metadata = kept.get("metadata")
    if isinstance(metadata, dict):
        kept["metadata"] = {key: value for key, value in metadata.items() if key not in KUBERNETES_METADATA}
    return kept
