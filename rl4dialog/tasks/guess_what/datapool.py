"""The datapool: games between scripted players and the partner."""

from __future__ import annotations

import random
from functools import partial

from rl4dialog.core.arguments import Count, Fraction
from rl4dialog.core.errors import DataError
from rl4dialog.core.seeding import derive_seed
from rl4dialog.core.types import Sample, is_number
from rl4dialog.data.dialogue_format import DialogueFormat, FormatName, RenderChat
from rl4dialog.data.pool import TextGenPool, check_counts, check_split
from rl4dialog.tasks.guess_what.partner import GuessWhatPartner
from rl4dialog.tasks.guess_what.players import (
    MAX_TURNS,
    BlindPlayer,
    CarelessPlayer,
    ConsistentPlayer,
    InformationGainPlayer,
    MixedPlayer,
)
from rl4dialog.tasks.guess_what.questions import OPENING
from rl4dialog.tasks.guess_what.things import THINGS
from rl4dialog.tasks.playing import play


class GuessWhat(TextGenPool):
    """Games of twenty questions about everyday things, played by scripted players, without files or network."""

    @classmethod
    def prepare(
        cls,
        split: str,
        n_train: Count = 5000,
        n_val: Count = 500,
        n_test: Count = 500,
        consistent_share: Fraction = 0.4,
        max_turns: Count = MAX_TURNS,
        seed: int = 0,
        format: FormatName = "eou",
        render_chat: RenderChat | None = None,
    ) -> GuessWhat:
        """Generate the games of one split.

        All splits have the same 40 things; ``val`` and ``test`` are other games about them.

        Args:
            split: ``train``, ``val`` or ``test``.
            n_train: Number of games in ``train``. A larger number keeps the first ones; likewise below.
            n_val: Number of games in ``val``.
            n_test: Number of games in ``test``.
            consistent_share: Share of games by a player who asks at random, but never twice; the others are played by
                one who repeats questions and guesses early.
            max_turns: Number of turns after which a game is lost; use the same number in ``env.args``.
            seed: Random seed of the games.
            format: ``eou`` or ``chat_template``.
            render_chat: Formats chat messages as a prompt; required for ``chat_template``.

        Returns:
            A pool with one sample per game. The prompt is the partner's opening line and the reference is the first
            question. In the meta data are ``history``, the ``thing`` and the ``continuation``, which contains all later
            utterances, starting with the partner's answer; it includes lost games.

        Raises:
            DataError: If an argument is invalid.
        """
        check_split(split)
        sizes = {"n_train": n_train, "n_val": n_val, "n_test": n_test}
        check_counts("guess_what", {**sizes, "max_turns": max_turns})
        if not (is_number(consistent_share) and 0 <= consistent_share <= 1):
            raise DataError(
                f"datapool 'guess_what': consistent_share must be a number from 0 to 1, not {consistent_share!r}"
            )
        dialogue_format = DialogueFormat(format, None, render_chat)
        player = MixedPlayer(consistent_share, max_turns)
        prompt = dialogue_format.prompt([OPENING])
        pool = cls(
            [
                _play_game(f"{split}_{index}", prompt, player, max_turns, derive_seed(seed, "guess_what", split, index))
                for index in range(sizes[f"n_{split}"])
            ]
        )
        pool.use_format(dialogue_format)
        pool.players = {
            "blind": partial(BlindPlayer, max_turns),
            "careless": partial(CarelessPlayer, max_turns),
            "data": partial(MixedPlayer, consistent_share, max_turns),
            "consistent": partial(ConsistentPlayer, max_turns),
            "information_gain": partial(InformationGainPlayer, max_turns),
        }
        return pool


def _play_game(id: str, prompt: str, player: MixedPlayer, max_turns: int, seed: int) -> Sample:
    meta_data = {"history": [OPENING], "thing": random.Random(derive_seed(seed, "thing")).choice(THINGS)}
    sample = Sample(id, prompt, [], meta_data)
    game = play(player, GuessWhatPartner(), sample, max_turns, seed)
    first, *continuation = (turn.text for turn in game.said)
    return Sample(id, prompt, [first], {**meta_data, "continuation": continuation})
