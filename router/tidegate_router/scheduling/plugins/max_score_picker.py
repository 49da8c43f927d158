"""`max-score-picker`: the best score wins; equals are drawn by lot, so that an idle fleet fills evenly."""

from tidegate_router.scheduling.plugin import Randomness


class MaxScorePicker:
    """Deterministic but for ties."""

    def pick(self, scores: list[float], randomness: Randomness) -> int:
        best = max(scores)
        ties = scores.count(best)
        index = scores.index(best)
        for _ in range(int(randomness() * ties) if ties > 1 else 0):
            index = scores.index(best, index + 1)
        return index
