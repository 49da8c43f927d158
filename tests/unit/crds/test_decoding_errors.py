"""What a person reads when a document is wrong: the exact lines."""

import math
from collections.abc import Callable

import pytest
from tidegate_crds.decoding import decode_pool, decode_router_config
from tidegate_crds.errors import FieldError, ManifestError


def pool(**changes: object) -> dict[str, object]:
    """A minimal valid pool, with `workers0__field=value` and `spec__field=value` changes applied."""
    worker: dict[str, object] = {"name": "cpu"}
    spec: dict[str, object] = {"model": {"uri": "/m.gguf"}, "workers": [worker]}
    document: dict[str, object] = {
        "apiVersion": "tidegate.dev/v1",
        "kind": "InferencePool",
        "metadata": {"name": "demo"},
        "spec": spec,
    }
    owners = {"workers0": worker, "spec": spec, "metadata": document["metadata"], "top": document}
    for name, value in changes.items():
        owner, _, field = name.partition("__")
        owners[owner][field] = value
    return document


def router(**changes: object) -> dict[str, object]:
    return {
        "apiVersion": "router.tidegate.dev/v1alpha1",
        "kind": "RouterConfig",
        "endpoints": [{"url": "http://127.0.0.1:9001"}],
        **changes,
    }


def errors_of(document: object, decode: Callable[[object], object] = decode_pool) -> list[str]:
    with pytest.raises(ManifestError) as caught:
        decode(document)
    return str(caught.value).splitlines()


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"workers0__replicas": "two"}, 'spec.workers[0].replicas: expected an integer ≥ 0, got "two"'),
        ({"workers0__replicas": -1}, "spec.workers[0].replicas: expected an integer ≥ 0, got -1"),
        ({"workers0__replicas": 10_001}, "spec.workers[0].replicas: expected an integer ≤ 10000, got 10001"),
        ({"workers0__replicas": True}, "spec.workers[0].replicas: expected an integer ≥ 0, got true"),
        ({"workers0__replicas": 1.5}, "spec.workers[0].replicas: expected an integer ≥ 0, got 1.5"),
        ({"workers0__replicas": None}, "spec.workers[0].replicas: expected an integer ≥ 0, got null"),
        ({"workers0__replicas": [1]}, "spec.workers[0].replicas: expected an integer ≥ 0, got a list"),
        (
            {"workers0__replicas": 1 << 3000},
            "spec.workers[0].replicas: expected an integer ≤ 10000, got an integer of 3001 bits",
        ),
        (
            {"spec__model": {"uri": "m", "contextTokens": 1 << 70}},
            f"spec.model.contextTokens: expected an integer of at most 64 bits, got {1 << 70}",
        ),
        ({"workers0__replica": 2}, 'spec.workers[0].replica: unknown field; did you mean "replicas"?'),
        ({"workers0__repilcas": 2}, 'spec.workers[0].repilcas: unknown field; did you mean "replicas"?'),
        ({"workers0__kv_cache": {}}, 'spec.workers[0].kv_cache: unknown field; did you mean "kvCache"?'),
        ({"workers0__KVCache": {}}, 'spec.workers[0].KVCache: unknown field; did you mean "kvCache"?'),
        ({"workers0__colour": "red"}, "spec.workers[0].colour: unknown field"),
        ({"workers0__a\nb": 1}, 'spec.workers[0]["a\\nb"]: unknown field'),
        (
            {"workers0__name": "Big_Name"},
            (
                "spec.workers[0].name: expected lower-case letters, digits and '-', "
                'with a letter or digit at both ends, got "Big_Name"'
            ),
        ),
        ({"workers0__name": "x" * 64}, "spec.workers[0].name: expected at most 63 characters, got 64"),
        ({"workers0__role": "prefill"}, 'spec.workers[0].role: expected "mixed", got "prefill"'),
        ({"workers0__args": "--port 1"}, 'spec.workers[0].args: expected a list, got "--port 1"'),
        ({"workers0__args": ["a", 1]}, "spec.workers[0].args[1]: expected a string, got 1 (put it in quotes)"),
        ({"workers0__args": ["\ud800"]}, 'spec.workers[0].args[0]: expected Unicode text, got "\\ud800"'),
        (
            {"spec__model": {"uri": "m", "dtype": "float23"}},
            (
                'spec.model.dtype: expected one of "auto", "bfloat16", "float16", "float32", got "float23"; '
                'did you mean "float32"?'
            ),
        ),
        ({"spec__model": {"uri": ""}}, 'spec.model.uri: expected a non-empty string, got ""'),
        ({"spec__model": {}}, "spec.model.uri: required field is missing; expected a non-empty string"),
        ({"spec__model": "m.gguf"}, 'spec.model: expected a mapping, got "m.gguf"'),
        ({"spec__workers": []}, "spec.workers: expected at least 1 item, got an empty list"),
        ({"spec__workers": {"name": "cpu"}}, "spec.workers: expected a list, got a mapping"),
        ({"spec__router": {"replicas": 0}}, "spec.router.replicas: expected an integer ≥ 1, got 0"),
        (
            {"spec__router": {"timeouts": {"drainSeconds": 0}}},
            "spec.router.timeouts.drainSeconds: expected a number > 0, got 0",
        ),
        (
            {"spec__router": {"timeouts": {"drainSeconds": math.nan}}},
            "spec.router.timeouts.drainSeconds: expected a number > 0, got .nan",
        ),
        (
            {"spec__router": {"timeouts": {"drainSeconds": math.inf}}},
            "spec.router.timeouts.drainSeconds: expected a number ≤ 86400, got .inf",
        ),
        (
            {"spec__router": {"healthCheck": {"path": "health"}}},
            "spec.router.healthCheck.path: expected a path that starts with '/', got \"health\"",
        ),
        (
            {"spec__router": {"scheduling": {"plugins": [{"type": "a-scorer", "parameters": {"x": {"y": math.nan}}}]}}},
            "spec.router.scheduling.plugins[0].parameters.x.y: expected a finite number, got .nan",
        ),
        (
            {"metadata__labels": {"app.kubernetes.io/name": True}},
            'metadata.labels["app.kubernetes.io/name"]: expected a string, got true (put it in quotes)',
        ),
        ({"metadata__labels": {1: "x"}}, "metadata.labels: expected keys as text, got 1 (put it in quotes)"),
        ({"top__apiVersion": "tidegate.dev/v2"}, 'apiVersion: expected "tidegate.dev/v1", got "tidegate.dev/v2"'),
        ({"top__kind": None}, 'kind: expected "InferencePool", got null'),
        (
            {"workers0__kvCache": {"blocks": 4, "memoryBytes": 1 << 20}},
            "spec.workers[0].kvCache: set blocks or memoryBytes, not both",
        ),
        (
            {"spec__workers": [{"name": "a"}, {"name": "a"}]},
            'spec.workers[1].name: the worker name "a" is used at spec.workers[0] already',
        ),
        (
            {"spec__model": {"uri": "m", "servedNames": ["a", "a"]}},
            'spec.model.servedNames[1]: the served name "a" is used at spec.model.servedNames[0] already',
        ),
    ],
)
def test_one_error_says_where_and_what(changes: dict[str, object], line: str) -> None:
    assert errors_of(pool(**changes)) == [line]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"endpoints": [{"url": "https://x"}]},
            'endpoints[0].url: expected http://host:port, got "https://x"',
        ),
        (
            {"endpoints": [{"url": "http://h:99999"}]},
            'endpoints[0].url: expected a host and a port from 1 to 65535, got "http://h:99999"',
        ),
        (
            {"endpoints": [{"url": "http://h:1\n"}]},
            'endpoints[0].url: expected http://host:port, got "http://h:1\\n"',
        ),
        (
            {"endpoints": [{"url": "http://h:1", "telemetry": "nine"}]},
            'endpoints[0].telemetry: expected host:port, got "nine"',
        ),
        (
            {"endpoints": [{"url": "http://h:1"}, {"url": "http://H:1/"}]},
            'endpoints[1].url: "http://H:1/" is the endpoint at endpoints[0] already',
        ),
        (
            {"endpoints": [{"url": "http://h:1", "name": "a"}, {"url": "http://h:2", "name": "a"}]},
            'endpoints[1].name: the endpoint name "a" is used at endpoints[0] already',
        ),
        ({"endpoints": []}, "endpoints: expected at least 1 item, got an empty list"),
        (
            {"scheduling": {"profiles": [{"name": "p", "plugins": [{"pluginRef": "cache"}]}]}},
            (
                "scheduling.profiles[0].plugins[0].pluginRef: expected the name of a plugin in scheduling.plugins "
                'or a plugin type, got "cache"'
            ),
        ),
        (
            {
                "scheduling": {
                    "plugins": [{"type": "prefix-cache-scorer", "name": "cache"}],
                    "profiles": [{"name": "p", "plugins": [{"pluginRef": "cahce"}]}],
                }
            },
            (
                "scheduling.profiles[0].plugins[0].pluginRef: expected the name of a plugin in scheduling.plugins "
                'or a plugin type, got "cahce"; did you mean "cache"?'
            ),
        ),
        (
            {"scheduling": {"plugins": [{"type": "queue-scorer"}, {"type": "queue-scorer"}]}},
            (
                'scheduling.plugins[1]: the plugin at scheduling.plugins[0] is called "queue-scorer" already; '
                "give one a name"
            ),
        ),
    ],
)
def test_router_configuration_errors(changes: dict[str, object], line: str) -> None:
    assert errors_of(router(**changes), decode_router_config) == [line]


