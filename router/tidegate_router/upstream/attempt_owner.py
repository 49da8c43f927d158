"""What an attempt is told, and whom it tells."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tidegate_router.tickets.ticket import Usage
from tidegate_router.upstream.answer_head import AnswerHead
from tidegate_router.upstream.faults import Fault, Verdict

if TYPE_CHECKING:
    from tidegate_router.upstream.attempt import Attempt


@dataclass(frozen=True, slots=True)
class AttemptLimits:
    """Bounds of each attempt."""

    first_byte_seconds: float
    between_chunks_seconds: float
    max_held_bytes: int
    """A non-streaming answer up to this size is held until whole."""


class AttemptOwner(Protocol):
    """Who asked. Exactly one of `answer_ready`, `answer_ended`, `attempt_refused` and `attempt_failed` ends it."""

    def answer_ready(self, attempt: "Attempt", head: AnswerHead, body: bytes, usage: Usage | None) -> None:
        """A whole answer to pass on."""

    def answer_started(self, attempt: "Attempt", head: AnswerHead, data: bytes) -> None:
        """An answer to pass on as it comes, with its first bytes."""

    def answer_continued(self, attempt: "Attempt", data: bytes) -> None:
        """More of it."""

    def answer_ended(self, attempt: "Attempt", usage: Usage | None) -> None:
        """It is whole."""

    def attempt_refused(self, attempt: "Attempt", verdict: Verdict, head: AnswerHead, body: bytes) -> None:
        """The worker answered that it cannot take this request: busy, or without the model."""

    def attempt_failed(self, attempt: "Attempt", fault: Fault) -> None:
        """The worker failed; `attempt.begun` says whether the client has bytes of the answer."""

    def may_leave(self, attempt: "Attempt") -> bool:
        """Whether the request could be sent to another endpoint now."""
