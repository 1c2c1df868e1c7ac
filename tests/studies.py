"""Two studies, replies to judge in them, and answers."""

from rl4dialog.core.feedback import JudgedReply, QueuedReplies
from rl4dialog.data.studies import Study

QUALITY = Study("Quality", "Read.", "How good?", 2, "You agree.", {1: "bad", 2: "", 3: "", 4: "", 5: "good"})
PREFERENCE = Study("Choice", "Read.", "Which one?", 2)
REPLIES = [QueuedReplies(str(i), [f"hello {i}"], [JudgedReply("m", f"reply {i}")]) for i in range(8)]


def answer(study, shown, rater, value):
    """The answer of a rater: a rating, or the index of the better reply."""
    of_study = {"rater": rater, "study": study.title}
    if study.scale is None:
        return shown.chosen(value, **of_study)
    return shown.rated(0, value, scale=study.bounds, **of_study)
