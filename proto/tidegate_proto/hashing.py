"""Block hashes: the identity of a token chain, equal wherever the same tokens, adapter and salt are cached.

A block's KV may be reused by whoever presents its hash, so the hash crosses a trust boundary: BLAKE2b, 128 bits.
"""

from array import array
from collections.abc import Sequence
from hashlib import blake2b

BLOCK_HASH_BYTES = 16

# 4-byte unsigned, little-endian on every platform we run on (Linux on x86-64 and arm64).
_UINT32 = "I"


def root_hash(adapter: str = "", salt: str = "") -> bytes:
    """The parent of a chain's first block: separates adapters and cache salts."""
    seed = b"tidegate-block-v1\0%d\0%b%b" % (len(adapter.encode()), adapter.encode(), salt.encode())
    return blake2b(seed, digest_size=BLOCK_HASH_BYTES).digest()


def block_hash(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """The hash of a full block behind `parent` (`root_hash` for the first block of a chain)."""
    return blake2b(parent + array(_UINT32, token_ids).tobytes(), digest_size=BLOCK_HASH_BYTES).digest()


def chain_hashes(token_ids: Sequence[int], block_size: int, adapter: str = "", salt: str = "") -> list[bytes]:
    """Hashes of every full block of a token sequence, in order; the partial tail has none."""
    parent = root_hash(adapter, salt)
    hashes: list[bytes] = []
    for start in range(0, len(token_ids) - block_size + 1, block_size):
        parent = block_hash(parent, token_ids[start : start + block_size])
        hashes.append(parent)
    return hashes
