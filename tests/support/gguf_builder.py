"""Writes small GGUF files, sound ones, for tests of what reads them."""

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

F32, F16, Q4_0, Q4_1, Q8_0, BF16 = 0, 1, 2, 3, 8, 30


def gguf_bytes(
    metadata: Mapping[str, Any], tensors: Mapping[str, tuple[Sequence[int], int, bytes]], version: int = 3
) -> bytes:
    """A whole file. Tensors are name → (shape, slowest dimension first; ggml type id; stored bytes)."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    for key, value in metadata.items():
        kind, raw = _value(value)
        head += _string(key) + struct.pack("<I", kind) + raw
    data = b""
    for name, (shape, kind, raw) in tensors.items():
        head += _string(name) + struct.pack("<I", len(shape))
        head += b"".join(struct.pack("<Q", size) for size in reversed(shape))
        head += struct.pack("<IQ", kind, len(data))
        data += raw + b"\0" * (-len(raw) % 32)
    return head + b"\0" * (-len(head) % 32) + data


def write_gguf(
    path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, npt.NDArray[np.float32]] | None = None
) -> Path:
    """A file whose tensors are all stored as F32."""
    stored = {name: (array.shape, F32, array.astype("<f4").tobytes()) for name, array in (tensors or {}).items()}
    path.write_bytes(gguf_bytes(metadata, stored))
    return path


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(value: Any) -> tuple[int, bytes]:
    if isinstance(value, bool):
        return 7, struct.pack("<?", value)
    if isinstance(value, int):
        return 4, struct.pack("<I", value)
    if isinstance(value, float):
        return 6, struct.pack("<f", value)
    if isinstance(value, str):
        return 8, _string(value)
    items = [_value(item) for item in value]
    kind = items[0][0] if items else 4
    return 9, struct.pack("<IQ", kind, len(items)) + b"".join(raw for _, raw in items)
