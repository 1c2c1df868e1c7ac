"""Samples that a report shows, marks in them, failures, and utterances by advantage."""

import dataclasses
import json
import math

import numpy as np
import pytest

from rl4dialog.core.types import AGENT, PARTNER, Dialogue, Turn
from rl4dialog.runs.reading import Predictions, read_predictions
from rl4dialog.runs.report.samples import (
    Bubble,
    FailureCount,
    JudgedUtterance,
    Piece,
    choose_samples,
    extreme_utterances,
    failure_counts,
    sample_set,
    sort_keys,
    word_diff,
)


def predictions(**scores):
    n = len(next(iter(scores.values())))
    numbers = [str(i) for i in range(n)]
    arrays = {key: np.array(values) for key, values in scores.items()}
    replies = [f"reply {i}" for i in numbers]
    return Predictions(numbers, ["a<EOU>b <EOU>"] * n, [["a", "b"]] * n, replies, [["gold"]] * n, arrays, [None] * n)


def test_all_are_shown_if_they_are_few():
    samples = choose_samples({"old": predictions(m=[0.0, 1.0]), "new": predictions(m=[0.5, np.nan])})
    assert [(sample.number, sample.sample_id) for sample in samples] == [(1, "0"), (2, "1")]
    assert samples[0].turns == ["a", "b"]
    assert [(answer.label, answer.scores) for answer in samples[0].answers] == [
        ("old", {"m": 0.0}),
        ("new", {"m": 0.5}),
    ]
    assert [answer.scores for answer in samples[1].answers] == [{"m": 1.0}, {"m": None}]


def test_of_many_the_extremes_of_reward_and_change_are_among_those_shown():
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


def test_without_rewards_the_extremes_of_every_score_are_shown():
    a, b = np.arange(300.0), np.roll(np.arange(300.0), 100)
    samples = choose_samples({"only": predictions(a=a.tolist(), b=b.tolist())}, n=20)
    shown = {int(sample.sample_id) for sample in samples}
    assert {a.argmax(), a.argmin(), b.argmax(), b.argmin()} <= shown and len(shown) == 20


def test_page_does_not_outgrow_its_size_and_shows_the_extremes_first():
    found = predictions(reward=list(range(100)))
    long = dataclasses.replace(found, replies=["<" * 1000] * 100)
    shown = [sample.sample_id for sample in choose_samples({"only": long}, max_bytes=5 * 5000)]
    assert shown == ["0", "1", "5", "98", "99"], "each < takes four bytes"
    assert len(choose_samples({"only": long}, max_bytes=1)) == 1


def test_each_answer_is_compared_with_the_first_which_is_compared_with_the_last():
    texts = ("red cars", "blue cars", "red dogs")
    found = {text: dataclasses.replace(predictions(m=[0.0]), replies=[text]) for text in texts}
    (sample,) = choose_samples(found)
    marked = [[piece.text for piece in answer.reply if piece.is_new] for answer in sample.answers]
    assert marked == [["cars"], ["blue"], ["dogs"]]
    assert [answer.is_changed for answer in sample.answers] == [False, True, True]


def test_scores_of_a_set_are_those_to_sort_by_which_vary():
    found = {"old": predictions(m=[0.0], d=[1.0]), "new": predictions(m=[math.inf], d=[1.0])}
    chosen = sample_set("test", found)
    assert chosen is not None and chosen.ranking_key is None and chosen.shown_keys == ["m"]
    assert chosen.scores(chosen.samples[0]) == {"m": [0.0, None]}


def conversation(i, *said, reward=0.5):
    turns = [Turn("given", PARTNER), Turn("given too", AGENT)]
    turns += [Turn(text, (AGENT, PARTNER)[n % 2], reward=(reward, 0.0)[n % 2]) for n, text in enumerate(said)]
    return Dialogue(str(i), tuple(turns), n_given=2, outcome={"success": 1.0}, ended_by="partner")


def with_conversations(found, *conversations):
    return dataclasses.replace(found, conversations=list(conversations))


def test_conversations_are_shown_without_the_turns_of_the_sample_which_come_once():
    before = with_conversations(predictions(m=[0.0]), conversation(0, "", "what", "a dog", reward=math.nan))
    after = with_conversations(predictions(m=[1.0]), conversation(0, "x" * 3000))
    (sample,) = choose_samples({"before": before, "after": after})
    assert sample.has_conversations and sample.turns == ["a", "b"]
    assert sample.given == [Bubble("partner", "given", None), Bubble("agent", "given too", None)]
    bubbles = [Bubble("agent", "", None), Bubble("partner", "what", None), Bubble("agent", "a dog", None)]
    first, last = sample.answers
    assert (first.bubbles, first.ending, first.is_changed) == (bubbles, "ended by the partner; success 1", False)
    assert last.bubbles == [Bubble("agent", "x" * 2000 + " …", 0.5)] and last.is_changed


