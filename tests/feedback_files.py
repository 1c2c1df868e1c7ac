"""Feedback of users, and files of it."""

from rl4dialog.core.feedback import Feedback, JudgedReply, append_feedback

HELLO = ("hello",)


def rating(reply, value, turns=HELLO, **other):
    return Feedback("rating", turns, [JudgedReply("m", reply)], rating=value, **other)


def preference(first, second, chosen, turns=HELLO, **other):
    return Feedback("preference", turns, [JudgedReply("m", text) for text in (first, second)], chosen=chosen, **other)


def correction(reply, better, turns=HELLO, **other):
    return Feedback("correction", turns, [JudgedReply("m", reply)], correction=better, **other)


def conversation_rating(reply, value, turns=HELLO, **other):
    return Feedback("conversation_rating", turns, [JudgedReply("m", reply)], rating=value, **other)


def write_feedback(path, given):
    path.touch()
    for each in given:
        append_feedback(path, each)
    return path


def mixed_feedback(n=12):
    """Three judgements in each of some conversations: a rating, a choice and a correction."""
    found = []
    for i in range(n):
        turns = (f"hello {i}", "hi", "how are you")
        found.append(rating(f"fine {i}", 1 if i % 2 else -1, turns))
        found.append(preference(f"good {i} and you?", "bad", i % 2, turns))
        found.append(correction("no", f"yes {i} sure", turns))
    return found
