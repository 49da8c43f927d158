"""The generated CRD is structural, complete and documented."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import yaml
from msgspec import inspect as mi
from tidegate_crds.crd import inference_pool_crd, schema_of
from tidegate_crds.field_docs import field_docs
from tidegate_crds.inference_pool import InferencePool
from tidegate_crds.router_config import RouterConfig
from tidegate_crds.validation import describe_type, without_null

CRD = yaml.safe_load(inference_pool_crd())
VERSION = CRD["spec"]["versions"][0]
SCHEMA = VERSION["schema"]["openAPIV3Schema"]


def schemas(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from schemas(inner, f"{path}.{name}")
    for name in ("items", "additionalProperties"):
        if name in schema:
            yield from schemas(schema[name], f"{path}[]")


def structs(described: mi.Type) -> Iterator[mi.StructType]:
    inner, _ = without_null(described)
    if isinstance(inner, (mi.VarTupleType, mi.ListType)):
        yield from structs(inner.item_type)
    elif isinstance(inner, mi.StructType):
        yield inner
        for field in inner.fields:
            yield from structs(field.type)


def at(path: str) -> dict[str, Any]:
    return dict(schemas(SCHEMA))[path]


def test_names_and_subresources() -> None:
    assert CRD["metadata"]["name"] == "inferencepools.tidegate.dev"
    assert CRD["spec"]["names"]["shortNames"] == ["tgpool"]
    assert VERSION["subresources"] == {"status": {}}
    assert [column["name"] for column in VERSION["additionalPrinterColumns"]] == ["Model", "Ready", "URL", "Age"]


def test_every_level_is_typed_and_inline() -> None:
    for path, schema in schemas(SCHEMA):
        assert "type" in schema, path
        assert "$ref" not in schema, path
        assert "nullable" not in schema, path


def test_only_plugin_parameters_are_free_form() -> None:
    free = [path for path, schema in schemas(SCHEMA) if schema.get("x-kubernetes-preserve-unknown-fields")]
    assert free == [".spec.router.scheduling.plugins[].parameters"]


def test_bounds_defaults_and_keys_come_from_the_types() -> None:
    replicas = at(".spec.workers[].replicas")
    assert (replicas["minimum"], replicas["maximum"], replicas["default"]) == (0, 10_000, 1)
    assert at(".spec.router.timeouts.drainSeconds")["exclusiveMinimum"] is True
    assert at(".spec.workers")["x-kubernetes-list-map-keys"] == ["name"]
    assert (
        at(".spec.workers[].kvCache")["x-kubernetes-validations"][0]["message"] == "set blocks or memoryBytes, not both"
    )
    assert at(".metadata.name")["maxLength"] == 63
    assert "required" not in at(".spec.workers[].kvCache")


@pytest.mark.parametrize("api_type", [InferencePool, RouterConfig])
def test_every_field_is_documented(api_type: type[msgspec.Struct]) -> None:
    for described in structs(describe_type(api_type)):
        docs = field_docs(described.cls)
        for field in described.fields:
            inner, _ = without_null(field.type)
            assert field.name in docs or isinstance(inner, mi.StructType), f"{described.cls.__name__}.{field.name}"


@pytest.mark.parametrize("api_type", [InferencePool, RouterConfig])
def test_every_pattern_has_words(api_type: type[msgspec.Struct]) -> None:
    def scalar_types(described: mi.Type) -> Iterator[mi.Type]:
        inner, _ = without_null(described)
        if isinstance(inner, (mi.VarTupleType, mi.ListType)):
            yield from scalar_types(inner.item_type)
        else:
            yield inner

    for described in structs(describe_type(api_type)):
        for field in described.fields:
            for scalar in scalar_types(field.type):
                assert not isinstance(scalar, mi.StrType) or scalar.pattern is None, f"{field.name} shows a raw pattern"


def test_a_type_without_a_structural_schema_is_refused() -> None:
    with pytest.raises(TypeError, match="no structural schema"):
        schema_of(mi.BytesType())
