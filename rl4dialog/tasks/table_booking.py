"""A table in a restaurant: the guest names a part of a wish, and the clerk asks for the rest, then books.

How well the players do is in docs/conversations.md.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl4dialog.core.arguments import Count
from rl4dialog.core.errors import DataError, shown
from rl4dialog.core.protocols import Partner
from rl4dialog.core.seeding import derive_seed
from rl4dialog.core.types import PartnerReply, Sample
from rl4dialog.core.yaml_loader import packaged_yaml
from rl4dialog.data.dialogue_format import DialogueFormat, FormatName, RenderChat
from rl4dialog.data.pool import TextGenPool, size_of
from rl4dialog.data.splits import shuffled
from rl4dialog.tasks.playing import SeededPlayer, play, with_game

MAX_TURNS = 6


@dataclass(frozen=True)
class Slot:
    """A part of a wish."""

    name: str
    values: list[str]  # what can be wished
    in_opening: str  # how the guest names a value at first
    answers: list[str]  # how the guest answers a question
    words: list[str]  # a question with one of them asks for this slot
    questions: list[str]  # how scripted clerks ask

    def of(self, values: Iterable[str]) -> list[str]:
        """Those of the values that belong to this slot."""
        return [value for value in values if value in self.values]


_TEXTS = packaged_yaml(Path(__file__).with_suffix(".yaml"))
SLOTS = tuple(Slot(name, **slot) for name, slot in _TEXTS["slots"].items())
GUEST: dict[str, list[str]] = _TEXTS["guest"]
CHAT: list[str] = _TEXTS["chat"]
WISHES = tuple(map(", ".join, itertools.product(*(slot.values for slot in SLOTS))))

_VALUES = {value.lower(): value for slot in SLOTS for value in slot.values}
_NAMED = re.compile(rf"\b(?:{'|'.join(_VALUES)})\b")


def values_in(*texts: str) -> list[str]:
    """The values that texts name, in any case."""
    return [_VALUES[value] for text in texts for value in _NAMED.findall(text.lower())]


def asked_for(text: str) -> Slot | None:
    """The slot for which a text asks: it ends with a question mark, and has words of this slot only."""
    words = re.findall(r"\w+", text.lower())
    slots = [slot for slot in SLOTS if any(word in slot.words for word in words)]
    return slots[0] if len(slots) == 1 and text.rstrip().endswith("?") else None


def booking(values: Iterable[str]) -> str:
    """What a clerk says to book a table."""
    return f"Booked: {', '.join(values)}."


class BookingGuest(Partner):
    """Wants a table for the sample's wish, answers one question at a time, and leaves after a booking.

    The wish is the ``goal_text`` of the meta data, which the datapool table_booking provides.

    It pays 0.25 for a question that it answers, -0.1 for an utterance that it does not understand or has answered
    before, and 1 for a right booking.

    Its outcome ``success`` is 1 if the booking names all values of the wish and no others, ``right_parts`` the share of
    the wish's four parts that the booking has right, and ``asked_in_vain`` the number of the agent's utterances that it
    does not understand or has answered before.
    """

    outcomes = ("success", "right_parts", "asked_in_vain")
    role = "You are a guest who wants a table: on a day, at a time, for some people, inside or outside."
    checks_samples = True
    pays = True

    def reset(self, meta_info: dict[str, Any], seed: int) -> None:
        self._rng = random.Random(seed)
        self._wish: str = meta_info.get("goal_text", "")
        self._booked: list[str] | None = None
        self._n_in_vain = 0
        if self._wish not in WISHES:
            there = f"a wish such as {WISHES[0]!r}, not {shown(self._wish)}"
            cure = "use the datapool table_booking"
            raise DataError(f"partner 'table_booking' needs samples whose meta_data['goal_text'] is {there}; {cure}")

    def secret(self) -> str:
        return self._wish

    def reply(self, history: list[str]) -> PartnerReply:
        if history[-1].lower().startswith("booked"):
            self._booked = values_in(history[-1])
            success = self.outcome()["success"]
            return PartnerReply(self._say("satisfied" if success else "disappointed"), leaves=True, reward=success)
        slot = asked_for(history[-1])
        if slot is not None and not slot.of(values_in(*history[::2])):
            answer = self._rng.choice(slot.answers).format(*slot.of(values_in(self._wish)))
            return PartnerReply(answer, reward=0.25)
        self._n_in_vain += 1
        return PartnerReply(self._say("puzzled" if slot is None else "asked_again"), reward=-0.1)

    def _say(self, kind: str) -> str:
        return self._rng.choice(GUEST[kind])

    def outcome(self) -> dict[str, float]:
        right = 0.0 if self._booked is None else 1 - len(self.failures()) / len(SLOTS)
        return {"success": float(right == 1), "right_parts": right, "asked_in_vain": float(self._n_in_vain)}

    def failures(self) -> list[str]:
        if self._booked is None:
            return ["no booking"]
        wished = values_in(self._wish)
        return [f"wrong {slot.name}" for slot in SLOTS if slot.of(self._booked) != slot.of(wished)]


class CarelessClerk(SeededPlayer):
    """Books early and guesses what it was not told, asks for anything, also again, or just chats."""

    booking_share, chat_share = 0.35, 0.1  # of its utterances

    def say(self, history: list[str]) -> str:
        point, told = self._rng.random(), values_in(*history[::2])
        if point < self.booking_share:
            return booking((slot.of(told) or [self._rng.choice(slot.values)])[0] for slot in SLOTS)
        if point < self.booking_share + self.chat_share:
            return self._rng.choice(CHAT)
        return self._rng.choice(self._rng.choice(SLOTS).questions)


class CarefulClerk(SeededPlayer):
    """Asks for what is missing, in random order, and then books."""

    def say(self, history: list[str]) -> str:
        told = values_in(*history[::2])
        missing = [slot for slot in SLOTS if not slot.of(told)]
        if missing:
            return self._rng.choice(self._rng.choice(missing).questions)
        return booking(slot.of(told)[0] for slot in SLOTS)


class TableBooking(TextGenPool):
    """Guests who want a table in a restaurant, and games of a careless clerk with them, without files or network.

    Args:
        max_turns: Number of turns after which a conversation ends; use the same number in ``env.args``.
        system: Instruction for the clerk: system message in ``chat_template``, first utterance in ``eou``.
    """

    repeats_prompts = True

    @classmethod
    def prepare(
        cls,
        split: str,
        n_train: Count = 5000,
        n_val: Count = 100,
        n_test: Count = 200,
        max_turns: Count = MAX_TURNS,
        seed: int = 0,
        system: str | None = None,
        format: FormatName = "eou",
        render_chat: RenderChat | None = None,
    ) -> TableBooking:
        """Generate the conversations of one split.

        A wish belongs to one split only: 582 to ``train``, 100 to ``val``, 200 to ``test``. They take turns.

        There is one sample per conversation. Its prompt is the guest's opening line, which names one or two values, and
        its reference is the first reply of the careless clerk. In its meta data are ``history``, the ``goal_text``,
        which is the wish, and the ``continuation`` with all later utterances.
        """
        n_samples, wishes = size_of(split, n_train, n_val, n_test), wishes_of(split)
        dialogue_format = DialogueFormat(format, None, render_chat)
        samples = []
        for index in range(n_samples):
            talk_seed = derive_seed(seed, "table_booking", split, index)
            wish = wishes[index % len(wishes)]
            rng = random.Random(derive_seed(talk_seed, "opening"))
            named = rng.sample(SLOTS, rng.choice((1, 2)))
            values = [slot.in_opening.format(*slot.of(values_in(wish))) for slot in SLOTS if slot in named]
            opening = rng.choice(GUEST["opening"]).format(" ".join(values))
            meta_data = {"history": [opening], "goal_text": wish}
            sample = Sample(f"{split}_{index}", dialogue_format.prompt([opening], system), [], meta_data)
            samples.append(with_game(sample, play(CarelessClerk(), BookingGuest(), sample, max_turns, talk_seed)))
        pool = cls(samples, dialogue_format=dialogue_format)
        pool.players = {"careless": CarelessClerk, "careful": CarefulClerk}
        return pool


def wishes_of(split: str) -> list[str]:
    """The wishes of a split, in random order."""
    wishes = [WISHES[i] for i in shuffled(len(WISHES), "table_booking")]
    return {"test": wishes[:200], "val": wishes[200:300], "train": wishes[300:]}[split]
