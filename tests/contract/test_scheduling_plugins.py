"""What the scheduler may expect of any registered plugin, whatever its type."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidegate_router.scheduling.plugin import Candidates, SchedulingContext
from tidegate_router.scheduling.registry import PLUGIN_TYPES
from tidegate_router.state.endpoints import Endpoint, LoadColumns

LOADS = st.lists(
    st.tuples(st.integers(0, 500), st.integers(0, 2_000_000), st.integers(-1, 500), st.integers(0, 200_000)),
    min_size=1,
    max_size=20,
)
TYPES = {
    role: [name for name, kind in PLUGIN_TYPES.items() if kind.role == role] for role in ("filter", "scorer", "picker")
}


def made(name: str):  # noqa: ANN201 - a plugin of whatever role
    kind = PLUGIN_TYPES[name]
    return kind.make(kind.parameters())


def context_of(loads: list[tuple[int, int, int, int]], prompt_tokens: int) -> SchedulingContext:
    endpoints = tuple(Endpoint(slot, f"w{slot}", "127.0.0.1", 9_000 + slot, ready=True) for slot in range(len(loads)))
    columns = LoadColumns([a for a, _, _, _ in loads], [b for _, b, _, _ in loads], [c for _, _, c, _ in loads])
    cached = {slot: min(tokens, prompt_tokens) for slot, (_, _, _, tokens) in enumerate(loads) if tokens}
    return SchedulingContext(prompt_tokens, cached, columns, Candidates(endpoints))


@pytest.mark.parametrize("name", PLUGIN_TYPES)
def test_a_type_is_kebab_case_with_its_role_last(name: str) -> None:
    assert name == name.lower()
    assert name.endswith("-" + PLUGIN_TYPES[name].role)


@pytest.mark.parametrize("name", TYPES["scorer"])
@given(loads=LOADS, prompt_tokens=st.integers(0, 1_000_000))
def test_a_scorer_gives_each_candidate_a_number_from_0_to_1_or_none_at_all(
    name: str, loads: list[tuple[int, int, int, int]], prompt_tokens: int
) -> None:
    scores = made(name).score(context_of(loads, prompt_tokens))
    if scores is not None:
        assert len(scores) == len(loads)
        assert all(0 <= score <= 1 for score in scores)


@pytest.mark.parametrize("name", TYPES["picker"])
@given(scores=st.lists(st.floats(0, 100), min_size=1, max_size=30), chance=st.floats(0, 1, exclude_max=True))
def test_a_picker_names_one_of_the_candidates(name: str, scores: list[float], chance: float) -> None:
    assert 0 <= made(name).pick(scores, lambda: chance) < len(scores)


@pytest.mark.parametrize("name", TYPES["filter"])
def test_a_filter_never_keeps_more_for_a_named_model_than_for_none(name: str) -> None:
    rule = made(name)
    for ready in (True, False):
        for models in (None, frozenset({"a"}), frozenset[str]()):
            endpoint = Endpoint(0, "w", "127.0.0.1", 9_000, ready=ready, models=models)
            assert rule.keeps(endpoint, "") >= rule.keeps(endpoint, "a")
