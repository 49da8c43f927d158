import pytest
from tidegate_worker.model.config import LlamaConfig
from tidegate_worker.model.errors import ModelResourceError
from tidegate_worker.runner.memory import available_memory_bytes, block_bytes, count_blocks

GIB = 1 << 30


def test_a_block_of_smollm2_is_sixteen_tokens_of_46080_bytes() -> None:
    config = LlamaConfig(49152, 576, 1536, 30, 9, 3, 64, 8192, 1e-5, 1e5)
    assert block_bytes(config, 16, 4) == 16 * 46_080


@pytest.mark.parametrize(
    ("available", "blocks", "memory", "expected"),
    [
        (100 * GIB, None, None, 2048),  # 2 GiB at most
        (4 * GIB, None, None, 1024),  # a quarter of what is free
        (GIB, None, None, 512),  # but one full context at least
        (100 * GIB, 700, None, 700),
        (100 * GIB, 700, GIB, 700),
        (100 * GIB, None, GIB, 1024),
    ],
)
def test_blocks_follow_the_settings_then_the_memory(
    available: int, blocks: int | None, memory: int | None, expected: int
) -> None:
    assert count_blocks(1 << 20, 512, available, kv_blocks=blocks, kv_memory_bytes=memory) == expected


@pytest.mark.parametrize(
    ("available", "blocks", "memory", "words"),
    [
        (GIB, 511, None, "--kv-blocks 511 .* needs 512"),
        (GIB, None, GIB // 4, "--kv-memory-bytes .* lower --context-tokens"),
        (GIB // 4, None, None, "512 KV blocks need 512 MiB, but 256 MiB are free"),
        (GIB, 2000, None, "lower --kv-blocks"),
    ],
)
def test_too_little_room_names_the_flag(available: int, blocks: int | None, memory: int | None, words: str) -> None:
    with pytest.raises(ModelResourceError, match=words):
        count_blocks(1 << 20, 512, available, kv_blocks=blocks, kv_memory_bytes=memory)


def test_this_machine_has_memory() -> None:
    assert available_memory_bytes() > 0
