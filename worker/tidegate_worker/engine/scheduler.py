"""What the next step computes: decode and chunked prefill mixed under one token budget."""

from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import islice, takewhile

from tidegate_worker.engine.block_pool import BlockPool
from tidegate_worker.engine.sequence import Sequence, SequenceState
from tidegate_worker.engine.settings import SchedulerSettings


@dataclass(frozen=True, slots=True)
class Assignment:
    """A sequence's part in a step: its next `tokens` uncomputed tokens."""

    sequence: Sequence
    tokens: int
    sample: bool
    """These reach the newest known token, so the step samples the next one."""


@dataclass(slots=True)
class _Step:
    """A step in the making."""

    budget: int
    decodes: list[Assignment] = field(default_factory=list)
    prefills: list[Assignment] = field(default_factory=list)
    completing: set[bytes] = field(default_factory=set)
    """Hashes of the blocks that this step's prefills complete."""

    def add(self, sequence: Sequence, tokens: int, block_size: int) -> None:
        assignment = Assignment(sequence, tokens, sample=tokens == sequence.uncomputed)
        self.budget -= tokens
        if sequence.uncomputed == 1:
            self.decodes.append(assignment)
            return
        self.prefills.append(assignment)
        first, end = sequence.computed // block_size, (sequence.computed + tokens) // block_size
        self.completing.update(sequence.reusable_hashes(block_size)[first:end])


