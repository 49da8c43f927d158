"""What a scheduling plugin is: three small protocols and the context that scorers read.

A request goes through filters (who may), scorers (how good, 0 to 1 each, weighted and summed) and one picker.
"""

from collections.abc import Callable
from operator import itemgetter
from typing import Protocol

from tidegate_router.state.endpoints import Endpoint, LoadColumns

Randomness = Callable[[], float]
"""A source of numbers in [0, 1)."""

DECODE_TOKENS = 128
"""What one request in flight weighs beside its uncached prompt tokens: its decoding slows others by about as much."""


class Candidates:
    """Endpoints to choose between, and their entries in a load column at C speed. At least one."""

    __slots__ = ("column", "endpoints", "slots")

    def __init__(self, endpoints: tuple[Endpoint, ...]) -> None:
        self.endpoints = endpoints
        self.slots = slots = tuple([each.slot for each in endpoints])
        self.column: Callable[[list[int]], tuple[int, ...]]
        """From a load column to the candidates' entries, in their order."""
        if len(slots) > 1:
            self.column = itemgetter(*slots)
        else:
            self.column = lambda column: (column[slots[0]],)


class SchedulingContext:
    """One request among its candidates: estimated tokens, what is cached where, and the load at this moment.

    `scale` is the most that the choice can cost, in prompt tokens: everything to compute behind the widest gap in
    work. Scorers that divide by it add up to one cost, whatever the size of the request.
    """

    __slots__ = ("cached_tokens", "candidates", "least_work", "load", "most_work", "requests", "scale", "work")

    def __init__(
        self,
        prompt_tokens: int,
        cached_tokens: dict[int, int],
        load: LoadColumns,
        candidates: Candidates,
    ) -> None:
        self.candidates = candidates
        self.cached_tokens = cached_tokens
        """Predicted, by slot; slots without a match are absent."""
        self.load = load
        self.requests = requests = candidates.column(load.in_flight_requests)
        """In flight, per candidate."""
        tokens = candidates.column(load.in_flight_tokens)
        self.work = work = [DECODE_TOKENS * a + b for a, b in zip(requests, tokens, strict=True)]
        """In flight per candidate, in prompt tokens."""
        # One call for both: `min` and `max` cost more than sorting a few numbers.
        ordered = sorted(work)
        self.least_work = least = ordered[0]
        self.most_work = most = ordered[-1]
        self.scale = (prompt_tokens + most - least) or 1


class Filter(Protocol):
    """Says who may get requests for a model. Its answer depends on its arguments alone, so the scheduler keeps it."""

    def keeps(self, endpoint: Endpoint, model: str) -> bool:
        """Whether the endpoint stays a candidate; `model` is empty when the request names none."""
        ...


class Scorer(Protocol):
    """Says how good each candidate is."""

    def score(self, context: SchedulingContext) -> list[float] | None:
        """One number in [0, 1] per candidate, in their order; more is better. None: all are equal to it."""
        ...


class Picker(Protocol):
    """Chooses by the summed scores."""

    def pick(self, scores: list[float], randomness: Randomness) -> int:
        """The index of the chosen candidate; `scores` is not empty."""
        ...
