"""The KV blocks of one device: who holds them, which content can be reused, which goes next."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

import msgspec

from tidegate_worker.engine.messages import BlockEvent, BlockRemoved, BlockStored, CacheCleared


class BlockContent(msgspec.Struct, frozen=True):
    """What a full block holds: its place in a hash chain and its tokens."""

    hash: bytes
    parent: bytes
    token_ids: list[int]
    adapter: str
    salt: str


class BlockPool:
    """Owns every KV block of one device and who may use it.

    A block is in exactly one of three states: *referenced* (a sequence holds it), *cached* (nobody holds it, its
    content can be reused) or *free*. Invariant: referenced + cached + free == total, after every call.

    A block gets a hash only once its content is complete. Two sequences that compute the same content at the same
    time hold two copies; only one copy outlives its holders, so the cached blocks' hashes are distinct and duplicates
    cost no capacity. `BlockStored` tells of the first copy of a hash, `BlockRemoved` of the end of the last one.

    Eviction is lazy (content lives until its block is needed) and least-recently-used. A released chain is queued
    from its tail, so that a chain loses its end before its beginning, without which the end is of no use.

    Every operation is O(1) per block.
    """

    def __init__(self, total_blocks: int) -> None:
        if total_blocks < 1:
            raise ValueError(f"a block pool needs at least one block, got {total_blocks}")
        self.total = total_blocks
        self._holders = [0] * total_blocks
        self._hash_of: list[bytes | None] = [None] * total_blocks
        self._copies: dict[bytes, OrderedDict[int, None]] = {}
        self._cached: OrderedDict[int, None] = OrderedDict()  # the next to evict comes first
        self._free = list(range(total_blocks - 1, -1, -1))
        self._events: list[BlockEvent] = []

    @property
    def free(self) -> int:
        """Blocks with nothing reusable in them."""
        return len(self._free)

    @property
    def cached(self) -> int:
        """Blocks that nobody holds and whose content can be reused."""
        return len(self._cached)

    @property
    def referenced(self) -> int:
        """Blocks that at least one sequence holds."""
        return self.total - len(self._free) - len(self._cached)

    @property
    def available(self) -> int:
        """Blocks that `allocate` can give: free and cached ones."""
        return len(self._free) + len(self._cached)

    def match(self, hashes: Iterable[bytes]) -> list[int]:
        """The blocks of the longest reusable beginning of a chain. Takes no hold of them: see `acquire`."""
        found: list[int] = []
        for wanted in hashes:
            copies = self._copies.get(wanted)
            if copies is None:
                break
            found.append(next(iter(copies)))
        return found

    def unreferenced(self, block_ids: Iterable[int]) -> int:
        """How many of these blocks nobody holds: acquiring them makes that many fewer available."""
        return sum(self._holders[block_id] == 0 for block_id in block_ids)

    def acquire(self, block_ids: Iterable[int]) -> None:
        """Hold matched blocks once more; those that were cached become referenced."""
        for block_id in block_ids:
            if self._holders[block_id] == 0:
                del self._cached[block_id]
            self._holders[block_id] += 1

    def allocate(self, count: int) -> list[int]:
        """Hold `count` blocks for writing: free ones first, then the least recently used cached ones.

        Raises:
            RuntimeError: fewer than `count` are available (callers ask `available` first). Nothing is taken then.
        """
        if count > self.available:
            raise RuntimeError(f"{count} blocks asked for, {self.available} available")
        block_ids: list[int] = []
        for _ in range(count):
            if self._free:
                block_id = self._free.pop()
            else:
                block_id, _ = self._cached.popitem(last=False)
                self._drop_content(block_id)
            self._holders[block_id] = 1
            block_ids.append(block_id)
        return block_ids

    def publish(self, block_id: int, content: BlockContent) -> None:
        """Say what a held, completely written block contains, so that others can reuse it."""
        if self._holders[block_id] == 0 or self._hash_of[block_id] is not None:
            raise RuntimeError(f"block {block_id} is not held for writing")
        self._hash_of[block_id] = content.hash
        copies = self._copies.get(content.hash)
        if copies is None:
            self._copies[content.hash] = OrderedDict({block_id: None})
            self._events.append(
                BlockStored(content.hash, content.parent, content.token_ids, content.adapter, content.salt),
            )
            return
        first = next(iter(copies))
        copies[block_id] = None
        if self._holders[first] == 0:
            self._free_duplicate(first)

    def release(self, block_ids: Sequence[int]) -> None:
        """Let go of a chain of blocks, given from its beginning. Unheld content stays reusable until evicted."""
        for block_id in reversed(block_ids):
            if self._holders[block_id] <= 0:
                raise RuntimeError(f"block {block_id} is released more often than held")
            self._holders[block_id] -= 1
            if self._holders[block_id] == 0:
                self._retire(block_id)

    def clear(self) -> None:
        """Forget all reusable content. Held blocks stay with their holders but are found by nobody else."""
        for hashed in list(self._copies):
            for block_id in self._copies.pop(hashed):
                self._hash_of[block_id] = None
        self._free.extend(self._cached)
        self._cached.clear()
        self._events.append(CacheCleared())

    def drain_events(self) -> list[BlockEvent]:
        """The events since the last call, in order."""
        events, self._events = self._events, []
        return events

    def _retire(self, block_id: int) -> None:
        hashed = self._hash_of[block_id]
        if hashed is None:
            self._free.append(block_id)
            return
        copies = self._copies[hashed]
        if len(copies) == 1:
            self._cached[block_id] = None
            return
        # Another copy remains, held by someone: this one has no more to give.
        self._free_duplicate(block_id)

    def _free_duplicate(self, block_id: int) -> None:
        self._cached.pop(block_id, None)
        self._drop_content(block_id)
        self._free.append(block_id)

    def _drop_content(self, block_id: int) -> None:
        hashed = self._hash_of[block_id]
        if hashed is None:
            raise RuntimeError(f"block {block_id} has no content to drop")
        self._hash_of[block_id] = None
        copies = self._copies[hashed]
        del copies[block_id]
        if not copies:
            del self._copies[hashed]
            self._events.append(BlockRemoved(hashed))
