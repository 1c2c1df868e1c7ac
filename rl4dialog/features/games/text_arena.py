"""Games of TextArena, an optional package: the other players and the rules are the partner."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from rl4dialog.core.arguments import Count, NonNegativeInt
from rl4dialog.core.errors import ConfigError, DataError, RL4DialogError, nearest_hint, shown
from rl4dialog.core.protocols import Partner, Player
from rl4dialog.core.registry import import_object, optional_module
from rl4dialog.core.seeding import derive_seed
from rl4dialog.core.types import PartnerReply, Sample
from rl4dialog.data.dialogue_format import DialogueFormat, FormatName, RenderChat
from rl4dialog.data.pool import TextGenPool, size_of
from rl4dialog.tasks.playing import play, with_game

Opponent = Callable[[str], str]  # takes everything that a player has seen in a game, and returns the player's move

RANDOM = "random"
_RAW = "-raw"  # ending of the names of games without TextArena's wrappers, which repeat the whole game in every message
_MOVE = re.compile(r"\[[^\[\]\n]+\]")
_LIST = re.compile(r"\b(moves|actions)\b", re.IGNORECASE)


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
        wanted = f"must be {RANDOM} or a function as module:function"
        raise ConfigError(f"text_arena: {key} {wanted}, not {shown(name)} ({error})") from error
    if not callable(found):
        raise ConfigError(f"text_arena: {key} {name} is no function")
    return found  # type: ignore[no-any-return]


def random_move(text: str) -> str:
    """Choose among the moves in brackets that a game lists, with Python's global random numbers."""
    *_, last = [None, *_LIST.finditer(text)]
    listed = [] if last is None else _MOVE.findall(text[last.end() :])
    if not listed:
        cure = f"use a function as module:function instead of {RANDOM}"
        raise DataError(f"text_arena: the game does not list the possible moves; {cure}")
    return random.choice(listed)


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


class TextArenaPlayer(Player):
    """A player that chooses moves by a function."""

    def __init__(self, chooser: str) -> None:
        self._choose = chosen_by(chooser, "player")

    def reset(self, meta_info: dict[str, Any], seed: int) -> None:
        self._random = OwnRandom(seed)

    def say(self, history: list[str]) -> str:
        with self._random.in_use():
            return self._choose("\n".join(history))


