"""The datapool: games of one scripted player, with branches, or against imitation.

Snell et al. 2022 (ILQL, arXiv 2206.11871) train on such games: those of one player, which may start with given words;
those in which other players continue the games of an expert from each of its turns; and those whose mean is misleading.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast

import numpy as np

from rl4dialog.core.arguments import Count, Fraction
from rl4dialog.core.errors import DataError
from rl4dialog.core.seeding import derive_seed
from rl4dialog.core.types import AGENT, PARTNER, Dialogue, Sample, Turn, given_turns
from rl4dialog.data.dialogue_format import DialogueFormat, FormatName, RenderChat
from rl4dialog.data.pool import TextGenPool, size_of
from rl4dialog.features.games.wordle import players, rules
from rl4dialog.features.games.wordle.players import NAMES, Game

_logger = logging.getLogger(__name__)
_BEGINNINGS_AT_ONCE = 256
# Turn before which the adversary takes over a game of the expert.
_TAKEN_OVER = 2


@dataclass(frozen=True)
class PlayedGames:
    """Games without their texts."""

    words: np.ndarray  # places of the hidden words. Shape (n,)
    guesses: np.ndarray  # places of the guesses, ``NO_GUESS`` after the end. Shape (n, T)
    kinds: np.ndarray  # who played each game, as places in the list of kinds of the data. Shape (n,)

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, rows: slice | np.ndarray) -> PlayedGames:
        return PlayedGames(self.words[rows], self.guesses[rows], self.kinds[rows])

    @property
    def returns(self) -> np.ndarray:
        """Sum of the rewards of each game. Shape (n,)."""
        return players.returns_of(self.words, self.guesses)

    @staticmethod
    def joined(parts: Sequence[PlayedGames]) -> PlayedGames:
        return PlayedGames(*(np.concatenate([getattr(part, name) for part in parts]) for name in _FIELDS))


_FIELDS = ("words", "guesses", "kinds")
MakeGames = Callable[[int, np.random.Generator], PlayedGames]  # makes the games that n beginnings lead to


def game_blocks(make: MakeGames, n: int, seed: int) -> Iterator[PlayedGames]:
    """Generate n games in blocks, one at a time, so that a larger number keeps the first ones."""
    for number in itertools.count():
        if n <= 0:
            return
        block = make(_BEGINNINGS_AT_ONCE, np.random.default_rng(derive_seed(seed, "block", number)))[:n]
        n -= len(block)
        yield block


def generate_games(make: MakeGames, n: int, seed: int) -> PlayedGames:
    """Generate the games of :func:`game_blocks` at once."""
    return PlayedGames.joined(list(game_blocks(make, n, seed)))


def player_games(
    lexicon: rules.Lexicon, player: players.Choose, max_turns: int, n: int, rng: np.random.Generator, kind: int = 0
) -> PlayedGames:
    """Games of one player. Hidden words are drawn with equal probability."""
    words = rng.integers(len(lexicon), size=n)
    guesses = players.play_games(lexicon, player, words, rng, max_turns)
    return PlayedGames(words, guesses, np.full(n, kind, dtype=np.int8))


def branching_games(
    lexicon: rules.Lexicon,
    roles: Mapping[str, players.Choose],
    n_branches: int,
    max_turns: int,
    n: int,
    rng: np.random.Generator,
) -> PlayedGames:
    """Games of an expert, of kind 0, each after games of another player, of kind 1, that begin like it.

    Before each turn of the expert, the first one included, the other player continues ``n_branches`` copies of the game
    to their ends. Imitating the mean gives the other player's moves; the best ones have to be put together.
    """
    experts = player_games(lexicon, roles["expert"], max_turns, n, rng)
    games, turns = np.nonzero(experts.guesses != players.NO_GUESS)
    games, turns = games.repeat(n_branches), turns.repeat(n_branches)
    branches = _continued(lexicon, roles["suboptimal"], experts, games, turns, rng)
    return _in_order([branches, experts], [games, np.arange(n)])


def adversarial_games(
    lexicon: rules.Lexicon,
    roles: Mapping[str, players.Choose],
    n_adversarial: int,
    n_suboptimal: int,
    max_turns: int,
    n: int,
    rng: np.random.Generator,
) -> PlayedGames:
    """Games in which the best beginning has a bad mean, because an adversary mostly continues it.

    Each game of the expert that reaches a third turn is followed by ``n_adversarial`` games in which the adversary
    continues it from there, and each game by ``n_suboptimal`` games of another player from the start. If the adversary
    is worse than the other player, the mean return after the expert's beginning is worse, too: imitation, and values of
    the player of the data, prefer the other beginning. Values of better players find the expert's moves.
    """
    experts = player_games(lexicon, roles["expert"], max_turns, n, rng)
    long = experts.guesses[:, _TAKEN_OVER : _TAKEN_OVER + 1] != players.NO_GUESS
    games = np.flatnonzero(long.any(axis=1)).repeat(n_adversarial)
    continued = _continued(lexicon, roles["adversary"], experts, games, np.full_like(games, _TAKEN_OVER), rng)
    others = player_games(lexicon, roles["suboptimal"], max_turns, n * n_suboptimal, rng, kind=2)
    return _in_order([experts, continued, others], [np.arange(n), games, np.arange(n).repeat(n_suboptimal)])


def _continued(
    lexicon: rules.Lexicon,
    player: players.Choose,
    games: PlayedGames,
    rows: np.ndarray,
    turns: np.ndarray,
    rng: np.random.Generator,
) -> PlayedGames:
    """Let a player continue games, given by rows and by the number of guesses that stay, of shape (m,) each.

    The hidden words of the m new games, of kind 1, are drawn anew among those that agree with the colours so far, so
    that games with the same beginning are independent, given the beginning.
    """
    max_turns = games.guesses.shape[1]
    begun = np.where(np.arange(max_turns) < turns[:, None], games.guesses[rows], players.NO_GUESS)
    words = players.draw(players.consistent_words(lexicon, games.words[rows], begun), rng)
    guesses = players.play_games(lexicon, player, words, rng, max_turns, begun)
    return PlayedGames(words, guesses, np.ones(len(rows), dtype=np.int8))


def _in_order(parts: Sequence[PlayedGames], numbers: Sequence[np.ndarray]) -> PlayedGames:
    """Join games, sorted by the numbers of the expert's game that they belong to, then by part."""
    return PlayedGames.joined(parts)[np.argsort(np.concatenate(numbers), kind="stable")]


