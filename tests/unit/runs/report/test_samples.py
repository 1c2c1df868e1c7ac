"""Which samples the page shows."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from rl4dialog.core.types import AGENT, PARTNER, Dialogue, Turn
from rl4dialog.runs.report.predictions import Predictions
from rl4dialog.runs.report.samples import Bubble, Conversation, SampleSet, choose_samples, sort_keys


def predictions(**scores: list[float]) -> Predictions:
    n = len(next(iter(scores.values())))
    numbers = [str(i) for i in range(n)]
    arrays = {key: np.array(values) for key, values in scores.items()}
    replies = [f"reply {i}" for i in numbers]
    return Predictions(numbers, ["a<EOU>b <EOU>"] * n, [["a", "b"]] * n, replies, [["gold"]] * n, arrays, [None] * n)


def test_all_are_shown_if_they_are_few() -> None:
    samples = choose_samples({"old": predictions(m=[0.0, 1.0]), "new": predictions(m=[0.5, np.nan])})
    assert [(sample.number, sample.sample_id) for sample in samples] == [(1, "0"), (2, "1")]
    assert samples[0].turns == ["a", "b"]
    assert [(answer.label, answer.scores) for answer in samples[0].answers] == [
        ("old", {"m": 0.0}),
        ("new", {"m": 0.5}),
    ]
    assert [answer.scores for answer in samples[1].answers] == [{"m": 1.0}, {"m": None}]


def test_of_many_the_extremes_of_reward_and_change_are_among_those_shown() -> None:
    rng = np.random.default_rng(0)
    old, new = rng.normal(size=1000), rng.normal(size=1000)
    before, after = predictions(m=[0.0] * 1000, reward=old.tolist()), predictions(reward=new.tolist())
    samples = choose_samples({"before": before, "after": after}, n=50)
    shown = [int(sample.sample_id) for sample in samples]
    assert len(shown) == 50 and shown == sorted(set(shown))
    change = new - old
    for extreme in (new.argmax(), new.argmin(), change.argmax(), change.argmin()):
        assert extreme in shown
    assert set(np.argsort(new)[-8:]) <= set(shown), "ten of each kind are taken, some of which are of two kinds"


def test_without_rewards_the_extremes_of_every_score_are_shown() -> None:
    a, b = np.arange(300.0), np.roll(np.arange(300.0), 100)
    samples = choose_samples({"only": predictions(a=a.tolist(), b=b.tolist())}, n=20)
    shown = {int(sample.sample_id) for sample in samples}
    assert {a.argmax(), a.argmin(), b.argmax(), b.argmin()} <= shown and len(shown) == 20
    assert all(len(sample.answers) == 1 for sample in samples)


def test_page_does_not_outgrow_its_size_and_shows_the_extremes_first() -> None:
    found = predictions(reward=list(range(100)))
    long = dataclasses.replace(found, replies=["<" * 1000] * 100)
    shown = [sample.sample_id for sample in choose_samples({"only": long}, max_bytes=5 * 5000)]
    assert shown == ["0", "1", "5", "98", "99"], "each < takes four bytes"
    assert len(choose_samples({"only": long}, max_bytes=1)) == 1


def test_each_answer_is_compared_with_the_first_which_is_compared_with_the_last() -> None:
    texts = ("red cars", "blue cars", "red dogs")
    found = {text: dataclasses.replace(predictions(m=[0.0]), replies=[text]) for text in texts}
    (sample,) = choose_samples(found)
    marked = [[piece.text for piece in answer.reply if piece.is_new] for answer in sample.answers]
    assert marked == [["cars"], ["blue"], ["dogs"]]
    assert [answer.is_changed for answer in sample.answers] == [False, True, True]


def test_scores_of_a_set_are_those_to_sort_by() -> None:
    found = {"old": predictions(m=[0.0], d=[1.0]), "new": predictions(m=[math.inf], d=[2.0])}
    samples = choose_samples(found)
    chosen = SampleSet("test", list(found), samples, 1, "replies", ["m"], [])
    assert chosen.scores(samples[0]) == {"m": [0.0, None]} and chosen.ranking_key is None


def conversation(i: int, *said: str, reward: float = 0.5) -> Dialogue:
    turns = [Turn("given", PARTNER), Turn("given too", AGENT)]
    turns += [Turn(text, (AGENT, PARTNER)[n % 2], reward=(reward, 0.0)[n % 2]) for n, text in enumerate(said)]
    return Dialogue(str(i), tuple(turns), n_given=2, outcome={"success": 1.0}, ended_by="partner")


def with_conversations(found: Predictions, *conversations: Dialogue | None) -> Predictions:
    return dataclasses.replace(found, conversations=list(conversations))


def test_conversations_are_shown_without_the_turns_of_the_sample_which_come_once() -> None:
    before = with_conversations(predictions(m=[0.0]), conversation(0, "", "what", "a dog", reward=math.nan))
    after = with_conversations(predictions(m=[1.0]), conversation(0, "x" * 3000))
    (sample,) = choose_samples({"before": before, "after": after})
    assert sample.has_conversations and sample.turns == ["a", "b"]
    assert sample.given == [Bubble("partner", "given", None), Bubble("agent", "given too", None)]
    bubbles = [Bubble("agent", "", None), Bubble("partner", "what", None), Bubble("agent", "a dog", None)]
    first, last = sample.answers
    assert first.conversation == Conversation(bubbles, "ended by the partner; success 1") and not first.is_changed
    clipped = [Bubble("agent", "x" * 2000 + " …", 0.5)]
    assert last.conversation == Conversation(clipped, "ended by the partner; success 1") and last.is_changed


def test_conversations_are_chosen_by_return() -> None:
    rng = np.random.default_rng(0)
    returns, other = rng.normal(size=1000), rng.normal(size=1000)
    found = predictions(**{"conversation/turns": other.tolist(), "conversation/return": returns.tolist()})
    assert sort_keys([found]) == ["conversation/return", "conversation/turns"]
    found = with_conversations(found, *[conversation(i, "a") for i in range(1000)])
    shown = {int(sample.sample_id) for sample in choose_samples({"only": found}, n=50, max_bytes=10**6)}
    assert set(np.argsort(returns)[-10:]) | set(np.argsort(returns)[:10]) <= shown


def test_rewards_are_sorted_by_first() -> None:
    found = predictions(m=[0.0])
    found.scores.update({"reward/part": np.zeros(1), "reward": np.zeros(1)})
    assert sort_keys([found]) == ["reward", "reward/part", "m"]


def test_nothing_evaluated_shows_nothing() -> None:
    assert choose_samples({}) == [] and sort_keys([]) == []
