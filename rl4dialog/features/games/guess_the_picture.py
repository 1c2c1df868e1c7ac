"""Guess the picture: the agent asks about a hidden scene, and a guesser ranks all scenes by the answers.

First come the scenes (attributes and their values, views, and seeded tables of scenes) and questions about them; then
the partner, who answers, the players, and the games. How well the players do is in docs/results.md.
"""

from __future__ import annotations

import functools
import random
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from rl4dialog.core.arguments import Count, Fraction
from rl4dialog.core.errors import DataError, shown
from rl4dialog.core.protocols import Partner
from rl4dialog.core.seeding import derive_seed
from rl4dialog.core.types import Dialogue, PartnerReply, Sample, is_whole_number
from rl4dialog.core.yaml_loader import packaged_yaml
from rl4dialog.data.dialogue_format import DialogueFormat, FormatName, RenderChat
from rl4dialog.data.pool import TextGenPool, size_of
from rl4dialog.tasks import playing
from rl4dialog.tasks.playing import MixedPlayer, SeededPlayer, play, with_game


@dataclass(frozen=True)
class Attribute:
    """A property that all scenes have."""

    name: str
    values: tuple[str, ...]  # possible values, as they are said
    group: frozenset[str]  # the values for which the answer to ``group_question`` is yes
    open_question: str  # question for the value, without its question mark; likewise below
    group_question: str  # yes/no question for the group
    asks: str = "is it"  # begin of yes/no questions for one value
    states: str = "it is"  # begin of whole sentences with the value


def _attribute(name: str, others: list[str], group: list[str], **words: str) -> Attribute:
    return Attribute(name, (*others, *group), frozenset(group), **words)


_TABLE = packaged_yaml(Path(__file__).with_suffix(".yaml"))
ATTRIBUTES = {name: _attribute(name, **attribute) for name, attribute in _TABLE["attributes"].items()}
VIEWS = {view: frozenset(names) for view, names in _TABLE["views"].items()}
"""By view, which is also the caption of a picture, the attributes that are hard to see in it."""

N_IMPRESSIONS = 4


@dataclass(frozen=True)
class Scene:
    """A scene, as a picture of it."""

    view: str  # the view, a key of ``VIEWS``
    values: Mapping[str, str]  # value of each attribute, by its name
    impression: int  # points from 0 to 3 that the guesser gives to the scene before anything is said


@functools.lru_cache(maxsize=8)
def scene_table(n_scenes: int, seed: int) -> tuple[Scene, ...]:
    """Draw the scenes of a table: views and values at random, and the impressions 0, 1, 2, 3 in turn."""
    rng, scenes = random.Random(derive_seed(seed, "scenes")), []
    for index in range(n_scenes):
        view = rng.choice(list(VIEWS))
        values = {name: rng.choice(attribute.values) for name, attribute in ATTRIBUTES.items()}
        scenes.append(Scene(view, values, index % N_IMPRESSIONS))
    return tuple(scenes)


def table_of(meta_info: Mapping[str, Any]) -> tuple[Scene, ...] | None:
    """Return the table that the meta data of a sample names; ``None`` if it names none, or not its hidden scene."""
    table, hidden = meta_info.get("table"), meta_info.get("scene")
    if not (isinstance(table, Mapping) and is_whole_number(hidden, at_least=0)):
        return None
    n_scenes, seed = table.get("n_scenes"), table.get("seed")
    if not (is_whole_number(n_scenes, at_least=hidden + 1) and isinstance(seed, int)):
        return None
    return scene_table(n_scenes, seed)


YES, NO = "yes", "no"
PROBABLY, PROBABLY_NOT = "i think so", "i do not think so"
NOT_SEEN, NOT_UNDERSTOOD = "i can not tell", "i do not understand"


@dataclass(frozen=True)
class Question(playing.Question):
    """A question of the agent."""

    attribute: str  # name of the attribute
    values: frozenset[str] | None = None  # the values for which the answer is yes; ``None`` for an open question
    # whether it asks for a group of values, which can be answered if the attribute is hard to see
    is_broad: bool = False

    def is_answered(self, hard_to_see: frozenset[str]) -> bool:
        return self.is_broad or self.attribute not in hard_to_see


OPEN_QUESTIONS = tuple(Question(attribute.open_question, name) for name, attribute in ATTRIBUTES.items())
YES_NO_QUESTIONS = tuple(
    question
    for name, attribute in ATTRIBUTES.items()
    for question in (
        Question(attribute.group_question, name, attribute.group, is_broad=True),
        *(Question(f"{attribute.asks} {value}", name, frozenset({value})) for value in attribute.values),
    )
)
"""For each attribute, one question for its group of values and one for each value."""
QUESTIONS = (*OPEN_QUESTIONS, *YES_NO_QUESTIONS)
parse = playing.reader_of(QUESTIONS)


