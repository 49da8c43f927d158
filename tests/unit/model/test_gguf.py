import contextlib
from pathlib import Path

import gguf_builder
import numpy as np
import pytest
from gguf_builder import gguf_bytes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tidegate_worker.model.errors import ModelError, ModelFormatError, ModelNotFoundError, UnsupportedModelError
from tidegate_worker.model.gguf import read_gguf


def _one_block(kind: int, raw: bytes, weights: int = 32) -> bytes:
    return gguf_bytes({}, {"w": ((1, weights), kind, raw)})


def _half(value: float) -> bytes:
    return np.float16(value).tobytes()


NIBBLES = bytes(low | high << 4 for low, high in zip(range(16), reversed(range(16)), strict=True))
ORDER = [*range(16), *reversed(range(16))]


@pytest.mark.parametrize(
    ("kind", "raw", "expected"),
    [
        (gguf_builder.Q4_0, _half(0.5) + NIBBLES, [(q - 8) * 0.5 for q in ORDER]),
        (gguf_builder.Q4_1, _half(0.5) + _half(-3.0) + NIBBLES, [q * 0.5 - 3 for q in ORDER]),
        (gguf_builder.Q8_0, _half(0.25) + np.arange(-16, 16, dtype=np.int8).tobytes(), [q / 4 for q in range(-16, 16)]),
        (gguf_builder.F32, np.arange(32, dtype="<f4").tobytes(), list(range(32))),
        (gguf_builder.F16, np.arange(32, dtype="<f2").tobytes(), list(range(32))),
        (gguf_builder.BF16, (np.arange(32, dtype="<f4").view("<u4") >> 16).astype("<u2").tobytes(), list(range(32))),
    ],
)
def test_each_storage_type_is_dequantised(tmp_path: Path, kind: int, raw: bytes, expected: list[float]) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(_one_block(kind, raw))
    tensor = read_gguf(path).tensor("w")
    assert tensor.dtype == np.float32
    assert tensor.tolist() == [expected]


@pytest.mark.parametrize("version", [2, 3])
def test_metadata_of_every_kind_is_read(tmp_path: Path, version: int) -> None:
    values = {"a": 7, "b": "täxt", "c": True, "d": [1, 2, 3], "e": ["x", "y"], "f": 0.5, "g": [[1], [2, 3]]}
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_bytes(values, {}, version))
    read = read_gguf(path).metadata
    assert read["d"].tolist() == [1, 2, 3]
    assert [item.tolist() for item in read["g"]] == [[1], [2, 3]]
    assert {key: read[key] for key in "abcef"} == {key: values[key] for key in "abcef"}


def test_dimensions_come_slowest_first(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_bytes({}, {"w": ((2, 3), gguf_builder.F32, np.arange(6, dtype="<f4").tobytes())}))
    assert read_gguf(path).tensor("w").tolist() == [[0, 1, 2], [3, 4, 5]]


def test_missing_file_and_foreign_file_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="cannot be opened"):
        read_gguf(tmp_path / "none.gguf")
    (tmp_path / "zip.gguf").write_bytes(b"PK\x03\x04" * 9)
    with pytest.raises(ModelFormatError, match="not a GGUF file"):
        read_gguf(tmp_path / "zip.gguf")


@pytest.mark.parametrize("version", [1, 4, 0x03000000])
def test_other_versions_and_byte_orders_are_unsupported(tmp_path: Path, version: int) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_bytes({}, {}, version))
    with pytest.raises(UnsupportedModelError, match="convert it to GGUF version 3"):
        read_gguf(path)


def test_unknown_storage_type_names_the_known_ones(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(_one_block(12, bytes(144), 256))
    with pytest.raises(UnsupportedModelError, match="Q4_0, Q4_1, Q8_0"):
        read_gguf(path).tensor("w")


SOUND = gguf_bytes(
    {"general.name": "x", "numbers": [1, 2, 3], "words": ["a", "b"], "tokenizer.ggml.add_bos_token": True},
    {"w": ((2, 32), gguf_builder.Q8_0, bytes(68)), "n": ((4,), gguf_builder.F32, bytes(16))},
)


def _read_all(path: Path) -> None:
    file = read_gguf(path)
    for name in file.tensors:
        file.tensor(name)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_mutated_file_is_read_or_refused_and_never_crashes(tmp_path: Path, data: st.DataObject) -> None:
    raw = bytearray(SOUND)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(4, len(raw) - 1))
        size = data.draw(st.sampled_from([1, 4, 8]))
        raw[at : at + size] = data.draw(st.binary(min_size=size, max_size=size) | st.just(b"\xff" * size))
    path = tmp_path / "mutated.gguf"
    path.write_bytes(raw[: data.draw(st.integers(4, len(raw)))])
    with contextlib.suppress(ModelError):
        _read_all(path)


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "short.gguf"
    for length in range(len(SOUND) - 32):
        path.write_bytes(SOUND[:length])
        with pytest.raises(ModelError):
            _read_all(path)
