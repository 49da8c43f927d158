"""The block pool against a plain model of what it promises."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tidegate_proto.hashing import chain_hashes, root_hash
from tidegate_worker.engine.block_pool import BlockContent, BlockPool
from tidegate_worker.engine.messages import BlockRemoved, BlockStored, CacheCleared

SIZE = 2


def contents(tokens: list[int], salt: str = "", adapter: str = "") -> list[BlockContent]:
    hashes = chain_hashes(tokens, SIZE, adapter, salt)
    parents = [root_hash(adapter, salt), *hashes]
    return [
        BlockContent(own, parents[i], tokens[i * SIZE : (i + 1) * SIZE], adapter, salt) for i, own in enumerate(hashes)
    ]


def store(pool: BlockPool, tokens: list[int], salt: str = "") -> list[int]:
    """Hold blocks for a chain, as a sequence that computed all of it would."""
    chain = contents(tokens, salt)
    blocks = pool.allocate(len(chain))
    for block_id, content in zip(blocks, chain, strict=True):
        pool.publish(block_id, content)
    return blocks


def counts(pool: BlockPool) -> tuple[int, int, int]:
    return pool.referenced, pool.cached, pool.free


def test_released_content_is_found_again_and_held_again() -> None:
    pool = BlockPool(4)
    blocks = store(pool, [1, 2, 3, 4])
    pool.release(blocks)
    assert counts(pool) == (0, 2, 2)
    assert pool.match(chain_hashes([1, 2, 3, 4], SIZE)) == blocks
    pool.acquire(blocks)
    assert counts(pool) == (2, 0, 2)


def test_match_stops_at_the_first_unknown_block() -> None:
    pool = BlockPool(4)
    blocks = store(pool, [1, 2, 3, 4])
    assert pool.match(chain_hashes([1, 2, 9, 9], SIZE)) == blocks[:1]
    assert pool.match(chain_hashes([9, 9, 3, 4], SIZE)) == []


def test_salt_and_adapter_separate_equal_tokens() -> None:
    pool = BlockPool(4)
    store(pool, [1, 2], salt="a")
    assert pool.match(chain_hashes([1, 2], SIZE)) == []
    assert pool.match(chain_hashes([1, 2], SIZE, salt="b")) == []
    assert pool.match(chain_hashes([1, 2], SIZE, adapter="a")) == []
    assert len(pool.match(chain_hashes([1, 2], SIZE, salt="a"))) == 1


def test_free_blocks_are_given_before_cached_ones() -> None:
    pool = BlockPool(3)
    pool.release(store(pool, [1, 2]))
    pool.allocate(2)
    assert counts(pool) == (2, 1, 0)


def test_eviction_takes_the_least_recently_released_chain_from_its_tail() -> None:
    pool = BlockPool(4)
    old, new = store(pool, [1, 2, 3, 4]), store(pool, [5, 6, 7, 8])
    pool.release(old)
    pool.release(new)
    pool.drain_events()
    removed = []
    for _ in range(4):
        pool.allocate(1)
        removed += pool.drain_events()
    old_hashes, new_hashes = chain_hashes([1, 2, 3, 4], SIZE), chain_hashes([5, 6, 7, 8], SIZE)
    assert removed == [BlockRemoved(h) for h in (*reversed(old_hashes), *reversed(new_hashes))]


def test_a_hit_makes_a_chain_recent() -> None:
    pool = BlockPool(2)
    first, second = store(pool, [1, 2]), store(pool, [3, 4])
    pool.release(first)
    pool.release(second)
    pool.acquire(first)
    pool.release(first)
    pool.allocate(1)
    assert pool.match(chain_hashes([1, 2], SIZE)) == first
    assert pool.match(chain_hashes([3, 4], SIZE)) == []


def test_only_one_of_two_copies_outlives_its_holders() -> None:
    pool = BlockPool(4)
    one, two = store(pool, [1, 2]), store(pool, [1, 2])
    assert counts(pool) == (2, 0, 2)
    pool.release(one)
    assert counts(pool) == (1, 0, 3)
    pool.release(two)
    assert counts(pool) == (0, 1, 3)
    assert [type(event) for event in pool.drain_events()] == [BlockStored]


def test_a_new_copy_replaces_a_cached_one() -> None:
    pool = BlockPool(4)
    pool.release(store(pool, [1, 2]))
    copy = store(pool, [1, 2])
    assert counts(pool) == (1, 0, 3)
    assert pool.match(chain_hashes([1, 2], SIZE)) == copy


def test_events_tell_hash_parent_tokens_and_scope() -> None:
    pool = BlockPool(4)
    store(pool, [1, 2, 3, 4], salt="s")
    first, second = chain_hashes([1, 2, 3, 4], SIZE, salt="s")
    assert pool.drain_events() == [
        BlockStored(first, root_hash("", "s"), [1, 2], "", "s"),
        BlockStored(second, first, [3, 4], "", "s"),
    ]
    assert pool.drain_events() == []


def test_clear_forgets_content_but_not_holders() -> None:
    pool = BlockPool(4)
    held = store(pool, [1, 2])
    pool.release(store(pool, [3, 4]))
    pool.drain_events()
    pool.clear()
    assert counts(pool) == (1, 0, 3)
    assert pool.match(chain_hashes([1, 2], SIZE)) == []
    pool.release(held)
    assert counts(pool) == (0, 0, 4)
    assert pool.drain_events() == [CacheCleared()]


@pytest.mark.parametrize("blocks", [0, -1])
def test_an_empty_pool_is_refused(blocks: int) -> None:
    with pytest.raises(ValueError, match="at least one block"):
        BlockPool(blocks)


def test_bugs_of_callers_are_told() -> None:
    pool = BlockPool(2)
    with pytest.raises(RuntimeError, match="3 blocks asked for, 2 available"):
        pool.allocate(3)
    blocks = store(pool, [1, 2])
    with pytest.raises(RuntimeError, match="not held for writing"):
        pool.publish(blocks[0], contents([1, 2])[0])
    pool.release(blocks)
    with pytest.raises(RuntimeError, match="more often than held"):
        pool.release(blocks)
    assert counts(pool) == (0, 1, 1)


class PoolMachine(RuleBasedStateMachine):
    """Random chains over few tokens, so that prefixes and duplicates abound."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(8)
        self.held: list[list[int]] = []
        self.known: set[bytes] = set()  # what a listener to the events believes to be reusable

    @rule(tokens=st.lists(st.integers(0, 1), min_size=2, max_size=8))
    def begin(self, tokens: list[int]) -> None:
        chain = contents(tokens)
        hit = self.pool.match([content.hash for content in chain])
        if len(chain) - len(hit) + self.pool.unreferenced(hit) > self.pool.available:
            return
        self.pool.acquire(hit)
        blocks = hit + self.pool.allocate(len(chain) - len(hit))
        for block_id, content in list(zip(blocks, chain, strict=True))[len(hit) :]:
            self.pool.publish(block_id, content)
        self.held.append(blocks)

    @rule(tokens=st.lists(st.integers(0, 1), min_size=2, max_size=6))
    def begin_without_lookup(self, tokens: list[int]) -> None:
        if len(tokens) // SIZE <= self.pool.available:
            self.held.append(store(self.pool, tokens))

    @rule(blocks=st.integers(1, 3))
    def hold_unfinished(self, blocks: int) -> None:
        if blocks <= self.pool.available:
            self.held.append(self.pool.allocate(blocks))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        self.pool.release(self.held.pop(data.draw(st.integers(0, len(self.held) - 1))))

    @rule()
    def clear(self) -> None:
        self.pool.clear()

    @invariant()
    def every_block_is_in_one_state(self) -> None:
        referenced = {block_id for blocks in self.held for block_id in blocks}
        assert self.pool.referenced == len(referenced)
        assert sum(counts(self.pool)) == self.pool.total

    @invariant()
    def events_tell_the_truth(self) -> None:
        for event in self.pool.drain_events():
            match event:
                case BlockStored():
                    assert event.hash not in self.known
                    self.known.add(event.hash)
                case BlockRemoved():
                    self.known.remove(event.hash)
                case CacheCleared():
                    self.known.clear()
        for chain in ([a, b, c, d] for a in (0, 1) for b in (0, 1) for c in (0, 1) for d in (0, 1)):
            hashes = chain_hashes(chain, SIZE)
            believed = next((i for i, own in enumerate(hashes) if own not in self.known), len(hashes))
            assert len(self.pool.match(hashes)) == believed

    @invariant()
    def cached_content_is_distinct(self) -> None:
        assert self.pool.cached <= len(self.known)


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
