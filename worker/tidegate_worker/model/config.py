"""The shape of a Llama-family model, read from config.json or GGUF metadata. Torch-free.

Holds true: sizes are positive, heads divide evenly, and `context_tokens` is a length at which the model is right (a
sliding attention window shorter than the context caps it).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tidegate_worker.model.errors import ModelFormatError, UnsupportedModelError
from tidegate_worker.model.gguf import GgufFile

HUGGING_FACE_ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM")
GGUF_ARCHITECTURES = ("llama", "qwen2")


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched for long contexts (config.json's names)."""

    kind: Literal["linear", "llama3"]
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context_tokens: int = 8192


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """Everything that the model code needs beside the weights."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    context_tokens: int
    rms_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None = None
    tied_embeddings: bool = False
    attention_bias: bool = False
    """q, k and v have biases (Qwen2)."""

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden_size", "intermediate_size", "layers", "heads", "kv_heads", "context_tokens"):
            if getattr(self, name) < 1:
                raise ModelFormatError(f"the model's configuration has {name} = {getattr(self, name)}")
        if self.heads % self.kv_heads or self.head_dim < 2 or self.head_dim % 2:
            raise ModelFormatError(
                f"the model's configuration has {self.heads} heads, {self.kv_heads} key-value heads "
                f"of size {self.head_dim}, which do not fit together"
            )

    @property
    def group(self) -> int:
        """Query heads that share one key-value head."""
        return self.heads // self.kv_heads

    @property
    def q_size(self) -> int:
        """Columns of the query projection."""
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Columns of the key projection, and of the value projection."""
        return self.kv_heads * self.head_dim


def config_from_huggingface(config: Mapping[str, Any]) -> LlamaConfig:
    """Read config.json. Raises UnsupportedModelError for other architectures, ModelFormatError for missing fields."""
    architectures = config.get("architectures") or ["(none)"]
    architecture = str(architectures[0])
    if architecture not in HUGGING_FACE_ARCHITECTURES:
        raise UnsupportedModelError(
            f"architecture {architecture} is not supported; supported: {', '.join(HUGGING_FACE_ARCHITECTURES)}"
        )
    if config.get("hidden_act", "silu") != "silu" or config.get("mlp_bias"):
        raise UnsupportedModelError("only models with a silu feed-forward without biases are supported")
    heads = _positive(config, "num_attention_heads")
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    window = (
        config.get("sliding_window") if config.get("use_sliding_window", architecture.startswith("Mistral")) else None
    )
    context = _positive(config, "max_position_embeddings")
    return LlamaConfig(
        vocab_size=_positive(config, "vocab_size"),
        hidden_size=_positive(config, "hidden_size"),
        intermediate_size=_positive(config, "intermediate_size"),
        layers=_positive(config, "num_hidden_layers"),
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or _positive(config, "hidden_size") // heads),
        context_tokens=min(context, int(window)) if window else context,
        rms_eps=float(config.get("rms_norm_eps", 1e-6)),
        rope_theta=float(rope.get("rope_theta") or config.get("rope_theta") or 10_000.0),
        rope_scaling=_rope_scaling(rope),
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        attention_bias=architecture.startswith("Qwen2") or bool(config.get("attention_bias")),
    )


def _rope_scaling(rope: Mapping[str, Any]) -> RopeScaling | None:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return None
    if kind not in ("linear", "llama3"):
        raise UnsupportedModelError(f"rope scaling {kind!r} is not supported; supported: default, linear, llama3")
    return RopeScaling(
        kind="linear" if kind == "linear" else "llama3",
        factor=float(rope.get("factor", 1.0)),
        low_freq_factor=float(rope.get("low_freq_factor", 1.0)),
        high_freq_factor=float(rope.get("high_freq_factor", 4.0)),
        original_context_tokens=int(rope.get("original_max_position_embeddings", 8192)),
    )


def config_from_gguf(file: GgufFile) -> LlamaConfig:
    """Read GGUF metadata. Raises UnsupportedModelError for other architectures, ModelFormatError for missing keys."""
    architecture = file.require("general.architecture")
    if architecture not in GGUF_ARCHITECTURES:
        raise UnsupportedModelError(
            f"{file.path}: architecture {architecture!r} is not supported; supported: {', '.join(GGUF_ARCHITECTURES)}"
        )

    def number(key: str) -> Any:
        value = file.require(f"{architecture}.{key}")
        if not isinstance(value, int | float):
            raise ModelFormatError(f"{file.path}: metadata {architecture}.{key} is no number")
        return value

    def optional(key: str, default: float) -> Any:
        return number(key) if f"{architecture}.{key}" in file.metadata else default

    if optional("expert_count", 0):
        raise UnsupportedModelError(f"{file.path}: mixture-of-experts models are not supported")
    heads, hidden = int(number("attention.head_count")), int(number("embedding_length"))
    scaling = file.metadata.get(f"{architecture}.rope.scaling.type", "none")
    if scaling not in ("none", "linear"):
        raise UnsupportedModelError(f"{file.path}: rope scaling {scaling!r} is not supported; supported: none, linear")
    factor = float(optional("rope.scaling.factor", 1.0))
    return LlamaConfig(
        vocab_size=int(optional("vocab_size", len(file.require("tokenizer.ggml.tokens")))),
        hidden_size=hidden,
        intermediate_size=int(number("feed_forward_length")),
        layers=int(number("block_count")),
        heads=heads,
        kv_heads=int(optional("attention.head_count_kv", heads)),
        head_dim=int(optional("attention.key_length", optional("rope.dimension_count", hidden // max(1, heads)))),
        context_tokens=int(number("context_length")),
        rms_eps=float(number("attention.layer_norm_rms_epsilon")),
        rope_theta=float(optional("rope.freq_base", 10_000.0)),
        rope_scaling=RopeScaling("linear", factor) if scaling == "linear" and factor != 1.0 else None,
        tied_embeddings="output.weight" not in file.tensors,
        attention_bias="blk.0.attn_q.bias" in file.tensors,
    )


def _positive(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ModelFormatError(f"config.json: {key} must be a positive integer, got {value!r}")
    return value
