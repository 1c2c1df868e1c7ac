"""The partner, who hides a word and colours guesses."""

from __future__ import annotations

import functools
from typing import Any, Literal

from rl4dialog.core.errors import DataError, shown
from rl4dialog.core.protocols import Partner
from rl4dialog.core.types import PartnerReply
from rl4dialog.tasks.wordle.rules import NO_WORD, Duplicates, Letters, colours, read, reward, written
from rl4dialog.tasks.wordle.words import ListName, load_words


class WordlePartner(Partner):
    """Hides the sample's word, colours guesses, pays -1 for each wrong one, and leaves after the right one.

    An utterance that is not a guess costs 1, too, and is answered with ``no word``. Outcomes: ``success`` is 1 if the
    word was guessed, and ``malformed`` is the number of utterances that were not a guess.

    Args:
        letters: How guesses and colours are written: ``plain`` (``crane``) or ``spaced`` (``c r a n e``); as in the
            datapool.
        duplicates: How repeated letters are coloured. With ``simple``, a letter at the wrong place is yellow if it
            occurs in the word at all; with ``official``, as many of a repeated letter are coloured as the word has. As
            in the datapool.
        guesses: ``any``: any five letters are a guess, as in ILQL. ``listed``: only words of a list, as in LMRL-Gym.
        word_list: With ``guesses: listed``, the packaged list, 40 or 240.
        path: With ``guesses: listed``, a file with one word per line, instead.

    Raises:
        DataError: If a list is missing, not used or invalid; or, at the start of a conversation, if the sample's
            ``meta_data["word"]`` is no word of the game, or it was made for other rules.
    """

    pays = True
    outcomes = ("success", "malformed")
    checks_samples = True

    def __init__(
        self,
        letters: Letters = "plain",
        duplicates: Duplicates = "simple",
        guesses: Literal["any", "listed"] = "any",
        word_list: ListName | None = None,
        path: str | None = None,
    ) -> None:
        self._rules = {"letters": letters, "duplicates": duplicates}
        self._letters, self._duplicates = letters, duplicates
        self._list = (word_list, path) if guesses == "listed" else None
        if self._list is not None:
            load_words(*self._list)
        elif word_list is not None or path is not None:
            raise DataError(
                "partner 'wordle': word_list and path are the words that guesses: listed allows; set it, or leave them "
                "out"
            )
        self._word = ""
        self._solved, self._n_malformed = False, 0

    def reset(self, meta_info: dict[str, Any], seed: int) -> None:
        word = meta_info.get("word")
        self._solved, self._n_malformed = False, 0
        if not isinstance(word, str) or read(word, "plain") != word or not self._is_allowed(word):
            allowed = "five lower-case letters" if self._list is None else "a word of the partner's list"
            raise DataError(
                f"partner 'wordle' needs samples whose meta_data['word'] is {allowed}, not {shown(word)}; use the "
                f"datapool wordle, with the same list"
            )
        for name, own in self._rules.items():
            if meta_info.get(name, own) != own:
                raise DataError(
                    f"partner 'wordle' has {name}: {own}, but the sample was made with {name}: {meta_info[name]}; set "
                    f"the same in datapool.args and in the partner's args"
                )
        self._word = word

    def reply(self, history: list[str]) -> PartnerReply:
        guess = read(history[-1], self._letters)
        if guess is None or not self._is_allowed(guess):
            self._n_malformed += 1
            return PartnerReply(NO_WORD, reward=reward(None, self._word))
        self._solved = guess == self._word
        text = written(colours(guess, self._word, self._duplicates), self._letters)
        return PartnerReply(text, reward=reward(guess, self._word), leaves=self._solved)

    def outcome(self) -> dict[str, float]:
        return {"success": float(self._solved), "malformed": float(self._n_malformed)}

    def _is_allowed(self, guess: str) -> bool:
        return self._list is None or guess in _allowed(*self._list)


@functools.lru_cache(maxsize=8)  # shared by the environments of a process
def _allowed(word_list: ListName | None, path: str | None) -> frozenset[str]:
    return frozenset(load_words(word_list, path))
