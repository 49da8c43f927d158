"""Attention over a paged KV cache, as functions of tensors. Runs wherever scaled_dot_product_attention does.

The cache of one layer is `(blocks, block_size, 2, kv_heads, head_dim)`: keys and values of a token lie side by side, so
a step writes them with one copy, and gathering a sequence's blocks gives `(sequences, tokens, kv_heads, head_dim)`
for both by views alone. It starts as zeros and only ever holds finite values, so masked places cannot poison a sum.

`plan_attention` decides once per step what every layer then repeats: where new tokens go, which sequences decode
together, what is masked. Query heads that share a key-value head become extra query rows, so nothing is expanded.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

QUERY_TILE = 256
"""Queries per attention call where a cached prefix needs a mask: bounds the work wasted above the diagonal."""


@dataclass(frozen=True, slots=True)
class Span:
    """One sequence's tokens in a step: positions `start` to `start + tokens`, in blocks `block_ids`."""

    start: int
    tokens: int
    block_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class KeySource:
    """Where cached keys and values come from: a run of neighbouring blocks (no copy), or blocks gathered by table."""

    sequences: int
    tokens: int
    first_block: int | None
    block_table: Tensor | None
    buffer: Tensor | None
    """Scratch for the gather, one for all layers of the step: stays in the processor's cache."""


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Sequences of similar length that compute one token each, as one attention call."""

    source: KeySource
    mask: Tensor | None
    """(sequences, 1, 1, tokens), added to the scores; None when all are of one length."""


@dataclass(frozen=True, slots=True)
class PrefillTile:
    """Queries `begin` to `end` of a chunk against its first `keys` tokens."""

    begin: int
    end: int
    keys: int
    mask: Tensor | None
    """(queries, keys), added to the scores; None for plain causal attention without a cached prefix."""


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """One sequence that computes several tokens. `source` is None when nothing of it was cached before."""

    tokens: int
    source: KeySource | None
    tiles: list[PrefillTile]


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """A step's attention. Rows of the batch are the groups' sequences, then the chunks' tokens, in order."""

    slots: Tensor
    """(rows,) int64: the token slot, block · block_size + offset, that each row's key and value go to."""
    groups: list[DecodeGroup]
    chunks: list[PrefillChunk]


def decode_order(spans: Sequence[Span]) -> list[int]:
    """The order in which decoding sequences enter a batch: by length, so that neighbours share a group."""
    return sorted(range(len(spans)), key=lambda index: spans[index].start)


def plan_attention(decodes: Sequence[Span], prefills: Sequence[Span], cache: Tensor) -> AttentionPlan:
    """Plan a step. `decodes` are one token each, in `decode_order`; `cache` is any layer's."""
    slots = [_slots(span, cache.shape[1]) for span in (*decodes, *prefills)]
    return AttentionPlan(
        slots=torch.cat(slots).to(cache.device),
        groups=[_decode_group(group, cache) for group in _alike(decodes, cache.shape[1])],
        chunks=[_prefill_chunk(span, cache) for span in prefills],
    )


