"""Rotary position embedding, half-rotated: dimension i is paired with i + head_dim / 2 (the Hugging Face layout)."""

from torch import Tensor


def rotate_in_place(heads: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotate each head by its token's position.

    heads: (tokens, heads, head_dim), may be a view · cos, sin: (tokens, 1, head_dim), the first half of sin negated.
    """
    rolled = heads.roll(heads.shape[-1] // 2, -1)
    heads.mul_(cos).addcmul_(rolled, sin)
