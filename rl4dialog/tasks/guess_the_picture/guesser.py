"""The guesser, who ranks all scenes of a table by what was said so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from rl4dialog.tasks.guess_the_picture.questions import parse, values_left
from rl4dialog.tasks.guess_the_picture.scenes import ATTRIBUTES, Scene


class Guesser:
    """Gives points to scenes: those of its first impression, and one for everything said that is true of the scene.

    Said are the view, by the caption, and by the answers the values of each attribute that are still possible. What is
    said again, in the same or in other words, gives no further points.

    The rank of a scene is 1, plus the number of scenes with more points, plus half the number of others with equally
    many. Its distance to the first place is its rank minus 1. The distance is *halved* when it is at most half of what
    it was after the caption.

    Args:
        scenes: All scenes.
        hidden: Index of the hidden scene.

    Attributes:
        left: By attribute, the values that the answers leave possible.
        rank: Rank of the hidden scene; may be a half, such as 3.5.
        start_rank: Its rank after the caption.
    """

    def __init__(self, scenes: Sequence[Scene], hidden: int) -> None:
        self._scenes, self._hidden = scenes, hidden
        view = scenes[hidden].view
        # Attributes about which nothing was said give a point to all scenes, which is left out.
        self._points = [scene.impression + (scene.view == view) for scene in scenes]
        self.left = all_values()
        self.rank = self.start_rank = self._rank()

    def hear(self, question: str, answer: str) -> None:
        """Take note of what the agent asked and what was answered. Anything that is not understood is ignored."""
        before, self.left = self.left, narrowed(self.left, question, answer)
        for name, values in before.items():
            if excluded := values - self.left[name]:
                self._points = [
                    points - (scene.values[name] in excluded)
                    for points, scene in zip(self._points, self._scenes, strict=True)
                ]
                self.rank = self._rank()

    @property
    def is_halved(self) -> bool:
        """Whether the distance of the hidden scene to the first place is at most half of what it was at the start."""
        return self.rank - 1 <= (self.start_rank - 1) / 2

    def _rank(self) -> float:
        own = self._points[self._hidden]
        n_better = sum(points > own for points in self._points)
        return 1 + n_better + (self._points.count(own) - 1) / 2


def all_values() -> dict[str, frozenset[str]]:
    """Return all values of each attribute, by its name."""
    return {name: frozenset(attribute.values) for name, attribute in ATTRIBUTES.items()}


def narrowed(left: Mapping[str, frozenset[str]], question: str, answer: str) -> dict[str, frozenset[str]]:
    """Return the values that are still possible after an answer, which may say nothing."""
    asked = parse(question)
    said = None if asked is None else values_left(asked, answer)
    if asked is None or said is None:
        return dict(left)
    return {**left, asked.attribute: left[asked.attribute] & said}


def values_left_by(history: Sequence[str]) -> dict[str, frozenset[str]]:
    """Return the values of each attribute that all answers of a conversation leave possible.

    Args:
        history: The utterances, oldest first.
    """
    left = all_values()
    for question, answer in pairwise(history):
        left = narrowed(left, question, answer)
    return left
