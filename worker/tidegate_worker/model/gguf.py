"""Reads GGUF files (versions 2 and 3): metadata, and tensors by memory map. Needs numpy, not torch.

Every count and offset in the file is checked against the bytes that are there before anything is allocated, so that
a truncated or corrupt file is a `ModelFormatError` and never a crash or a huge allocation. Format: ggml's docs/gguf.md.
"""

import mmap
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tidegate_worker.model.errors import ModelFormatError, ModelNotFoundError, UnsupportedModelError

MAGIC = b"GGUF"
MAX_ARRAY_DEPTH = 4
MAX_ALIGNMENT = 1 << 20

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

_SCALARS: dict[int, str] = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "|b1",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True, slots=True)
class TensorType:
    """A ggml storage type: `block_bytes` bytes hold `block_weights` weights."""

    name: str
    block_weights: int
    block_bytes: int
    dequantize: Callable[[Bytes], Floats]
    """(blocks, block_bytes) uint8 → (blocks, block_weights) fp32."""


def _q4_0(blocks: Bytes) -> Floats:
    scale = blocks[:, :2].copy().view("<f2").astype(np.float32)
    weights = _nibbles(blocks[:, 2:])
    weights -= np.float32(8)
    weights *= scale
    return weights


def _q4_1(blocks: Bytes) -> Floats:
    header = blocks[:, :4].copy().view("<f2").astype(np.float32)
    weights = _nibbles(blocks[:, 4:])
    weights *= header[:, :1]
    weights += header[:, 1:]
    return weights


def _q8_0(blocks: Bytes) -> Floats:
    scale = blocks[:, :2].copy().view("<f2").astype(np.float32)
    weights: Floats = np.multiply(blocks[:, 2:].view(np.int8), scale, dtype=np.float32)
    return weights


def _nibbles(packed: Bytes) -> Floats:
    # packed: (blocks, 16); the low nibbles are the first 16 weights of the block
    weights = np.empty((packed.shape[0], 32), np.float32)
    weights[:, :16] = packed & 15
    weights[:, 16:] = packed >> 4
    return weights


def _f32(blocks: Bytes) -> Floats:
    return blocks.view("<f4").astype(np.float32)


def _f16(blocks: Bytes) -> Floats:
    return blocks.view("<f2").astype(np.float32)


def _bf16(blocks: Bytes) -> Floats:
    return (blocks.view("<u2").astype(np.uint32) << 16).view(np.float32)


TENSOR_TYPES: Mapping[int, TensorType] = {
    0: TensorType("F32", 1, 4, _f32),
    1: TensorType("F16", 1, 2, _f16),
    2: TensorType("Q4_0", 32, 18, _q4_0),
    3: TensorType("Q4_1", 32, 20, _q4_1),
    8: TensorType("Q8_0", 32, 34, _q8_0),
    30: TensorType("BF16", 1, 2, _bf16),
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies in the file. `shape` is slowest dimension first, as numpy and torch list it."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    start: int

    @property
    def elements(self) -> int:
        """Weights in the tensor."""
        total = 1
        for size in self.shape:
            total *= size
        return total


@dataclass(frozen=True, slots=True)
class GgufFile:
    """An opened GGUF file. Numeric metadata arrays are numpy arrays, string arrays are lists of str."""

    path: Path
    version: int
    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]
    data: mmap.mmap

    def tensor(self, name: str) -> Floats:
        """The tensor's weights as fp32, dequantised, in a fresh array.

        Raises ModelFormatError when the file has no such tensor or it does not lie inside the file, and
        UnsupportedModelError for a storage type outside TENSOR_TYPES.
        """
        info = self.tensors.get(name)
        if info is None:
            raise ModelFormatError(f"{self.path}: tensor {name!r} is missing; the file is incomplete")
        kind = TENSOR_TYPES.get(info.type_id)
        if kind is None:
            supported = ", ".join(sorted(known.name for known in TENSOR_TYPES.values()))
            raise UnsupportedModelError(
                f"{self.path}: tensor {name!r} is stored as ggml type {info.type_id}, which is not supported; "
                f"use a file quantised as one of {supported}"
            )
        blocks, rest = divmod(info.elements, kind.block_weights)
        end = info.start + blocks * kind.block_bytes
        if rest or info.shape[-1] % kind.block_weights:
            raise ModelFormatError(f"{self.path}: tensor {name!r} has rows that are no whole {kind.name} blocks")
        if end > len(self.data):
            raise ModelFormatError(
                f"{self.path}: tensor {name!r} ends at byte {end} but the file has {len(self.data)}; "
                "it is truncated, download it again"
            )
        raw = np.frombuffer(self.data, np.uint8, blocks * kind.block_bytes, info.start)
        return kind.dequantize(raw.reshape(blocks, kind.block_bytes)).reshape(info.shape)

    def require(self, key: str) -> Any:
        """A metadata value; ModelFormatError when the file lacks it."""
        if key not in self.metadata:
            raise ModelFormatError(f"{self.path}: metadata key {key!r} is missing; this is no complete model file")
        return self.metadata[key]