def paged_attention(q: Tensor, kv: Tensor, cache: Tensor, plan: AttentionPlan) -> Tensor:
    """Write the step's keys and values to the cache, then attend.

    q: (rows, heads, head_dim) · kv: (rows, 2, kv_heads, head_dim) · returns (rows, heads · head_dim).
    """
    cache.flatten(0, 1).index_copy_(0, plan.slots, kv)
    parts: list[Tensor] = []
    row = 0
    for group in plan.groups:
        end = row + group.source.sequences
        parts.append(_decode(q[row:end], cache, group))
        row = end
    for chunk in plan.chunks:
        end = row + chunk.tokens
        keys_values = kv[row:end] if chunk.source is None else _load(cache, chunk.source)[0]
        parts.extend(
            _prefill(q[row + tile.begin : row + tile.end], keys_values[: tile.keys], tile) for tile in chunk.tiles
        )
        row = end
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _decode(q: Tensor, cache: Tensor, group: DecodeGroup) -> Tensor:
    sequences, heads, head_dim = q.shape
    # (sequences, tokens, 2, kv_heads, head_dim) → k, v: (sequences, kv_heads, tokens, head_dim)
    keys, values = _load(cache, group.source).permute(2, 0, 3, 1, 4).unbind(0)
    kv_heads = keys.shape[1]
    grouped = q.view(sequences, kv_heads, heads // kv_heads, head_dim)
    return scaled_dot_product_attention(grouped, keys, values, attn_mask=group.mask).reshape(sequences, -1)


def _prefill(q: Tensor, keys_values: Tensor, tile: PrefillTile) -> Tensor:
    queries, heads, head_dim = q.shape
    tokens, _, kv_heads, _ = keys_values.shape
    # key-value heads as the batch: (kv_heads, group, queries, head_dim) against the same keys for all of a group
    grouped = q.view(queries, kv_heads, heads // kv_heads, head_dim).permute(1, 2, 0, 3)
    shared = keys_values.permute(1, 2, 0, 3).unsqueeze(2).expand(2, kv_heads, heads // kv_heads, tokens, head_dim)
    out = scaled_dot_product_attention(grouped, shared[0], shared[1], attn_mask=tile.mask, is_causal=tile.mask is None)
    return out.permute(2, 0, 1, 3).reshape(queries, -1)


def _load(cache: Tensor, source: KeySource) -> Tensor:
    # (sequences, tokens, 2, kv_heads, head_dim)
    if source.block_table is None or source.buffer is None:
        flat = cache.flatten(0, 1)
        first = (source.first_block or 0) * cache.shape[1]
        return flat[first : first + source.tokens].unsqueeze(0)
    torch.index_select(cache, 0, source.block_table, out=source.buffer)
    return source.buffer.view(source.sequences, -1, *cache.shape[2:])[:, : source.tokens]


def _slots(span: Span, block_size: int) -> Tensor:
    positions = torch.arange(span.start, span.start + span.tokens)
    return torch.tensor(span.block_ids)[positions // block_size] * block_size + positions % block_size


def _alike(decodes: Sequence[Span], block_size: int) -> list[list[Span]]:
    """Cut decodes, shortest first, into groups in which the longest has at most about twice the shortest's blocks."""
    groups: list[list[Span]] = []
    limit = 0
    for span in decodes:
        blocks = _blocks(span, block_size)
        if not groups or blocks > limit:
            groups.append([])
            limit = max(2 * blocks, blocks + 8)
        groups[-1].append(span)
    return groups


def _blocks(span: Span, block_size: int) -> int:
    return -(-(span.start + span.tokens) // block_size)


def _source(spans: Sequence[Span], cache: Tensor) -> KeySource:
    tokens = max(span.start + span.tokens for span in spans)
    width = -(-tokens // cache.shape[1])
    if len(spans) == 1:
        ids = spans[0].block_ids[:width]
        if all(block == ids[0] + index for index, block in enumerate(ids)):
            return KeySource(1, tokens, ids[0], None, None)
    # Short rows are padded with their own first block; the mask hides it.
    table = [list(span.block_ids[:width]) + [span.block_ids[0]] * (width - len(span.block_ids)) for span in spans]
    buffer = torch.empty((len(spans) * width, *cache.shape[1:]), dtype=cache.dtype, device=cache.device)
    return KeySource(len(spans), tokens, None, torch.tensor(table, device=cache.device).flatten(), buffer)


def _decode_group(spans: Sequence[Span], cache: Tensor) -> DecodeGroup:
    source = _source(spans, cache)
    lengths = torch.tensor([span.start + span.tokens for span in spans])
    if int(lengths.min()) == source.tokens:
        return DecodeGroup(source, None)
    hidden = torch.arange(source.tokens) >= lengths.unsqueeze(1)
    return DecodeGroup(source, _additive(hidden, cache)[:, None, None, :])


def _prefill_chunk(span: Span, cache: Tensor) -> PrefillChunk:
    if span.start == 0:
        return PrefillChunk(span.tokens, None, [PrefillTile(0, span.tokens, span.tokens, None)])
    tiles = []
    for begin in range(0, span.tokens, QUERY_TILE):
        end = min(begin + QUERY_TILE, span.tokens)
        keys = span.start + end
        hidden = torch.arange(keys) > torch.arange(span.start + begin, keys).unsqueeze(1)
        tiles.append(PrefillTile(begin, end, keys, _additive(hidden, cache)))
    return PrefillChunk(span.tokens, _source([span], cache), tiles)


def _additive(hidden: Tensor, cache: Tensor) -> Tensor:
    mask = torch.zeros(hidden.shape, dtype=cache.dtype)
    return mask.masked_fill_(hidden, float("-inf")).to(cache.device)
