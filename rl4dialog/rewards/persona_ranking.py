"""Reward for what is learned about a persona in a conversation."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from rl4dialog.core.errors import ConfigError
from rl4dialog.core.protocols import BatchedConversationReward
from rl4dialog.core.types import Dialogue
from rl4dialog.metrics.persona_ranking import PersonaRanking
from rl4dialog.metrics.persona_scorers import EmbeddingScorer


class PersonaRankingReward(PersonaRanking, BatchedConversationReward):
    """How much better the partner's persona can be told from others, by what the partner said in each turn.

    The potential of a conversation says how well the true persona is told from the distractors (see
    :mod:`rl4dialog.metrics.persona_scorers`). With ``scorer: likelihood``, it is the log posterior probability of the
    true persona, and the reward of a turn is the information that it gave, in nats. The rewards are paid when the
    conversation is over, each for its turn.

    Args:
        shaping: ``potential`` pays for each turn the change of the potential (Ng, Harada and Russell 1999). Without
            discounting, the rewards add up to the change over the whole conversation, so that turns that tell nothing
            new earn nothing. ``end`` pays their sum for the last turn. ``every_turn`` pays for each turn the
            negative ranking loss of convogym, with the distances of the chosen embedder. It is for comparisons, because
            it is never positive: every further turn costs something, whatever it tells. It also is a sum over facts, so
            its scale depends on the lengths of the personas. Unlike convogym's, the distractors are the same in all
            turns of a conversation, and conversation and facts have the same embedder.
        kwargs: Arguments of the candidates and of the scorer.

    Raises:
        ConfigError: If ``every_turn`` is combined with ``scorer: likelihood``, or as for the metric.
    """

    def __init__(self, shaping: Literal["potential", "end", "every_turn"] = "potential", **kwargs: Any) -> None:
        if shaping == "every_turn" and kwargs.get("scorer", "embedding") != "embedding":
            raise ConfigError(
                "reward 'persona_ranking': shaping: every_turn compares embeddings: use scorer: embedding"
            )
        super().__init__(**kwargs)
        self.needs_partner = kwargs.get("side", "partner") == "partner"
        self._shaping = shaping

    def __call__(self, dialogues: list[Dialogue], overs: list[bool]) -> list[float | list[float]]:
        cases = [self._case(dialogue) for dialogue, over in zip(dialogues, overs, strict=True) if over]
        if self._shaping == "every_turn":
            assert isinstance(self._scorer, EmbeddingScorer)
            found = [-self._scorer.triplet_losses(case) for case in cases]
        else:
            found = [fit.potential for fit in self._scorer(cases)]
        values = iter(zip(cases, found, strict=True))
        paid: list[float | list[float]] = []
        for dialogue, over in zip(dialogues, overs, strict=True):
            if not over:
                paid.append(0.0)
                continue
            case, after = next(values)
            by_turn = after[np.searchsorted(case.read, dialogue.turn_bounds)]
            if self._shaping == "every_turn":
                paid.append(by_turn[1:].tolist())
            elif self._shaping == "end":
                paid.append(float(by_turn[-1] - by_turn[0]))
            else:
                paid.append(np.diff(by_turn).tolist())
        return paid
