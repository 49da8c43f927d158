"""The Llama family (Llama, Mistral, Qwen2, SmolLM2): a decoder with rotary positions, grouped heads and a gated MLP.

Batches are flat: a step's tokens of all sequences are the rows of one matrix, and only attention knows sequences apart.
"""

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from tidegate_worker.kernels.attention import AttentionPlan, paged_attention
from tidegate_worker.kernels.linear import Linear
from tidegate_worker.kernels.norm import rms_norm
from tidegate_worker.kernels.rope import rotate_in_place
from tidegate_worker.model.config import LlamaConfig


@dataclass(frozen=True, slots=True)
class LlamaLayer:
    """Weights of one decoder layer; q, k, v and gate, up are fused into one product each."""

    attention_norm: Tensor  # (hidden)
    qkv: Linear  # hidden → (heads + 2 · kv_heads) · head_dim
    output: Linear  # heads · head_dim → hidden
    mlp_norm: Tensor  # (hidden)
    gate_up: Linear  # hidden → 2 · intermediate
    down: Linear  # intermediate → hidden


@dataclass(frozen=True, slots=True)
class LlamaModel:
    """A loaded model: weights in their place, on one device, in one dtype."""

    config: LlamaConfig
    embedding: Tensor  # (vocab, hidden)
    layers: list[LlamaLayer]
    norm: Tensor  # (hidden)
    lm_head: Linear  # hidden → vocab
    rope: Tensor  # (context, 2, 1, head_dim): cosine and signed sine

    def forward(self, tokens: Tensor, positions: Tensor, caches: list[Tensor], plan: AttentionPlan) -> Tensor:
        """Hidden states of every row, normalised for the lm_head; writes the rows' keys and values to the caches.

        tokens, positions: (rows,) int64 · caches: one per layer · returns (rows, hidden).
        """
        cos, sin = self.rope[positions].unbind(1)  # (rows, 1, head_dim) each
        hidden = functional.embedding(tokens, self.embedding)
        for layer, cache in zip(self.layers, caches, strict=True):
            normalised = rms_norm(hidden, layer.attention_norm, self.config.rms_eps)
            attended = self._attention(layer.qkv(normalised), cos, sin, cache, plan)
            hidden = layer.output.add_to(hidden, attended)

            normalised = rms_norm(hidden, layer.mlp_norm, self.config.rms_eps)
            gate, up = layer.gate_up(normalised).chunk(2, dim=-1)
            hidden = layer.down.add_to(hidden, functional.silu(gate).mul_(up))
        return rms_norm(hidden, self.norm, self.config.rms_eps)

    def logits(self, hidden: Tensor) -> Tensor:
        """(rows, hidden) → (rows, vocab), fp32."""
        return self.lm_head(hidden).float()

    def _attention(self, qkv: Tensor, cos: Tensor, sin: Tensor, cache: Tensor, plan: AttentionPlan) -> Tensor:
        # qkv: (rows, heads + 2 · kv_heads, head_dim); queries and keys, which lie first, are rotated together
        config = self.config
        by_head = qkv.view(qkv.shape[0], -1, config.head_dim)
        rotate_in_place(by_head[:, : config.heads + config.kv_heads], cos, sin)
        q = by_head[:, : config.heads]
        kv = qkv[:, config.q_size :].view(-1, 2, config.kv_heads, config.head_dim)
        return paged_attention(q, kv, cache, plan)
