from pathlib import Path

import pytest
import torch
from runner_driver import generate
from tidegate_worker.model.errors import ModelFormatError, ModelResourceError, UnsupportedModelError
from tidegate_worker.model.loading import load_model
from tidegate_worker.model.uri import resolve_model
from tidegate_worker.runner.create import RunnerSettings, create_runner
from tiny_llama import CONTEXT, write_tiny_directory, write_tiny_gguf

PROMPT = [30, 40, 50, 60, 70]


def _tokens(uri: Path) -> list[int]:
    return generate(create_runner(RunnerSettings(str(uri), kv_blocks=32, threads=1)), [PROMPT], 12)[0]


def test_gguf_one_file_and_shards_give_the_same_model(tmp_path: Path) -> None:
    expected = _tokens(write_tiny_gguf(tmp_path / "tiny.gguf"))
    assert _tokens(write_tiny_directory(tmp_path / "one")) == expected
    assert _tokens(write_tiny_directory(tmp_path / "many", shards=3)) == expected


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    directory = write_tiny_directory(tmp_path / "many", shards=3)
    (directory / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(ModelFormatError, match="model-00002-of-00003"):
        load_model(resolve_model(str(directory)), torch.float32, torch.device("cpu"))


def test_a_corrupt_weight_file_is_named(tmp_path: Path) -> None:
    directory = write_tiny_directory(tmp_path / "one")
    (directory / "model.safetensors").write_bytes(b"\xff" * 64)
    with pytest.raises(ModelFormatError, match=r"model\.safetensors: cannot be read"):
        load_model(resolve_model(str(directory)), torch.float32, torch.device("cpu"))


def test_weights_that_do_not_fit_the_configuration_are_refused(tmp_path: Path) -> None:
    directory = write_tiny_directory(tmp_path / "one", intermediate_size=64)
    with pytest.raises(ModelFormatError, match="the configuration says"):
        load_model(resolve_model(str(directory)), torch.float32, torch.device("cpu"))


def test_qwen2_without_its_biases_is_incomplete(tmp_path: Path) -> None:
    directory = write_tiny_directory(tmp_path / "one", architectures=["Qwen2ForCausalLM"])
    with pytest.raises(ModelFormatError, match=r"q_proj\.bias"):
        load_model(resolve_model(str(directory)), torch.float32, torch.device("cpu"))


def test_an_unsupported_architecture_lists_the_supported(tmp_path: Path) -> None:
    directory = write_tiny_directory(tmp_path / "one", architectures=["FalconForCausalLM"])
    with pytest.raises(UnsupportedModelError, match="LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM"):
        create_runner(RunnerSettings(str(directory)))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"context_tokens": CONTEXT + 1}, "--context-tokens 257: the model's context is 256"),
        ({"kv_blocks": 3}, "--kv-blocks 3 gives 3 KV blocks, but one full context needs 16"),
        ({"kv_memory_bytes": 100}, "--kv-memory-bytes 100 gives 0 KV blocks"),
        ({"device": "abacus"}, "--device abacus: unknown"),
    ],
)
def test_settings_that_leave_no_room_name_the_flag(tmp_path: Path, settings: dict[str, int], words: str) -> None:
    file = write_tiny_gguf(tmp_path / "tiny.gguf")
    with pytest.raises(ModelResourceError, match=words):
        create_runner(RunnerSettings(str(file), **settings))  # type: ignore[arg-type]


def test_lower_precision_runs(tmp_path: Path) -> None:
    file = write_tiny_gguf(tmp_path / "tiny.gguf")
    runner = create_runner(RunnerSettings(str(file), dtype="bfloat16", kv_blocks=32, threads=1))
    assert len(generate(runner, [PROMPT], 4)[0]) == 4
