"""A game of TextArena from the side of one player."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from rl4dialog.core.errors import ConfigError, DataError, nearest_hint, shown
from rl4dialog.core.registry import import_object

Opponent = Callable[[str], str]
"""Takes everything that a player has seen in a game, and returns the player's move."""

RANDOM = "random"
_RAW = "-raw"
"""Ending of the names of games without TextArena's wrappers, which repeat the whole game in every message."""
_MOVE = re.compile(r"\[[^\[\]\n]+\]")
_LIST = re.compile(r"\b(moves|actions)\b", re.IGNORECASE)


class TextArenaGame:
    """A game in which the agent is one of the players.

    Args:
        game: Name of the game, such as ``TicTacToe-v0``.
        n_players: Number of players.
        position: Number of the agent among the players, from 0.
        opponent: How the other players choose their moves: ``random`` or ``module:function``; ``None`` if there are
            none.
        settings: Arguments of the game.

    Attributes:
        over: Whether the game is over.
        reward: The agent's reward; 0 while the game goes on.
        invalid: Whether the game ended because of an invalid move of the agent.
    """

    def __init__(
        self, game: str, n_players: int, position: int, opponent: str | None, settings: Mapping[str, Any] | None
    ) -> None:
        if position not in range(n_players):
            raise ConfigError(f"text_arena: position must be from 0 to {n_players - 1}, not {position}")
        if (opponent is None) != (n_players == 1):
            problem = "with several players, set opponent" if opponent is None else "with one player, leave it out"
            raise ConfigError(f"text_arena: opponent is {shown(opponent)}; {problem}")
        self._name = _registered(game)
        self._opponent = None if opponent is None else chosen_by(opponent, "opponent")
        self._n_players, self._position, self._settings = n_players, position, dict(settings or {})
        self._env: Any = None
        self.over, self.reward, self.invalid = False, 0.0, False

    def begin(self, seed: int) -> str:
        """Start a game, and return what the agent sees before its first move.

        Raises:
            DataError: If the game cannot be played with these arguments, or is over before the agent's first move.
        """
        import textarena

        self.over, self.reward, self.invalid = False, 0.0, False
        self._seen = [""] * self._n_players
        self._random = OwnRandom(seed)
        with self._random.in_use():
            try:
                self._env = textarena.make(self._name, **self._settings)
                self._env.reset(num_players=self._n_players, seed=seed % 2**32)
            except Exception as error:
                problem = next((line for line in str(error).splitlines() if line.strip("* ")), "")
                raise DataError(
                    f"text_arena: {self._name.removesuffix(_RAW)} cannot begin with {self._n_players} player(s) and "
                    f"the settings {self._settings}: {type(error).__name__}: {problem}"
                ) from error
            text = self._until_asked()
        if self.over:
            raise DataError(f"text_arena: {self._name.removesuffix(_RAW)} is over before the agent's first move")
        return text

    def move(self, text: str) -> str:
        """Make the agent's move, and those of the others, and return what the agent then sees."""
        with self._random.in_use():
            self._step(text)
            return self._until_asked()

    def _until_asked(self) -> str:
        """Play the others' moves up to the agent's next one, or to the end."""
        while not self.over:
            player, messages = self._env.get_observation()
            text = _written(messages, player)
            if player == self._position:
                return text
            self._seen[player] += f"\n{text}"
            assert self._opponent is not None
            move = self._opponent(self._seen[player])
            self._seen[player] += f"\n{move}"
            self._step(move)
        return self._reason

    def _step(self, move: str) -> None:
        self.over, _ = self._env.step(action=move)
        if self.over:
            rewards, info = self._env.close()
            own = info[self._position]
            self.reward, self.invalid = float(rewards[self._position]), bool(own.get("invalid_move"))
            self._reason = str(own.get("reason") or "The game is over.")


class OwnRandom:
    """Python's and numpy's global random numbers, with a state for one user of them.

    TextArena draws from the global ones, and games that take turns in a process must not disturb each other.
    """

    def __init__(self, seed: int) -> None:
        self._states = random.Random(seed).getstate(), np.random.RandomState(seed % 2**32).get_state()

    @contextmanager
    def in_use(self) -> Iterator[None]:
        outside = random.getstate(), np.random.get_state()
        random.setstate(self._states[0])
        np.random.set_state(self._states[1])
        try:
            yield
        finally:
            self._states = random.getstate(), np.random.get_state()
            random.setstate(outside[0])
            np.random.set_state(outside[1])


def chosen_by(name: str, key: str) -> Opponent:
    """Return what chooses moves: ``random``, or the function ``module:function``."""
    if name == RANDOM:
        return random_move
    try:
        found = import_object(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"text_arena: {key} must be {RANDOM} or a function as module:function, not {shown(name)} ({error})"
        ) from error
    if not callable(found):
        raise ConfigError(f"text_arena: {key} {name} is no function")
    return found  # type: ignore[no-any-return]


def random_move(text: str) -> str:
    """Choose among the moves in brackets that a game lists, with Python's global random numbers.

    Args:
        text: What the player has seen. The moves are what follows the last word "moves" or "actions" in it.
    """
    *_, last = [None, *_LIST.finditer(text)]
    listed = [] if last is None else _MOVE.findall(text[last.end() :])
    if not listed:
        raise DataError(
            f"text_arena: the game does not list the possible moves, so none can be drawn; use a function as "
            f"module:function instead of {RANDOM}"
        )
    return random.choice(listed)


def _registered(game: str) -> str:
    try:
        from textarena.envs.registration import ENV_REGISTRY
    except ImportError as error:
        raise ConfigError(
            f"text_arena needs the package textarena: pip install 'rl4dialog[textarena]' ({error})"
        ) from error
    names = [name.removesuffix(_RAW) for name in ENV_REGISTRY if name.endswith(_RAW)]
    if game not in names:
        raise ConfigError(f"text_arena: unknown game {game!r}{nearest_hint(game, names)}")
    return game + _RAW


def _written(messages: Any, player: int) -> str:
    """Write the messages that a player has not seen yet: without their own moves, and with the last board only."""
    from textarena import ObservationType

    boards = [i for i, (_, _, kind) in enumerate(messages) if kind is ObservationType.GAME_BOARD]
    lines = []
    for i, (sender, text, kind) in enumerate(messages):
        if (sender == player and kind is ObservationType.PLAYER_ACTION) or i in boards[:-1]:
            continue
        lines.append(text.strip() if sender < 0 else f"Player {sender}: {text.strip()}")
    return "\n".join(filter(None, lines))
