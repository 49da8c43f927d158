"""Text to token ids and back, for one model. Torch-free: the server process uses it.

`load_tokenizer` reads tokenizer.json of a Hugging Face directory, or builds the same from a GGUF file's metadata.
`token_bytes` gives the raw bytes of one token, which need not be whole UTF-8 characters: joining the bytes of a
sequence's tokens gives its text, whatever the cut.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from tidegate_worker.model.byte_alphabet import text_to_bytes
from tidegate_worker.model.errors import ModelFormatError, TokenizerError
from tidegate_worker.model.gguf import GgufFile, read_gguf
from tidegate_worker.model.gguf_tokenizer import build_backend, token_id
from tidegate_worker.model.uri import ModelFiles

LOCKED_CHARACTERS = 4096
"""Texts up to this length are encoded under the interpreter's lock: about 2 ms, and no other threads to wake."""


@dataclass(frozen=True)
class Tokenizer:
    """One model's vocabulary and the special tokens around it. Safe to share between threads."""

    backend: Backend
    """Adds the model's BOS when asked for special tokens, if the model wants one."""
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    chat_template: str | None = None
    """Jinja source as the model ships it; None when it ships none."""
    tool_chat_template: str | None = None
    """The model's own template for requests with tools, where it has two."""
    special_ids: frozenset[int] = field(default_factory=frozenset)

    @property
    def vocab_size(self) -> int:
        """Ids are in [0, vocab_size)."""
        return self.backend.get_vocab_size(with_added_tokens=True)

    @cached_property
    def longest_token_bytes(self) -> int:
        """No token stands for more bytes of text, so n tokens hold at most n times as many."""
        return max(map(len, self._bytes_table), default=1) or 1

    @property
    def bos_token(self) -> str:
        """BOS as text; empty when the model has none."""
        return "" if self.bos_token_id is None else self.backend.id_to_token(self.bos_token_id) or ""

    @property
    def eos_token(self) -> str:
        """The first EOS as text; empty when the model has none."""
        return (self.backend.id_to_token(self.eos_token_ids[0]) or "") if self.eos_token_ids else ""

    def encode(self, text: str, *, add_bos: bool = True, allow_special: bool = True) -> list[int]:
        """Token ids of a text.

        `add_bos` prepends BOS for models that want it. With `allow_special` false, text that spells a special token
        is taken as plain text. A lone surrogate raises UnicodeEncodeError.
        """
        backend = self.backend if allow_special else self._literal_backend
        return encode_with(backend, text, add_special_tokens=add_bos)

    def encode_chat(self, rendered: str) -> list[int]:
        """Token ids of a rendered chat template, which writes its own special tokens."""
        return self.encode(rendered, add_bos=False)

    def decode(self, ids: list[int], *, skip_special: bool = True) -> str:
        """The text of whole sequences; broken UTF-8 becomes U+FFFD."""
        wanted = (token for token in ids if not (skip_special and token in self.special_ids))
        return b"".join(map(self.token_bytes, wanted)).decode(errors="replace")

    def token_bytes(self, token: int) -> bytes:
        """The bytes one token stands for; empty for an id the vocabulary does not have (padding of the lm_head)."""
        table = self._bytes_table
        return table[token] if 0 <= token < len(table) else b""

    def token_text(self, token: int) -> str:
        """The token as the vocabulary spells it; empty for unknown ids."""
        return self.backend.id_to_token(token) or ""

    def is_special(self, token: int) -> bool:
        """True for control tokens, which are not part of an answer's text."""
        return token in self.special_ids

    @cached_property
    def _literal_backend(self) -> Backend:
        backend = Backend.from_str(self.backend.to_str())
        backend.encode_special_tokens = True
        return backend

    @cached_property
    def _bytes_table(self) -> list[bytes]:
        byte_level = "ByteLevel" in type(self.backend.decoder).__name__ or '"ByteLevel"' in _decoder_json(self.backend)
        added = {token: entry.content for token, entry in self.backend.get_added_tokens_decoder().items()}
        table = [b""] * (max(self.backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1)
        for spelling, token in self.backend.get_vocab(with_added_tokens=True).items():
            if token in added:
                table[token] = added[token].encode()
            elif byte_level:
                table[token] = text_to_bytes(spelling)
            else:
                table[token] = _sentencepiece_bytes(spelling)
        return table


def encode_with(backend: Backend, text: str, *, add_special_tokens: bool) -> list[int]:
    """Token ids of a text. A long one is encoded without the interpreter's lock: other threads go on meanwhile.

    A lone surrogate raises UnicodeEncodeError.
    """
    try:
        if len(text) <= LOCKED_CHARACTERS:
            ids: list[int] = backend.encode(text, add_special_tokens=add_special_tokens).ids
        else:
            # Of the backend's calls only those for batches let go of the lock; this one is also twice as fast.
            ids = backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
    except TypeError:
        text.encode()  # says where the lone surrogate is
        raise
    return ids


def load_tokenizer(files: ModelFiles) -> Tokenizer:
    """The tokenizer of a resolved model. Raises TokenizerError or ModelFormatError."""
    if files.format == "gguf":
        return from_gguf(read_gguf(files.path))
    return from_directory(files.path)


def from_gguf(file: GgufFile) -> Tokenizer:
    """Build the tokenizer that a GGUF file's metadata describes."""
    backend = build_backend(file)
    eos = [token_id(file, key) for key in ("eos_token_id", "eot_token_id", "eom_token_id")]
    template = file.metadata.get("tokenizer.chat_template")
    return Tokenizer(
        backend=backend,
        bos_token_id=token_id(file, "bos_token_id"),
        eos_token_ids=tuple(dict.fromkeys(token for token in eos if token is not None)),
        chat_template=template if isinstance(template, str) else None,
        special_ids=_special_ids(backend),
    )


def from_directory(path: Path) -> Tokenizer:
    """Read tokenizer.json and the settings around it from a Hugging Face directory."""
    file = path / "tokenizer.json"
    if not file.is_file():
        raise TokenizerError(f"{path}: no tokenizer.json; save the model's fast tokenizer there")
    try:
        backend = Backend.from_file(str(file))
    except Exception as error:
        raise TokenizerError(f"{file}: cannot be read as a tokenizer: {error}") from error
    backend.no_truncation()
    backend.no_padding()
    settings = read_json(path / "tokenizer_config.json", optional=True)
    config = read_json(path / "config.json", optional=True)
    generation = read_json(path / "generation_config.json", optional=True)
    bos = _named_token(backend, settings.get("bos_token"))
    eos = [*_ids(generation.get("eos_token_id")), *_ids(_named_token(backend, settings.get("eos_token")))]
    templates = _templates(path, settings)
    return Tokenizer(
        backend=backend,
        bos_token_id=bos,
        eos_token_ids=tuple(dict.fromkeys(eos or _ids(config.get("eos_token_id")))),
        chat_template=templates.get("default"),
        tool_chat_template=templates.get("tool_use"),
        special_ids=_special_ids(backend),
    )


def read_json(path: Path, *, optional: bool = False) -> dict[str, Any]:
    """A JSON object from a file; {} when it is absent and optional. Raises ModelFormatError."""
    if optional and not path.is_file():
        return {}
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ModelFormatError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelFormatError(f"{path}: expected a JSON object")
    return value


def _templates(path: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    file = path / "chat_template.jinja"
    if file.is_file():
        return {"default": file.read_text()}
    given = settings.get("chat_template")
    if isinstance(given, str):
        return {"default": given}
    if isinstance(given, list):
        named = [item for item in given if isinstance(item, dict)]
        return {str(item.get("name")): str(item.get("template")) for item in named}
    return {}


def _named_token(backend: Backend, value: Any) -> int | None:
    content = value.get("content") if isinstance(value, dict) else value
    found: int | None = backend.token_to_id(content) if isinstance(content, str) else None
    return found


def _ids(value: Any) -> list[int]:
    many = value if isinstance(value, list) else [value]
    return [item for item in many if isinstance(item, int) and not isinstance(item, bool)]


def _special_ids(backend: Backend) -> frozenset[int]:
    added: dict[int, AddedToken] = backend.get_added_tokens_decoder()
    return frozenset(token for token, entry in added.items() if entry.special)


def _decoder_json(backend: Backend) -> str:
    return json.dumps(json.loads(backend.to_str()).get("decoder"))


def _sentencepiece_bytes(spelling: str) -> bytes:
    if len(spelling) == 6 and spelling.startswith("<0x") and spelling.endswith(">"):
        try:
            return bytes([int(spelling[3:5], 16)])
        except ValueError:
            pass
    return spelling.replace("\u2581", " ").encode()
