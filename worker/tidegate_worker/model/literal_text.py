"""Keeps what a client writes from becoming control tokens, whatever it spells.

A chat template renders to one text in which a model's control tokens are spelled out; once rendered, a `<|im_end|>` of
the template cannot be told from one in a message. So, only where a message does spell such a token:

    disguise           every spelling in the client's strings becomes a placeholder that nobody can guess
    render             (the caller's part) what still spells a control token is the template's own
    encode_disguised   the template's tokens become stand-ins, tokens of their own; the placeholders become their
                       spellings again, which now are plain text; the stand-ins' ids become those of the tokens

The stand-ins are cut out of the text by the same rules as the tokens they stand for, so everything around them is
encoded exactly as ever. Torch-free.
"""

import re
import secrets
from collections.abc import Mapping
from typing import Any, TypeVar

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from tidegate_worker.model.errors import TokenizerError
from tidegate_worker.model.tokenizer import Tokenizer, encode_with

T = TypeVar("T")


class LiteralText:
    """One tokenizer's control tokens, and texts that spell them without meaning them. Safe to share between threads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        added: dict[int, AddedToken] = tokenizer.backend.get_added_tokens_decoder()
        self._tokenizer = tokenizer
        self._specials = {token: entry for token, entry in added.items() if entry.special and entry.content}
        # One secret a process is enough: who could read it could read everything else as well.
        secret = secrets.token_hex(16)
        spellings = {entry.content: token for token, entry in self._specials.items()}
        self._placeholders = {spelling: f"q{secret}p{token}q" for spelling, token in spellings.items()}
        self._stand_ins = {spelling: f"q{secret}s{token}q" for spelling, token in spellings.items()}
        self._originals = {placeholder: spelling for spelling, placeholder in self._placeholders.items()}
        longest_first = sorted(spellings, key=len, reverse=True)
        self._spelling = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._placeholder = re.compile(rf"q{secret}p\d+q")
        self._with_stand_ins = self._build()

    def spelled_in(self, value: Any) -> bool:
        """True when any string inside a JSON-like value spells a control token."""
        if isinstance(value, str):
            return self._spelling.search(value) is not None
        if isinstance(value, Mapping):
            return any(self.spelled_in(key) or self.spelled_in(item) for key, item in value.items())
        if isinstance(value, list | tuple):
            return any(map(self.spelled_in, value))
        return False

    def disguise(self, value: T) -> T:
        """A JSON-like value with a placeholder for every control token that its strings spell."""
        result: Any = value
        if isinstance(value, str):
            result = self._spelling.sub(lambda found: self._placeholders[found[0]], value)
        elif isinstance(value, Mapping):
            result = {self.disguise(key): self.disguise(item) for key, item in value.items()}
        elif isinstance(value, list | tuple):
            result = [self.disguise(item) for item in value]
        return result  # type: ignore[no-any-return]

    def encode_disguised(self, rendered: str) -> list[int]:
        """Token ids of a rendered chat template whose messages were disguised."""
        own_tokens = self._spelling.sub(lambda found: self._stand_ins[found[0]], rendered)
        text = self._placeholder.sub(lambda found: self._originals[found[0]], own_tokens)
        backend, real_ids = self._with_stand_ins
        return [real_ids.get(token, token) for token in encode_with(backend, text, add_special_tokens=False)]

    def _build(self) -> tuple[Backend, dict[int, int]]:
        """A tokenizer that takes spelled control tokens as text and knows the stand-ins; stand-in id to real id."""
        backend = Backend.from_str(self._tokenizer.backend.to_str())
        backend.encode_special_tokens = True
        real_ids = {}
        for token, entry in self._specials.items():
            name = self._stand_ins[entry.content]
            stand_in = AddedToken(name, lstrip=entry.lstrip, rstrip=entry.rstrip, normalized=False, special=False)
            backend.add_tokens([stand_in])
            real_ids[_id_of(backend, name)] = token
        return backend, real_ids


def _id_of(backend: Backend, name: str) -> int:
    found = backend.token_to_id(name)
    if found is None:
        raise TokenizerError("the tokenizer takes no further tokens")
    return found
