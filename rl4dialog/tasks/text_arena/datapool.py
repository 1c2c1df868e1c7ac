"""The datapool: beginnings of games, with the moves of a player as demonstrations if there is one."""

from __future__ import annotations

from functools import partial
from typing import Any

from rl4dialog.core.arguments import Count, NonNegativeInt
from rl4dialog.core.seeding import derive_seed
from rl4dialog.core.types import Sample
from rl4dialog.data.dialogue_format import DialogueFormat, FormatName, RenderChat
from rl4dialog.data.pool import TextGenPool, check_counts, check_split
from rl4dialog.tasks.playing import play
from rl4dialog.tasks.text_arena.partner import TextArenaPartner
from rl4dialog.tasks.text_arena.players import TextArenaPlayer

MAX_TURNS = 50


class TextArenaGames(TextGenPool):
    """Games of TextArena, each with its own random seed; needs the package textarena."""

    @classmethod
    def prepare(
        cls,
        split: str,
        game: str,
        n_players: Count = 1,
        position: NonNegativeInt = 0,
        opponent: str | None = None,
        settings: dict[str, Any] | None = None,
        player: str | None = None,
        n_train: Count = 1000,
        n_val: Count = 100,
        n_test: Count = 100,
        max_turns: Count = MAX_TURNS,
        seed: int = 0,
        format: FormatName = "eou",
        render_chat: RenderChat | None = None,
    ) -> TextArenaGames:
        """Begin the games of one split.

        Args:
            split: ``train``, ``val`` or ``test``.
            game: As for the partner ``text_arena``, like the next four.
            n_players: Number of players.
            position: Number of the agent among the players.
            opponent: How other players choose their moves.
            settings: Arguments of the game.
            player: Who demonstrates the agent's side, for supervised training: ``random`` or ``module:function``, as
                for the opponent; ``None`` for nobody.
            n_train: Number of games in ``train``.
            n_val: Number of games in ``val``.
            n_test: Number of games in ``test``.
            max_turns: Number of turns after which a demonstrated game ends; use the same number in ``env.args``.
            seed: Random seed of the games.
            format: ``eou`` or ``chat_template``.
            render_chat: Formats chat messages as a prompt; required for ``chat_template``.

        Returns:
            A pool with one sample per game. The prompt is what the agent sees before its first move. With a player, the
            reference is the first move, and the meta data have the ``continuation``.

        Raises:
            ConfigError: If textarena is not installed, or an argument of the game is invalid.
            DataError: If another argument is invalid, or a game cannot begin.
        """
        check_split(split)
        sizes = {"n_train": n_train, "n_val": n_val, "n_test": n_test}
        check_counts("text_arena", {**sizes, "max_turns": max_turns})
        dialogue_format = DialogueFormat(format, None, render_chat)
        partner = TextArenaPartner(game, n_players, position, opponent, settings)
        demonstrator = None if player is None else TextArenaPlayer(player)
        samples = []
        for index in range(sizes[f"n_{split}"]):
            game_seed = derive_seed(seed, "text_arena", split, index)
            partner.reset({}, game_seed)
            opening = partner.open()
            meta_data: dict[str, Any] = {"history": [opening], "game_seed": game_seed}
            sample = Sample(f"{split}_{index}", dialogue_format.prompt([opening]), [], meta_data)
            if demonstrator is not None:
                said = [turn.text for turn in play(demonstrator, partner, sample, max_turns, game_seed).said]
                sample = Sample(
                    sample.id, sample.prompt_or_input_text, said[:1], {**meta_data, "continuation": said[1:]}
                )
            samples.append(sample)
        pool = cls(samples)
        pool.use_format(dialogue_format)
        pool.players = {name: partial(TextArenaPlayer, name) for name in ("random", player) if name is not None}
        return pool
