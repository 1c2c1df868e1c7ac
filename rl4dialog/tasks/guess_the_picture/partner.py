"""The partner, who sees the hidden scene and answers questions about it, beside the guesser."""

from __future__ import annotations

import random
from typing import Any

from rl4dialog.core.arguments import Count
from rl4dialog.core.errors import DataError, shown
from rl4dialog.core.protocols import Partner
from rl4dialog.core.types import PartnerReply
from rl4dialog.tasks.guess_the_picture.guesser import Guesser
from rl4dialog.tasks.guess_the_picture.penalties import PENALTY, YesNoPenalty, is_penalized
from rl4dialog.tasks.guess_the_picture.questions import NOT_UNDERSTOOD, answer, parse
from rl4dialog.tasks.guess_the_picture.scenes import table_of

MAX_ROUNDS = 10


class GuessThePicturePartner(Partner):
    """Answers questions about the sample's scene, and pays -1 a round until a guesser has come half the way to it.

    The guesser ranks all scenes of the table by the answers. The game is over, and its last round pays 0, once the
    distance of the hidden scene to the first rank is at most half of what it was after the caption, or after
    ``max_rounds``. In half of the games the partner answers in whole sentences.

    Its outcome: ``success`` is 1 if the distance was halved, ``rounds`` the number of questions, and ``rank`` the final
    rank of the scene.

    Args:
        yes_no_penalty: Questions that are paid 2 less, by their answer: ``hard`` if it is exactly "yes" or "no",
            ``soft`` if it contains one of these words, ``conservative`` also if it is a negation or vague, such as "i
            can not tell".
        max_rounds: Number of questions after which the game is over. With fewer ``env.args.max_turns``, a game is cut
            there, and its last round costs as much as the others.

    Raises:
        DataError: At the start of a conversation, if the sample's ``meta_data`` has no scene of the game.
    """

    pays = True
    outcomes = ("success", "rounds", "rank")
    checks_samples = True
    rules = ("yes_no_penalty", "max_rounds")

    def __init__(self, yes_no_penalty: YesNoPenalty = "none", max_rounds: Count = MAX_ROUNDS) -> None:
        self._penalty: YesNoPenalty = yes_no_penalty
        self._max_rounds = max_rounds

    def reset(self, meta_info: dict[str, Any], seed: int) -> None:
        scenes = table_of(meta_info)
        if scenes is None:
            raise DataError(
                f"partner 'guess_the_picture' needs samples whose meta_data['scene'] is the number of a scene in the "
                f"table meta_data['table'], not {shown(meta_info.get('scene'))} in {shown(meta_info.get('table'))}; "
                f"use the datapool guess_the_picture"
            )
        self._scene = scenes[meta_info["scene"]]
        self._guesser = Guesser(scenes, meta_info["scene"])
        self._in_sentences = random.Random(seed).random() < 0.5
        self._n_rounds = 0

    def reply(self, history: list[str]) -> PartnerReply:
        question = parse(history[-1])
        said = NOT_UNDERSTOOD if question is None else answer(question, self._scene, self._in_sentences)
        self._guesser.hear(history[-1], said)
        self._n_rounds += 1
        is_over = self._guesser.is_halved or self._n_rounds >= self._max_rounds
        reward = (0.0 if is_over else -1.0) + (PENALTY if is_penalized(said, self._penalty) else 0.0)
        return PartnerReply(said, reward=reward, leaves=is_over)

    def outcome(self) -> dict[str, float]:
        return {
            "success": float(self._guesser.is_halved),
            "rounds": float(self._n_rounds),
            "rank": self._guesser.rank,
        }