def test_conversations_are_chosen_by_return():
    rng = np.random.default_rng(0)
    returns, other = rng.normal(size=1000), rng.normal(size=1000)
    found = predictions(**{"conversation/turns": other.tolist(), "conversation/return": returns.tolist()})
    assert sort_keys([found]) == ["conversation/return", "conversation/turns"]
    found = with_conversations(found, *[conversation(i, "a") for i in range(1000)])
    shown = {int(sample.sample_id) for sample in choose_samples({"only": found}, n=50, max_bytes=10**6)}
    assert set(np.argsort(returns)[-10:]) | set(np.argsort(returns)[:10]) <= shown


def test_rewards_are_sorted_by_first():
    found = predictions(m=[0.0])
    found.scores.update({"reward/part": np.zeros(1), "reward": np.zeros(1)})
    assert sort_keys([found]) == ["reward", "reward/part", "m"]
    assert choose_samples({}) == [] == sort_keys([])


def test_words_that_the_other_text_lacks_are_new_unless_no_word_is_common():
    found = word_diff("do you like red cars ?", "do you like cars ?")
    assert found == [Piece("do you like", False), Piece(" ", False), Piece("red", True), Piece(" cars ?", False)]
    assert sum(piece.is_new for piece in word_diff("a b", "b a")) == 1
    assert word_diff("yes", "no way") == [Piece("yes", False)] == word_diff("yes", "")
    assert word_diff("", "no") == []


@pytest.mark.parametrize("text", ["", " ", " a  b\nc ", "a b\n\n", "\ta"])
@pytest.mark.parametrize("other", ["", "a", "b c a", " a  b\nc "])
def test_pieces_add_up_to_the_text(text, other):
    assert "".join(piece.text for piece in word_diff(text, other)) == text


def failing(tmp_path, *failures):
    said = {"turns": [{"speaker": "agent", "text": "hello", "reward": 0.0}], "outcome": {}, "ended_by": "partner"}
    return judged(tmp_path, *({**said, "goal_text": f"goal {i}", "failures": each} for i, each in enumerate(failures)))


def test_causes_are_counted_once_per_conversation_most_frequent_now_first(tmp_path):
    before = failing(tmp_path, ["late", "late"], ["late"], ["wrong"])
    after = failing(tmp_path, [], ["wrong"], ["wrong"])
    samples = choose_samples({"before": before, "after": after})
    assert [sample.goal for sample in samples] == ["goal 0", "goal 1", "goal 2"]
    assert failure_counts(before, after, samples) == [
        FailureCount("wrong", 1, 2, samples[1:]),
        FailureCount("late", 2, 0, samples[:2]),
    ]
    samples = choose_samples({"before": before})
    assert failure_counts(before, None, samples)[0] == FailureCount("late", 2, None, samples[:2])
    assert failure_counts(None, None, []) == []


def judged(tmp_path, *records):
    path = tmp_path / "judged.json"
    path.write_text(json.dumps([{"sample_id": i, **each} for i, each in enumerate(records)]))
    found = read_predictions(path)
    assert found is not None
    return found


def reply(prompt, text, *advantages):
    texts = {"prompt_text": f"x <EOU> {prompt} <EOU>", "generated_text": text, "ref_text": ""}
    return {**texts, "advantages": list(advantages)}


def test_utterances_are_ranked_and_each_is_shown_once(tmp_path):
    rows = [reply("a", "good", 2.0), reply("a", "good", 1.9), reply("b", "bad", -1.0), reply("b", "so so", 0.5)]
    found = extreme_utterances(judged(tmp_path, *rows))
    assert found == {
        "Highest advantage": [JudgedUtterance(2.0, "a", "good", "0")],
        "Lowest advantage": [JudgedUtterance(-1.0, "b", "bad", "2")],
    }


def test_each_utterance_of_a_conversation_counts_with_what_it_answers(tmp_path):
    turns = [
        {"speaker": "partner", "text": "hello", "given": True},
        {"speaker": "agent", "text": "one", "reward": 0.0},
        {"speaker": "partner", "text": "why"},
        {"speaker": "agent", "text": "two", "reward": 0.0},
    ]
    row = {**reply("hello", "one", -0.5, 0.25), "turns": turns, "outcome": {}, "ended_by": None}
    found = extreme_utterances(judged(tmp_path, row))
    assert [(each.heard, each.text) for each in found["Highest advantage"]] == [("why", "two")]
    assert [(each.heard, each.text) for each in found["Lowest advantage"]] == [("hello", "one")]
    assert extreme_utterances(predictions(m=[0.0])) == {} == extreme_utterances(None)


def test_selected_rows_keep_their_advantages(tmp_path):
    found = judged(tmp_path, reply("a", "x", 1.0), reply("a", "y", 2.0)).select([1])
    assert found.advantages == [[2.0]]
