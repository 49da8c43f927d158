"""Runs scheduled batches on a model: one flat forward over decode tokens and prefill chunks, then sampling.

Owns the KV cache, one tensor per layer, allocated once. It keeps nothing per sequence: positions, blocks and the place
in each random stream come with every batch.
"""

import torch
from torch import Tensor

from tidegate_worker.engine.batch import ModelInfo, ScheduledBatch, ScheduledSequence, StepResult
from tidegate_worker.engine.sampling_params import SamplingParams
from tidegate_worker.kernels.attention import Span, decode_order, plan_attention
from tidegate_worker.model.llama import LlamaModel
from tidegate_worker.runner.sampling import sample

WARM_UP_PROMPT_TOKENS = 32


class TorchRunner:
    """Implements `ModelRunner` over a `LlamaModel` on one device."""

    def __init__(self, model: LlamaModel, info: ModelInfo) -> None:
        self.info = info
        self.model = model
        config = model.config
        shape = (info.total_blocks, info.block_size, 2, config.kv_heads, config.head_dim)
        self.caches: list[Tensor] = [
            torch.zeros(shape, dtype=model.embedding.dtype, device=model.embedding.device) for _ in range(config.layers)
        ]

    def execute(self, batch: ScheduledBatch) -> StepResult:
        """Run the model over the batch, write its KV, sample where asked; results in the batch's order."""
        with torch.inference_mode():
            logits = self.compute_logits(batch)
            sampling = [sequence for sequence in batch.sequences if sequence.sample]
            return StepResult(sample(logits, sampling, self.info.eos_token_ids))

    def forget(self, sequence_ids: list[int]) -> None:
        """Nothing is kept per sequence."""

    @torch.inference_mode()
    def compute_logits(self, batch: ScheduledBatch) -> Tensor:
        """Run the model; (sampling sequences, vocab) fp32, in the batch's order."""
        ordered = _row_order(batch.sequences)
        spans = [Span(item.start, len(item.token_ids), item.block_ids) for item in ordered]
        decodes = [span for span in spans if span.tokens == 1]
        plan = plan_attention(decodes, spans[len(decodes) :], self.caches[0])
        device = self.model.embedding.device
        tokens = torch.tensor([token for item in ordered for token in item.token_ids], device=device)
        positions = torch.cat([torch.arange(span.start, span.start + span.tokens) for span in spans]).to(device)
        hidden = self.model.forward(tokens, positions, self.caches, plan)
        rows = torch.tensor(_sampling_rows(ordered, batch.sequences), dtype=torch.int64, device=device)
        if len(rows) == 0:
            return hidden.new_empty((0, self.info.vocabulary_size), dtype=torch.float32)
        return self.model.logits(hidden[rows])

    def warm_up(self) -> None:
        """Run a prefill and decodes of every usual width once, so that the first request does not pay for it."""
        greedy = SamplingParams(max_tokens=1, temperature=0.0)
        wanted = min(WARM_UP_PROMPT_TOKENS, self.info.max_model_tokens)
        blocks = min(self.info.total_blocks, -(-wanted // self.info.block_size))
        length = min(wanted, blocks * self.info.block_size)
        table = list(range(blocks))
        prompt = ScheduledSequence(0, [0] * length, 0, table, True, greedy, 0, 0)
        self.execute(ScheduledBatch([prompt]))
        for width in (1, 8, 16):
            # The rows write the same slot; what the cache holds is of no matter yet.
            decode = [ScheduledSequence(index, [0], length - 1, table, True, greedy, 0, 0) for index in range(width)]
            self.execute(ScheduledBatch(decode))
        for cache in self.caches:
            cache[:blocks].zero_()


def _row_order(sequences: list[ScheduledSequence]) -> list[ScheduledSequence]:
    """Single tokens first, by length, then the longer chunks: the order of rows that attention wants."""
    single = [item for item in sequences if len(item.token_ids) == 1]
    chunks = [item for item in sequences if len(item.token_ids) > 1]
    order = decode_order([Span(item.start, 1, item.block_ids) for item in single])
    return [single[index] for index in order] + chunks


def _sampling_rows(ordered: list[ScheduledSequence], wanted: list[ScheduledSequence]) -> list[int]:
    """The last row of each sampling sequence, in the order of `wanted`."""
    last: dict[int, int] = {}
    row = 0
    for item in ordered:
        row += len(item.token_ids)
        last[item.sequence_id] = row - 1
    return [last[item.sequence_id] for item in wanted if item.sample]
