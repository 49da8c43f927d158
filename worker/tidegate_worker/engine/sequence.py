"""A request and its choices, as the scheduler sees them: tokens known, tokens computed, blocks held."""

from enum import Enum, auto

from tidegate_proto.hashing import block_hash, root_hash

from tidegate_worker.engine.block_pool import BlockContent
from tidegate_worker.engine.messages import FinishReason, Submit
from tidegate_worker.engine.sampling_params import SamplingParams


class SequenceState(Enum):
    """Where a choice stands."""

    WAITING = auto()
    """Holds no blocks: not begun, or preempted."""
    RUNNING = auto()
    """Holds blocks for every computed token."""
    FINISHED = auto()


class Sequence:
    """One choice of a request.

    `token_ids` is the prompt followed by everything sampled; `computed` of them have their KV in `block_ids`, and the
    first `published` of those blocks can be found by others. There are no phases: computed chases len(token_ids), be it
    a prompt, a prompt with the output from before a preemption, or the one token sampled last.
    """

    __slots__ = (
        "block_hashes",
        "block_ids",
        "computed",
        "deferred",
        "index",
        "prompt_tokens",
        "published",
        "request",
        "sequence_id",
        "state",
        "token_ids",
    )

    def __init__(self, request: "Request", index: int, sequence_id: int) -> None:
        self.request = request
        self.index = index
        self.sequence_id = sequence_id
        """Grows with arrival; the larger one is the younger."""
        self.token_ids = list(request.prompt_token_ids)
        self.prompt_tokens = len(self.token_ids)
        self.computed = 0
        self.block_ids: list[int] = []
        self.block_hashes: list[bytes] = []
        self.published = 0
        self.state = SequenceState.WAITING
        self.deferred = False
        """It has given way once to a running sequence that computes its prefix."""

    @property
    def params(self) -> SamplingParams:
        return self.request.params

    @property
    def generated(self) -> int:
        """Tokens sampled so far."""
        return len(self.token_ids) - self.prompt_tokens

    @property
    def uncomputed(self) -> int:
        """Known tokens whose KV is not in the cache."""
        return len(self.token_ids) - self.computed

    @property
    def backlog(self) -> int:
        """Tokens to compute before its next token can be sampled, as far as known before a prefix hit.

        A running sequence that only decodes has none. A choice after the first has none until it was preempted: it will
        find the prompt in the cache.
        """
        if self.state is SequenceState.RUNNING:
            return self.uncomputed if self.uncomputed > 1 else 0
        if self.index > 0 and self.generated == 0:
            return 0
        return len(self.token_ids)

    def reusable_hashes(self, block_size: int) -> list[bytes]:
        """Hashes of the blocks that a prefix hit may cover: full ones that leave at least one token to compute.

        Without a token to compute there would be no logits to sample the next one from.
        """
        blocks = (len(self.token_ids) - 1) // block_size
        self._hash_blocks(blocks, block_size)
        return self.block_hashes[:blocks]

    def unpublished(self, block_size: int) -> list[tuple[int, BlockContent]]:
        """Blocks completed since the last call, with their content; they count as published from now on."""
        complete = self.computed // block_size
        if complete == self.published:
            return []
        self._hash_blocks(complete, block_size)
        contents = [
            (
                self.block_ids[i],
                BlockContent(
                    hash=self.block_hashes[i],
                    parent=self.block_hashes[i - 1] if i else self.request.root_hash,
                    token_ids=self.token_ids[i * block_size : (i + 1) * block_size],
                    adapter=self.request.adapter,
                    salt=self.request.salt,
                ),
            )
            for i in range(self.published, complete)
        ]
        self.published = complete
        return contents

    def finish_reason(self, eos_token_ids: tuple[int, ...], max_model_tokens: int) -> FinishReason | None:
        """Whether the newest token ends this choice: EOS, stop ids, then length. Not before min_tokens."""
        params, newest = self.params, self.token_ids[-1]
        if self.generated >= params.min_tokens:
            if not params.ignore_eos and newest in eos_token_ids:
                return "stop"
            if newest in params.stop_token_ids:
                return "stop"
        if self.generated >= params.max_tokens or len(self.token_ids) >= max_model_tokens:
            return "length"
        return None

    def _hash_blocks(self, blocks: int, block_size: int) -> None:
        hashes = self.block_hashes
        for i in range(len(hashes), blocks):
            parent = hashes[-1] if hashes else self.request.root_hash
            hashes.append(block_hash(parent, self.token_ids[i * block_size : (i + 1) * block_size]))


class Request:
    """A submitted request and its n choices.

    Choices know nothing of each other. The first one computes the prompt; the others, next in the queue, find its full
    blocks in the cache and recompute only the rest, at most one block: that is how they share the prompt's blocks, and
    how each gets the logits for its own first token. Whatever ends or preempts one leaves the others unharmed.
    """

    __slots__ = ("adapter", "cached_tokens", "choices", "params", "prompt_token_ids", "request_id", "root_hash", "salt")

    def __init__(self, submit: Submit, first_sequence_id: int) -> None:
        self.request_id = submit.request_id
        self.params = submit.params
        self.adapter = submit.adapter
        self.salt = submit.salt
        self.prompt_token_ids = submit.prompt_token_ids
        self.root_hash = root_hash(submit.adapter, submit.salt)
        self.cached_tokens: int | None = None
        """Prompt tokens that its first scheduled choice found in the prefix cache; None before that."""
        self.choices = [Sequence(self, index, first_sequence_id + index) for index in range(submit.params.n)]

    @property
    def finished(self) -> bool:
        return all(choice.state is SequenceState.FINISHED for choice in self.choices)