def answer(question: Question, scene: Scene, in_sentences: bool) -> str:
    """Answer a question about a scene."""
    attribute, value = ATTRIBUTES[question.attribute], scene.values[question.attribute]
    hard_to_see = VIEWS[scene.view]
    if not question.is_answered(hard_to_see):
        return NOT_SEEN
    if question.values is None:
        return f"{attribute.states} {value}" if in_sentences else value
    brief, sure = (YES, NO), (f"{YES} , {attribute.states}", f"{NO} , {attribute.states} not")
    said = sure if in_sentences else brief
    if question.attribute in hard_to_see:
        said = PROBABLY, PROBABLY_NOT
    return said[value not in question.values]


def values_left(question: Question, answer: str) -> frozenset[str] | None:
    """Return the values of the question's attribute that an answer leaves possible; ``None`` if it says nothing."""
    attribute = ATTRIBUTES[question.attribute]
    if question.values is None:
        said = answer.removeprefix(f"{attribute.states} ")
        return frozenset({said}) if said in attribute.values else None
    if answer in (YES, PROBABLY, f"{YES} , {attribute.states}"):
        return question.values
    if answer in (NO, PROBABLY_NOT, f"{NO} , {attribute.states} not"):
        return frozenset(attribute.values) - question.values
    return None


YesNoPenalty = Literal["none", "soft", "hard", "conservative"]

PENALTY = -2.0  # added to the reward of a question with a penalized answer, as in ILQL


def is_penalized(answer: str, kind: YesNoPenalty) -> bool:
    """Whether an answer is penalized; case does not matter."""
    return re.search(_TABLE["penalized"][kind], answer.lower().strip().replace("\u2019", "'")) is not None


class Guesser:
    """Gives points to scenes: those of its first impression, and one for everything said that is true of the scene.

    Said are the view, by the caption, and by the answers the values of each attribute that are still possible. What is
    said again, in the same or in other words, gives no further points.

    The rank of a scene is 1, plus the number of scenes with more points, plus half the number of others with equally
    many. Its distance to the first place is its rank minus 1, *halved* if at most half of what it was at first.
    """

    def __init__(self, scenes: Sequence[Scene], hidden: int) -> None:
        self._scenes, self._hidden = scenes, hidden
        view = scenes[hidden].view
        # Attributes about which nothing was said give a point to all scenes, which is left out.
        self._points = [scene.impression + (scene.view == view) for scene in scenes]
        self.left = all_values()
        self.rank = self.start_rank = self._rank()

    def hear(self, question: str, answer: str) -> None:
        """Take note of what the agent asked and what was answered. Anything that is not understood is ignored."""
        before, self.left = self.left, narrowed(self.left, question, answer)
        for name, values in before.items():
            if excluded := values - self.left[name]:
                lost = [scene.values[name] in excluded for scene in self._scenes]
                self._points = [points - own for points, own in zip(self._points, lost, strict=True)]
                self.rank = self._rank()

    @property
    def is_halved(self) -> bool:
        """Whether the distance of the hidden scene to the first place is at most half of what it was at the start."""
        return self.rank - 1 <= (self.start_rank - 1) / 2

    def _rank(self) -> float:
        own = self._points[self._hidden]
        n_better = sum(points > own for points in self._points)
        return 1 + n_better + (self._points.count(own) - 1) / 2


def all_values() -> dict[str, frozenset[str]]:
    """Return all values of each attribute, by its name."""
    return {name: frozenset(attribute.values) for name, attribute in ATTRIBUTES.items()}


def narrowed(left: Mapping[str, frozenset[str]], question: str, answer: str) -> dict[str, frozenset[str]]:
    """Return the values that are still possible after an answer, which may say nothing."""
    asked = parse(question)
    said = None if asked is None else values_left(asked, answer)
    if asked is None or said is None:
        return dict(left)
    return {**left, asked.attribute: left[asked.attribute] & said}


def values_left_by(history: Sequence[str]) -> dict[str, frozenset[str]]:
    """Return the values of each attribute that all answers of a conversation leave possible."""
    left = all_values()
    for question, answered in pairwise(history):
        left = narrowed(left, question, answered)
    return left


MAX_ROUNDS = 10


