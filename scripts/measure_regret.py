"""Exact numbers of a model that plays guess_what: what its utterances lose, and how good its critic is at the end.

python scripts/measure_regret.py --run runs/my_project/my_run

The regret of an utterance u after the answers h is V*(h) - Q*(h, u): what the best player would gain with another one.
The sum over a game is, on average, the best player's return minus that of the model. Before the last turn, the model's
return is known exactly: the mean over its 52 utterances, weighted by their probabilities, and over the things that are
left. The critic's values are compared with it.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import script
from stable_baselines3.common.utils import explained_variance

from rl4dialog.core.errors import DataError
from rl4dialog.core.types import Dialogue
from rl4dialog.functional.statistics import spearman
from rl4dialog.inference.loading import LoadedPolicy, load_policy
from rl4dialog.runs.reading import read_run
from rl4dialog.tasks.guess_what import GUESSES, MAX_TURNS, QUESTIONS, THINGS, consistent_things, parse

TURN = -0.05  # reward of each turn; a win adds 1
FEW = 6  # with more things left, no guess is best; 4 and 8 give the same values
_NUMBERS = {thing: 1 << i for i, thing in enumerate(THINGS)}
ALL = (1 << len(THINGS)) - 1


def mask(things: Iterable[str]) -> int:
    """A set of things as the bits of a number."""
    return sum(_NUMBERS[thing] for thing in things)


_ASKED = [mask(question.things) for question in QUESTIONS]


@functools.cache
def best_value(left: int, n_turns: int) -> float:
    """V*: mean return of the best player with these things left and this number of turns."""
    if n_turns == 0:
        return 0.0
    n, after_question = (
        left.bit_count(),
        [asked_value(left, asked, n_turns) for asked in _ASKED if 0 < left & asked < left],
    )
    guesses = [_NUMBERS[thing] for thing in THINGS if left & _NUMBERS[thing]] if n <= FEW or n_turns == 1 else []
    return max(
        [*after_question, *(guessed_value(left, guess, n_turns) for guess in guesses[: 1 if n_turns == 1 else n])]
    )


Value = Callable[[int, int], float]
"""A player's mean return with things that are left and a number of turns."""


def asked_value(left: int, asked: int, n_turns: int, later: Value = best_value) -> float:
    """Q of a question: the mean over both answers, where the things that are left are equally likely."""
    parts = [part for part in (left & asked, left & ~asked) if part]
    return TURN + sum(part.bit_count() * later(part, n_turns - 1) for part in parts) / left.bit_count()


def guessed_value(left: int, guess: int, n_turns: int, later: Value = best_value) -> float:
    """Q of a guess, which ends the game if it is right."""
    n, others = left.bit_count(), left & ~guess
    return TURN + ((left & guess > 0) + others.bit_count() * (later(others, n_turns - 1) if others else 0)) / n


def utterance_value(left: int, said: str, n_turns: int, later: Value = best_value) -> float:
    """Q of an utterance before the turns of a player, the best one by default; not understood, it costs a turn."""
    question = parse(said)
    if question is None:
        return TURN + later(left, n_turns - 1)
    value_of = guessed_value if question.is_guess else asked_value
    return value_of(left, mask(question.things), n_turns, later)


def left_after(history: list[str]) -> int:
    """The things that agree with all answers of a conversation."""
    return mask(consistent_things(history))


def regrets(game: Dialogue) -> list[float]:
    """The regret of each utterance of the agent, of shape (turns,)."""
    texts, found = [turn.text for turn in game.turns], []
    for n_said, place in enumerate(game.agent_turns):
        left, n_turns = left_after(texts[:place]), MAX_TURNS - n_said
        found.append(best_value(left, n_turns) - utterance_value(left, texts[place], n_turns))
    return found


def prompt_of(policy: LoadedPolicy, history: list[str]) -> str:
    assert policy.dialogue_format is not None
    return policy.dialogue_format.prompt(history)


def last_turn_values(policy: LoadedPolicy, history: list[str]) -> tuple[float, float]:
    """The exact mean return of the last turn after a history, and the probability of all but the 52 utterances."""
    said = [question.text for question in (*QUESTIONS, *GUESSES.values())]
    prompts = [prompt_of(policy, history)] * len(said)
    p = np.exp([sum(of_tokens) for of_tokens in policy.log_probs(prompts, said)])
    left = left_after(history)
    wins = [bool(left & number) / left.bit_count() for number in _NUMBERS.values()]
    return TURN + float(p[len(QUESTIONS) :] @ wins), 1 - float(p.sum())


def measure(policy: LoadedPolicy, games: list[Dialogue], n_last: int) -> dict[str, Any]:
    """All numbers of a run's test games; those of the last turn from at most `n_last` games."""
    lost = [regrets(game) for game in games]
    histories = [
        [turn.text for turn in game.turns[: game.agent_turns[-1]]]
        for game in games
        if len(game.agent_turns) == MAX_TURNS
    ]
    histories = histories[:n_last]
    exact, others = np.array([last_turn_values(policy, history) for history in histories]).T
    prompts = [prompt_of(policy, history) for history in histories]
    values = np.array([of_tokens[0] for of_tokens in policy.values(prompts, ["?"] * len(prompts))])
    best = [best_value(left_after(history), 1) for history in histories]
    return {
        "games": len(games),
        "regret": float(np.mean([sum(each) for each in lost])),
        "regret by turn": [float(np.mean([each[i] for each in lost if len(each) > i])) for i in range(MAX_TURNS)],
        "last turns": len(histories),
        "best return": float(np.mean(best)),
        "exact return": float(exact.mean()),
        "mean value": float(values.mean()),
        "rank correlation of values": float(spearman(values, exact)),
        "explained variance of exact returns": float(explained_variance(values, exact)),
        "probability of other utterances": float(others.mean()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--run", required=True, help="run folder of guess_what")
    parser.add_argument("--n_last", type=int, default=100, help="number of last turns (default: 100)")
    args = parser.parse_args()
    run = read_run(args.run)
    epochs = run.epochs("test")
    found = run.predictions("test", epochs[-1]) if epochs else None
    games = [game for game in (found.conversations if found else []) if game is not None]
    if not games or run.config.get("datapool", {}).get("id") != "guess_what":
        raise DataError(f"{args.run} has no test games of guess_what; pass a run of task_configs/guess_what/")
    for name, number in measure(load_policy(args.run), games, args.n_last).items():
        numbers = number if isinstance(number, list) else [number]
        print(f"{name}: {', '.join(f'{each:.3f}' if isinstance(each, float) else str(each) for each in numbers)}")


if __name__ == "__main__":
    script.run(main)
