"""How many KV blocks to allocate: pure arithmetic, and one look at this machine's memory."""

from pathlib import Path

from tidegate_worker.model.config import LlamaConfig
from tidegate_worker.model.errors import ModelResourceError

DEFAULT_KV_BYTES = 2 << 30
DEFAULT_KV_SHARE = 0.25
"""Without a setting: the smaller of the two, but at least one full context."""


def block_bytes(config: LlamaConfig, block_size: int, element_bytes: int) -> int:
    """Bytes of one block: keys and values of every layer for `block_size` tokens."""
    return config.layers * block_size * 2 * config.kv_size * element_bytes


def count_blocks(
    one_block_bytes: int,
    context_blocks: int,
    available_bytes: int,
    *,
    kv_blocks: int | None,
    kv_memory_bytes: int | None,
) -> int:
    """Blocks to allocate from the settings, or from the memory that is free.

    Raises ModelResourceError naming the flag when one full context (`context_blocks`) does not fit.
    """
    if kv_blocks is not None:
        source, total = f"--kv-blocks {kv_blocks}", kv_blocks
    elif kv_memory_bytes is not None:
        source, total = f"--kv-memory-bytes {kv_memory_bytes}", kv_memory_bytes // one_block_bytes
    else:
        source = f"{available_bytes >> 20} MiB of free memory"
        share = min(DEFAULT_KV_BYTES, int(available_bytes * DEFAULT_KV_SHARE))
        total = max(share // one_block_bytes, context_blocks)
    if total < context_blocks:
        raise ModelResourceError(
            f"{source} gives {max(0, total)} KV blocks, but one full context needs {context_blocks} "
            f"({context_blocks * one_block_bytes >> 20} MiB); raise it, or lower --context-tokens"
        )
    if total * one_block_bytes > available_bytes:
        raise ModelResourceError(
            f"{total} KV blocks need {total * one_block_bytes >> 20} MiB, but {available_bytes >> 20} MiB are free; "
            "lower --kv-blocks, --kv-memory-bytes or --context-tokens"
        )
    return total


def available_memory_bytes() -> int:
    """Memory this process may still use: the machine's, or its control group's where that is less."""
    machine = _meminfo_available()
    limit = _read_number(Path("/sys/fs/cgroup/memory.max"))
    used = _read_number(Path("/sys/fs/cgroup/memory.current"))
    if limit is None or used is None:
        return machine
    return max(0, min(machine, limit - used))


def _meminfo_available() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * 1024
    return 0


def _read_number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
