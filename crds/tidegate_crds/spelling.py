"""Did-you-mean: the known name that a misspelt one most likely stands for."""

from collections.abc import Iterable

_FARTHEST = 2
_SHORT_NAME = 4
_LONGEST_COMPARED = 64


def suggest(written: str, known: Iterable[str]) -> str | None:
    """The closest of `known` within two edits (one for names up to four letters), or None.

    A swap of neighbours is one edit; `snake_case` and `kebab-case` for camelCase, and wrong capitals, are none.
    """
    if len(written) > _LONGEST_COMPARED:
        return None
    allowed = _FARTHEST if len(written) > _SHORT_NAME else 1
    best: tuple[int, str] | None = None
    for name in known:
        distance = 0 if _folded(name) == _folded(written) else edit_distance(written, name)
        if distance <= allowed and (best is None or distance < best[0]):
            best = (distance, name)
    return best[1] if best else None


def edit_distance(left: str, right: str) -> int:
    """Insertions, deletions, replacements and swaps of neighbours between two words (optimal string alignment)."""
    before: list[int] = []
    previous = list(range(len(right) + 1))
    for row, a in enumerate(left, start=1):
        current = [row]
        for column, b in enumerate(right, start=1):
            cost = min(previous[column] + 1, current[column - 1] + 1, previous[column - 1] + (a != b))
            if row > 1 and column > 1 and a == right[column - 2] and left[row - 2] == b:
                cost = min(cost, before[column - 2] + 1)
            current.append(cost)
        before, previous = previous, current
    return previous[-1]


def _folded(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()
