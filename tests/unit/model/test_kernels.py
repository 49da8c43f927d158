import pytest
import torch
from tidegate_worker.kernels.cpu.linear import PackedLinear, PlainLinear, TransposedLinear, WideLinear
from tidegate_worker.kernels.linear import DenseLinear, make_linear
from tidegate_worker.kernels.norm import rms_norm
from tidegate_worker.kernels.rope import rotate_in_place
from tidegate_worker.model.config import LlamaConfig, RopeScaling
from tidegate_worker.model.loading import half_rotated
from tidegate_worker.model.rope import rope_table
from torch.nn import functional

CONFIG = LlamaConfig(10, 32, 48, 2, 4, 2, 8, 256, 1e-5, 10_000.0)


@pytest.mark.parametrize("layout", [DenseLinear, PlainLinear, TransposedLinear, PackedLinear, WideLinear])
@pytest.mark.parametrize("rows", [1, 3, 17])
@pytest.mark.parametrize("with_bias", [False, True])
def test_every_layout_is_the_same_product(layout: type[DenseLinear], rows: int, with_bias: bool) -> None:
    draw = torch.Generator().manual_seed(3)
    weight = torch.randn(24, 16, generator=draw)
    bias = torch.randn(24, generator=draw) if with_bias else None
    x, residual = torch.randn(rows, 16, generator=draw), torch.randn(rows, 24, generator=draw)
    before = residual.clone()
    linear = layout(weight, bias)
    expected = functional.linear(x, weight, bias)
    torch.testing.assert_close(linear(x), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(linear.add_to(residual, x), expected + residual, atol=1e-5, rtol=1e-5)
    assert torch.equal(residual, before)


def test_lower_precision_gets_the_plain_layout() -> None:
    assert isinstance(make_linear(torch.zeros(4, 4, dtype=torch.bfloat16)), DenseLinear)
    assert not isinstance(make_linear(torch.zeros(4, 4)), DenseLinear)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rms_norm_is_torchs(dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(3)
    x, weight = torch.randn(5, 32, generator=draw).to(dtype), torch.randn(32, generator=draw).to(dtype)
    expected = functional.rms_norm(x.float(), (32,), None, 1e-5).to(dtype) * weight
    torch.testing.assert_close(rms_norm(x, weight, 1e-5), expected)


def test_rotation_keeps_lengths_and_depends_on_distance_alone() -> None:
    table = rope_table(CONFIG, 64)
    draw = torch.Generator().manual_seed(3)
    q, k = torch.randn(8, generator=draw), torch.randn(8, generator=draw)

    def rotated(vector: torch.Tensor, position: int) -> torch.Tensor:
        heads = vector.clone().view(1, 1, 8)
        cos, sin = table[[position]].unbind(1)
        rotate_in_place(heads, cos, sin)
        return heads.flatten()

    torch.testing.assert_close(rotated(q, 9).norm(), q.norm())
    torch.testing.assert_close(rotated(q, 0), q)
    torch.testing.assert_close(rotated(q, 9) @ rotated(k, 4), rotated(q, 40) @ rotated(k, 35), atol=1e-5, rtol=1e-4)


def test_rope_scaling_stretches_slow_frequencies() -> None:
    from dataclasses import replace

    plain = rope_table(CONFIG, 64)
    linear = rope_table(replace(CONFIG, rope_scaling=RopeScaling("linear", 2.0)), 64)
    torch.testing.assert_close(linear[20], plain[10])
    scaled = replace(CONFIG, rope_scaling=RopeScaling("llama3", 8.0, original_context_tokens=64))
    llama3 = rope_table(scaled, 64)
    torch.testing.assert_close(llama3[8, 0, 0, 0], plain[8, 0, 0, 0])  # the fastest pair is kept
    torch.testing.assert_close(llama3[8, 0, 0, 3], plain[1, 0, 0, 3])  # the slowest goes an eighth as fast
    by_factors = rope_table(CONFIG, 64, torch.full((4,), 2.0))
    torch.testing.assert_close(by_factors, linear)


def test_half_rotated_undoes_the_pairing_of_neighbours() -> None:
    rows = torch.tensor([0, 2, 1, 3, 4, 6, 5, 7]).unsqueeze(1)  # two heads of four rows, pairs (0, 2), (1, 3)
    assert half_rotated(rows, 2).flatten().tolist() == list(range(8))
