"""Chooses tokens from logits. A request's tokens depend on its own logits and seed, never on who shares the batch.

Randomness is counter-based: the draw for (seed, choice, position) is one number computed from these three, so that a
sequence preempted and recomputed goes on in its own stream, and nothing is kept per sequence.
"""

import hashlib
import struct
from collections.abc import Sequence

import torch
from torch import Tensor

from tidegate_worker.engine.batch import SampledToken, ScheduledSequence
from tidegate_worker.engine.messages import TokenLogprob
from tidegate_worker.engine.sampling_params import SamplingParams

GREEDY_BELOW = 1e-5
"""Temperatures under this are greedy: dividing by them leaves nothing but the largest logit, or an overflow."""
NUCLEUS_CANDIDATES = 256
"""Most likely tokens looked at first for top_p; only a flatter distribution needs the whole vocabulary sorted."""


def sample(logits: Tensor, sequences: Sequence[ScheduledSequence], eos_token_ids: Sequence[int]) -> list[SampledToken]:
    """The next token of each sequence. logits: (sequences, vocab) fp32, may be changed."""
    if not sequences:
        return []
    wanted = [index for index, sequence in enumerate(sequences) if sequence.params.logprobs is not None]
    # Log-probabilities are the model's own, taken before anything is masked or scaled.
    model_logprobs = torch.log_softmax(logits[wanted], dim=-1) if wanted else None
    _forbid_early_stops(logits, sequences, eos_token_ids)
    chosen = logits.argmax(dim=-1).tolist()
    drawn = [index for index, sequence in enumerate(sequences) if sequence.params.temperature >= GREEDY_BELOW]
    for index, token in zip(drawn, _draw(logits, sequences, drawn), strict=True):
        chosen[index] = token
    logprobs: dict[int, TokenLogprob] = {}
    if model_logprobs is not None:
        for row, index in enumerate(wanted):
            logprobs[index] = _token_logprob(model_logprobs[row], chosen[index], sequences[index].params.logprobs or 0)
    return [
        SampledToken(sequence.sequence_id, chosen[index], logprobs.get(index))
        for index, sequence in enumerate(sequences)
    ]


def uniform(seed: int, choice_index: int, position: int) -> float:
    """A number in [0, 1), the same for the same arguments everywhere and always."""
    counter = struct.pack("<QQQ", seed % 2**64, choice_index % 2**64, position % 2**64)
    bits = int.from_bytes(hashlib.blake2b(counter, digest_size=8).digest(), "little")
    return (bits >> 11) * 2.0**-53


def _forbid_early_stops(logits: Tensor, sequences: Sequence[ScheduledSequence], eos: Sequence[int]) -> None:
    vocabulary = logits.shape[1]
    for index, sequence in enumerate(sequences):
        if sequence.generated >= sequence.params.min_tokens:
            continue
        stops = {token for token in (*eos, *sequence.params.stop_token_ids) if 0 <= token < vocabulary}
        if stops and len(stops) < vocabulary:
            logits[index, sorted(stops)] = float("-inf")


def _draw(logits: Tensor, sequences: Sequence[ScheduledSequence], rows: list[int]) -> list[int]:
    """Tokens of the rows that sample, grouped by how far their distributions are cut."""
    tokens: dict[int, int] = {}
    cut = [row for row in rows if _is_cut(sequences[row].params, logits.shape[1])]
    whole = [row for row in rows if row not in set(cut)]
    if whole:
        probabilities = _probabilities(logits[whole], [sequences[row].params for row in whole])
        picks = _pick(probabilities, [sequences[row] for row in whole])
        tokens.update(zip(whole, picks.tolist(), strict=True))
    for row in cut:
        tokens[row] = _draw_cut(logits[row], sequences[row])
    return [tokens[row] for row in rows]


def _is_cut(params: SamplingParams, vocabulary: int) -> bool:
    return params.top_p < 1.0 or 0 < params.top_k < vocabulary


def _draw_cut(logits: Tensor, sequence: ScheduledSequence) -> int:
    """One row with top_k or top_p: candidates in falling order, cut, then drawn."""
    params = sequence.params
    vocabulary = logits.shape[0]
    probabilities = _probabilities(logits.unsqueeze(0), [params])[0]
    count = min(params.top_k or NUCLEUS_CANDIDATES, vocabulary)
    candidates, ids = torch.topk(probabilities, count)
    if params.top_k:
        candidates = candidates / candidates.sum()
    elif float(candidates.sum()) < params.top_p:
        candidates, ids = torch.sort(probabilities, descending=True, stable=True)
    if params.top_p < 1.0:
        # A token stays while those before it hold less than top_p; the first always stays.
        before = candidates.cumsum(0) - candidates
        keep = before < params.top_p
        keep[0] = True
        candidates = candidates * keep
    return int(ids[_pick(candidates.unsqueeze(0), [sequence])[0]])


def _probabilities(logits: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    # (rows, vocab) fp64. The largest logit is taken off first, so that no temperature can overflow.
    temperatures = torch.tensor([item.temperature for item in params], dtype=torch.float64, device=logits.device)
    shifted = logits.double() - logits.amax(dim=-1, keepdim=True)
    return torch.softmax(shifted / temperatures.unsqueeze(1), dim=-1)


def _pick(weights: Tensor, sequences: Sequence[ScheduledSequence]) -> Tensor:
    """Index of each row's draw by inverse distribution; never one of weight zero. weights: (rows, choices) fp64."""
    draws = [uniform(item.params.seed, item.choice_index, item.generated) for item in sequences]
    cumulative = weights.cumsum(dim=-1)
    totals = cumulative[:, -1:].contiguous()
    targets = torch.tensor(draws, dtype=torch.float64, device=weights.device).unsqueeze(1) * totals
    picks = torch.searchsorted(cumulative, targets, right=True).squeeze(1)
    # Rounding can carry a target to the very end: the last choice that has weight takes it.
    last = torch.searchsorted(cumulative, totals).squeeze(1)
    return torch.minimum(picks, last)


def _token_logprob(logprobs: Tensor, token: int, count: int) -> TokenLogprob:
    top: list[tuple[int, float]] = []
    if count:
        values, ids = torch.topk(logprobs, min(count, logprobs.shape[0]))
        top = list(zip(ids.tolist(), values.tolist(), strict=True))
    return TokenLogprob(float(logprobs[token]), top)
