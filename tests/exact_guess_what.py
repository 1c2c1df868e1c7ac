"""Exact returns of `ConsistentPlayer` in guess_what, by dynamic programming over the questions that were asked."""

import functools

from rl4dialog.tasks.guess_what import MAX_TURNS, QUESTIONS, THINGS

TURN = -0.05


def belief(asked, thing):
    """The things that agree with the answers about a thing to a set of questions, by their numbers."""
    answers = [(QUESTIONS[i].things, thing in QUESTIONS[i].things) for i in asked]
    return [other for other in THINGS if all((other in things) == answer for things, answer in answers)]


@functools.cache
def moments(asked, thing):
    """Mean and mean square of the return of a game about a thing, after a set of questions."""
    n_left = len(belief(asked, thing))
    if n_left == 1 or len(asked) == MAX_TURNS - 1:  # it guesses, and is right or has lost
        p = 1 / n_left
        return p + TURN, p * (1 + TURN) ** 2 + (1 - p) * TURN**2
    after = [moments(asked | {i}, thing) for i in range(len(QUESTIONS)) if i not in asked]
    mean, square = (sum(column) / len(after) for column in zip(*after, strict=True))
    return TURN + mean, TURN**2 + 2 * TURN * mean + square


def value(asked, thing):
    """Mean return if only the answers are known."""
    possible = belief(asked, thing)
    return sum(moments(asked, other)[0] for other in possible) / len(possible)
