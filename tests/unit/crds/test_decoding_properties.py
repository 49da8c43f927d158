"""The walk over the types agrees with msgspec, and no document whatsoever gets past it or through it."""

import copy
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import inspect as mi
from tidegate_crds.decoding import decode_pool, decode_router_config, load_pool, load_router_config
from tidegate_crds.encoding import dump_pool, dump_router_config
from tidegate_crds.errors import ManifestError
from tidegate_crds.inference_pool import InferencePool
from tidegate_crds.router_config import RouterConfig
from tidegate_crds.validation import check, describe_type, without_null

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\n"), max_size=8)
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
ANYTHING = PLAIN | st.floats() | st.integers() | st.binary(max_size=3) | st.just("\ud800") | st.just({1: 2})


def documents(described: mi.Type) -> st.SearchStrategy[Any]:
    """Plain data that msgspec takes for a type."""
    inner, nullable = without_null(described)
    if isinstance(inner, mi.Metadata):
        inner = inner.type
    strategy = _documents(inner)
    return st.none() | strategy if nullable else strategy


def _documents(described: mi.Type) -> st.SearchStrategy[Any]:
    match described:
        case mi.StructType():
            required = {f.encode_name: documents(f.type) for f in described.fields if f.required}
            optional = {f.encode_name: documents(f.type) for f in described.fields if not f.required}
            return st.fixed_dictionaries(required, optional=optional)
        case mi.VarTupleType() | mi.ListType():
            return st.lists(documents(described.item_type), min_size=described.min_length or 0, max_size=3)
        case mi.DictType():
            return st.dictionaries(TEXT, documents(described.value_type), max_size=3)
        case mi.LiteralType():
            return st.sampled_from(described.values)
        case mi.StrType(pattern=str() as pattern):
            return st.from_regex(pattern, fullmatch=True).filter(
                lambda text: "\n" not in text and (described.max_length is None or len(text) <= described.max_length)
            )
        case mi.StrType():
            return TEXT.filter(lambda text: len(text) >= (described.min_length or 0))
        case mi.IntType():
            return st.integers(described.ge, (1 << 63) - 1 if described.le is None else described.le)
        case mi.FloatType():
            low = described.ge if described.ge is not None else described.gt
            return st.floats(low, described.le, exclude_min=described.gt is not None) | st.integers(
                1, int(described.le or 9)
            )
        case mi.AnyType():
            return PLAIN
    raise TypeError(f"no documents for {described}")


POOLS = documents(describe_type(InferencePool))
ROUTERS = documents(describe_type(RouterConfig))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(POOLS)
def test_what_msgspec_takes_for_a_pool_has_no_error_of_type(document: object) -> None:
    msgspec.convert(document, InferencePool)
    assert check(document, InferencePool) == []


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(POOLS)
def test_a_decoded_pool_is_what_msgspec_makes_of_it_and_survives_yaml(document: object) -> None:
    try:
        pool = decode_pool(document)
    except ManifestError as error:
        assert all("already" in str(e) or "not both" in str(e) or "pluginRef" in str(e) for e in error.errors)  # noqa: PT017
        return
    assert pool == msgspec.convert(document, InferencePool)
    assert load_pool(dump_pool(pool)) == pool


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(ROUTERS)
def test_a_decoded_router_configuration_survives_yaml(document: object) -> None:
    try:
        config = decode_router_config(document)
    except ManifestError:
        assert check(document, RouterConfig) == []
        return
    assert config == msgspec.convert(document, RouterConfig)
    assert load_router_config(dump_router_config(config)) == config


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(POOLS, st.data())
def test_a_mutated_document_decodes_or_raises_a_manifest_error_in_agreement_with_msgspec(
    document: Any, data: st.DataObject
) -> None:
    mutated = copy.deepcopy(document)
    owner: Any = mutated
    while isinstance(owner, (dict, list)) and owner:
        keys = list(owner) if isinstance(owner, dict) else list(range(len(owner)))
        key = data.draw(st.sampled_from(keys))
        if not owner[key] or not isinstance(owner[key], (dict, list)) or data.draw(st.booleans()):
            mutation = data.draw(st.sampled_from(["replace", "remove", "add"]))
            if mutation == "replace":
                owner[key] = data.draw(ANYTHING)
            elif mutation == "remove":
                del owner[key]
            elif isinstance(owner, dict):
                owner[data.draw(TEXT | st.integers() | st.none())] = data.draw(ANYTHING)
            break
        owner = owner[key]
    try:
        pool = decode_pool(mutated)
    except ManifestError:
        return
    assert isinstance(pool, InferencePool)
    assert load_pool(dump_pool(pool)) == pool


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(ANYTHING)
def test_no_value_raises_anything_but_a_manifest_error(document: object) -> None:
    for decode in (decode_pool, decode_router_config):
        with pytest.raises(ManifestError):
            decode(document)


@pytest.mark.parametrize(
    "text", ["\x85", "a\u2028b", "\ufeff", "1e3", "no", "2026-01-01", "1:30", " x ", "\r\n", "\x00", "~"]
)
def test_text_that_yaml_could_read_as_something_else_survives_it(text: str) -> None:
    document = {
        "apiVersion": "router.tidegate.dev/v1alpha1",
        "kind": "RouterConfig",
        "endpoints": [{"url": "http://h:1"}],
        "accessLog": {"path": text},
    }
    config = decode_router_config(document)
    assert load_router_config(dump_router_config(config)) == config
