"""What a request remembers of its attempts: whom not to ask again, whether another try is allowed, what to say at last.

Busy workers and workers without the model cost no attempt: they answered at once, and each is asked at most once.
"""

import msgspec
from tidegate_proto.openai_errors import ApiError, ApiErrorKind

from tidegate_router.upstream.faults import Fault


class RetryState(msgspec.Struct, eq=False):
    """One per request. Pure."""

    _max_attempts: int
    _failures: int = 0
    _repeatable: int = 0
    _busy: bool = False
    _error: ApiError | None = None
    _missing: ApiError | None = None
    asked: int = 0
    """Workers asked, repeats included."""
    tried: int = 0
    """Bit set of slots not to be asked again."""
    retry_after: int | None = None
    """Smallest Retry-After of busy workers, in seconds."""

    @property
    def may_ask(self) -> bool:
        """Whether the budget of attempts allows one more."""
        return self._failures < self._max_attempts

    def asking(self, slot: int) -> None:
        """A worker is asked now."""
        self.asked += 1
        self.tried |= 1 << slot

    def failed(self, slot: int, fault: Fault, error: ApiError) -> None:
        """It failed."""
        self._failures += 1
        self._error = error
        if fault.may_repeat_here:
            self._repeatable |= 1 << slot

    def busy(self, slot: int, retry_after: int | None) -> None:
        """It has no room."""
        self._repeatable &= ~(1 << slot)
        self._busy = True
        if retry_after is not None and (self.retry_after is None or retry_after < self.retry_after):
            self.retry_after = retry_after

    def without_model(self, slot: int, error: ApiError) -> None:
        """It does not have the model."""
        self._repeatable &= ~(1 << slot)
        self._missing = error

    def start_over(self) -> bool:
        """Everybody was asked: allow those again that never began to answer; False when there is none."""
        if not self._repeatable or not self.may_ask:
            return False
        self.tried &= ~self._repeatable
        self._repeatable = 0
        return True

    def final_error(self) -> ApiError | None:
        """The most useful thing to say: full beats failed beats unknown model; None when nobody was asked."""
        if self._busy:
            return ApiError(ApiErrorKind.RATE_LIMITED, "every worker is busy; try again later")
        return self._error or self._missing
