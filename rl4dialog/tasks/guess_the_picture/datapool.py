"""The datapool: games between scripted players and the partner."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial

from rl4dialog.core.arguments import Count, Fraction
from rl4dialog.core.seeding import derive_seed
from rl4dialog.core.types import Dialogue, Sample
from rl4dialog.data.dialogue_format import DialogueFormat, FormatName, RenderChat
from rl4dialog.data.pool import TextGenPool, size_of
from rl4dialog.tasks.guess_the_picture.partner import (
    MAX_ROUNDS,
    GuessThePicturePartner,
    InformedPlayer,
    OpenPlayer,
    RandomPlayer,
    YesNoPenalty,
    data_player,
)
from rl4dialog.tasks.guess_the_picture.scenes import N_IMPRESSIONS, scene_table
from rl4dialog.tasks.playing import play, with_game


class GuessThePicture(TextGenPool):
    """Games about hidden scenes, in which scripted players ask questions, without pictures, files or network.

    Args:
        n_scenes: Number of scenes that the guesser ranks.
        open_share: Share of games by a player who asks no yes/no questions; the others are played by one who asks at
            random.
        yes_no_penalty: Penalty in the rewards of :meth:`conversations`; must be the partner's.
        max_rounds: Number of questions after which a game is over; must be the partner's.
        seed: Random seed of the scenes and the games.
    """

    has_rewards = True

    _play_game: Callable[[Sample], Dialogue]

    @classmethod
    def prepare(
        cls,
        split: str,
        n_train: Count = 5000,
        n_val: Count = 500,
        n_test: Count = 500,
        n_scenes: Count = 200,
        open_share: Fraction = 0.5,
        yes_no_penalty: YesNoPenalty = "none",
        max_rounds: Count = MAX_ROUNDS,
        seed: int = 0,
        format: FormatName = "eou",
        render_chat: RenderChat | None = None,
    ) -> GuessThePicture:
        """Generate the games of one split.

        All splits have the same scenes; ``val`` and ``test`` are other games about them. The hidden scenes are those
        to which the guesser gives no points at first.

        Returns:
            A pool with one sample per game. The prompt is the caption and the reference is the first question. In the
            meta data are ``history``, the number of the hidden ``scene``, the ``table`` of all scenes and the
            ``continuation``, which contains all later utterances, starting with the partner's answer.
        """
        n_games = size_of(split, n_train, n_val, n_test)
        dialogue_format = DialogueFormat(format, None, render_chat)
        scenes = scene_table(n_scenes, seed)
        play_game = partial(_play_game, seed, open_share, yes_no_penalty, max_rounds)
        samples = []
        for index in range(n_games):
            id = f"{split}_{index}"
            hidden = random.Random(derive_seed(seed, "hidden", id)).randrange(0, n_scenes, N_IMPRESSIONS)
            caption = scenes[hidden].view
            meta_data = {"history": [caption], "scene": hidden, "table": {"n_scenes": n_scenes, "seed": seed}}
            sample = Sample(id, dialogue_format.prompt([caption]), [], meta_data)
            samples.append(with_game(sample, play_game(sample)))
        pool = cls(samples, dialogue_format=dialogue_format)
        pool._play_game = play_game
        data = partial(data_player, open_share)
        pool.players = {"random": RandomPlayer, "data": data, "open": OpenPlayer, "informed": InformedPlayer}
        return pool

    def conversations(self) -> Iterator[Dialogue]:
        """Yield the games of the samples, with the rewards of all questions."""
        return (self._play_game(sample) for sample, _ in self)


def _play_game(seed: int, open_share: float, yes_no_penalty: YesNoPenalty, max_rounds: int, sample: Sample) -> Dialogue:
    """Play the game of a sample; it is the same each time."""
    partner = GuessThePicturePartner(yes_no_penalty, max_rounds)
    return play(data_player(open_share), partner, sample, max_rounds, derive_seed(seed, "game", sample.id))
