"""A Llama of a few thousand random weights and a byte-level tokenizer, as a GGUF file and a Hugging Face directory."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf_builder import write_gguf
from tidegate_worker.model.byte_alphabet import BYTE_TO_CHARACTER

HIDDEN, INTERMEDIATE, LAYERS, HEADS, KV_HEADS, CONTEXT = 32, 48, 2, 4, 2, 256
HEAD_DIM = HIDDEN // HEADS
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TOKENS = [*SPECIAL, *(BYTE_TO_CHARACTER[byte] for byte in range(256)), "he", "Ġt", "Ġthe"]
MERGES = ["h e", "Ġ t", "Ġt he"]
VOCABULARY = len(TOKENS)
Weights = dict[str, npt.NDArray[np.float32]]


def tiny_weights(seed: int = 7) -> Weights:
    """Random weights under Hugging Face names, with untied embeddings."""
    draw = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> npt.NDArray[np.float32]:
        return (draw.standard_normal((rows, columns)) * 0.3).astype(np.float32)

    weights: Weights = {
        "model.embed_tokens.weight": matrix(VOCABULARY, HIDDEN),
        "lm_head.weight": matrix(VOCABULARY, HIDDEN),
        "model.norm.weight": np.ones(HIDDEN, np.float32),
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        weights |= {
            prefix + "input_layernorm.weight": np.full(HIDDEN, 1.1, np.float32),
            prefix + "post_attention_layernorm.weight": np.full(HIDDEN, 0.9, np.float32),
            prefix + "self_attn.q_proj.weight": matrix(HEADS * HEAD_DIM, HIDDEN),
            prefix + "self_attn.k_proj.weight": matrix(KV_HEADS * HEAD_DIM, HIDDEN),
            prefix + "self_attn.v_proj.weight": matrix(KV_HEADS * HEAD_DIM, HIDDEN),
            prefix + "self_attn.o_proj.weight": matrix(HIDDEN, HEADS * HEAD_DIM),
            prefix + "mlp.gate_proj.weight": matrix(INTERMEDIATE, HIDDEN),
            prefix + "mlp.up_proj.weight": matrix(INTERMEDIATE, HIDDEN),
            prefix + "mlp.down_proj.weight": matrix(HIDDEN, INTERMEDIATE),
        }
    return weights


def write_tiny_gguf(path: Path, **changes: Any) -> Path:
    """The model as one GGUF file; `changes` replace or (with None) drop metadata, dots written as `__`."""
    metadata: dict[str, Any] = {
        "general.architecture": "llama",
        "llama.block_count": LAYERS,
        "llama.context_length": CONTEXT,
        "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": INTERMEDIATE,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": [3] * len(SPECIAL) + [1] * (VOCABULARY - len(SPECIAL)),
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
    }
    for key, value in changes.items():
        metadata[key.replace("__", ".")] = value
    kept = {key: value for key, value in metadata.items() if value is not None}
    return write_gguf(path, kept, {_gguf_name(name): _permuted(name, array) for name, array in tiny_weights().items()})


def write_tiny_directory(path: Path, *, shards: int = 1, **changes: Any) -> Path:
    """The model as a Hugging Face directory; `changes` replace fields of config.json."""
    from safetensors.numpy import save_file
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    path.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    (path / "config.json").write_text(json.dumps(config | changes))
    merges = [(left, right) for left, _, right in (merge.partition(" ") for merge in MERGES)]
    backend = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(TOKENS)}, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL])
    backend.save(str(path / "tokenizer.json"))
    names = sorted(weights := tiny_weights())
    if shards == 1:
        save_file(weights, str(path / "model.safetensors"))
        return path
    weight_map = {
        name: f"model-{index % shards + 1:05d}-of-{shards:05d}.safetensors" for index, name in enumerate(names)
    }
    for file in set(weight_map.values()):
        save_file({name: weights[name] for name in names if weight_map[name] == file}, str(path / file))
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return path


def _permuted(name: str, array: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    # llama.cpp's converter pairs the rows that rotate together.
    for part, heads in (("q_proj", HEADS), ("k_proj", KV_HEADS)):
        if part in name:
            return array.reshape(heads, 2, -1, array.shape[1]).swapaxes(1, 2).reshape(array.shape)
    return array


def _gguf_name(name: str) -> str:
    for old, new in (
        ("model.embed_tokens", "token_embd"),
        ("lm_head", "output"),
        ("model.norm", "output_norm"),
        ("model.layers.", "blk."),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("self_attn.o_proj", "attn_output"),
        ("self_attn.", "attn_"),
        ("mlp.", "ffn_"),
        ("_proj", ""),
    ):
        name = name.replace(old, new)
    return name
