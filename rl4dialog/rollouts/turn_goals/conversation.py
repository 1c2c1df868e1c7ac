"""One conversation of `turn_goals`: what was said to which goals, and what it earned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rl4dialog.core.errors import DataError
from rl4dialog.core.seeding import derive_seed
from rl4dialog.core.types import AGENT, PARTNER, SPEAKERS, Dialogue, Sample, Turn, given_turns
from rl4dialog.tasks.turn_goals import GoalTurn, TurnGoal, follows


def check_samples(samples: Sequence[Sample]) -> None:
    """Check that conversations can begin about all samples: with a persona of the partner and its first utterance."""
    for sample in samples:
        info = sample.meta_data or {}
        for key, what in (("partner_persona", "facts about the partner"), ("history", "a first utterance")):
            found = info.get(key)
            if not isinstance(found, list | tuple) or not found:
                raise DataError(
                    f"env.id: turn_goals needs {what} in meta_data[{key!r}] of every sample, and sample {sample.id!r} "
                    f"has none; the datapools get_acquainted and persona_pairs provide both"
                )


class GoalConversation:
    """A conversation in progress.

    Args:
        samples: The samples.
        place: Which of them it is about: the personas of both sides, and the partner's first utterance.
        seed: Its seed.

    Attributes:
        goals: Numbers of the goals so far.
        said: The agent's utterances and the partner's, in turn.
        rewards: Reward of each turn.
        left: Whether the partner has left.
        estimate: Estimate of the partner's state, in its last observation.
    """

    def __init__(self, samples: Sequence[Sample], place: int, seed: int) -> None:
        self.sample, self.place, self.seed = samples[place], place, seed
        self.goals: list[int] = []
        self.said: list[str] = []
        self.rewards: list[float] = []
        self.left = False
        self.estimate: list[float] = []

    @property
    def meta_info(self) -> dict[str, Any]:
        """The sample's meta data."""
        return self.sample.meta_data or {}

    @property
    def texts(self) -> list[str]:
        """All utterances, those of the sample included."""
        return [*self.meta_info["history"], *self.said]

    @property
    def partner_texts(self) -> list[str]:
        """What the partner said, its first utterance included."""
        return [turn.text for turn in self.dialogue.turns if turn.speaker == PARTNER]

    @property
    def dialogue(self) -> Dialogue:
        """The conversation so far."""
        given = given_turns(self.meta_info["history"])
        said = (Turn(text, PARTNER if i % 2 else AGENT) for i, text in enumerate(self.said))
        return Dialogue(self.sample.id, (*given, *said), meta_data=self.meta_info, n_given=len(given))

    def turn(self, goal: TurnGoal) -> GoalTurn:
        """Return the agent's next turn."""
        return GoalTurn(goal, self.texts, self.meta_info, derive_seed(self.seed, "turn", len(self.goals)))

    def follows(self, goals: Sequence[TurnGoal]) -> list[bool]:
        """Whether each of the agent's utterances has its goal."""
        return [follows(text, goals[n], goals) for text, n in zip(self.said[::2], self.goals, strict=True)]

    def transcript(self, goals: Sequence[TurnGoal], outcome: Mapping[str, float]) -> dict[str, Any]:
        """Write the conversation, which is over, as plain JSON types: ``turns``, ``outcome`` and ``ended_by``."""
        turns: list[dict[str, Any]] = []
        dialogue = self.dialogue
        chosen = iter(zip(self.goals, self.rewards, strict=True))
        for i, turn in enumerate(dialogue.turns):
            record: dict[str, Any] = {"speaker": SPEAKERS[turn.speaker], "text": turn.text}
            if i < dialogue.n_given:
                record["given"] = True
            elif turn.speaker == AGENT:
                number, reward = next(chosen)
                record |= {"goal": goals[number].name, "reward": reward}
            turns.append(record)
        record = {"turns": turns, "outcome": dict(outcome), "ended_by": "partner" if self.left else "max_turns"}
        return record | {key: self.meta_info[key] for key in ("persona", "partner_persona") if key in self.meta_info}
