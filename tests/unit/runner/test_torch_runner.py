from pathlib import Path

import pytest
from runner_driver import generate
from tidegate_worker.engine.batch import ScheduledBatch, ScheduledSequence
from tidegate_worker.engine.sampling_params import SamplingParams
from tidegate_worker.runner.create import RunnerSettings, create_runner
from tidegate_worker.runner.torch_runner import TorchRunner
from tiny_llama import write_tiny_gguf

PROMPTS = [[5, 9, 30], list(range(20, 90)), [7], list(range(100, 117))]


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> TorchRunner:
    file = write_tiny_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf")
    return create_runner(RunnerSettings(str(file), kv_blocks=64, threads=1))


@pytest.mark.parametrize(("context_tokens", "block_size"), [(1, 16), (2, 1), (16, 16), (17, 16), (31, 4), (33, 16)])
def test_any_context_starts_however_short(tmp_path: Path, context_tokens: int, block_size: int) -> None:
    file = write_tiny_gguf(tmp_path / "tiny.gguf")
    settings = RunnerSettings(str(file), context_tokens=context_tokens, block_size=block_size, threads=1, kv_blocks=64)
    short = create_runner(settings)
    assert short.info.max_model_tokens == context_tokens
    room = context_tokens - 1
    if room:
        assert len(generate(short, [[5]], room)[0]) == room


def test_the_model_is_described(runner: TorchRunner) -> None:
    assert (runner.info.max_model_tokens, runner.info.total_blocks, runner.info.block_size) == (256, 64, 16)
    assert runner.info.eos_token_ids == (2,)


@pytest.mark.parametrize("chunk_tokens", [1, 5, 16, 1000])
@pytest.mark.parametrize("scatter", [False, True])
def test_batching_and_chunking_do_not_change_tokens(runner: TorchRunner, chunk_tokens: int, scatter: bool) -> None:
    alone = [generate(runner, [prompt], 10)[0] for prompt in PROMPTS]
    assert generate(runner, PROMPTS, 10, chunk_tokens=chunk_tokens, scatter_blocks=scatter) == alone


def test_seeded_sampling_repeats_in_any_company(runner: TorchRunner) -> None:
    params = SamplingParams(max_tokens=10, temperature=1.0, top_p=0.95, seed=11)
    alone = [generate(runner, [prompt], 10, params=params)[0] for prompt in PROMPTS]
    assert generate(runner, PROMPTS, 10, params=params) == alone


def test_results_come_in_the_batchs_order_and_only_where_asked(runner: TorchRunner) -> None:
    greedy = SamplingParams(max_tokens=1, temperature=0.0)
    batch = ScheduledBatch(
        [
            ScheduledSequence(8, [5], 40, [0, 1, 2], True, greedy, 0, 0),
            ScheduledSequence(3, [5], 2, [3], True, greedy, 0, 0),
            ScheduledSequence(9, [5, 6, 7], 0, [4], False, greedy, 0, 0),
            ScheduledSequence(1, [5, 6, 7], 0, [5], True, greedy, 0, 0),
        ]
    )
    assert [token.sequence_id for token in runner.execute(batch).tokens] == [8, 3, 1]


def test_a_step_without_sampling_gives_nothing(runner: TorchRunner) -> None:
    greedy = SamplingParams(max_tokens=1, temperature=0.0)
    part = ScheduledSequence(9, [5, 6, 7], 0, [4], False, greedy, 0, 0)
    assert runner.execute(ScheduledBatch([part])).tokens == []