class GuessThePicturePartner(Partner):
    """Answers questions about the sample's scene, and pays -1 a round until a guesser has come half the way to it.

    The guesser ranks all scenes of the table by the answers. The game is over, and its last round pays 0, once the
    distance of the hidden scene to the first rank is at most half of what it was after the caption, or after
    ``max_rounds``. In half of the games the partner answers in whole sentences.

    Its outcome: ``success`` is 1 if the distance was halved, ``rounds`` the number of questions, ``rank`` the last.

    Args:
        yes_no_penalty: Questions that are paid 2 less, by their answer: ``hard`` if it is exactly "yes" or "no",
            ``soft`` if it contains one of these words, ``conservative`` also if it is a negation or vague.
        max_rounds: Number of questions after which the game is over. With fewer ``env.args.max_turns``, a game is cut
            there, and its last round costs as much as the others.
    """

    role = "You see a picture that is hidden from the agent, and answer its questions about it."
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
            there = f"{shown(meta_info.get('scene'))} in {shown(meta_info.get('table'))}"
            raise DataError(
                f"partner 'guess_the_picture' needs samples whose meta_data['scene'] is the number of a scene in "
                f"meta_data['table'], not {there}; use the datapool guess_the_picture"
            )
        self._scene = scenes[meta_info["scene"]]
        self._guesser = Guesser(scenes, meta_info["scene"])
        self._in_sentences = random.Random(seed).random() < 0.5
        self._n_rounds = 0

    def secret(self) -> str:
        return " ".join([self._scene.view, *self._scene.values.values()])

    def reply(self, history: list[str]) -> PartnerReply:
        question = parse(history[-1])
        said = NOT_UNDERSTOOD if question is None else answer(question, self._scene, self._in_sentences)
        self._guesser.hear(history[-1], said)
        self._n_rounds += 1
        is_over = self._guesser.is_halved or self._n_rounds >= self._max_rounds
        reward = (0.0 if is_over else -1.0) + (PENALTY if is_penalized(said, self._penalty) else 0.0)
        return PartnerReply(said, reward=reward, leaves=is_over)

    def outcome(self) -> dict[str, float]:
        guesser, n_rounds = self._guesser, float(self._n_rounds)
        return {"success": float(guesser.is_halved), "rounds": n_rounds, "rank": guesser.rank}


class PicturePlayer(SeededPlayer):
    """Base class: says the question that a subclass chooses."""

    def say(self, history: list[str]) -> str:
        return self.choose(history).text

    @abstractmethod
    def choose(self, history: list[str]) -> Question:
        """Choose a question by all utterances so far, oldest first."""


class RandomPlayer(PicturePlayer):
    """Asks any question at random, also the same one again; most of them are yes/no questions."""

    def choose(self, history: list[str]) -> Question:
        return self._rng.choice(QUESTIONS)


class OpenPlayer(PicturePlayer):
    """Asks no yes/no questions: all open ones in random order, also those that the view makes hard to answer."""

    def choose(self, history: list[str]) -> Question:
        unasked = [question for question in OPEN_QUESTIONS if question.text not in history]
        return self._rng.choice(unasked or OPEN_QUESTIONS)


class InformedPlayer(PicturePlayer):
    """Knows the table, and asks the question whose answer takes the most points from scenes, by expectation.

    The expectation is over the scenes that agree with the caption and all answers, all equally likely. It is 0 for
    questions that the view makes hard to answer. Penalties for yes/no questions are not considered.
    """

    def reset(self, meta_info: dict[str, Any], seed: int) -> None:
        super().reset(meta_info, seed)
        self._scenes = table_of(meta_info) or ()

    def choose(self, history: list[str]) -> Question:
        view, left = history[0], values_left_by(history)
        seen = [scene for scene in self._scenes if scene.view == view]
        possible = [scene for scene in seen if all(scene.values[name] in values for name, values in left.items())]
        answered = [question for question in QUESTIONS if question.is_answered(VIEWS.get(view, frozenset()))]
        gains = {question: self._gain(question, left[question.attribute], possible) for question in answered}
        best = max(gains.values())
        return self._rng.choice([question for question, gain in gains.items() if gain == best])

    def _gain(self, question: Question, left: frozenset[str], possible: list[Scene]) -> int:
        """Points that scenes would lose, summed over the possible scenes."""
        in_table = Counter(scene.values[question.attribute] for scene in self._scenes)
        in_possible = Counter(scene.values[question.attribute] for scene in possible)
        answers = [frozenset({value}) for value in left]
        if question.values is not None:
            answers = [left & question.values, left - question.values]
        loss = 0
        for values in answers:
            loss += sum(in_possible[value] for value in values) * sum(in_table[value] for value in left - values)
        return loss


def data_player(open_share: float = 0.5) -> MixedPlayer:
    return MixedPlayer(open_share, OpenPlayer(), RandomPlayer())


class GuessThePicture(TextGenPool):
    """Games about hidden scenes, in which scripted players ask questions, without pictures, files or network.

    Args:
        n_scenes: Number of scenes that the guesser ranks.
        open_share: Share of games by a player who asks no yes/no questions; in the others, one asks at random.
        yes_no_penalty: Penalty in the rewards of :meth:`conversations`; must be the partner's.
        max_rounds: Number of questions after which a game is over; must be the partner's.
        seed: Random seed of the scenes and the games.
    """

    has_rewards = repeats_prompts = True
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

        All splits have the same scenes, in other games. The guesser gives hidden scenes no points at first.

        There is one sample per game. Its prompt is the caption and its reference is the first question. In its meta
        data are ``history``, the number of the hidden ``scene``, the ``table`` of all scenes and the ``continuation``,
        which contains all later utterances, starting with the partner's answer.
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