class Scheduler:
    """Owns the queue and decides each step; holds blocks for running sequences and for nobody else.

    - Running sequences come first, in order of admission, each with as many of its uncomputed tokens as the budget
      leaves; then waiting ones, first come first served, while budget, places and blocks last.
    - A prompt's cached prefix is looked up when it is first scheduled, not when it arrives, so that a request queued
      behind its twin finds what the twin has computed.
    - When blocks run out, the youngest running sequence gives back all of its blocks and goes to the head of the queue.
      Later it computes its prompt *and its output so far* again (mostly found in the cache) and continues at the same
      position of its random stream: the text is that of a run without preemption.
    - A waiting sequence is admitted only if all its known tokens, and the running sequences' next blocks, fit: an
      admission never causes the preemption that undoes it in the next step.

    The oldest running sequence is never preempted for another one, and alone it fits (`EngineLimits` saw to that): so
    it ends, and by induction everything does.
    """

    def __init__(self, pool: BlockPool, settings: SchedulerSettings, block_size: int) -> None:
        self._pool = pool
        self._settings = settings
        self._block_size = block_size
        self._waiting: OrderedDict[int, Sequence] = OrderedDict()
        self._running: list[Sequence] = []
        self._waiting_tokens = 0
        self.preemptions_total = 0
        self.prefix_query_tokens_total = 0
        self.prefix_hit_tokens_total = 0

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    @property
    def running_count(self) -> int:
        return len(self._running)

    @property
    def backlog_tokens(self) -> int:
        """Tokens to compute before every sequence decodes."""
        return self._waiting_tokens + sum(sequence.backlog for sequence in self._running)

    def enqueue(self, sequence: Sequence) -> None:
        """Put a new sequence at the end of the queue."""
        self._waiting[sequence.sequence_id] = sequence
        self._waiting_tokens += sequence.backlog

    def remove(self, sequence: Sequence) -> None:
        """End a sequence in whatever state; its blocks are released. Does nothing to a finished one."""
        if sequence.state is SequenceState.RUNNING:
            self._running.remove(sequence)
            self._release(sequence)
        elif sequence.state is SequenceState.WAITING:
            self._leave_queue(sequence)
        sequence.state = SequenceState.FINISHED

    def schedule(self) -> list[Assignment]:
        """Choose the next step and hold the blocks it writes: decodes (one token each) first, prefill chunks after."""
        step = _Step(self._settings.max_batched_tokens)
        self._schedule_running(step)
        self._schedule_waiting(step)
        return step.decodes + step.prefills

    def complete(self, assignments: list[Assignment]) -> None:
        """Record that a step has been computed: its full blocks become reusable."""
        for assignment in assignments:
            sequence = assignment.sequence
            sequence.computed += assignment.tokens
            for block_id, content in sequence.unpublished(self._block_size):
                self._pool.publish(block_id, content)

    def _schedule_running(self, step: _Step) -> None:
        position = 0
        while position < len(self._running) and step.budget > 0:
            sequence = self._running[position]
            tokens = min(sequence.uncomputed, step.budget)
            missing = self._missing_blocks(sequence, tokens)
            if not self._make_room(missing, sequence):
                return
            sequence.block_ids += self._pool.allocate(missing)
            step.add(sequence, tokens, self._block_size)
            position += 1

    def _make_room(self, blocks: int, sequence: Sequence) -> bool:
        """Preempt from the young end until `blocks` are available; False if `sequence` itself had to go.

        Victims come after `sequence` in the running order, so none of them is in the step already.
        """
        while blocks > self._pool.available:
            victim = self._running[-1]
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _preempt(self, victim: Sequence) -> None:
        self._running.remove(victim)
        self._release(victim)
        victim.state = SequenceState.WAITING
        self._waiting[victim.sequence_id] = victim
        self._waiting.move_to_end(victim.sequence_id, last=False)
        self._waiting_tokens += victim.backlog
        self.preemptions_total += 1

    def _schedule_waiting(self, step: _Step) -> None:
        if step.budget == 0 or len(self._running) >= self._settings.max_running:
            return
        reserved = sum(self._blocks_ahead(sequence) for sequence in self._running)
        # The bound keeps a step's work independent of the length of the queue.
        for sequence in list(islice(self._waiting.values(), self._settings.max_running)):
            hashes = sequence.reusable_hashes(self._block_size)
            hit = self._pool.match(hashes)
            if self._should_give_way(sequence, hashes, len(hit), step):
                sequence.deferred = True
                continue
            if not self._fits(sequence, hit, reserved):
                return
            self._admit(sequence, hit)
            tokens = min(sequence.uncomputed, step.budget)
            sequence.block_ids += self._pool.allocate(self._missing_blocks(sequence, tokens))
            step.add(sequence, tokens, self._block_size)
            reserved += self._blocks_ahead(sequence)
            if step.budget == 0 or len(self._running) >= self._settings.max_running:
                return

    def _should_give_way(self, sequence: Sequence, hashes: list[bytes], hit: int, step: _Step) -> bool:
        """Whether to wait a step because someone computes the blocks behind its prefix hit right now.

        Only once, and only if that spares at least half of what the sequence would compute in this step.
        """
        if sequence.deferred or hit == len(hashes) or hashes[hit] not in step.completing:
            return False
        shared = sum(1 for _ in takewhile(step.completing.__contains__, hashes[hit:]))
        would_compute = min(len(sequence.token_ids) - hit * self._block_size, step.budget)
        return 2 * shared * self._block_size >= would_compute

    def _fits(self, sequence: Sequence, hit: list[int], reserved: int) -> bool:
        """Whether admission leaves everyone room to go on. Alone, a sequence always fits."""
        if not self._running:
            return True
        new_blocks = self._blocks(len(sequence.token_ids) + 1) - len(hit)
        return new_blocks + self._pool.unreferenced(hit) + reserved <= self._pool.available

    def _admit(self, sequence: Sequence, hit: list[int]) -> None:
        self._leave_queue(sequence)
        self._pool.acquire(hit)
        sequence.block_ids = hit
        sequence.published = len(hit)
        sequence.computed = len(hit) * self._block_size
        sequence.state = SequenceState.RUNNING
        self._running.append(sequence)
        request = sequence.request
        if request.cached_tokens is None:
            request.cached_tokens = sequence.computed
            self.prefix_query_tokens_total += sequence.prompt_tokens
            self.prefix_hit_tokens_total += sequence.computed

    def _leave_queue(self, sequence: Sequence) -> None:
        del self._waiting[sequence.sequence_id]
        self._waiting_tokens -= sequence.backlog

    def _release(self, sequence: Sequence) -> None:
        self._pool.release(sequence.block_ids)
        sequence.block_ids = []
        sequence.published = 0
        sequence.computed = 0

    def _missing_blocks(self, sequence: Sequence, tokens: int) -> int:
        """Blocks it must get before its next `tokens` can be written."""
        return self._blocks(sequence.computed + tokens) - len(sequence.block_ids)

    def _blocks_ahead(self, sequence: Sequence) -> int:
        """Blocks it will ask for to hold its known tokens and the next one."""
        return max(0, self._blocks(len(sequence.token_ids) + 1) - len(sequence.block_ids))

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._block_size)
