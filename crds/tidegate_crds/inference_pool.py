"""`InferencePool` (tidegate.dev/v1): one model, its workers and its router, on Kubernetes or on a laptop."""

from typing import Annotated, Literal

from msgspec import Meta

from tidegate_crds.router_spec import ApiStruct, Name, RouterSpec

POOL_API_VERSION = "tidegate.dev/v1"

Dtype = Literal["auto", "float32", "bfloat16", "float16"]


class ObjectMeta(ApiStruct, frozen=True, kw_only=True):
    """The part of Kubernetes object metadata that a person writes."""

    name: Name
    """Unique in its namespace; also the served model's name when the spec gives none."""
    namespace: Name | None = None
    """Where the object lives on Kubernetes; without meaning on a laptop."""
    labels: dict[str, str] = {}
    """For selecting objects."""
    annotations: dict[str, str] = {}
    """Notes that nothing selects by."""


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
    """Tidegate's own engine."""
    args: tuple[str, ...] = ()
    """Further `tidegate-worker` flags, for every worker of the pool; those that a field here sets are refused."""


class KvCacheSpec(ApiStruct, frozen=True, kw_only=True):
    """Memory for keys and values."""

    blocks: Annotated[int, Meta(ge=2)] | None = None
    """Blocks on the device; not together with `memory_bytes`."""
    memory_bytes: Annotated[int, Meta(ge=1 << 20)] | None = None
    """Bytes on the device. The worker chooses when neither is set."""


class WorkerSpec(ApiStruct, frozen=True, kw_only=True):
    """A set of equal workers."""

    name: Name
    """Unique in the pool; processes and objects are called after it."""
    role: Literal["mixed"] = "mixed"
    """`mixed` workers do both prefill and decode."""
    replicas: Annotated[int, Meta(ge=0, le=10_000)] = 1
    """How many of them. `tidegate up` runs at most 8 for each core, and one for each 256 MiB of memory."""
    threads: Annotated[int, Meta(ge=1, le=1_024)] | None = None
    """CPU threads of one worker; on a laptop max(1, cores / workers) when unset."""
    kv_cache: KvCacheSpec = KvCacheSpec()
    args: tuple[str, ...] = ()
    """Further `tidegate-worker` flags, for this set only; those that a field here sets are refused."""


class InferencePoolSpec(ApiStruct, frozen=True, kw_only=True):
    """What is wanted: a model, who computes it, who routes to it."""

    model: ModelSpec
    engine: EngineSpec = EngineSpec()
    workers: Annotated[tuple[WorkerSpec, ...], Meta(min_length=1)]
    """Sets of workers, all of the same model; their names are unique."""
    router: RouterSpec = RouterSpec()


class InferencePool(ApiStruct, frozen=True, kw_only=True):
    """The object a person applies."""

    api_version: Literal["tidegate.dev/v1"]
    """Version of this document's shape."""
    kind: Literal["InferencePool"]
    """What the document describes."""
    metadata: ObjectMeta
    """Name and labels."""
    spec: InferencePoolSpec
    """What is wanted."""