class TextArenaPartner(Partner):
    """Plays a game of TextArena with the agent: says what the game shows, and pays its reward at the end.

    Outcomes: ``success`` is 1 if the reward is positive, ``invalid_move`` if an invalid move of the agent ended it.

    Args:
        game: Name of the game, such as ``TicTacToe-v0``, without the ending of a wrapper.
        n_players: Number of players.
        position: Number of the agent among the players, from 0.
        opponent: How other players choose their moves: ``random``, if the game lists the possible moves, or
            ``module:function`` for a function that takes everything the player has seen and returns a move, such as an
            agent of TextArena. Required with several players.
        settings: Arguments of the game.
    """

    role = "You are the game: you show its state, and the agent moves."
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
        if position not in range(n_players):
            raise ConfigError(f"text_arena: position must be from 0 to {n_players - 1}, not {position}")
        if (opponent is None) != (n_players == 1):
            problem = "with several players, set opponent" if opponent is None else "with one player, leave it out"
            raise ConfigError(f"text_arena: opponent is {shown(opponent)}; {problem}")
        registered = optional_module("textarena.envs.registration", "textarena", "text_arena").ENV_REGISTRY
        names = [name.removesuffix(_RAW) for name in registered if name.endswith(_RAW)]
        if game not in names:
            raise ConfigError(f"text_arena: unknown game {game!r}{nearest_hint(game, names)}")
        self._opponent = None if opponent is None else chosen_by(opponent, "opponent")
        self._name, self._n_players, self._position, self._settings = game, n_players, position, settings or {}
        self._env: Any = None

    def reset(self, meta_info: dict[str, Any], seed: int) -> None:
        import textarena

        seed = meta_info.get("game_seed", seed)
        self._over, self._reward, self._invalid = False, 0.0, False
        self._seen = [""] * self._n_players
        self._random = OwnRandom(seed)
        with self._random.in_use():
            try:
                self._env = textarena.make(self._name + _RAW, **self._settings)
                self._env.reset(num_players=self._n_players, seed=seed % 2**32)
            except Exception as error:
                problem = next((line for line in str(error).splitlines() if line.strip("* ")), "")
                what = f"{self._n_players} player(s) and the settings {self._settings}"
                why = f"{type(error).__name__}: {problem}"
                raise DataError(f"text_arena: {self._name} cannot begin with {what}: {why}") from error
            self._opening = self._until_asked()
        if self._over:
            raise DataError(f"text_arena: {self._name} is over before the agent's first move")
        if "game_seed" in meta_info and meta_info.get("history") != [self._opening]:
            cause = "which was made with another version of textarena or of the opponent"
            raise DataError(f"partner 'text_arena': the game begins differently from the sample, {cause}")

    def reseed(self, seed: int) -> None:
        self._random = OwnRandom(seed)

    def open(self) -> str:
        return self._opening

    def reply(self, history: list[str]) -> PartnerReply:
        try:
            with self._random.in_use():
                self._step(history[-1])
                text = self._until_asked()
        except RL4DialogError:
            raise
        except Exception as error:  # a fault of a game loses one conversation, not the run
            return PartnerReply(failed=f"{type(error).__name__}: {error}")
        return PartnerReply(text, reward=self._reward, leaves=self._over)

    def outcome(self) -> dict[str, float]:
        return {"success": float(self._reward > 0), "invalid_move": float(self._invalid)}

    def _until_asked(self) -> str:
        """Play the others' moves up to the agent's next one, or to the end; returns what the agent then sees."""
        while not self._over:
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
        self._over, _ = self._env.step(action=move)
        if self._over:
            rewards, info = self._env.close()
            own = info[self._position]
            self._reward, self._invalid = float(rewards[self._position]), bool(own.get("invalid_move"))
            self._reason = str(own.get("reason") or "The game is over.")


MAX_TURNS = 50


class TextArenaGames(TextGenPool):
    """Games of TextArena, each with its own random seed; needs the package textarena.

    Args:
        game: As for the partner ``text_arena``, like the next four.
        n_players: Number of players.
        position: Number of the agent among the players.
        opponent: How other players choose their moves.
        settings: Arguments of the game.
        player: Who demonstrates the agent's side, for supervised training: as for the opponent; ``None`` for nobody.
        max_turns: Number of turns after which a demonstrated game ends; use the same number in ``env.args``.
    """

    repeats_prompts = True

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

        There is one sample per game. Its prompt is what the agent sees before its first move. With a player, its
        reference is the first move, and its meta data have the ``continuation``.
        """
        n_games = size_of(split, n_train, n_val, n_test)
        dialogue_format = DialogueFormat(format, None, render_chat)
        partner = TextArenaPartner(game, n_players, position, opponent, settings)
        demonstrator = None if player is None else TextArenaPlayer(player)
        samples = []
        for index in range(n_games):
            game_seed = derive_seed(seed, "text_arena", split, index)
            partner.reset({}, game_seed)
            opening = partner.open()
            meta_data: dict[str, Any] = {"history": [opening], "game_seed": game_seed}
            sample = Sample(f"{split}_{index}", dialogue_format.prompt([opening]), [], meta_data)
            if demonstrator is not None:
                sample = with_game(sample, play(demonstrator, partner, sample, max_turns, game_seed))
            samples.append(sample)
        pool = cls(samples, dialogue_format=dialogue_format)
        pool.players = {name: partial(TextArenaPlayer, name) for name in ("random", player) if name is not None}
        return pool
