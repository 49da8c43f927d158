"""The CustomResourceDefinition of `InferencePool`, derived from the types.

The schema is structural (no $ref, every level typed) and carries what the types say: descriptions, defaults, bounds,
patterns, enums. Rules between fields that Kubernetes can check are in `CEL_RULES`; the others stay with `rules.py`.
"""

from typing import Any

import msgspec
import yaml
from msgspec import inspect as mi

from tidegate_crds.field_docs import field_docs, struct_doc
from tidegate_crds.inference_pool import InferencePool, KvCacheSpec, ObjectMeta, WorkerSpec
from tidegate_crds.router_spec import SchedulingProfileSpec
from tidegate_crds.validation import describe_type, without_null

Schema = dict[str, Any]

GROUP, VERSION, KIND, PLURAL = "tidegate.dev", "v1", "InferencePool", "inferencepools"
HEADER = "# Generated from crds/tidegate_crds/inference_pool.py by `make generate`; edit the types, not this file.\n"

CEL_RULES: dict[type, list[Schema]] = {
    KvCacheSpec: [
        {"rule": "!(has(self.blocks) && has(self.memoryBytes))", "message": "set blocks or memoryBytes, not both"}
    ],
}
LIST_MAP_KEYS: dict[type, str] = {WorkerSpec: "name", SchedulingProfileSpec: "name"}
"""Lists whose items have an identity: server-side apply merges them by it, and it is unique."""

_CONDITION: Schema = {
    "type": "object",
    "required": ["type", "status", "lastTransitionTime", "reason", "message"],
    "properties": {
        "type": {"type": "string", "description": "What the condition is about, as `Ready`.", "maxLength": 316},
        "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
        "observedGeneration": {"type": "integer", "format": "int64", "minimum": 0},
        "lastTransitionTime": {"type": "string", "format": "date-time"},
        "reason": {"type": "string", "minLength": 1, "maxLength": 1024},
        "message": {"type": "string", "maxLength": 32768},
    },
}
STATUS_SCHEMA: Schema = {
    "type": "object",
    "description": "What is; written by the operator alone.",
    "properties": {
        "observedGeneration": {
            "type": "integer",
            "format": "int64",
            "minimum": 0,
            "description": "The generation of the spec that this status is about.",
        },
        "url": {"type": "string", "description": "Where the pool's OpenAI API answers."},
        "workers": {
            "type": "array",
            "description": "Counts of each set of workers.",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
            "items": {
                "type": "object",
                "required": ["name"],
                "properties": {
                    "name": {"type": "string"},
                    "replicas": {"type": "integer", "format": "int64", "minimum": 0},
                    "readyReplicas": {"type": "integer", "format": "int64", "minimum": 0},
                },
            },
        },
        "conditions": {
            "type": "array",
            "description": "`Ready` sums up the others.",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
            "items": _CONDITION,
        },
    },
}
PRINTER_COLUMNS: list[Schema] = [
    {"name": "Model", "type": "string", "jsonPath": ".spec.model.uri"},
    {"name": "Ready", "type": "string", "jsonPath": '.status.conditions[?(@.type=="Ready")].status'},
    {"name": "URL", "type": "string", "jsonPath": ".status.url"},
    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
]


def inference_pool_crd() -> str:
    """The CRD as YAML text, ready for `kubectl apply` and for a chart's crds/ folder."""
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": ["tgpool"],
                "categories": ["tidegate"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": inference_pool_schema()},
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": PRINTER_COLUMNS,
                }
            ],
        },
    }
    return HEADER + str(yaml.dump(definition, Dumper=_NoAliases, sort_keys=False, allow_unicode=True, width=120))


def inference_pool_schema() -> Schema:
    """The structural OpenAPI v3 schema of an `InferencePool` object."""
    spec = next(field for field in describe_type(InferencePool).fields if field.name == "spec")
    name = next(field for field in describe_type(ObjectMeta).fields if field.name == "name")
    return {
        "type": "object",
        "description": struct_doc(InferencePool),
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object", "properties": {"name": schema_of(name.type)}},
            "spec": schema_of(spec.type),
            "status": STATUS_SCHEMA,
        },
    }


