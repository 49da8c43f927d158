import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tidegate_worker.kernels.attention import Span, decode_order, paged_attention, plan_attention

HEAD_DIM = 8


def _naive(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, start: int) -> torch.Tensor:
    # q: (tokens, heads, d) · keys, values: (start + tokens, kv_heads, d)
    tokens, heads, head_dim = q.shape
    hidden = torch.ones(tokens, start + tokens).triu(start + 1).bool()
    out = torch.empty_like(q)
    for head in range(heads):
        shared = head // (heads // keys.shape[1])
        scores = q[:, head] @ keys[:, shared].T / math.sqrt(head_dim)
        out[:, head] = scores.masked_fill(hidden, -math.inf).softmax(-1) @ values[:, shared]
    return out.reshape(tokens, -1)


@settings(max_examples=25, deadline=None)
@given(
    parts=st.lists(st.tuples(st.integers(0, 70), st.integers(1, 9) | st.just(1)), min_size=1, max_size=5),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 3),
    block_size=st.sampled_from([2, 4, 16]),
    scattered=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_paged_attention_is_plain_attention(
    parts: list[tuple[int, int]], kv_heads: int, group: int, block_size: int, scattered: bool, seed: int
) -> None:
    draw = torch.Generator().manual_seed(seed)
    needed = [-(-(start + tokens) // block_size) for start, tokens in parts]
    pool = torch.randperm(sum(needed), generator=draw).tolist() if scattered else list(range(sum(needed)))
    cache = torch.zeros(sum(needed), block_size, 2, kv_heads, HEAD_DIM)
    spans, pasts = [], []
    for (start, tokens), count in zip(parts, needed, strict=True):
        table, pool = pool[:count], pool[count:]
        past = torch.randn(start, 2, kv_heads, HEAD_DIM, generator=draw)
        for position in range(start):
            cache[table[position // block_size], position % block_size] = past[position]
        spans.append(Span(start, tokens, table))
        pasts.append(past)
    single = [index for index, span in enumerate(spans) if span.tokens == 1]
    single = [single[index] for index in decode_order([spans[index] for index in single])]
    order = single + [index for index, span in enumerate(spans) if span.tokens > 1]
    rows = sum(spans[index].tokens for index in order)
    q = torch.randn(rows, kv_heads * group, HEAD_DIM, generator=draw)
    kv = torch.randn(rows, 2, kv_heads, HEAD_DIM, generator=draw)
    plan = plan_attention([spans[index] for index in single], [spans[index] for index in order[len(single) :]], cache)

    out = paged_attention(q, kv, cache, plan)

    row = 0
    for index in order:
        span = spans[index]
        end = row + span.tokens
        keys, values = torch.cat([pasts[index], kv[row:end]]).unbind(1)
        torch.testing.assert_close(out[row:end], _naive(q[row:end], keys, values, span.start), atol=1e-5, rtol=1e-4)
        row = end
    assert row == rows


def test_a_long_cached_prefix_is_attended_in_tiles() -> None:
    draw = torch.Generator().manual_seed(1)
    cache = torch.zeros(40, 16, 2, 1, HEAD_DIM)
    past = torch.randn(20, 2, 1, HEAD_DIM, generator=draw)
    cache.flatten(0, 1)[:20] = past
    q, kv = torch.randn(600, 2, HEAD_DIM, generator=draw), torch.randn(600, 2, 1, HEAD_DIM, generator=draw)
    plan = plan_attention([], [Span(20, 600, list(range(40)))], cache)
    assert len(plan.chunks[0].tiles) > 1
    keys, values = torch.cat([past, kv]).unbind(1)
    torch.testing.assert_close(paged_attention(q, kv, cache, plan), _naive(q, keys, values, 20), atol=1e-5, rtol=1e-4)


def test_neighbouring_blocks_are_read_in_place() -> None:
    cache = torch.zeros(8, 4, 2, 1, HEAD_DIM)
    assert plan_attention([Span(6, 1, [3, 4])], [], cache).groups[0].source.buffer is None
    assert plan_attention([Span(6, 1, [3, 5])], [], cache).groups[0].source.buffer is not None


def test_very_unlike_lengths_do_not_share_a_padded_group() -> None:
    cache = torch.zeros(600, 16, 2, 1, HEAD_DIM)
    spans = [Span(10, 1, [0]), Span(30, 1, [1, 2]), Span(5000, 1, list(range(3, 320)))]
    assert [group.source.sequences for group in plan_attention(spans, [], cache).groups] == [2, 1]
