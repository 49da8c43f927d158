"""One choice's tokens as text that may be shown: whole characters only, nothing of a stop string, least delay.

Between tokens exactly two things are held back: the bytes of an incomplete UTF-8 sequence, and the longest suffix of
the text that could still grow into a stop string. Log-probabilities are released with the text of their token. What is
released depends on the bytes alone, never on how they were split into tokens. The prompt is not part of the text:
continuation bytes of a character that the prompt began become U+FFFD.
"""

import codecs
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

_utf8 = codecs.getincrementaldecoder("utf-8")


class StopStrings:
    """Stop strings with the failure function of each (Knuth, Morris, Pratt 1977); shared by a request's choices."""

    def __init__(self, strings: Sequence[str]) -> None:
        self.strings = tuple(strings)
        self.failures = tuple(_failure_function(string) for string in self.strings)

    def __bool__(self) -> bool:
        return bool(self.strings)


class StopMatcher:
    """Where one text stands in each stop string, character by character, in amortised constant time each."""

    def __init__(self, stops: StopStrings) -> None:
        self._stops = stops
        self._matched = [0] * len(stops.strings)

    @property
    def held(self) -> int:
        """Length of the longest suffix of the text that is a proper prefix of a stop string."""
        return max(self._matched, default=0)

    def feed(self, text: str) -> tuple[int, int] | None:
        """(characters of `text` up to the end of the first stop, length of that stop), or None.

        The stop that ends first wins; of several that end together, the longest.
        """
        matched = self._matched
        for position, character in enumerate(text):
            found = 0
            for which, string in enumerate(self._stops.strings):
                failure = self._stops.failures[which]
                state = matched[which]
                while state and string[state] != character:
                    state = failure[state - 1]
                if string[state] == character:
                    state += 1
                if state == len(string):
                    found = max(found, state)
                    state = failure[state - 1]
                matched[which] = state
            if found:
                return position + 1, found
        return None


@dataclass(slots=True)
class _Waiting(Generic[T]):
    start: int
    """Characters before the token's own."""
    needs: int
    """Characters that must be released before the entry may be."""
    entry: T


class ChoiceText(Generic[T]):
    """The text of one choice as it grows. `T` is what accompanies a token (its log-probabilities)."""

    def __init__(self, stops: StopStrings) -> None:
        self._decoder = _utf8("replace")
        self._matcher = StopMatcher(stops) if stops else None
        self._held = ""
        self._decoded = 0
        self._pieces: list[str] = []
        self._released = 0
        self._waiting: deque[_Waiting[T]] = deque()
        self._entries: list[T] = []
        self.stopped = False
        """A stop string was found: the text is complete, further tokens are ignored."""

    @property
    def characters(self) -> int:
        """Whole characters so far, shown or held back: where the next token's text starts."""
        return self._decoded

    def push(self, token: bytes, entry: T | None = None) -> None:
        """Append a token's bytes (none for a special token)."""
        if self.stopped:
            return
        start = self._decoded
        text = self._decoder.decode(token)
        self._decoded += len(text)
        if entry is not None:
            unfinished = 1 if self._decoder.getstate()[0] else 0
            self._waiting.append(_Waiting(start, self._decoded + unfinished, entry))
        self._advance(text)

    def finish(self) -> None:
        """No token follows: what was held back belongs to the text, a cut-off character becomes U+FFFD."""
        if self.stopped:
            return
        text = self._decoder.decode(b"", final=True)
        self._decoded += len(text)
        self._advance(text)
        if not self.stopped:
            self._release(self._held)
            self._held = ""
            self._entries.extend(waiting.entry for waiting in self._waiting)
            self._waiting.clear()

    def take(self) -> tuple[str, list[T]]:
        """Text and entries released since the last call."""
        text = "".join(self._pieces)
        entries = self._entries
        self._pieces, self._entries = [], []
        return text, entries

    def _advance(self, text: str) -> None:
        if self._matcher is None:
            self._release(text)
        elif found := self._matcher.feed(text):
            end, length = found
            seen = self._held + text[:end]
            self._cut(seen[: len(seen) - length])
        else:
            seen = self._held + text
            keep = len(seen) - self._matcher.held
            self._held = seen[keep:]
            self._release(seen[:keep])

    def _release(self, text: str) -> None:
        if text:
            self._pieces.append(text)
            self._released += len(text)
        while self._waiting and self._waiting[0].needs <= self._released:
            self._entries.append(self._waiting.popleft().entry)

    def _cut(self, text: str) -> None:
        self.stopped = True
        self._held = ""
        self._release(text)
        # A token that straddles the cut has text on the near side, so it stays.
        self._entries.extend(waiting.entry for waiting in self._waiting if waiting.start < self._released)
        self._waiting.clear()


def _failure_function(string: str) -> list[int]:
    failure = [0] * len(string)
    length = 0
    for position in range(1, len(string)):
        while length and string[position] != string[length]:
            length = failure[length - 1]
        if string[position] == string[length]:
            length += 1
        failure[position] = length
    return failure