_VERSION = 1  # increase it when the same arguments give other games
GamesName = Literal["player", "branching", "adversarial"]
_DEFAULTS: dict[GamesName, dict[str, Any]] = {
    "player": {"player": "mixture"},
    "branching": {"expert": "info_gain", "suboptimal": "mixture", "n_branches": 1},
    "adversarial": {
        **{"expert": "info_gain", "adversary": "repeat", "suboptimal": "mixture"},
        **{"n_adversarial": 4, "n_suboptimal": 1},
    },
}
"""Arguments that have a meaning with each kind of games, with their defaults."""


class Wordle(TextGenPool):
    """Games of Wordle by scripted players, without files or network; also as logged conversations with rewards.

    Args:
        word_list: Packaged list of hidden words and guesses: 40 or 240. By default 240, unless there is a ``path``.
        path: A file with one word per line, instead. V words take V² bytes of memory.
        letters: How guesses and colours are written: ``plain`` (``crane``) or ``spaced`` (``c r a n e``), for the
            tokenizers of pretrained models; as in the partner.
        duplicates: How repeated letters are coloured, ``simple`` or ``official``; as in the partner.
        games: ``player``: of one player. ``branching``: of an expert, and before each of its turns, games in which
            another player continues it. ``adversarial``: of an expert, an adversary that continues it from the third
            turn, and another player, so that the expert's beginnings have a bad mean.
        players: Further players by name, such as ``{coin: {id: either, args: {first: info_gain, second: wrong}}}``,
            for the arguments below and the arguments of other players.
        player: For ``games: player``: the player; by default ``mixture``.
        expert: For the other games: the best player; by default ``info_gain``.
        suboptimal: For the other games: the other player; by default ``mixture``.
        adversary: For ``games: adversarial``; by default ``repeat``.
        n_branches: For ``games: branching``: games that branch off before each turn of the expert; by default 1.
        n_adversarial: For ``games: adversarial``: continuations of each game of the expert; by default 4.
        n_suboptimal: For ``games: adversarial``: games of the other player for each of the expert; by default 1.
        p_consistent: Probability that the player ``mixture`` makes a consistent guess.
        start_words: First guesses of ``player`` or ``expert``, one of which is drawn.
        max_turns: Number of turns after which a game is lost; use the same number in ``env.args``.
        max_samples: Number of games, the first ones, that are samples, too. All are conversations to learn from.
    """

    has_rewards = repeats_prompts = True

    def __init__(self, written: _WrittenGames, blocks: Callable[[], Iterator[PlayedGames]], n_games: int) -> None:
        super().__init__(cast("list[Sample]", written))  # read like a list
        self._written, self._blocks, self._n_games = written, blocks, n_games

    @classmethod
    def prepare(
        cls,
        split: str,
        n_train: Count = 20_000,
        n_val: Count = 500,
        n_test: Count = 500,
        word_list: rules.ListName | None = None,
        path: str | None = None,
        letters: rules.Letters = "plain",
        duplicates: rules.Duplicates = "simple",
        games: GamesName = "player",
        players: dict[str, Any] | None = None,
        player: str | None = None,
        expert: str | None = None,
        suboptimal: str | None = None,
        adversary: str | None = None,
        n_branches: Count | None = None,
        n_adversarial: Count | None = None,
        n_suboptimal: Count | None = None,
        p_consistent: Fraction = 0.34,
        start_words: list[str] | None = None,
        max_turns: Count = rules.MAX_TURNS,
        max_samples: Count = 100_000,
        seed: int = 0,
        format: FormatName = "eou",
        render_chat: RenderChat | None = None,
    ) -> Wordle:
        """Generate the games of one split.

        All splits have the same words. In ``val`` and ``test``, whatever ``games`` says, there are only whole games of
        ``player`` or ``expert``, so that all words are equally likely.

        There is one sample per game, up to ``max_samples``. Its prompt is the partner's opening line and its reference
        is the first guess. In its meta data are ``history``, the hidden ``word``, all later utterances as
        ``continuation``, who played as ``kind``, and the rules ``letters`` and ``duplicates``.
        """
        n_games = size_of(split, n_train, n_val, n_test)
        given = {"player": player, "expert": expert, "suboptimal": suboptimal, "adversary": adversary}
        counts = {"n_branches": n_branches, "n_adversarial": n_adversarial, "n_suboptimal": n_suboptimal}
        chosen = _with_defaults(games, {**given, **counts})
        words = rules.load_words(240 if word_list is None and path is None else word_list, path)
        lexicon = rules.Lexicon(words, duplicates)
        mixture = {"id": "mixture", "args": {"p_consistent": p_consistent}}
        game = Game(lexicon, letters, max_turns, {"mixture": mixture, **(players or {})})
        names = {role: name for role, name in chosen.items() if not role.startswith("n_")}
        roles = {role: game.player(name) for role, name in names.items()}
        first = "player" if games == "player" else "expert"
        if start_words:
            roles[first] = game.player(chosen[first], start_words=start_words)
        choose = {role: found.choose for role, found in roles.items()}
        make: MakeGames = partial(player_games, lexicon, choose[first], max_turns)
        if games == "branching" and split == "train":
            make = partial(branching_games, lexicon, choose, chosen["n_branches"], max_turns)
        if games == "adversarial" and split == "train":
            numbers = chosen["n_adversarial"], chosen["n_suboptimal"]
            make = partial(adversarial_games, lexicon, choose, *numbers, max_turns)
        dialogue_format = DialogueFormat(format, None, render_chat)
        seed_of_split = derive_seed(seed, "wordle", split)
        played = generate_games(make, min(n_games, max_samples), seed_of_split)
        if n_games > max_samples:
            _logger.info("wordle: samples of split %s are the first %d games (max_samples)", split, max_samples)
        prompt = dialogue_format.prompt([rules.OPENING])
        written = _WrittenGames(played, tuple(roles), lexicon, letters, split, prompt)
        pool = cls(written, partial(game_blocks, make, n_games, seed_of_split), n_games)
        pool.use_format(dialogue_format)
        pool.players = {name: partial(game.player, name) for name in (*NAMES, *(players or {}), *names.values())}
        settings = [n_games, letters, duplicates, games, chosen, p_consistent, start_words, max_turns, seed_of_split]
        versions = {"version": _VERSION, "numpy": np.__version__}  # another version may draw other numbers
        if not players and set(NAMES).issuperset(names.values()):  # the code of other players can change
            pool.source_key = {**versions, "words": words, "prompt": str(prompt), "settings": settings}
        return pool

    @classmethod
    def note_on(cls, args: Mapping[str, Any]) -> str:
        role = "player" if args.get("games", "player") == "player" else "suboptimal"
        chosen = (args.get(role) or "mixture", args.get("expert"), args.get("adversary"))
        if args.get("p_consistent") is None or "mixture" in chosen or args.get("players"):  # which may be made of it
            return ""
        return "datapool.args.p_consistent has no effect on the games: none of them is played by the player mixture"

    def conversations(self) -> Iterator[Dialogue]:
        """Yield all games with the rewards of the partner ``wordle``; nothing can be earned after their last turn.

        Games that are no samples are generated anew each time and never held in memory.
        """
        yield from map(_conversation, self._samples)
        n_samples, first = len(self._written), 0
        for block in self._blocks() if self._n_games > n_samples else ():
            written = dataclasses.replace(self._written, games=block, first=first)
            yield from map(_conversation, written[max(0, n_samples - first) :])
            first += len(block)

    def _prompts(self) -> Iterable[str]:
        return [self._written.prompt]

    def split(self, split_ratios: list[float]) -> list[TextGenPool]:
        if self._n_games > len(self._written):
            raise DataError("datapool 'wordle' cannot be split into parts with more games than max_samples; raise it")
        parts = super().split(split_ratios)
        for part in parts:
            part.source_key = None
        return parts


