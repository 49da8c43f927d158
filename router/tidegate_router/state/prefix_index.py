"""`TextPrefixIndex`: which endpoint has probably cached how much of a prompt, learned from where prompts were sent.

A prompt is cut into byte chunks that grow with depth, and every chunk's hash is chained to all before it, so one
integer stands for a whole prefix. A dict maps that integer to a bit set of endpoints: no object per entry, nothing
for the garbage collector to walk. It works with any engine and needs no tokenizer; what the engine reports as really
cached corrects it.

Invariants: evictions take tails first (a recency list is refreshed tail first), so a full index still matches from the
front; an endpoint holds at most `capacity_chunks`; an entry exists only while some endpoint holds it.
"""

from bisect import bisect_right
from collections import OrderedDict
from functools import lru_cache
from itertools import accumulate
from typing import Final

from xxhash import xxh3_64_intdigest

from tidegate_router.state.request import Request

DEFAULT_CAPACITY_CHUNKS = 32_768
MAX_DOUBTS = 1_024

# (chunk bytes, how many): fine where prompts differ, coarse where they are long.
# 2 KB has 9 chunks, 64 KB has 37, and nothing beyond 4 MB (a million tokens) is looked at.
_LADDER = ((128, 2), (256, 7), (512, 4), (1_024, 4), (2_048, 12), (4_096, 56), (16_384, 48), (65_536, 48))
CHUNK_ENDS: Final = tuple(accumulate(size for size, count in _LADDER for _ in range(count)))
_CHUNKS: Final = tuple(map(slice, (0, *CHUNK_ENDS), CHUNK_ENDS))

# What a client appends to grows before the closing bracket or quote, which therefore belongs to no chunk.
_CLOSING = b']"'


def chunk_hashes(request: Request) -> list[int]:
    """The chained hashes of a prompt's full chunks, first to last; the partial tail has none.

    The first hash stands for model, adapter, salt and tools alone when there are tools: they precede every message.
    O(bytes of messages and tools), at most `CHUNK_ENDS[-1]` bytes of messages.
    """
    digest = _root(request.model, request.adapter, request.salt)
    head = request.head
    if head:
        digest = first = xxh3_64_intdigest(head, digest)
    text = request.messages
    length = len(text) - 1 if text and text[-1] in _CLOSING else len(text)
    chunks = _CHUNKS[: bisect_right(CHUNK_ENDS, length)]
    hashes = [digest := xxh3_64_intdigest(text[chunk], digest) for chunk in chunks]
    return [first, *hashes] if head else hashes


@lru_cache(maxsize=256)
def _root(model: str, adapter: str, salt: str) -> int:
    """What a chain starts from; lengths come first, so that no two triples read the same."""
    parts = (model.encode(), adapter.encode(), salt.encode())
    return xxh3_64_intdigest(b"%d %d %d " % tuple(map(len, parts)) + b"".join(parts))


def covered_bytes(request: Request, chunks: int) -> int:
    """Bytes of head and messages behind the first `chunks` hashes of `chunk_hashes`."""
    if chunks <= 0:
        return 0
    if request.head:
        return len(request.head) + (CHUNK_ENDS[chunks - 2] if chunks > 1 else 0)
    return CHUNK_ENDS[chunks - 1]


