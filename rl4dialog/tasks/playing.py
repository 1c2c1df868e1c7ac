"""Scripted players of the agent's side, and their conversations with a partner, without a model."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from rl4dialog.core.errors import PartnerError
from rl4dialog.core.partner_replies import checked_reply
from rl4dialog.core.protocols import Partner, Player
from rl4dialog.core.seeding import derive_seed
from rl4dialog.core.types import AGENT, PARTNER, Dialogue, EndedBy, Sample, Turn, given_turns


class SeededPlayer(Player):
    """Base class of players that draw with the seed of the conversation."""

    def __init__(self) -> None:
        self._rng = random.Random(0)

    def reset(self, meta_info: dict[str, Any], seed: int) -> None:
        self._rng = random.Random(seed)


class MixedPlayer(Player):
    """Holds a conversation as one of two players: as the first one with probability `share`."""

    def __init__(self, share: float, first: Player, second: Player) -> None:
        self._share, self._players = share, (second, first)
        self._player = second

    def reset(self, meta_info: dict[str, Any], seed: int) -> None:
        rng = random.Random(seed)
        self._player = self._players[rng.random() < self._share]
        self._player.reset(meta_info, rng.getrandbits(31))

    def say(self, history: list[str]) -> str:
        return self._player.say(history)


def play(player: Player, partner: Partner, sample: Sample, max_turns: int, seed: int) -> Dialogue:
    """Let a player and a partner talk about a sample; the seed determines everything that is random."""
    meta_data = sample.meta_data or {}
    history = list(meta_data.get("history", [sample.prompt_or_input_text]))
    n_given = len(history)
    turns = [*given_turns(history)]
    player.reset(meta_data, derive_seed(seed, "player"))
    partner.reset(meta_data, derive_seed(seed, "partner"))
    ended_by: EndedBy = "max_turns"
    for _ in range(max_turns):
        history.append(player.say(history))
        reply = checked_reply(partner.reply(history), type(partner).__name__)
        if reply.failed is not None:
            raise PartnerError(f"the partner failed on sample {sample.id!r}: {reply.failed}")
        turns.append(Turn(history[-1], AGENT, reward=reply.reward))
        if reply.text is not None:
            history.append(reply.text)
            turns.append(Turn(reply.text, PARTNER))
        if reply.leaves:
            ended_by = "partner"
            break
    return Dialogue(
        sample.id, tuple(turns), meta_data=meta_data, n_given=n_given, outcome=partner.outcome(), ended_by=ended_by
    )


@dataclass(frozen=True)
class Question:
    """Base class of the questions of a game."""

    words: str  # the question without its question mark

    @property
    def text(self) -> str:
        """The question as it is said."""
        return f"{self.words} ?"


Q = TypeVar("Q", bound=Question)


def reader_of(questions: Iterable[Q]) -> Callable[[str], Q | None]:
    """What reads these questions. Case, spaces and question marks at the end do not matter."""
    by_words = {question.words: question for question in questions}
    return lambda text: by_words.get(" ".join(text.lower().split()).rstrip(" ?"))


def with_game(sample: Sample, game: Dialogue) -> Sample:
    """The sample with the player's first utterance as reference, and all later ones of both as continuation."""
    first, *continuation = (turn.text for turn in game.said)
    return replace(sample, references=[first], meta_data={**(sample.meta_data or {}), "continuation": continuation})
