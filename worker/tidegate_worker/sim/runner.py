"""A model runner without a model: deterministic tokens, a time model, and hard checks of what the engine asks for.

Token ids: 0 to 255 are bytes, 256 ends the answer, 257 and up are reserved for a tokenizer's specials.
"""

from collections.abc import Callable

from tidegate_worker.engine.batch import ModelInfo, SampledToken, ScheduledBatch, ScheduledSequence, StepResult
from tidegate_worker.engine.messages import TokenLogprob
from tidegate_worker.engine.sampling_params import SamplingParams
from tidegate_worker.engine.settings import SimSettings

SIM_EOS_TOKEN_ID = 256
SIM_VOCABULARY_SIZE = 512

_MASK = (1 << 64) - 1
_EMPTY_CONTEXT = 0x9E3779B97F4A7C15
# Letters about as often as in English, so that text looks like words.
_ALPHABET = b"eeeeeeeettttttaaaaaoooooiiiiinnnnnsssshhhhrrrrddllccuummwwffggyyppbbvk       ..,"


class InvalidBatchError(Exception):
    """The engine asked for something that would read or write wrong KV. Always a bug of the engine."""


def extend_context(context: int, token_id: int) -> int:
    """The fingerprint of a context with one more token at its end (64 bits)."""
    mixed = ((context ^ token_id) * 0xBF58476D1CE4E5B9 + 0x94D049BB133111EB) & _MASK
    return mixed ^ (mixed >> 29)


def context_of(token_ids: list[int]) -> int:
    """The fingerprint of a whole context."""
    context = _EMPTY_CONTEXT
    for token_id in token_ids:
        context = extend_context(context, token_id)
    return context


class SimSampler:
    """Chooses tokens from a context's fingerprint: the same context, parameters and position give the same token.

    At temperature 0 seed and choice do not matter, as with a greedy model. Text is printable ASCII; the end-of-answer
    token comes only if `mean_output_tokens` asks for it.
    """

    def __init__(self, mean_output_tokens: int = 0) -> None:
        self._mean_output_tokens = mean_output_tokens

    def sample(self, context: int, params: SamplingParams, choice_index: int, generated: int) -> int:
        """The next token id of a choice after `generated` tokens, whose whole context has this fingerprint."""
        draw = context
        if params.temperature > 0:
            draw = extend_context(extend_context(draw, params.seed & _MASK), choice_index)
        may_stop = generated >= params.min_tokens
        if may_stop and not params.ignore_eos and self._ends(draw):
            return SIM_EOS_TOKEN_ID
        token_id = _ALPHABET[draw % len(_ALPHABET)]
        for _ in range(64):
            if may_stop or token_id not in params.stop_token_ids:
                break
            draw = extend_context(draw, token_id)
            token_id = _ALPHABET[draw % len(_ALPHABET)]
        return token_id

    def _ends(self, draw: int) -> bool:
        return self._mean_output_tokens > 0 and (draw >> 20) % self._mean_output_tokens == 0


class _Block:
    """What a block's slots hold: the fingerprint of the whole context up to and including each written slot."""

    __slots__ = ("after", "before", "contexts")

    def __init__(self, before: int) -> None:
        self.before = before
        self.contexts: list[int] = []
        self.after: int | None = None
        """The last slot's, once that is written."""

    def write(self, offset: int, context: int, block_size: int) -> None:
        """Write a slot; what stood in later ones belonged to another context and is void."""
        del self.contexts[offset:]
        self.contexts.append(context)
        self.after = context if offset + 1 == block_size else None


