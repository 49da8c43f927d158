"""Weights from disk into a `LlamaModel`: GGUF files and Hugging Face directories give the same state.

Both formats are a `TensorSource`, which answers to Hugging Face's tensor names; layers are then read in parallel.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from tidegate_worker.kernels.linear import make_linear
from tidegate_worker.model.config import LlamaConfig, config_from_gguf, config_from_huggingface
from tidegate_worker.model.errors import ModelFormatError
from tidegate_worker.model.gguf import GgufFile, read_gguf
from tidegate_worker.model.llama import LlamaLayer, LlamaModel
from tidegate_worker.model.rope import rope_table
from tidegate_worker.model.tokenizer import read_json
from tidegate_worker.model.uri import ModelFiles

READERS = 4

_GGUF_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


class TensorSource(Protocol):
    """Tensors by Hugging Face name."""

    config: LlamaConfig
    path: Path

    def tensor(self, name: str) -> Tensor:
        """The named tensor in its stored or a wider dtype. Raises ModelFormatError when it is missing."""
        ...

    def rope_factors(self) -> Tensor | None:
        """Divisors of the rotary frequencies that the format stores as a tensor; (head_dim / 2)."""
        ...


class GgufSource:
    """A GGUF file's tensors, dequantised to fp32, with the query and key rows in half-rotated order."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: GgufFile = read_gguf(path)
        self.config = config_from_gguf(self._file)
        self._interleaved = self._file.metadata["general.architecture"] == "llama"

    def tensor(self, name: str) -> Tensor:
        """The named tensor, fp32."""
        weight = torch.from_numpy(self._file.tensor(_gguf_name(name)))
        if self._interleaved and ("q_proj" in name or "k_proj" in name):
            heads = self.config.heads if "q_proj" in name else self.config.kv_heads
            return half_rotated(weight, heads)
        return weight

    def rope_factors(self) -> Tensor | None:
        """Llama 3's frequency factors, which GGUF stores as a tensor instead of scaling parameters."""
        if "rope_freqs.weight" not in self._file.tensors:
            return None
        return torch.from_numpy(self._file.tensor("rope_freqs.weight"))


