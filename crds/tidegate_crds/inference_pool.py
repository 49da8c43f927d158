"""`InferencePool` (tidegate.dev/v1): one model, its workers and its router, on Kubernetes or on a laptop."""

from typing import Annotated, Literal

from msgspec import Meta

from tidegate_crds.router_spec import ApiStruct, Name, RouterSpec

POOL_API_VERSION = "tidegate.dev/v1"

Dtype = Literal["auto", "float32", "bfloat16", "float16"]


class ObjectMeta(ApiStruct, frozen=True, kw_only=True):
    """The part of Kubernetes object metadata that a person writes."""

    name: Name
    namespace: Name | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class ModelSpec(ApiStruct, frozen=True, kw_only=True):
    """Which model, and how it is called."""

    uri: Annotated[str, Meta(min_length=1)]
    """A GGUF file, a Hugging Face directory, `hf://org/name[@revision]` or `package://distribution/file`."""
    served_names: tuple[Annotated[str, Meta(min_length=1)], ...] = ()
    """Values of `model` in requests; the pool's name when empty. The first is the canonical one."""
    dtype: Dtype = "auto"
    """Weights and activations; `auto` is float32 on CPU and the checkpoint's type elsewhere."""
    context_tokens: Annotated[int, Meta(ge=16)] | None = None
    """Longest prompt plus answer; the model's own limit when unset."""


class EngineSpec(ApiStruct, frozen=True, kw_only=True):
    """What runs the model."""

    type: Literal["tidegate"] = "tidegate"
    args: tuple[str, ...] = ()
    """Further `tidegate-worker` flags, for every worker of the pool."""


class KvCacheSpec(ApiStruct, frozen=True, kw_only=True):
    """Memory for keys and values."""

    blocks: Annotated[int, Meta(ge=2)] | None = None
    """Blocks on the device; from `memory_bytes` when unset."""
    memory_bytes: Annotated[int, Meta(ge=1 << 20)] | None = None
    """Bytes on the device; the worker chooses when both are unset."""


class WorkerSpec(ApiStruct, frozen=True, kw_only=True):
    """A set of equal workers."""

    name: Name
    role: Literal["mixed"] = "mixed"
    replicas: Annotated[int, Meta(ge=0, le=10_000)] = 1
    threads: Annotated[int, Meta(ge=1, le=1_024)] | None = None
    """CPU threads of one worker; on a laptop max(1, cores / workers) when unset."""
    kv_cache: KvCacheSpec = KvCacheSpec()
    args: tuple[str, ...] = ()
    """Further `tidegate-worker` flags, for this set only."""


class InferencePoolSpec(ApiStruct, frozen=True, kw_only=True):
    """The wish."""

    model: ModelSpec
    engine: EngineSpec = EngineSpec()
    workers: Annotated[tuple[WorkerSpec, ...], Meta(min_length=1)]
    router: RouterSpec = RouterSpec()


class InferencePool(ApiStruct, frozen=True, kw_only=True):
    """The object a person applies."""

    api_version: Literal["tidegate.dev/v1"]
    kind: Literal["InferencePool"]
    metadata: ObjectMeta
    spec: InferencePoolSpec
