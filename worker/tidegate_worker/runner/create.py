"""Builds a ready `TorchRunner` from settings: resolves the model, loads it, allocates the KV cache, warms up."""

import os
from dataclasses import dataclass
from typing import Literal

import torch

from tidegate_worker.engine.batch import ModelInfo
from tidegate_worker.model.config import LlamaConfig
from tidegate_worker.model.errors import ModelResourceError
from tidegate_worker.model.loading import load_model, open_source
from tidegate_worker.model.tokenizer import load_tokenizer
from tidegate_worker.model.uri import resolve_model
from tidegate_worker.runner.memory import available_memory_bytes, block_bytes, count_blocks
from tidegate_worker.runner.torch_runner import TorchRunner

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class RunnerSettings:
    """What an engine process needs to know to load a model."""

    model_uri: str
    """A GGUF file, a Hugging Face directory, hf://org/name[@revision] or package://distribution/file."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """auto: bfloat16 on an accelerator, float32 on a CPU."""
    context_tokens: int | None = None
    """Longest sequence served; None: the model's own context. Never more than that."""
    kv_blocks: int | None = None
    """KV blocks to allocate; None: see kv_memory_bytes."""
    kv_memory_bytes: int | None = None
    """Memory for KV blocks; None: the smaller of 2 GiB and a quarter of what is free, at least one full context."""
    threads: int | None = None
    """CPU threads for the model; None: the cores this process may run on."""
    device: str = "auto"
    """auto: cuda where there is one, else cpu."""
    block_size: int = 16
    """Tokens per KV block."""


def create_runner(settings: RunnerSettings) -> TorchRunner:
    """Load the model and make it ready to serve. Raises ModelError with a message for the user."""
    torch.set_num_threads(settings.threads or len(os.sched_getaffinity(0)))
    device = _device(settings.device)
    dtype = _dtype(settings.dtype, device)
    files = resolve_model(settings.model_uri)
    config = open_source(files).config
    context = _context_tokens(settings, config)
    model = load_model(files, dtype, device, context)
    total_blocks = count_blocks(
        block_bytes(config, settings.block_size, dtype.itemsize),
        -(-context // settings.block_size),
        _free_bytes(device),
        kv_blocks=settings.kv_blocks,
        kv_memory_bytes=settings.kv_memory_bytes,
    )
    info = ModelInfo(
        max_model_tokens=context,
        vocabulary_size=config.vocab_size,
        eos_token_ids=load_tokenizer(files).eos_token_ids,
        block_size=settings.block_size,
        total_blocks=total_blocks,
    )
    runner = TorchRunner(model, info)
    runner.warm_up()
    return runner


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ModelResourceError(f"--device {name}: unknown; use auto, cpu or cuda") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ModelResourceError(f"--device {name}: no CUDA device is usable here; use --device cpu")
    return device


def _dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    if name not in _DTYPES:
        raise ModelResourceError(f"--dtype {name}: unknown; use auto, {', '.join(_DTYPES)}")
    return _DTYPES[name]


def _context_tokens(settings: RunnerSettings, config: LlamaConfig) -> int:
    wanted = settings.context_tokens
    if wanted is None:
        return config.context_tokens
    if not 1 <= wanted <= config.context_tokens:
        raise ModelResourceError(
            f"--context-tokens {wanted}: the model's context is {config.context_tokens} tokens; "
            f"use a number up to {config.context_tokens}"
        )
    return wanted


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free)
    return available_memory_bytes()
