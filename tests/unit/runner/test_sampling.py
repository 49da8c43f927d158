import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tidegate_worker.engine.batch import ScheduledSequence
from tidegate_worker.engine.sampling_params import SamplingParams
from tidegate_worker.runner.sampling import sample, uniform

EOS = (0,)


def _sequence(params: SamplingParams, *, identity: int = 0, choice: int = 0, generated: int = 0) -> ScheduledSequence:
    return ScheduledSequence(identity, [1], 5, [0], True, params, choice, generated)


def _params(**changes: object) -> SamplingParams:
    return SamplingParams(**({"max_tokens": 1000} | changes))  # type: ignore[arg-type]


def _draws(logits: list[float], count: int, **changes: object) -> Counter[int]:
    row = torch.tensor([logits])
    sequences = [_sequence(_params(seed=5, **changes), generated=place) for place in range(count)]
    return Counter(token.token_id for token in sample(row.repeat(count, 1), sequences, EOS))


def test_greedy_takes_the_largest() -> None:
    tokens = sample(torch.tensor([[0.0, 3.0, 1.0], [5.0, 3.0, 1.0]]), [_sequence(_params(temperature=0.0))] * 2, EOS)
    assert [token.token_id for token in tokens] == [1, 0]
    assert tokens[0].logprob is None


def test_draws_follow_the_distribution() -> None:
    counts = _draws([math.log(0.7), math.log(0.2), math.log(0.1)], 4000)
    assert counts[0] / 4000 == pytest.approx(0.7, abs=0.03)
    assert counts[2] / 4000 == pytest.approx(0.1, abs=0.02)


def test_temperature_flattens() -> None:
    counts = _draws([math.log(0.9), math.log(0.1)], 3000, temperature=2.0)
    assert counts[0] / 3000 == pytest.approx(0.75, abs=0.03)


@pytest.mark.parametrize(
    ("changes", "allowed"),
    [
        ({"top_k": 2}, {0, 1}),
        ({"top_k": 1}, {0}),
        ({"top_k": 99}, {0, 1, 2, 3}),
        ({"top_p": 0.5}, {0}),
        ({"top_p": 0.51}, {0, 1}),
        ({"top_p": 1e-9}, {0}),
        ({"top_k": 3, "top_p": 0.6}, {0, 1}),
    ],
)
def test_cuts_leave_only_the_most_likely(changes: dict[str, float], allowed: set[int]) -> None:
    logits = [math.log(share) for share in (0.5, 0.3, 0.15, 0.05)]
    assert set(_draws(logits, 800, **changes)) == allowed


def test_a_flat_distribution_keeps_its_nucleus_beyond_the_first_candidates() -> None:
    counts = _draws([0.0] * 1000, 600, top_p=0.9)
    assert len(counts) > 300


def test_tokens_do_not_depend_on_the_batch() -> None:
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(1))
    kinds = [{}, {"top_p": 0.8}, {"top_k": 5}, {"temperature": 0.0}, {"temperature": 0.3}, {"logprobs": 3}]
    sequences = [_sequence(_params(seed=index, **kind), identity=index) for index, kind in enumerate(kinds)]
    together = [token.token_id for token in sample(logits.clone(), sequences, EOS)]
    alone = [sample(logits[[i]].clone(), [sequences[i]], EOS)[0].token_id for i in range(6)]
    assert together == alone


def test_streams_differ_by_seed_choice_and_position_and_repeat() -> None:
    places = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (-1, 0, 0), (2**63, 0, 0)]
    numbers = [uniform(*place) for place in places]
    assert len(set(numbers)) == len(places)
    assert numbers == [uniform(*place) for place in places]
    assert all(0 <= number < 1 for number in numbers)


def test_stops_are_not_sampled_before_min_tokens() -> None:
    logits = torch.tensor([[9.0, 8.0, 1.0]])
    params = _params(temperature=0.0, min_tokens=2, stop_token_ids=(1, 999))
    assert sample(logits.clone(), [_sequence(params, generated=1)], EOS)[0].token_id == 2
    assert sample(logits.clone(), [_sequence(params, generated=2)], EOS)[0].token_id == 0


def test_logprobs_are_the_models_own() -> None:
    shares = (0.6, 0.3, 0.1)
    params = _params(temperature=0.0, min_tokens=5, logprobs=2)
    logits = torch.tensor([[math.log(share) for share in shares]])
    token = sample(logits, [_sequence(params)], EOS)[0]
    assert token.token_id == 1
    assert token.logprob is not None
    assert token.logprob.logprob == pytest.approx(math.log(0.3), abs=1e-5)
    assert [ident for ident, _ in token.logprob.top] == [0, 1]
    assert token.logprob.top[0][1] == pytest.approx(math.log(0.6), abs=1e-5)


def test_zero_logprobs_give_the_chosen_one_alone() -> None:
    token = sample(torch.zeros(1, 4), [_sequence(_params(logprobs=0))], EOS)[0]
    assert token.logprob is not None
    assert token.logprob.top == []


@settings(max_examples=150, deadline=None)
@given(
    temperature=st.sampled_from([0.0, 1e-320, 1e-9, 1e-5, 1.0, 2.0, 1e30]) | st.floats(0, 10),
    top_p=st.sampled_from([1e-300, 1e-9, 0.5, 0.999999999, 1.0]),
    top_k=st.sampled_from([0, 1, 3, 10**9]),
    scale=st.sampled_from([0.0, 1.0, 1e4, 1e30]),
    seed=st.integers(-(2**63), 2**64 - 1),
)
def test_degenerate_settings_still_give_a_token(
    temperature: float, top_p: float, top_k: int, scale: float, seed: int
) -> None:
    logits = torch.linspace(-1, 1, 9).unsqueeze(0) * scale
    params = _params(temperature=temperature, top_p=top_p, top_k=top_k, seed=seed, logprobs=9)
    token = sample(logits, [_sequence(params)], EOS)[0]
    assert 0 <= token.token_id < 9
    assert token.logprob is not None
    assert not math.isnan(token.logprob.logprob)
