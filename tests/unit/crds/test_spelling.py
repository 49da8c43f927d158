"""Which misspelt names get a suggestion."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidegate_crds.spelling import edit_distance, suggest

KNOWN = ["name", "role", "replicas", "threads", "kvCache", "args"]


@pytest.mark.parametrize(
    ("written", "guess"),
    [
        ("replica", "replicas"),
        ("repplicas", "replicas"),
        ("replicsa", "replicas"),
        ("erplicsa", "replicas"),
        ("REPLICAS", "replicas"),
        ("kv_cache", "kvCache"),
        ("kv-cache", "kvCache"),
        ("nmae", "name"),
        ("nm", None),
        ("repl", None),
        ("x" * 1_000, None),
    ],
)
def test_near_misses_only(written: str, guess: str | None) -> None:
    assert suggest(written, KNOWN) == guess


@given(st.text("abc", max_size=6), st.text("abc", max_size=6))
def test_distance_is_symmetric_and_zero_only_for_equals(left: str, right: str) -> None:
    assert edit_distance(left, right) == edit_distance(right, left)
    assert (edit_distance(left, right) == 0) == (left == right)
