"""YAML text: strict where PyYAML is lax, and every failure is one line that names its line."""

import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tidegate_crds.decoding import load_pool
from tidegate_crds.errors import ManifestError
from tidegate_crds.yaml_text import MAX_CHARACTERS, load_yaml


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[0x1F, 0o17, 017, -017, 12, +3]", [31, 15, 15, -15, 12, 3]),
        ("[1e3, 1.5, .5, -.inf]", [1000.0, 1.5, 0.5, -math.inf]),
        ("[1:30, 2024-01-01, 1_000, 08, 127.0.0.1]", ["1:30", "2024-01-01", "1_000", "08", "127.0.0.1"]),
        ("[true, no, ~, null, '']", [True, False, None, None, ""]),
        ("base: &b {x: 1}\nderived: {<<: *b, x: 2}", {"base": {"x": 1}, "derived": {"x": 2}}),
        ("---\na: 1\n---\n", {"a": 1}),
        ("\ufeffa: 1", {"a": 1}),
    ],
)
def test_scalars_mean_what_kubernetes_makes_of_them(text: str, expected: object) -> None:
    assert load_yaml(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the document is empty"),
        ("# nothing\n---\n", "the document is empty"),
        ("a: 1\nb: 2\na: 3", 'line 3: duplicate key "a", first given on line 1'),
        ("a: {c: 1,\n c: 2}", 'line 2: duplicate key "c", first given on line 1'),
        ("a: 1\n---\nb: 1", "line 3: a second document begins here; expected exactly one"),
        ("a: 1\n  b: 2", "line 2: not valid YAML: mapping values are not allowed here"),
        ("a: [1, 2", "line 1: not valid YAML: while parsing a flow sequence"),
        ("a:\n\t- b", "line 2: not valid YAML: while scanning for the next token"),
        ("a: *b", "line 1: not valid YAML: found undefined alias 'b'"),
        ("a: &a [*a]", "line 1: an alias stands inside what it names"),
        ("a: \x07", "line 1: not valid YAML: unprintable character U+0007"),
        ("a: !!python/object/apply:os.system [ls]", "line 1: not valid YAML: could not determine a constructor"),
        ("a: 1\nb: !!int x", 'line 2: not valid YAML: "x" does not fit the tag int'),
        ("a: !!bool x", 'line 1: not valid YAML: "x" does not fit the tag bool'),
        ("? [a]\n: 1", "line 1: not valid YAML: while constructing a mapping, found unhashable key"),
        ("a: " + "9" * 5_000, "line 1: not valid YAML: an integer with too many digits"),
        ("[" * 5_000, "nested more than 64 levels deep"),
        ("[" * 70 + "]" * 70, "line 1: nested more than 64 levels deep"),
        (
            "a: &a [1]\n"
            + "".join(
                f"{c}: &{c} [{'*' + p}, *{p}]\n"
                for p, c in zip("abcdefghijklmnopqrstu", "bcdefghijklmnopqrstuv", strict=True)
            ),
            "the document has more than 100000 values",
        ),
        ("#" * (MAX_CHARACTERS + 1), f"the document is longer than {MAX_CHARACTERS} characters"),
    ],
)
def test_bad_text_is_one_line_with_its_line_number(text: str, message: str) -> None:
    with pytest.raises(ManifestError) as caught:
        load_yaml(text)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_every_duplicate_key_is_reported() -> None:
    with pytest.raises(ManifestError) as caught:
        load_yaml("a: 1\na: 2\nb: {c: 1, c: 2}")
    assert len(caught.value.errors) == 2


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.text(st.characters(codec="utf-8"), max_size=60) | st.text("ab:-[]{}&*!|>'\"#%\n ,?.0e<", max_size=60))
def test_no_text_raises_anything_but_a_manifest_error(text: str) -> None:
    with pytest.raises(ManifestError):
        load_pool(text)