def schema_of(described: mi.Type) -> Schema:
    """The structural schema of a type, inline. A field that may be unset is optional, never nullable."""
    described, _ = without_null(described)
    if isinstance(described, mi.Metadata):
        described = described.type
    if isinstance(described, mi.StructType):
        return _object_schema(described)
    if isinstance(described, (mi.VarTupleType, mi.ListType)):
        return _list_schema(described)
    if isinstance(described, mi.DictType):
        if isinstance(described.value_type, mi.AnyType):
            return {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        return {"type": "object", "additionalProperties": schema_of(described.value_type)}
    return _scalar_schema(described)


def _object_schema(described: mi.StructType) -> Schema:
    docs = field_docs(described.cls)
    properties = {}
    for field in described.fields:
        schema = schema_of(field.type)
        if field.name in docs:
            schema = {"description": docs[field.name]} | {k: v for k, v in schema.items() if k != "description"}
        default = plain_default(field)
        if default is not None:
            schema["default"] = default
        properties[field.encode_name] = schema
    schema = {"description": struct_doc(described.cls), "type": "object", "properties": properties}
    required = [field.encode_name for field in described.fields if field.required]
    if required:
        schema["required"] = required
    if described.cls in CEL_RULES:
        schema["x-kubernetes-validations"] = CEL_RULES[described.cls]
    return schema


def _list_schema(described: mi.VarTupleType | mi.ListType) -> Schema:
    schema: Schema = {"type": "array", "items": schema_of(described.item_type)}
    if described.min_length is not None:
        schema["minItems"] = described.min_length
    if described.max_length is not None:
        schema["maxItems"] = described.max_length
    item = described.item_type
    key = LIST_MAP_KEYS.get(item.cls) if isinstance(item, mi.StructType) else None
    if key:
        schema |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}
    else:
        schema["x-kubernetes-list-type"] = "atomic"
    return schema


def _scalar_schema(described: mi.Type) -> Schema:
    if isinstance(described, mi.LiteralType):
        return {"type": "string", "enum": list(described.values)}
    if isinstance(described, mi.BoolType):
        return {"type": "boolean"}
    if isinstance(described, mi.StrType):
        bounds = {
            "minLength": described.min_length,
            "maxLength": described.max_length,
            "pattern": described.pattern,
        }
        return {"type": "string"} | {name: bound for name, bound in bounds.items() if bound is not None}
    if isinstance(described, (mi.IntType, mi.FloatType)):
        return _number_schema(described)
    raise TypeError(f"no structural schema for {type(described).__name__}")


def _number_schema(described: mi.IntType | mi.FloatType) -> Schema:
    is_integer = isinstance(described, mi.IntType)
    schema: Schema = {"type": "integer", "format": "int64"} if is_integer else {"type": "number"}
    if described.ge is not None:
        schema["minimum"] = described.ge
    if described.gt is not None:
        schema |= {"minimum": described.gt, "exclusiveMinimum": True}
    if described.le is not None:
        schema["maximum"] = described.le
    if described.lt is not None:
        schema |= {"maximum": described.lt, "exclusiveMaximum": True}
    return schema


def plain_default(field: mi.Field) -> Any:
    """A field's default as plain data; `{}` for a struct, whose own fields carry theirs; None when it has none."""
    if field.default is not msgspec.NODEFAULT:
        default = field.default
    elif field.default_factory is not msgspec.NODEFAULT:
        default = field.default_factory()
    else:
        return None
    if isinstance(default, msgspec.Struct):
        if default != type(default)():
            raise TypeError(f"the default of {field.name} differs from an empty {type(default).__name__}")
        return {}
    return msgspec.to_builtins(default)


class _NoAliases(yaml.SafeDumper):
    """Shared parts are written out each time: kubectl reads aliases, people do not."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - PyYAML names it
        """Never alias."""
        return True