class TextPrefixIndex:
    """Prefix knowledge of all endpoints; not thread-safe, one event loop owns it."""

    def __init__(self, capacity_chunks: int = DEFAULT_CAPACITY_CHUNKS) -> None:
        if capacity_chunks < 1:
            raise ValueError("capacity_chunks: must be at least 1")
        self.capacity_chunks = capacity_chunks
        self._holders: dict[int, int] = {}
        self._recency: dict[int, OrderedDict[int, None]] = {}
        self._doubts: dict[int, dict[int, bool]] = {}
        # per slot: chunks that were missing where they were expected; True after the second time

    def __len__(self) -> int:
        """Distinct prefixes known."""
        return len(self._holders)

    def held(self, slot: int) -> int:
        """Chunks that an endpoint is thought to hold."""
        return len(self._recency.get(slot, ()))

    def doubts(self, slot: int) -> bool:
        """Whether a prediction for this endpoint has been wrong and not been put right since."""
        return bool(self._doubts.get(slot))

    def match(self, hashes: list[int]) -> dict[int, int]:
        """Matched chunks per slot, longest contiguous prefix only; slots without a match are absent."""
        matched: dict[int, int] = {}
        get = self._holders.get
        held = list(map(get, hashes))
        previous = held[0] if held else None
        if previous is None:
            return matched
        depth = held.count(previous)
        if held[depth - 1] != previous or held[:depth].count(previous) != depth:
            depth = 1
        # Mostly the same endpoints hold the whole of what is held: nothing of it is looked at twice.
        for holders in held[depth:]:
            common = 0 if holders is None else previous & holders
            if common != previous:
                _record(matched, previous & ~common, depth)
                if not common:
                    return matched
                previous = common
            depth += 1
        _record(matched, previous, depth)
        return matched

    def insert(self, slot: int, hashes: list[int], known: int = 0) -> None:
        """Note that an endpoint has, or is about to have, these prefixes; the least recently used ones make room.

        `known` leading hashes are held already, as `match` said: they are refreshed only when room gets scarce.
        """
        recency = self._recency.get(slot)
        if recency is None:
            recency = self._recency[slot] = OrderedDict()
        elif known and len(recency) * 2 < self.capacity_chunks:
            hashes = hashes[known:]
            if not hashes:
                return
        holders = self._holders
        get, touch = holders.get, recency.move_to_end
        bit = 1 << slot
        for digest in reversed(self._believed(slot, hashes) if slot in self._doubts else hashes):
            bits = get(digest, 0)
            if bits & bit:
                touch(digest)
            else:
                holders[digest] = bits | bit
                recency[digest] = None
        while len(recency) > self.capacity_chunks:
            self._release(recency.popitem(last=False)[0], bit)

    def forget_tail(self, slot: int, hashes: list[int], kept: int) -> None:
        """Drop an endpoint's claim to the chunks of a prompt after the first `kept`, and to all that extends them.

        Longer prompts behind the dropped chunks become unreachable and age out.
        """
        recency = self._recency.get(slot)
        if recency is None:
            return
        bit = 1 << slot
        for digest in hashes[max(0, kept) :]:
            if recency.pop(digest, self) is None:
                self._release(digest, bit)

    def forget(self, slot: int) -> None:
        """Drop everything an endpoint is thought to hold: it left, or restarted with an empty cache."""
        bit = 1 << slot
        self._doubts.pop(slot, None)
        for digest in self._recency.pop(slot, ()):
            self._release(digest, bit)

    def correct(self, slot: int, hashes: list[int], predicted_chunks: int, actual_chunks: int) -> None:
        """Learn from an answer: `predicted_chunks` were thought cached when it was placed, `actual_chunks` were.

        One miss is an eviction and heals itself, since the worker has just computed the prompt again: it only leaves
        a doubt. A second miss at the same chunk says that this worker never caches it: its claim is dropped and not
        made again, until an answer shows that chunk cached after all.
        """
        doubts = self._doubts.setdefault(slot, {})
        if actual_chunks * 2 >= predicted_chunks:
            if doubts:
                for digest in hashes[:actual_chunks]:
                    doubts.pop(digest, None)
            return
        first_missing = hashes[actual_chunks]
        if first_missing in doubts:
            doubts[first_missing] = True
            self.forget_tail(slot, hashes, actual_chunks)
            return
        if len(doubts) >= MAX_DOUBTS:
            doubts.clear()
        doubts[first_missing] = False

    def _believed(self, slot: int, hashes: list[int]) -> list[int]:
        """The part of a prompt before the first chunk that this endpoint has been seen never to cache."""
        doubts = self._doubts.get(slot)
        if doubts:
            for depth, digest in enumerate(hashes):
                if doubts.get(digest):
                    return hashes[:depth]
        return hashes

    def _release(self, digest: int, bit: int) -> None:
        left = self._holders[digest] & ~bit
        if left:
            self._holders[digest] = left
        else:
            del self._holders[digest]


def _record(matched: dict[int, int], slots: int, depth: int) -> None:
    """Write `depth` for every bit of `slots`; nothing at depth 0."""
    if not depth:
        return
    while slots:
        lowest = slots & -slots
        matched[lowest.bit_length() - 1] = depth
        slots ^= lowest
