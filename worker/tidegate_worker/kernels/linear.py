"""Matrix products of the model: `y = x Wᵀ (+ b)`, in the weight layout that is fastest where it runs.

`make_linear` decides; the model only calls. Anything but fp32 on a CPU gets the plain layout.
"""

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from tidegate_worker.kernels.cpu.linear import fastest_cpu_linear


class Linear(Protocol):
    """A weight of shape (out_features, in_features), possibly with a bias of shape (out_features,)."""

    def __call__(self, x: Tensor) -> Tensor:
        """(rows, in_features) → (rows, out_features)."""
        ...

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """`residual + self(x)` in a new tensor, fused where the layout can."""
        ...


class DenseLinear:
    """The weight as it was loaded."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """(rows, in_features) → (rows, out_features)."""
        return functional.linear(x, self.weight, self.bias)

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """`residual + self(x)`."""
        return residual + functional.linear(x, self.weight, self.bias)


def make_linear(weight: Tensor, bias: Tensor | None = None) -> Linear:
    """The fastest form for this device and dtype. `weight`: (out_features, in_features)."""
    if weight.device.type == "cpu" and weight.dtype is torch.float32:
        return fastest_cpu_linear(weight, bias)
    return DenseLinear(weight, bias)
