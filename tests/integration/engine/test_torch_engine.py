"""The engine over the real torch runner on a tiny model: batching, prefix hits and preemption change no text."""

import time
from pathlib import Path

import pytest
from engine_builders import Answers, make_submit
from runner_driver import generate
from tidegate_worker.engine.batch import ModelRunner
from tidegate_worker.engine.engine import Engine
from tidegate_worker.engine.messages import Submit
from tidegate_worker.engine.settings import SchedulerSettings
from tidegate_worker.runner.create import RunnerSettings, create_runner
from tiny_llama import write_tiny_gguf

HEAD = b"The tide comes in and the tide goes out, and everyone shares this beginning. "


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf")


def make_runner(model: Path, blocks: int) -> ModelRunner:
    return create_runner(RunnerSettings(model_uri=str(model), kv_blocks=blocks, block_size=8, threads=1))


def run(runner: ModelRunner, submits: list[Submit]) -> tuple[Answers, Engine]:
    engine = Engine(runner, SchedulerSettings(max_batched_tokens=48, max_running=8), time.perf_counter)
    answers = Answers()
    for submit in submits:
        engine.submit(submit)
    for _ in range(2000):
        for choice in engine.step().choices:
            answers.hear(choice)
        if not engine.has_work:
            return answers, engine
    raise AssertionError(f"still working: {engine.load}")


def test_text_is_the_same_alone_batched_cached_and_preempted(model: Path) -> None:
    submits = [
        make_submit(
            f"r{number}",
            HEAD[: 20 * (number % 4)] + b"request number %d" % number,
            max_tokens=40,
            temperature=float(number % 2),
            seed=number,
            ignore_eos=True,
        )
        for number in range(10)
    ]
    runner = make_runner(model, blocks=33)
    alone = {
        submit.request_id: generate(runner, [submit.prompt_token_ids], 40, params=submit.params)[0]
        for submit in submits
    }
    answers, engine = run(make_runner(model, blocks=33), submits)
    assert engine.load.preemptions_total > 0
    assert engine.load.prefix_hit_tokens_total > 0
    assert {submit.request_id: answers.tokens[submit.request_id, 0] for submit in submits} == alone
    assert engine.load.referenced_blocks == 0


def test_choices_of_one_request_differ_and_repeat_with_their_seed(model: Path) -> None:
    submit = make_submit("r", HEAD, n=4, temperature=1.0, seed=3, max_tokens=16, ignore_eos=True)
    texts = []
    for neighbours in ([], [make_submit("other", HEAD[:30], temperature=1.0, seed=3, max_tokens=30)]):
        answers, _ = run(make_runner(model, blocks=64), [*neighbours, submit])
        texts.append([answers.tokens["r", index] for index in range(4)])
    assert texts[0] == texts[1]
    assert len({tuple(text) for text in texts[0]}) == 4
