"""fp32 matrix products on a CPU: which weight layout is fastest differs by machine, shape and number of rows.

Seen at 8 to 16 rows: oneDNN's prepacked layout is 2 to 4 times the plain one on one machine, the transposed layout
beats both on another. So the layouts are timed once per shape in this process, at the row counts of decoding, and the
winner serves every layer of that shape. Very wide weights (an lm_head) keep the plain layout for single rows, where
reading the weight is all the work, since their plain copy usually exists anyway as the embedding.
"""

import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

PROBE_ROWS = (1, 8, 16)
PROBE_ROUNDS = 4
PROBE_COPIES = 4
PROBE_WEIGHTS = 8_000_000
WIDE_FEATURES = 16_384
PLAIN_ROWS = 2
PREFERENCE = 0.9
"""Another layout must take less than this share of the transposed layout's time: near ties always fall alike."""

_chosen: dict[tuple[int, int, int], str] = {}


class TransposedLinear:
    """The weight as (in_features, out_features), for BLAS's plain product."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight = weight.t().contiguous()
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """(rows, in_features) → (rows, out_features)."""
        return x.mm(self._weight) if self._bias is None else torch.addmm(self._bias, x, self._weight)

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """`residual + self(x)`, one product that accumulates."""
        if self._bias is not None:
            residual = residual + self._bias
        return torch.addmm(residual, x, self._weight)


class PackedLinear:
    """The weight in oneDNN's blocked layout, reordered once."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        # The reorder wants the dense weight; handed an opaque one it silently falls back to a slow path.
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight)  # noqa: SLF001 the only door to prepacking
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """(rows, in_features) → (rows, out_features)."""
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")  # noqa: SLF001
        return y

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """`residual + self(x)`."""
        return self(x).add_(residual)


class PlainLinear:
    """The weight as loaded."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """(rows, in_features) → (rows, out_features)."""
        return functional.linear(x, self._weight, self._bias)

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """`residual + self(x)`."""
        return residual + self(x)


class WideLinear(PlainLinear):
    """Plain for one or two rows, packed for more: for a weight whose plain copy exists anyway."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight, bias)
        self._packed = PackedLinear(weight, bias)

    def __call__(self, x: Tensor) -> Tensor:
        """(rows, in_features) → (rows, out_features)."""
        return super().__call__(x) if x.shape[0] <= PLAIN_ROWS else self._packed(x)


CpuLinear = TransposedLinear | PackedLinear | PlainLinear | WideLinear
_LAYOUTS: dict[str, Callable[[Tensor, Tensor | None], CpuLinear]] = {
    "transposed": TransposedLinear,
    "packed": PackedLinear,
    "plain": PlainLinear,
    "wide": WideLinear,
}


def fastest_cpu_linear(weight: Tensor, bias: Tensor | None = None) -> CpuLinear:
    """The layout that is fastest here for this shape and the current number of threads. `weight`: (out, in) fp32."""
    out_features, in_features = weight.shape
    shape = (out_features, in_features, torch.get_num_threads())
    if shape not in _chosen:
        _chosen[shape] = _choose(weight)
    return _LAYOUTS[_chosen[shape]](weight, bias)


def _choose(weight: Tensor) -> str:
    if not torch._C._has_mkldnn:  # noqa: SLF001 the public spelling is untyped
        return "transposed"
    if weight.shape[0] >= WIDE_FEATURES:
        return "wide"
    # Every candidate multiplies fresh copies of the weight in turn, as layers do: a weight that stays in the
    # processor's cache would flatter the layout that streams worst.
    copies = min(PROBE_COPIES, 1 + PROBE_WEIGHTS // weight.numel())
    times = {
        name: _seconds([_LAYOUTS[name](weight.clone(), None) for _ in range(copies)], weight.shape[1])
        for name in ("transposed", "packed")
    }
    return "packed" if times["packed"] < PREFERENCE * times["transposed"] else "transposed"


def _seconds(layers: list[CpuLinear], in_features: int) -> float:
    """Time per product, summed over the probed row counts; the best of a few rounds, so that noise cannot win."""
    total = 0.0
    for rows in PROBE_ROWS:
        x = torch.ones(rows, in_features)
        total += min(_round(layers, x) for _ in range(PROBE_ROUNDS))
    return total / len(layers)


def _round(layers: list[CpuLinear], x: Tensor) -> float:
    started = time.perf_counter()
    for layer in layers:
        layer(x)
    return time.perf_counter() - started