class SimRunner:
    """A `ModelRunner` whose next token depends on every token that attention would read, and on nothing else.

    Beside each block it keeps a shadow: the fingerprint of the context behind every written slot. A step is refused
    with `InvalidBatchError` unless each sequence's blocks cover its tokens, hold exactly the positions before `start`
    as one unbroken chain, agree with what this sequence had before, and are written by no other sequence of the batch.
    Text is drawn from the shadow's fingerprints, never from the engine's token lists, so that KV of a wrong block shows
    as other text even where no check can see it.
    """

    def __init__(self, info: ModelInfo, settings: SimSettings, sleep: Callable[[float], None]) -> None:
        self.info = info
        self._time = settings.time
        self._sleep = sleep
        self._sampler = SimSampler(settings.mean_output_tokens)
        self._blocks: dict[int, _Block] = {}
        self._sampled: dict[int, int] = {}  # sequence → tokens sampled
        self._known: dict[int, tuple[int, int]] = {}  # sequence → tokens computed at most, and their fingerprint

    def execute(self, batch: ScheduledBatch) -> StepResult:
        """Check, "compute", take the time that the time model says, and sample.

        Raises:
            InvalidBatchError: the batch would read or write wrong KV.
        """
        self._check_batch(batch)
        contexts = [self._compute(sequence) for sequence in batch.sequences]
        self._take_time(batch)
        return StepResult(
            [
                self._sample(sequence, context)
                for sequence, context in zip(batch.sequences, contexts, strict=True)
                if sequence.sample
            ],
        )

    def forget(self, sequence_ids: list[int]) -> None:
        """Drop what is remembered of ended sequences."""
        for sequence_id in sequence_ids:
            self._known.pop(sequence_id, None)
            self._sampled.pop(sequence_id, None)

    def _take_time(self, batch: ScheduledBatch) -> None:
        decodes = sum(len(s.token_ids) == 1 and s.sample for s in batch.sequences)
        prefill = sum(len(s.token_ids) for s in batch.sequences) - decodes
        seconds = self._time.step_seconds(prefill, decodes, sum(s.start for s in batch.sequences))
        if seconds > 0:
            self._sleep(seconds)

    def _check_batch(self, batch: ScheduledBatch) -> None:
        if not batch.sequences:
            raise InvalidBatchError("an empty batch")
        written = self._written_blocks(batch)
        chunks_seen = False
        for sequence in batch.sequences:
            held = self._check_shape(sequence)
            if any(written[block_id] != sequence.sequence_id for block_id in held & written.keys()):
                raise InvalidBatchError(f"sequence {sequence.sequence_id} holds a block that another one writes")
            is_chunk = len(sequence.token_ids) > 1
            if chunks_seen and not is_chunk and sequence.generated > 0 and sequence.sample:
                raise InvalidBatchError(f"sequence {sequence.sequence_id} decodes after prefill chunks")
            chunks_seen = chunks_seen or is_chunk

    def _written_blocks(self, batch: ScheduledBatch) -> dict[int, int]:
        """Every block that this step writes, and by which sequence."""
        written: dict[int, int] = {}
        for sequence in batch.sequences:
            for block_id in sequence.block_ids[sequence.start // self.info.block_size :]:
                if written.setdefault(block_id, sequence.sequence_id) != sequence.sequence_id:
                    raise InvalidBatchError(f"sequence {sequence.sequence_id} writes a block that another one writes")
        return written

    def _check_shape(self, sequence: ScheduledSequence) -> set[int]:
        """The set of its blocks, if tokens and blocks fit each other."""
        blocks = sequence.block_ids
        end = sequence.start + len(sequence.token_ids)
        if not sequence.token_ids:
            raise InvalidBatchError(f"sequence {sequence.sequence_id} computes nothing")
        if end > len(blocks) * self.info.block_size or end > self.info.max_model_tokens:
            raise InvalidBatchError(f"sequence {sequence.sequence_id}: {len(blocks)} blocks do not cover {end} tokens")
        held = set(blocks)
        if len(held) != len(blocks) or min(blocks) < 0 or max(blocks) >= self.info.total_blocks:
            raise InvalidBatchError(f"sequence {sequence.sequence_id} holds a block twice, or one that does not exist")
        return held

    def _compute(self, sequence: ScheduledSequence) -> int:
        """Write the sequence's tokens; the fingerprint of its context after them."""
        context = self._read(sequence)
        self._compare(sequence, sequence.start, context)
        position = sequence.start
        for token_id in sequence.token_ids:
            if not 0 <= token_id < self.info.vocabulary_size:
                raise InvalidBatchError(f"sequence {sequence.sequence_id}: token id {token_id} is out of range")
            block_id = sequence.block_ids[position // self.info.block_size]
            offset = position % self.info.block_size
            if offset == 0:
                self._blocks[block_id] = _Block(context)
            block = self._blocks[block_id]
            context = extend_context(context, token_id)
            block.write(offset, context, self.info.block_size)
            position += 1
            self._compare(sequence, position, context)
        highest = self._known.get(sequence.sequence_id, (0, 0))[0]
        if position > highest:
            self._known[sequence.sequence_id] = (position, context)
        return context

    def _read(self, sequence: ScheduledSequence) -> int:
        """The fingerprint of the positions before `start`, as attention would find them through the block table."""
        full, rest = divmod(sequence.start, self.info.block_size)
        context = _EMPTY_CONTEXT
        for block_id in sequence.block_ids[:full]:
            block = self._blocks.get(block_id)
            if block is None or block.before != context or block.after is None:
                raise InvalidBatchError(f"sequence {sequence.sequence_id}: block {block_id} does not hold its tokens")
            context = block.after
        if rest == 0:
            return context
        last = self._blocks.get(sequence.block_ids[full])
        if last is None or last.before != context or len(last.contexts) < rest:
            raise InvalidBatchError(f"sequence {sequence.sequence_id}: its last block does not hold its tokens")
        return last.contexts[rest - 1]

    def _compare(self, sequence: ScheduledSequence, tokens: int, context: int) -> None:
        known = self._known.get(sequence.sequence_id)
        if known is not None and known[0] == tokens and known[1] != context:
            raise InvalidBatchError(f"sequence {sequence.sequence_id} has another context than before")

    def _sample(self, sequence: ScheduledSequence, context: int) -> SampledToken:
        generated = self._sampled.get(sequence.sequence_id, 0)
        if sequence.generated != generated:
            raise InvalidBatchError(f"sequence {sequence.sequence_id} has {generated} tokens, not {sequence.generated}")
        self._sampled[sequence.sequence_id] = generated + 1
        token_id = self._sampler.sample(context, sequence.params, sequence.choice_index, sequence.generated)
        return SampledToken(sequence.sequence_id, token_id, _logprob(token_id, sequence.params))


def _logprob(token_id: int, params: SamplingParams) -> TokenLogprob | None:
    if params.logprobs is None:
        return None
    others = [other for other in sorted(set(_ALPHABET)) if other != token_id]
    top = [(other, -0.25 * (rank + 1)) for rank, other in enumerate([token_id, *others][: params.logprobs])]
    return TokenLogprob(-0.25, top)