def test_plugins_are_referred_to_by_name_or_by_bare_type() -> None:
    refs = [{"pluginRef": "cache", "weight": 2}, {"pluginRef": "queue-scorer"}, {"pluginRef": "max-score-picker"}]
    scheduling = {
        "plugins": [{"type": "prefix-cache-scorer", "name": "cache"}],
        "profiles": [{"name": "default", "plugins": refs}],
    }
    config = decode_router_config(router(scheduling=scheduling))
    assert [ref.plugin_ref for ref in config.scheduling.profiles[0].plugins] == [ref["pluginRef"] for ref in refs]


def test_all_errors_are_reported_in_one_go_types_and_rules_alike() -> None:
    lines = errors_of(
        pool(
            metadata__name="Demo",
            spec__modell={},
            spec__workers=[{"name": "a", "replicas": "two"}, {"name": "a", "threads": 0}],
        )
    )
    assert [line.partition(":")[0] for line in lines] == [
        "metadata.name",
        "spec.modell",
        "spec.workers[0].replicas",
        "spec.workers[1].threads",
        "spec.workers[1].name",
    ]


def test_a_misspelt_required_field_is_one_error() -> None:
    document = pool()
    document["spec"]["modle"] = document["spec"].pop("model")
    assert errors_of(document) == ['spec.modle: unknown field; did you mean "model"?']


