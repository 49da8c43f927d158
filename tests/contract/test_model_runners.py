"""What the engine may expect of any `ModelRunner`: held by the one with a model and by the one without."""

from pathlib import Path

import pytest
from runner_driver import GREEDY, generate
from tidegate_worker.engine.batch import ModelInfo, ModelRunner, ScheduledBatch, ScheduledSequence
from tidegate_worker.engine.sampling_params import SamplingParams
from tidegate_worker.engine.settings import SimSettings
from tidegate_worker.runner.create import RunnerSettings, create_runner
from tidegate_worker.sim.runner import SIM_EOS_TOKEN_ID, SIM_VOCABULARY_SIZE, SimRunner
from tiny_llama import write_tiny_gguf

BLOCK_SIZE = 8
PROMPTS = [list(b"the tide"), list(b"a gate at the harbour mouth"), list(b"x")]
SEEDED = SamplingParams(max_tokens=64, temperature=0.9, seed=11, ignore_eos=True)


@pytest.fixture(params=["torch", "sim"])
def runner(request: pytest.FixtureRequest, tmp_path: Path) -> ModelRunner:
    if request.param == "sim":
        return SimRunner(
            ModelInfo(256, SIM_VOCABULARY_SIZE, (SIM_EOS_TOKEN_ID,), BLOCK_SIZE, 64),
            SimSettings(),
            lambda _seconds: None,
        )
    model = write_tiny_gguf(tmp_path / "tiny.gguf")
    return create_runner(RunnerSettings(str(model), kv_blocks=64, block_size=BLOCK_SIZE, threads=1))


def part(sequence_id: int, token_ids: list[int], block_ids: list[int], params: SamplingParams) -> ScheduledSequence:
    return ScheduledSequence(sequence_id, token_ids, 0, block_ids, True, params, 0, 0)


def test_describes_its_cache_and_vocabulary(runner: ModelRunner) -> None:
    info = runner.info
    assert (info.block_size, info.total_blocks) == (BLOCK_SIZE, 64)
    assert info.max_model_tokens == 256
    assert all(0 <= token < info.vocabulary_size for token in info.eos_token_ids)


def test_tokens_come_back_in_the_order_of_the_batch_and_only_where_asked(runner: ModelRunner) -> None:
    asked = part(7, PROMPTS[0], [3], GREEDY)
    silent = ScheduledSequence(5, PROMPTS[1][:8], 0, [4], False, GREEDY, 0, 0)
    last = part(6, PROMPTS[2], [9], GREEDY)
    result = runner.execute(ScheduledBatch([asked, silent, last]))
    assert [token.sequence_id for token in result.tokens] == [7, 6]
    assert all(0 <= token.token_id < runner.info.vocabulary_size for token in result.tokens)


@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_output_depends_on_the_tokens_alone(runner: ModelRunner, params: SamplingParams) -> None:
    together = generate(runner, PROMPTS, 12, params=params, chunk_tokens=5, scatter_blocks=True)
    runner.forget([0, 1, 2])
    for index, prompt in enumerate(PROMPTS):
        assert generate(runner, [prompt], 12, params=params) == [together[index]]
        runner.forget([0])


def test_logprobs_come_when_asked_best_first(runner: ModelRunner) -> None:
    params = SamplingParams(max_tokens=4, temperature=0.0, logprobs=3)
    (token,) = runner.execute(ScheduledBatch([part(1, PROMPTS[1], [0, 1, 2, 3], params)])).tokens
    assert token.logprob is not None
    values = [value for _, value in token.logprob.top]
    assert len(values) == 3
    assert values == sorted(values, reverse=True)
    assert max(values) <= 0
    assert token.logprob.logprob <= values[0]


def test_min_tokens_holds_stop_tokens_back(runner: ModelRunner) -> None:
    for seed in range(20):
        params = SamplingParams(
            max_tokens=4, min_tokens=2, temperature=1.0, seed=seed, stop_token_ids=tuple(b"etaoinsh ")
        )
        (token,) = runner.execute(ScheduledBatch([part(seed, PROMPTS[0], [0], params)])).tokens
        assert token.token_id not in params.stop_token_ids
        assert token.token_id not in runner.info.eos_token_ids
        runner.forget([seed])


def test_forgetting_unknown_sequences_is_harmless(runner: ModelRunner) -> None:
    runner.forget([10_000])
