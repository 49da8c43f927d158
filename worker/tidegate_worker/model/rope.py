"""Rotary frequencies and their cosines and sines, for every position of the context."""

import math

import torch
from torch import Tensor

from tidegate_worker.model.config import LlamaConfig, RopeScaling


def rope_table(config: LlamaConfig, positions: int, factors: Tensor | None = None) -> Tensor:
    """Cosine and signed sine of every position: (positions, 2, 1, head_dim) fp32, for `apply_rope`.

    `factors`: (head_dim / 2), divides the frequencies (GGUF's rope_freqs). The first half of the sines is negated, so
    that the rotation is one roll, one product and one fused multiply-add.
    """
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    frequencies = 1.0 / (config.rope_theta**exponents)
    if config.rope_scaling is not None:
        frequencies = _scaled(frequencies, config.rope_scaling)
    if factors is not None:
        frequencies = frequencies / factors
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), frequencies)
    cos, sin = angles.cos(), angles.sin()
    return torch.stack((torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)), dim=1).unsqueeze(2)


def _scaled(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    # Llama 3: long wavelengths are stretched, short ones kept, those between interpolated.
    turns = scaling.original_context_tokens * frequencies / (2 * math.pi)
    span = scaling.high_freq_factor - scaling.low_freq_factor
    kept = ((turns - scaling.low_freq_factor) / span).clamp(0, 1)
    return frequencies * (kept + (1 - kept) / scaling.factor)
