"""Text that may be shown: whole characters, nothing of a stop string, least delay, whatever the split into tokens."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidegate_worker.server.detokenizer import ChoiceText, StopStrings

TEXTS = st.text(alphabet=st.sampled_from("abcab<>/é€𝄞ไทย🙂 \n"), max_size=40)
STOPS = st.lists(st.text(alphabet=st.sampled_from("abc<>é€🙂"), min_size=1, max_size=5), max_size=6)


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in pairwise(edges)]


def shown(stops: list[str], tokens: list[bytes]) -> tuple[str, ChoiceText[int]]:
    text = ChoiceText[int](StopStrings(stops))
    pieces = []
    for token in tokens:
        text.push(token)
        pieces.append(text.take()[0])
    text.finish()
    pieces.append(text.take()[0])
    return "".join(pieces), text


def up_to_stop(text: str, stops: list[str]) -> str:
    """The definition: the stop that ends first ends the text, of several ending together the longest."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))]
    return text


@given(st.binary(max_size=60), st.lists(st.integers(0, 1000)))
def test_deltas_of_any_bytes_join_to_the_decoding_of_the_whole(data: bytes, cuts: list[int]) -> None:
    assert shown([], split(data, cuts))[0] == data.decode("utf-8", "replace")


@given(TEXTS, st.lists(st.integers(0, 1000)), STOPS)
def test_text_ends_exactly_before_the_first_stop_however_it_is_split(
    text: str, cuts: list[int], stops: list[str]
) -> None:
    result, choice = shown(stops, split(text.encode(), cuts))
    assert result == up_to_stop(text, stops)
    assert choice.stopped == any(stop in text for stop in stops)


@given(TEXTS, STOPS)
def test_exactly_the_longest_suffix_that_may_become_a_stop_is_held_back(text: str, stops: list[str]) -> None:
    choice = ChoiceText[int](StopStrings(stops))
    released = ""
    for end, character in enumerate(text, 1):
        choice.push(character.encode())
        released += choice.take()[0]
        if choice.stopped:
            return
        seen = text[:end]
        prefixes = {stop[:length] for stop in stops for length in range(1, len(stop))}
        held = max((len(prefix) for prefix in prefixes if seen.endswith(prefix)), default=0)
        assert released == seen[: end - held]


@given(TEXTS, st.lists(st.integers(0, 1000)), STOPS)
def test_no_delta_is_a_broken_character_and_entries_never_outrun_their_text(
    text: str, cuts: list[int], stops: list[str]
) -> None:
    tokens = split(text.encode(), cuts)
    choice = ChoiceText[int](StopStrings(stops))
    released, entries = "", []
    for number, token in enumerate(tokens):
        choice.push(token, number)
        delta, new = choice.take()
        assert "\ufffd" not in delta
        released += delta
        entries += new
        spent = b"".join(tokens[: len(entries)])
        assert choice.stopped or spent == released.encode()[: len(spent)]
    choice.finish()
    delta, new = choice.take()
    entries += new
    assert entries == list(range(len(entries)))
    kept = (released + delta).encode()
    joined = b"".join(tokens[: len(entries)])
    assert joined.startswith(kept), "every shown character has its token's entry"
    assert (
        not entries or len(joined) - len(tokens[len(entries) - 1]) < max(1, len(kept)) or not tokens[len(entries) - 1]
    )


@pytest.mark.parametrize(
    ("tokens", "stops", "deltas"),
    [
        ([b"he", b"llo"], [], ["he", "llo", ""]),
        ([b"\xf0\x9f", b"\x99\x82!"], [], ["", "🙂!", ""]),
        ([b"\xe2\x82", b"x"], [], ["", "\ufffdx", ""]),
        ([b"\xe2\x82"], [], ["", "\ufffd"]),
        ([b"\x82\xac", b"a"], [], ["\ufffd\ufffd", "a", ""]),  # the end of a character that the prompt began
        ([b"ab<", b"/x", b"y"], ["</s>"], ["ab", "</x", "y", ""]),
        ([b"ab<", b"/s", b">tail"], ["</s>"], ["ab", "", "", ""]),
        ([b"a<", b"</", b"s>"], ["</s>"], ["a", "<", "", ""]),
        ([b"xab", b"abc"], ["ababc"], ["x", "", ""]),
        ([b"abc"], ["bc", "abc", "c"], ["", ""]),
        ([b"ab c"], ["ab c", "b"], ["a", ""]),
        ([b"</think>"], ["</thought>"], ["</think>", ""]),
        ([b"ab"], ["abc"], ["", "ab"]),
    ],
)
def test_deltas_token_by_token(tokens: list[bytes], stops: list[str], deltas: list[str]) -> None:
    choice = ChoiceText[int](StopStrings(stops))
    seen = []
    for token in tokens:
        choice.push(token)
        seen.append(choice.take()[0])
    choice.finish()
    seen.append(choice.take()[0])
    assert seen == deltas


def test_an_entry_waits_for_its_whole_character_and_for_held_back_text() -> None:
    choice = ChoiceText[str](StopStrings(["##"]))
    choice.push(b"\xc3", "first half")
    assert choice.take() == ("", [])
    choice.push(b"\xa9#", "second half and maybe-stop")
    assert choice.take() == ("é", ["first half"])
    choice.push(b"x", "after")
    assert choice.take() == ("#x", ["second half and maybe-stop", "after"])


def test_tokens_of_a_found_stop_string_have_no_entry_but_one_that_straddles_the_cut_has() -> None:
    choice = ChoiceText[str](StopStrings(["END"]))
    for token, entry in ((b"a", "a"), (b"bE", "straddles"), (b"ND", "of the stop"), (b"x", "ignored")):
        choice.push(token, entry)
    choice.finish()
    assert choice.take() == ("ab", ["a", "straddles"])
    assert choice.stopped


def test_a_special_token_has_an_entry_and_no_text() -> None:
    choice = ChoiceText[str](StopStrings([]))
    choice.push(b"", "special")
    assert choice.take() == ("", ["special"])


def test_long_stop_strings_cost_linear_time() -> None:
    choice = ChoiceText[int](StopStrings(["a" * 4000 + "b"]))
    for _ in range(200):
        choice.push(b"a" * 100)
    choice.finish()
    assert choice.take()[0] == "a" * 20_000