class SafetensorsSource:
    """A Hugging Face directory's tensors: one safetensors file, or several under an index."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = config_from_huggingface(read_json(path / "config.json"))
        self._files = _weight_files(path)

    def tensor(self, name: str) -> Tensor:
        """The named tensor in its stored dtype."""
        from safetensors import SafetensorError, safe_open

        file = self._files.get(name)
        if file is None:
            raise ModelFormatError(f"{self.path}: tensor {name!r} is in no safetensors file; the model is incomplete")
        try:
            with safe_open(file, framework="pt") as opened:
                weight: Tensor = opened.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise ModelFormatError(f"{file}: cannot be read: {error}; download it again") from error
        return weight

    def rope_factors(self) -> Tensor | None:
        """None: config.json says how frequencies are scaled."""
        return None


def half_rotated(weight: Tensor, heads: int) -> Tensor:
    """Undo llama.cpp's reordering of query or key rows, which pairs neighbours. weight: (heads · head_dim, …)."""
    rows = weight.shape[0]
    return weight.view(heads, rows // heads // 2, 2, -1).transpose(1, 2).reshape(weight.shape)


def open_source(files: ModelFiles) -> TensorSource:
    """The tensors of a resolved model. Raises ModelError."""
    return GgufSource(files.path) if files.format == "gguf" else SafetensorsSource(files.path)


def load_model(
    files: ModelFiles, dtype: torch.dtype, device: torch.device, context_tokens: int | None = None
) -> LlamaModel:
    """Read a model's weights onto a device. Raises ModelError when they are missing, misshapen or unsupported.

    `context_tokens` bounds the position table; None is the model's own context.
    """
    source = open_source(files)
    loader = _Loader(source, dtype, device)
    config = source.config
    with ThreadPoolExecutor(READERS) as readers:
        layers = list(readers.map(loader.layer_weights, range(config.layers)))
    embedding = loader.read("model.embed_tokens.weight", (config.vocab_size, config.hidden_size))
    tied = config.tied_embeddings
    head = embedding if tied else loader.read("lm_head.weight", (config.vocab_size, config.hidden_size))
    return LlamaModel(
        config=config,
        embedding=embedding,
        layers=[weights.build() for weights in layers],
        norm=loader.read("model.norm.weight", (config.hidden_size,)),
        lm_head=make_linear(head),
        rope=rope_table(config, context_tokens or config.context_tokens, source.rope_factors()).to(device, dtype),
    )


@dataclass(slots=True)
class _LayerWeights:
    attention_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    output: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor

    def build(self) -> LlamaLayer:
        return LlamaLayer(
            attention_norm=self.attention_norm,
            qkv=make_linear(self.qkv, self.qkv_bias),
            output=make_linear(self.output),
            mlp_norm=self.mlp_norm,
            gate_up=make_linear(self.gate_up),
            down=make_linear(self.down),
        )


@dataclass(frozen=True, slots=True)
class _Loader:
    source: TensorSource
    dtype: torch.dtype
    device: torch.device

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        weight = self.source.tensor(name)
        if tuple(weight.shape) != shape:
            raise ModelFormatError(
                f"{self.source.path}: tensor {name!r} has shape {tuple(weight.shape)}, the configuration says {shape}"
            )
        return weight.to(self.device, self.dtype)

    def layer_weights(self, index: int) -> _LayerWeights:
        config = self.source.config
        hidden, q, kv, intermediate = config.hidden_size, config.q_size, config.kv_size, config.intermediate_size

        def read(part: str, *shape: int, kind: str = "weight") -> Tensor:
            return self.read(f"model.layers.{index}.{part}.{kind}", shape)

        def joined(parts: dict[str, int], shape: tuple[int, ...], kind: str = "weight") -> Tensor:
            return torch.cat([read(part, rows, *shape, kind=kind) for part, rows in parts.items()])

        qkv = {"self_attn.q_proj": q, "self_attn.k_proj": kv, "self_attn.v_proj": kv}
        return _LayerWeights(
            attention_norm=read("input_layernorm", hidden),
            qkv=joined(qkv, (hidden,)),
            qkv_bias=joined(qkv, (), "bias") if config.attention_bias else None,
            output=read("self_attn.o_proj", hidden, q),
            mlp_norm=read("post_attention_layernorm", hidden),
            gate_up=joined({"mlp.gate_proj": intermediate, "mlp.up_proj": intermediate}, (hidden,)),
            down=read("mlp.down_proj", hidden, intermediate),
        )


def _gguf_name(name: str) -> str:
    top = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    if name == "lm_head.weight":
        return "output.weight"
    if name in top:
        return top[name]
    _, _, index, rest = name.split(".", 3)
    part, _, kind = rest.rpartition(".")
    return f"blk.{index}.{_GGUF_LAYER_NAMES[part]}.{kind}"


def _weight_files(path: Path) -> dict[str, Path]:
    index = path / "model.safetensors.index.json"
    if index.is_file():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict):
            raise ModelFormatError(f"{index}: no weight_map; download it again")
        files = {str(name): path / str(file) for name, file in weight_map.items()}
        missing = sorted({file.name for file in files.values() if not file.is_file()})
        if missing:
            raise ModelFormatError(f"{path}: {', '.join(missing[:3])} named in the index but absent; download again")
        return files
    found: dict[str, Path] = {}
    for file in sorted(path.glob("*.safetensors")):
        found.update(dict.fromkeys(_tensor_names(file), file))
    return found


def _tensor_names(file: Path) -> list[str]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as opened:
            return list(opened.keys())
    except (OSError, SafetensorError) as error:
        raise ModelFormatError(f"{file}: cannot be read: {error}; download it again") from error
