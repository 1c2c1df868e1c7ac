"""Reward for what is learned about a persona in a conversation."""

from __future__ import annotations

from collections.abc import Sequence
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
        pays_now: Whether a turn is paid as soon as it is over, instead of all turns at the end; passed by the toolkit.
        kwargs: Arguments of the candidates and of the scorer.

    Raises:
        ConfigError: If ``every_turn`` is combined with ``scorer: likelihood``, or as for the metric.
    """

    def __init__(
        self,
        shaping: Literal["potential", "end", "every_turn"] = "potential",
        pays_now: bool = False,
        **kwargs: Any,
    ) -> None:
        if shaping == "every_turn" and kwargs.get("scorer", "embedding") != "embedding":
            raise ConfigError(
                "reward 'persona_ranking': shaping: every_turn compares embeddings: use scorer: embedding"
            )
        if pays_now and kwargs.get("embedder") == "hidden_mean":
            # A text's vector must not depend on the texts beside it in a batch, which a resumed run has not read.
            kwargs["batch_size"] = 1
        super().__init__(**kwargs)
        self.needs_partner = kwargs.get("side", "partner") == "partner"
        self._shaping, self._pays_now = shaping, pays_now

    def __call__(self, dialogues: list[Dialogue], overs: list[bool]) -> list[float | list[float]]:
        due = [each for each, over in zip(dialogues, overs, strict=True) if over or self._pays_now]
        by_turn = iter(self._by_turn(due))
        return [
            self._payment(next(by_turn), over) if over or self._pays_now else 0.0
            for _, over in zip(dialogues, overs, strict=True)
        ]

    def _by_turn(self, dialogues: Sequence[Dialogue]) -> list[np.ndarray]:
        """Rewards of all turns of each conversation."""
        cases = [self._case(dialogue) for dialogue in dialogues]
        if self._shaping == "every_turn":
            assert isinstance(self._scorer, EmbeddingScorer)
            after = [-self._scorer.triplet_losses(case) for case in cases]
        else:
            after = [fit.potential for fit in self._scorer(cases)]
        values = (
            each[np.searchsorted(case.read, dialogue.turn_bounds)]
            for dialogue, case, each in zip(dialogues, cases, after, strict=True)
        )
        return [each[1:] if self._shaping == "every_turn" else np.diff(each) for each in values]

    def _payment(self, by_turn: np.ndarray, over: bool) -> float | list[float]:
        if self._shaping == "end":
            return float(by_turn.sum()) if over else 0.0
        return float(by_turn[-1]) if self._pays_now else by_turn.tolist()
