"""Votes of a simulated person, and what the true utility says of a reward model."""

import feedback_loop
import pytest
from feedback_loop import accuracy_of, write_votes

from rl4dialog.core.errors import DataError
from rl4dialog.core.feedback import JudgedReply, QueuedReplies, read_feedback, write_queue
from rl4dialog.features.feedback.simulated_person import SimulatedPerson, utility

GOOD, BAD = "what do you like to eat after school ?", "no"


def pairs(n=8):
    texts = [(GOOD, BAD) if i % 2 else (BAD, GOOD) for i in range(n)]
    return [QueuedReplies(str(i), [f"hello {i}"], [JudgedReply("m", t) for t in both]) for i, both in enumerate(texts)]


def test_person_without_noise_votes_by_the_utility(tmp_path):
    write_queue(tmp_path / "queue.jsonl", pairs())
    person = SimulatedPerson(temperature=0.0, error_rate=0.0)
    for _ in range(2):  # an existing file is kept
        write_votes(tmp_path / "queue.jsonl", 6, person, tmp_path / "votes.jsonl")
    votes = read_feedback(tmp_path / "votes.jsonl")
    assert [vote.replies[vote.chosen or 0].text for vote in votes] == [GOOD] * 6
    with pytest.raises(DataError, match="has 8 pairs, fewer than 9 votes"):
        write_votes(tmp_path / "queue.jsonl", 9, SimulatedPerson(), tmp_path / "votes.jsonl")


@pytest.mark.parametrize(("sign", "accuracy"), [(1, 1.0), (-1, 0.0), (0, 0.5)])
def test_accuracy_compares_scores_with_the_utility(monkeypatch, tmp_path, sign, accuracy):
    class Model:
        card = type("Card", (), {"context_size": 1})

        def scores(self, texts):
            assert all(text.startswith("User: hello ") for text in texts)
            return [sign * utility(text.split("Assistant: ")[1]) for text in texts]

    def load(*_):
        return Model()

    monkeypatch.setattr(feedback_loop, "load_reward_model", load)
    equal = QueuedReplies("equal", ["hello 9"], [JudgedReply("m", "no"), JudgedReply("m", "so")])
    assert accuracy_of(tmp_path, [*pairs(), equal]).value == accuracy
