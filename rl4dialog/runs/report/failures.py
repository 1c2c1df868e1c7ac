"""Why conversations about a goal failed: how many, before and after training, with examples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rl4dialog.runs.report.predictions import Predictions
from rl4dialog.runs.report.samples import Answer, Sample

_N_EXAMPLES = 3


@dataclass(frozen=True)
class FailureCount:
    """A cause of failures.

    Attributes:
        cause: The cause, in words.
        before: Number of conversations before training in which it occurred; ``None`` without an evaluation.
        after: The same after training.
        examples: Samples on the page where it occurred, after training if it still does.
    """

    cause: str
    before: int | None
    after: int | None
    examples: list[Sample]


def failure_counts(
    before: Predictions | None, after: Predictions | None, samples: Sequence[Sample]
) -> list[FailureCount]:
    """Count causes, the most frequent one after training first.

    Args:
        before: Conversations before training.
        after: Those after training.
        samples: The samples on the page, with the same two evaluations.
    """
    counts = [None if each is None else _counted(each) for each in (before, after)]
    causes = dict.fromkeys(cause for count in counts[::-1] if count for cause, _ in count.most_common())
    shown = [(sample, _causes(sample.answers[0]), _causes(sample.answers[-1])) for sample in samples]
    found = []
    for cause in causes:
        old, new = (None if count is None else count[cause] for count in counts)
        now = [sample for sample, first, last in shown if cause in (last if new else first)]
        found.append(FailureCount(cause, old, new, now[:_N_EXAMPLES]))
    return found


def _counted(predictions: Predictions) -> Counter[str]:
    held = [each for each in predictions.conversations if each is not None]
    return Counter(cause for conversation in held for cause in set(conversation.failures))


def _causes(answer: Answer) -> list[str]:
    return answer.conversation.failures if answer.conversation is not None else []
