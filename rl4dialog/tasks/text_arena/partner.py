"""The partner: the rules of the game, and the other players."""

from __future__ import annotations

from typing import Any

from rl4dialog.core.arguments import Count, NonNegativeInt
from rl4dialog.core.errors import DataError, RL4DialogError
from rl4dialog.core.protocols import Partner
from rl4dialog.core.types import PartnerReply
from rl4dialog.tasks.text_arena.game import TextArenaGame


class TextArenaPartner(Partner):
    """Plays a game of TextArena with the agent: says what the game shows, and pays its reward at the end.

    Outcomes: ``success`` is 1 if the reward is positive, and ``invalid_move`` is 1 if the game ended because of an
    invalid move of the agent.

    Args:
        game: Name of the game, such as ``TicTacToe-v0``, without the ending of a wrapper.
        n_players: Number of players.
        position: Number of the agent among the players, from 0.
        opponent: How other players choose their moves: ``random``, if the game lists the possible moves, or
            ``module:function`` for a function that takes everything the player has seen and returns a move, such as an
            agent of TextArena. Required with several players.
        settings: Arguments of the game.

    Raises:
        ConfigError: If textarena is not installed, or an argument is invalid.
        DataError: At the start of a conversation, if the game cannot begin, or begins differently from the sample.
    """

    can_open = True
    pays = True
    outcomes = ("success", "invalid_move")
    checks_samples = True
    rules = ("game", "n_players", "position", "opponent", "settings")

    def __init__(
        self,
        game: str,
        n_players: Count = 1,
        position: NonNegativeInt = 0,
        opponent: str | None = None,
        settings: dict[str, Any] | None = None,
    ) -> None:
        self._game = TextArenaGame(game, n_players, position, opponent, settings)

    def reset(self, meta_info: dict[str, Any], seed: int) -> None:
        self._opening = self._game.begin(meta_info.get("game_seed", seed))
        if "game_seed" in meta_info and meta_info.get("history") != [self._opening]:
            raise DataError(
                "partner 'text_arena': the game begins differently from the sample, which was made with another "
                "version of textarena or of the opponent; make the samples again"
            )

    def open(self) -> str:
        return self._opening

    def reply(self, history: list[str]) -> PartnerReply:
        try:
            text = self._game.move(history[-1])
        except RL4DialogError:
            raise
        except Exception as error:  # a fault of a game loses one conversation, not the run
            return PartnerReply(failed=f"{type(error).__name__}: {error}")
        return PartnerReply(text, reward=self._game.reward, leaves=self._game.over)

    def outcome(self) -> dict[str, float]:
        return {"success": float(self._game.reward > 0), "invalid_move": float(self._game.invalid)}