def test_an_object_of_another_kind_is_told_only_that() -> None:
    document = {"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"replicas": 1, "template": {}}}
    assert errors_of(document) == [
        'apiVersion: expected "tidegate.dev/v1", got "apps/v1"',
        'kind: expected "InferencePool", got "Deployment"',
    ]


@pytest.mark.parametrize("document", [None, [], "text", 3, 1.5, True, object()])
def test_anything_but_a_mapping_is_one_error(document: object) -> None:
    assert errors_of(document)[0].startswith("expected a mapping with apiVersion and kind, got ")


def test_errors_are_available_one_by_one() -> None:
    with pytest.raises(ManifestError) as caught:
        decode_pool(pool(workers0__replicas="two"))
    assert caught.value.errors == (FieldError("spec.workers[0].replicas", 'expected an integer ≥ 0, got "two"'),)


def test_a_flood_of_errors_is_cut_in_the_text_but_kept_in_the_tuple() -> None:
    with pytest.raises(ManifestError) as caught:
        decode_pool(pool(workers0__args=[0] * 500))
    assert len(caught.value.errors) == 500
    assert str(caught.value).splitlines()[-1] == "… and 450 more errors"


def test_values_nested_or_numerous_without_bound_are_errors() -> None:
    deep: object = 1
    for _ in range(5_000):
        deep = [deep]
    plugin = {"type": "x-scorer", "parameters": {"deep": deep}}
    (line,) = errors_of(pool(spec__router={"scheduling": {"plugins": [plugin]}}))
    assert line.endswith("nested more than 64 levels deep")
    wide: object = 1
    for _ in range(40):
        wide = [wide, wide]
    plugin["parameters"] = {"wide": wide}
    (line,) = errors_of(pool(spec__router={"scheduling": {"plugins": [plugin]}}))
    assert line.endswith("too many values")


def test_an_object_read_back_from_a_cluster_decodes_as_the_manifest_it_came_from() -> None:
    document = pool()
    written = decode_pool(pool())
    document["status"] = {"url": "http://x", "conditions": []}
    document["metadata"] |= {
        "uid": "8c9b",
        "resourceVersion": "17",
        "generation": 2,
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "managedFields": [{"manager": "kubectl"}],
        "finalizers": [],
        "ownerReferences": [],
    }
    assert decode_pool(document) == written
