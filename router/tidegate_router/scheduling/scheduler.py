"""`Scheduler`: picks the endpoint for a request, and learns from what became of it. Pure.

    placement = scheduler.prepare(request)            once per request
    decision = scheduler.schedule(placement, tried)   once per attempt
    scheduler.observe_dispatch(placement, decision)   when it is sent
    scheduler.observe_failure(placement, decision)    when that attempt came to nothing
    scheduler.observe_usage(placement, decision, …)   when the worker said what it computed

Rejections, for the front to act on: `no-endpoints` is nobody ready (have endpoints probed, wait, schedule again);
`all-tried` is nobody left (start again with `tried` 0 where repeating is safe); `model-not-found` is final.
Endpoints that are out are never chosen: what heals is found by probes, not by clients.
"""

from tidegate_router.scheduling.decision import Decision, Rejected
from tidegate_router.scheduling.placement import Placement
from tidegate_router.scheduling.plugin import Candidates, Randomness, SchedulingContext
from tidegate_router.scheduling.profile import Profile
from tidegate_router.state.endpoint_table import EndpointTable
from tidegate_router.state.endpoints import Snapshot
from tidegate_router.state.prefix_index import TextPrefixIndex, chunk_hashes, covered_bytes
from tidegate_router.state.request import Request

MAX_CANDIDATES_ALL = 16
"""Up to this many eligible endpoints, all are scored."""
SAMPLED = 8
"""Of more, this many deepest matches and this many random ones: enough choices for even load, at constant cost."""
MAX_MODELS_KEPT = 128
LEARNING_RATE = 0.05
MIN_LEARNING_BYTES = 256
MIN_CORRECTED_BYTES = 1_024
"""A smaller gap between predicted and cached is rounding: template tokens, partial blocks, the tokens estimate."""


