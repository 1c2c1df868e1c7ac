"""Whether there are enough votes for PPO: their number, and what the reward model learned from them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rl4dialog.core.errors import RunFolderError
from rl4dialog.core.feedback import counted
from rl4dialog.data.ratings import read_latest
from rl4dialog.functional.statistics import Interval, wilson_interval
from rl4dialog.runs.report.runs import read_run

MIN_PREFERENCES = 50
RULE = (
    f"PPO needs at least {MIN_PREFERENCES} preferences, and a reward model whose share of right held-out preferences "
    f"has a 95 % interval above 0.5. Otherwise, the model learns the corrections alone."
)
_HELD_OUT = ("val", "test")


@dataclass(frozen=True)
class Votes:
    """What holds of a feedback file.

    Attributes:
        preferences: Ids of the choices between two different replies.
        n_corrections: Number of corrections.
        n_ratings: Number of ratings of replies.
        n_conversation_ratings: Number of ratings of whole conversations, from which an improvement does not learn.
        models: Number of judged replies by each model.
        n_empty: How many of them are empty.
    """

    preferences: frozenset[str]
    n_corrections: int
    n_ratings: int
    n_conversation_ratings: int = 0
    models: Mapping[str, int] = field(default_factory=dict)
    n_empty: int = 0

    @property
    def are_enough(self) -> bool:
        """Whether there are enough preferences for a reward model that PPO can use."""
        return len(self.preferences) >= MIN_PREFERENCES

    def __str__(self) -> str:
        counts = {"preference": len(self.preferences), "correction": self.n_corrections, "rating": self.n_ratings}
        used = ", ".join(counted(n, kind) for kind, n in counts.items())
        n_unused = self.n_conversation_ratings
        return used + (f" (and {counted(n_unused, 'conversation_rating')}, not used here)" if n_unused else "")


@dataclass(frozen=True)
class Verdict:
    """How a reward model ranks preferences that it did not learn from.

    Attributes:
        n_right: Number of preferences whose chosen reply has the higher score; a tie counts half.
        n: Number of preferences.
    """

    n_right: float
    n: int

    @property
    def interval(self) -> Interval:
        """95 % interval of the share that is right, with the preferences as independent trials."""
        return wilson_interval(self.n_right, self.n) if self.n else Interval(0.0, 1.0)

    @property
    def is_good(self) -> bool:
        """Whether the interval is above 0.5."""
        return self.interval.low > 0.5

    def __str__(self) -> str:
        interval = self.interval
        share = f"{self.n_right / self.n:.2f}" if self.n else "unknown"
        return (
            f"{self.n_right:g} of {self.n} held-out preferences right: {share} (95 % interval {interval.low:.2f} to "
            f"{interval.high:.2f})"
        )


def read_votes(path: Path) -> Votes:
    """Read what holds of a feedback file."""
    given = read_latest(path)
    preferences = [each for each in given if each.kind == "preference"]
    replies = [reply for each in given for reply in each.replies if not each.rates_conversation]
    return Votes(
        frozenset(each.id for each in preferences if each.replies[0].text != each.replies[1].text),
        sum(each.kind == "correction" for each in given),
        sum(each.kind == "rating" for each in given),
        sum(each.rates_conversation for each in given),
        Counter(reply.model for reply in replies),
        sum(not reply.text.strip() for reply in replies),
    )


def read_verdict(run: Path, votes: Votes) -> Verdict:
    """Read how a complete reward model run ranks the preferences of its val and test splits after training.

    Corrections are left out: people write other replies than the model, which is easy to learn and says little about
    replies of the model.
    """
    read, margins = read_run(run), []
    for split in _HELD_OUT:
        epochs = read.epochs(split)
        found = read.predictions(split, epochs[-1]) if epochs else None
        if found is None:
            raise RunFolderError(f"the reward model run {run} has no predictions of split {split!r}; train it again")
        rows = zip(found.sample_ids, found.scores.get("margin", [math.nan] * len(found)), strict=True)
        margins += [float(margin) for id, margin in rows if id in votes.preferences]
    return Verdict(sum(1.0 if margin > 0 else 0.5 if margin == 0 else 0.0 for margin in margins), len(margins))