def _with_defaults(games: GamesName, given: Mapping[str, Any]) -> dict[str, Any]:
    """Complete the arguments of one kind of games; one that has no meaning with them is an error."""
    defaults = _DEFAULTS[games]
    for name, value in given.items():
        if value is not None and name not in defaults:
            kinds = " or ".join(kind for kind, names in _DEFAULTS.items() if name in names)
            raise DataError(f"datapool 'wordle': {name} has no meaning with games: {games}; it belongs to {kinds}")
    return {name: default if given[name] is None else given[name] for name, default in defaults.items()}


@dataclass(frozen=True)
class _WrittenGames(Sequence[Sample]):
    """Played games as samples, which are written when they are read: a million games need little memory as arrays."""

    games: PlayedGames
    kinds: tuple[str, ...]
    lexicon: rules.Lexicon
    letters: rules.Letters
    split: str
    prompt: str
    first: int = 0  # number of the first game

    def __len__(self) -> int:
        return len(self.games)

    def __getitem__(self, index: Any) -> Any:
        row = range(len(self))[index]
        if isinstance(row, range):
            return dataclasses.replace(self, games=self.games[index], first=self.first + row.start)
        hidden, guesses = self.games.words[row], self.games.guesses[row]
        said: list[str] = []
        for guess in guesses[guesses != players.NO_GUESS]:
            pattern = rules.PATTERN_TEXTS[self.lexicon.patterns[guess, hidden]]
            said += [rules.written(self.lexicon.words[guess], self.letters), rules.written(pattern, self.letters)]
        first, *continuation = said
        style = {"letters": self.letters, "duplicates": self.lexicon.duplicates}
        word, kind = self.lexicon.words[hidden], self.kinds[self.games.kinds[row]]
        meta_data = {"history": [rules.OPENING], "word": word, "kind": kind, **style, "continuation": continuation}
        return Sample(f"{self.split}_{self.first + row}", self.prompt, [first], meta_data)


def _conversation(sample: Sample) -> Dialogue:
    assert sample.meta_data is not None
    meta_data = {name: value for name, value in sample.meta_data.items() if name != "continuation"}
    word, letters = meta_data["word"], meta_data["letters"]
    turns = [*given_turns(meta_data["history"])]
    for i, text in enumerate([*sample.references, *sample.meta_data["continuation"]]):
        turns.append(
            Turn(text, PARTNER) if i % 2 else Turn(text, AGENT, reward=rules.reward(rules.read(text, letters), word))
        )
    success = turns[-2].reward == 0.0
    outcome: dict[str, Any] = {"outcome": {"success": float(success), "malformed": 0.0}}
    outcome["ended_by"] = "partner" if success else "max_turns"
    return Dialogue(sample.id, tuple(turns), meta_data=meta_data, n_given=len(meta_data["history"]), **outcome)