class Scheduler:
    """One profile over one endpoint table and prefix index; not thread-safe, one event loop owns it."""

    def __init__(self, profile: Profile, table: EndpointTable, index: TextPrefixIndex, randomness: Randomness) -> None:
        self.bytes_per_token = 4.0
        """Of raw JSON prompts, learned from usage; for `parse_request`."""
        self._profile = profile
        self._table = table
        self._index = index
        self._randomness = randomness
        self._eligible_for: Snapshot | None = None
        self._eligible: dict[str, Candidates | None] = {}

    def prepare(self, request: Request) -> Placement:
        """Hash a request's prompt; to be kept for all of its attempts."""
        return Placement(request, chunk_hashes(request))

    def schedule(self, placement: Placement, tried: int = 0) -> Decision | Rejected:
        """The best endpoint whose slot is not in the bit set `tried`; a rejection when there is none."""
        request = placement.request
        candidates = self._eligible.get(request.model) if self._table.snapshot is self._eligible_for else None
        if candidates is None:
            candidates = self._eligible_endpoints(request.model)
        if tried and candidates is not None:
            candidates = _without(candidates, tried)
        if candidates is None:
            return self._rejected(request.model, tried)
        matched = placement.matched = self._index.match(placement.hashes)
        if len(candidates.slots) > MAX_CANDIDATES_ALL:
            candidates = self._sample(candidates, matched)
        tokens = request.prompt_tokens_estimate
        cached = self._cached_tokens(request, matched) if matched else {}
        context = SchedulingContext(tokens, cached, self._table.load, candidates)
        scores: list[float] | None = None
        for scorer, weight in self._profile.scorers:
            preference = scorer.score(context)
            if preference is None:
                continue
            if scores is None:
                scores = preference if weight == 1.0 else [weight * each for each in preference]
            else:
                scores = [total + weight * each for total, each in zip(scores, preference, strict=True)]
        if scores is None:
            scores = [0.0] * len(candidates.slots)
        endpoint = candidates.endpoints[self._profile.picker.pick(scores, self._randomness)]
        predicted = cached.get(endpoint.slot, 0)
        return Decision(endpoint, predicted, tokens - predicted, candidates.endpoints, scores)

    def observe_dispatch(self, placement: Placement, decision: Decision) -> None:
        """The request goes to the endpoint, which will hold its prefix: siblings may follow at once."""
        slot = decision.endpoint.slot
        self._index.insert(slot, placement.hashes, placement.matched.get(slot, 0))

    def observe_failure(self, placement: Placement, decision: Decision) -> None:
        """The attempt failed or was turned away before an answer: the endpoint holds only what it held before."""
        slot = decision.endpoint.slot
        self._index.forget_tail(slot, placement.hashes, placement.matched.get(slot, 0))

    def observe_usage(
        self,
        placement: Placement,
        decision: Decision,
        prompt_tokens: int,
        cached_tokens: int | None,
    ) -> None:
        """The worker's own count; None when it does not say what was cached."""
        request = placement.request
        size = len(request.messages) + len(request.head)
        if prompt_tokens <= 0:
            return
        if size >= MIN_LEARNING_BYTES:
            seen = min(16.0, max(0.5, size / prompt_tokens))
            self.bytes_per_token += LEARNING_RATE * (seen - self.bytes_per_token)
        slot, hashes = decision.endpoint.slot, placement.hashes
        predicted = placement.matched.get(slot, 0)
        if cached_tokens is None or not (predicted or self._index.doubts(slot)):
            return
        cached_bytes = size * min(1.0, max(0, cached_tokens) / prompt_tokens)
        if not 0 < covered_bytes(request, predicted) - cached_bytes < MIN_CORRECTED_BYTES:
            self._index.correct(slot, hashes, predicted, _chunks_within(request, hashes, cached_bytes))

    def _eligible_endpoints(self, model: str) -> Candidates | None:
        snapshot = self._table.snapshot
        if snapshot is not self._eligible_for:
            self._eligible.clear()
            self._eligible_for = snapshot
        elif model in self._eligible:
            return self._eligible[model]
        filters = self._profile.filters
        kept = tuple(each for each in snapshot.endpoints if all(rule.keeps(each, model) for rule in filters))
        if len(self._eligible) >= MAX_MODELS_KEPT:
            self._eligible.clear()
        eligible = self._eligible[model] = Candidates(kept) if kept else None
        return eligible

    def _rejected(self, model: str, tried: int) -> Rejected:
        endpoints = self._table.snapshot.endpoints
        if tried and self._eligible_endpoints(model) is not None:
            return Rejected("all-tried")
        if not endpoints or not model or any(each.may_serve(model) for each in endpoints):
            return Rejected("no-endpoints")
        return Rejected("model-not-found")

    def _sample(self, candidates: Candidates, matched: dict[int, int]) -> Candidates:
        endpoints, random = candidates.endpoints, self._randomness
        count = len(endpoints)
        chosen = {each.slot: each for each in (endpoints[int(random() * count)] for _ in range(SAMPLED))}
        if matched:
            deepest = set(list(matched)[-SAMPLED:])  # `match` records shallow slots first.
            chosen.update((each.slot, each) for each in endpoints if each.slot in deepest)
        return Candidates(tuple(chosen.values()))

    def _cached_tokens(self, request: Request, matched: dict[int, int]) -> dict[int, int]:
        tokens_per_byte = request.prompt_tokens_estimate / (len(request.messages) + len(request.head))
        cached: dict[int, int] = {}
        tokens = depth = 0
        for slot, chunks in matched.items():
            if chunks != depth:  # Holders of the same depth follow each other.
                depth = chunks
                tokens = int(covered_bytes(request, chunks) * tokens_per_byte)
            cached[slot] = tokens
        return cached


def _without(candidates: Candidates, tried: int) -> Candidates | None:
    kept = tuple([each for each in candidates.endpoints if not tried >> each.slot & 1])
    return Candidates(kept) if kept else None


def _chunks_within(request: Request, hashes: list[int], size: float) -> int:
    """How many leading chunks end within `size` bytes of the prompt."""
    low, high = 0, len(hashes)
    while low < high:
        middle = (low + high + 1) // 2
        if covered_bytes(request, middle) <= size:
            low = middle
        else:
            high = middle - 1
    return low