def read_gguf(path: Path) -> GgufFile:
    """Map the file and read its metadata and tensor table; weights stay on disk until asked for.

    Raises ModelNotFoundError when the file cannot be opened, ModelFormatError when it is not a sound GGUF file,
    UnsupportedModelError for version 1 or big-endian files.
    """
    try:
        with path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise ModelFormatError(f"{path}: not a GGUF file (it does not begin with 'GGUF')")
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ModelNotFoundError(f"{path}: cannot be opened: {error.strerror or error}") from error
    cursor = _Cursor(path, data)
    cursor.position = len(MAGIC)
    version = cursor.number("<I")
    if version not in (2, 3):
        kind = "a big-endian file" if version > 0xFFFF else f"version {version}"
        raise UnsupportedModelError(f"{path}: {kind} is not supported; convert it to GGUF version 3, little-endian")
    tensor_count, pair_count = cursor.number("<Q"), cursor.number("<Q")
    cursor.demand(pair_count, 13, "metadata entries")
    metadata: dict[str, Any] = {}
    for _ in range(pair_count):
        key = cursor.string()
        metadata[key] = cursor.value(cursor.number("<I"))
    cursor.demand(tensor_count, 24, "tensors")
    entries = [cursor.tensor_entry() for _ in range(tensor_count)]
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 0 < alignment <= MAX_ALIGNMENT:
        raise ModelFormatError(f"{path}: general.alignment is {alignment!r}; the file is corrupt")
    base = -(-cursor.position // alignment) * alignment
    tensors = {name: TensorInfo(name, shape, kind, base + offset) for name, shape, kind, offset in entries}
    return GgufFile(path, version, metadata, tensors, data)


class _Cursor:
    """Reads the file's head in order; every read is checked against its end."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.data = data
        self.position = 0

    def corrupt(self, what: str) -> ModelFormatError:
        return ModelFormatError(f"{self.path}: {what}; the file is truncated or corrupt, download it again")

    def demand(self, count: int, item_bytes: int, what: str) -> None:
        """Refuse a count of items that could not fit into the rest of the file."""
        if count * item_bytes > len(self.data) - self.position:
            raise self.corrupt(f"{count} {what} announced at byte {self.position} of {len(self.data)}")

    def number(self, code: str) -> int:
        size = struct.calcsize(code)
        self.demand(1, size, "number")
        (value,) = struct.unpack_from(code, self.data, self.position)
        self.position += size
        return int(value)

    def string(self) -> str:
        length = self.number("<Q")
        self.demand(length, 1, "bytes of text")
        raw = self.data[self.position : self.position + length]
        self.position += length
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise self.corrupt(f"text before byte {self.position} is not UTF-8") from error

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self.array(depth + 1)
        if kind not in _SCALARS:
            raise self.corrupt(f"unknown value type {kind} at byte {self.position}")
        return self.scalars(kind, 1)[0].item()

    def array(self, depth: int) -> Any:
        if depth > MAX_ARRAY_DEPTH:
            raise self.corrupt(f"arrays nested deeper than {MAX_ARRAY_DEPTH} at byte {self.position}")
        kind, count = self.number("<I"), self.number("<Q")
        if kind in _SCALARS:
            return self.scalars(kind, count)
        self.demand(count, 8, "array items")
        return [self.value(kind, depth) for _ in range(count)]

    def scalars(self, kind: int, count: int) -> npt.NDArray[Any]:
        dtype = np.dtype(_SCALARS[kind])
        self.demand(count, dtype.itemsize, "values")
        values = np.frombuffer(self.data, dtype, count, self.position)
        self.position += count * dtype.itemsize
        return values

    def tensor_entry(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self.string()
        dimensions = self.number("<I")
        if not 1 <= dimensions <= 4:
            raise self.corrupt(f"tensor {name!r} has {dimensions} dimensions")
        fastest_first = [self.number("<Q") for _ in range(dimensions)]
        kind, offset = self.number("<I"), self.number("<Q")
        if min(fastest_first) < 1 or offset > len(self.data):
            raise self.corrupt(f"tensor {name!r} has an impossible shape or offset")
        return name, tuple(reversed(fastest_first)), kind, offset
