from pathlib import Path
from typing import Any

import pytest
from tidegate_worker.model.config import RopeScaling, config_from_gguf, config_from_huggingface
from tidegate_worker.model.errors import ModelFormatError, UnsupportedModelError
from tidegate_worker.model.gguf import read_gguf
from tiny_llama import write_tiny_gguf

BASE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 10,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
}


def test_defaults_follow_hugging_face() -> None:
    config = config_from_huggingface(BASE)
    assert (config.kv_heads, config.head_dim, config.rope_theta, config.group) == (4, 8, 10_000.0, 1)
    assert config.rope_scaling is None
    assert not config.attention_bias


@pytest.mark.parametrize(
    ("changes", "field", "expected"),
    [
        ({"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}, "rope_theta", 5e5),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling", RopeScaling("linear", 2.0)),
        (
            {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 64}},
            "rope_scaling",
            RopeScaling("llama3", 8.0, 1.0, 4.0, 64),
        ),
        ({"architectures": ["Qwen2ForCausalLM"]}, "attention_bias", True),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 64}, "context_tokens", 64),
        ({"sliding_window": 64}, "context_tokens", 256),
    ],
)
def test_fields_are_read(changes: dict[str, Any], field: str, expected: object) -> None:
    assert getattr(config_from_huggingface(BASE | changes), field) == expected


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, UnsupportedModelError, "supported: LlamaForCausalLM"),
        ({"architectures": None}, UnsupportedModelError, "supported: LlamaForCausalLM"),
        ({"rope_scaling": {"rope_type": "yarn"}}, UnsupportedModelError, "supported: default, linear, llama3"),
        ({"hidden_act": "gelu"}, UnsupportedModelError, "silu"),
        ({"hidden_size": "big"}, ModelFormatError, "hidden_size must be a positive integer"),
        ({"num_key_value_heads": 3}, ModelFormatError, "do not fit together"),
    ],
)
def test_what_cannot_run_is_refused(changes: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        config_from_huggingface(BASE | changes)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"general__architecture": "mamba"}, UnsupportedModelError, "supported: llama, qwen2"),
        ({"llama__block_count": None}, ModelFormatError, "llama.block_count' is missing"),
        ({"llama__block_count": "two"}, ModelFormatError, "is no number"),
        ({"llama__expert_count": 8}, UnsupportedModelError, "mixture-of-experts"),
        ({"llama__rope__scaling__type": "yarn"}, UnsupportedModelError, "yarn"),
    ],
)
def test_gguf_metadata_that_cannot_run_is_refused(
    tmp_path: Path, changes: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        config_from_gguf(read_gguf(write_tiny_gguf(tmp_path / "tiny.gguf", **changes)))
