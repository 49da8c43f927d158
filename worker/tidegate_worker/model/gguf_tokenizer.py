"""Builds a `tokenizers` backend from a GGUF file's metadata: byte-level BPE, and sentencepiece BPE with byte fallback.

How text is cut before merging is not in the file, only its name (`tokenizer.ggml.pre`); the patterns below are those
under which the named vocabularies were trained.
"""

import itertools
from typing import Any

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from tidegate_worker.model.byte_alphabet import bytes_to_text, is_spelled
from tidegate_worker.model.errors import ModelFormatError, TokenizerError
from tidegate_worker.model.gguf import GgufFile

_CONTROL, _USER_DEFINED = 3, 4
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_LLAMA3 = _WORD + r"|\p{N}{1,3}" + _TAIL
_QWEN2 = _WORD + r"|\p{N}" + _TAIL

SPLIT_PATTERNS = {
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "smaug-bpe": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
}
SINGLE_DIGIT = frozenset({"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"})
PLAIN = frozenset({"default", "gpt2", "gpt-2", "phi-2", "olmo", "jina-en", "mpt"})


def build_backend(file: GgufFile) -> Tokenizer:
    """The tokenizer the file describes. Raises TokenizerError for kinds that are not supported."""
    kind = file.metadata.get("tokenizer.ggml.model")
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens or not isinstance(tokens[0], str):
        raise TokenizerError(f"{file.path}: holds no vocabulary; convert the model again with its tokenizer")
    if kind == "gpt2":
        backend = _byte_level(file, tokens)
    elif kind == "llama":
        backend = _sentencepiece(file, tokens)
    else:
        raise TokenizerError(
            f"{file.path}: tokenizer kind {kind!r} is not supported (gpt2 and llama are); "
            "use the model's Hugging Face directory instead"
        )
    _add_special_tokens(backend, file, tokens)
    _add_bos(backend, file, default=kind == "llama")
    return backend


def token_id(file: GgufFile, key: str) -> int | None:
    """A special token's id from the metadata; None when the file names none or one outside the vocabulary."""
    value = file.metadata.get(f"tokenizer.ggml.{key}")
    size = len(file.metadata.get("tokenizer.ggml.tokens", ()))
    return value if isinstance(value, int) and 0 <= value < size else None


def _byte_level(file: GgufFile, tokens: list[str]) -> Tokenizer:
    kinds = _token_types(file, len(tokens))
    vocabulary = {
        token if kind in (_CONTROL, _USER_DEFINED) or is_spelled(token) else bytes_to_text(token.encode()): index
        for index, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
    }
    merges = file.metadata.get("tokenizer.ggml.merges")
    if not isinstance(merges, list):
        raise TokenizerError(f"{file.path}: a BPE vocabulary without merges; convert the model again")
    pairs = []
    for merge in merges:
        left, separator, right = str(merge).partition(" ")
        if not separator:
            raise ModelFormatError(f"{file.path}: merge {merge!r} is no pair; the file is corrupt")
        pairs.append((left, right))
    backend = _bpe(file, vocabulary, pairs)
    backend.pre_tokenizer = _pre_tokenizer(file)
    backend.decoder = decoders.ByteLevel()
    return backend


def _pre_tokenizer(file: GgufFile) -> Any:
    name = file.metadata.get("tokenizer.ggml.pre", "default")
    if name in PLAIN:
        return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if name in SINGLE_DIGIT:
        return pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
    if name in SPLIT_PATTERNS:
        return pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(SPLIT_PATTERNS[name]), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    known = ", ".join(sorted({*PLAIN, *SINGLE_DIGIT, *SPLIT_PATTERNS}))
    raise TokenizerError(
        f"{file.path}: pre-tokenizer {name!r} is not supported ({known} are); "
        "use the model's Hugging Face directory instead"
    )


def _sentencepiece(file: GgufFile, tokens: list[str]) -> Tokenizer:
    scores = file.metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, np.ndarray) or len(scores) != len(tokens):
        raise TokenizerError(f"{file.path}: a sentencepiece vocabulary without scores; convert the model again")
    vocabulary = {token: index for index, token in enumerate(tokens)}
    unknown = token_id(file, "unknown_token_id")
    backend = _bpe(
        file,
        vocabulary,
        _merges_from_scores(vocabulary, [float(score) for score in scores]),
        unk_token=None if unknown is None else tokens[unknown],
        fuse_unk=True,
        byte_fallback=True,
    )
    steps: list[Any] = [normalizers.Replace(" ", "\u2581")]
    if file.metadata.get("tokenizer.ggml.add_space_prefix", True):
        steps.insert(0, normalizers.Prepend("\u2581"))
    backend.normalizer = normalizers.Sequence(steps)
    backend.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return backend


def _merges_from_scores(vocabulary: dict[str, int], scores: list[float]) -> list[tuple[str, str]]:
    # Sentencepiece joins the neighbours whose union scores best: each way to cut a token in two is a merge,
    # ranked by that token's score.
    ranked = [
        (-scores[index], index, vocabulary[token[:cut]], token[:cut], token[cut:])
        for token, index in vocabulary.items()
        for cut in range(1, len(token))
        if token[:cut] in vocabulary and token[cut:] in vocabulary
    ]
    ranked.sort()
    return [(left, right) for _, _, _, left, right in ranked]


def _bpe(file: GgufFile, vocabulary: dict[str, int], merges: list[tuple[str, str]], **options: Any) -> Tokenizer:
    try:
        return Tokenizer(models.BPE(vocab=vocabulary, merges=merges, **options))
    except Exception as error:  # the library raises bare Exception
        raise TokenizerError(f"{file.path}: vocabulary and merges do not fit together: {error}") from error


def _token_types(file: GgufFile, count: int) -> list[int]:
    kinds = file.metadata.get("tokenizer.ggml.token_type")
    if not isinstance(kinds, np.ndarray) or len(kinds) != count:
        return list(itertools.repeat(1, count))
    return [int(kind) for kind in kinds]


def _add_special_tokens(backend: Tokenizer, file: GgufFile, tokens: list[str]) -> None:
    kinds = _token_types(file, len(tokens))
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL]
    defined = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _USER_DEFINED]
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in control])
    backend.add_tokens([AddedToken(token, normalized=False, special=False) for token in defined])


def _add_bos(backend: Tokenizer, file: GgufFile, *, default: bool) -> None:
    bos = token_id(file, "bos_token_id")
    if bos is None or not file.metadata.get("tokenizer.ggml.add_bos_token", default):
        return
    backend.post_processor = processors.TemplateProcessing(single=["<bos>", "$A"], special_tokens=[("<bos>", bos)])
