"""Layouts of other programs: each from rows made by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rl4dialog.core.errors import DataError
from rl4dialog.core.feedback import Feedback, JudgedReply
from rl4dialog.core.types import AGENT, PARTNER, SYSTEM_KEY, Dialogue
from rl4dialog.data.conversations.layout import dialogues_of, guess_layout, unread_columns
from rl4dialog.data.rows import Row


def read(values: dict[str, Any], layout: Any = None) -> list[Dialogue]:
    row = Row(json.loads(json.dumps(values)), "log.jsonl:3")
    return list(dialogues_of(row, 2, layout or guess_layout(row), "assistant"))


def said(dialogue: Dialogue) -> list[tuple[int, str, float]]:
    return [(turn.speaker, turn.text, turn.reward) for turn in dialogue.turns]


def messages(*texts: str) -> list[dict[str, str]]:
    """Messages of which the last one is the assistant's."""
    roles = ["user", "assistant"]
    return [{"role": roles[(i + len(texts)) % 2], "content": text} for i, text in enumerate(texts)]


@pytest.mark.parametrize(
    ("label", "reward"), [({}, 0.0), ({"label": True}, 1.0), ({"label": False}, 0.0), ({"label": -2.5}, -2.5)]
)
def test_completions_have_their_label_as_reward(label: dict[str, Any], reward: float) -> None:
    (plain,) = read({"prompt": "hello", "completion": "hi", "id": "x", "meta_data": {"a": 1}, **label})
    assert said(plain) == [(PARTNER, "hello", 0.0), (AGENT, "hi", reward)]
    assert plain.n_given == 1 and plain.id == "x" and plain.meta_data == {"a": 1}
    prompt = [{"role": "system", "content": "s"}, *messages("a", "b", "c", "")[:-1]]
    (chat,) = read({"prompt": prompt, "completion": [{"role": "assistant", "content": "d"}], **label})
    assert said(chat) == [(PARTNER, "a", 0.0), (AGENT, "b", 0.0), (PARTNER, "c", 0.0), (AGENT, "d", reward)]
    assert chat.n_given == 3 and chat.meta_data == {SYSTEM_KEY: "s"} and chat.id == 2


def test_preferences_are_two_conversations() -> None:
    whole = {"chosen": messages("a", "b", "c", "good"), "rejected": messages("a", "b", "c", "bad")}
    for row in (whole, {"prompt": messages("a", "b", "c", "")[:-1], "chosen": "good", "rejected": "bad"}):
        if isinstance(row["chosen"], str):
            row = {**row, **{key: [{"role": "assistant", "content": row[key]}] for key in ("chosen", "rejected")}}
        good, bad = read(row)
        assert said(good)[-1] == (AGENT, "good", 1.0) and said(bad)[-1] == (AGENT, "bad", 0.0)
        assert said(good)[:-1] == said(bad)[:-1] == [(PARTNER, "a", 0.0), (AGENT, "b", 0.0), (PARTNER, "c", 0.0)]
        assert (good.id, bad.id) == ("2_chosen", "2_rejected") and good.n_given == bad.n_given == 3


SEQUENCE = [["Wordle:\n", 0], ["s l a t e\n", 1], ["b b g b g\n", 0.0], ["c r a n e\n", True]]


@pytest.mark.parametrize("rewards", [[-1.0, 0.0, -2], [0.0, -1.0, 0.0, -2]])
def test_lmrl_gyms_rewards_are_those_of_all_texts_or_of_all_but_the_first(rewards: list[float]) -> None:
    (found,) = read({"sequence": SEQUENCE, "reward": rewards, "done": False})
    texts = ["Wordle:", "s l a t e", "b b g b g", "c r a n e"]
    assert [turn.text for turn in found.turns] == texts, "without surrounding whitespace"
    assert said(found)[1] == (AGENT, texts[1], -1.0) and said(found)[3] == (AGENT, texts[3], -2.0)
    assert not found.terminated and found.n_given == 0
    assert read({"sequence": SEQUENCE, "reward": rewards, "done": True})[0].terminated


def feedback(kind: str, *replies: str, **verdict: Any) -> dict[str, Any]:
    judged = [JudgedReply("p/run", text) for text in replies]
    return Feedback(kind, ["a", "b", "c"], judged, persona="I like tea.", id="f", **verdict).record()


def test_feedback_has_the_verdicts_of_people_as_rewards() -> None:
    (down,) = read(feedback("rating", "meh", rating=-1))
    assert said(down) == [(PARTNER, "a", 0.0), (AGENT, "b", 0.0), (PARTNER, "c", 0.0), (AGENT, "meh", -1.0)]
    assert down.n_given == 3 and down.meta_data == {SYSTEM_KEY: "I like tea.", "model": "p/run"} and down.id == "f"
    worse, better = read(feedback("preference", "no", "yes", chosen=1))
    assert said(worse)[-1] == (AGENT, "no", 0.0) and said(better)[-1] == (AGENT, "yes", 1.0)
    assert (worse.id, better.id) == ("f_0", "f_1")
    (whole,) = read({**feedback("conversation_rating", "meh", rating=-1), "answer": "bye"})
    assert [turn.text for turn in whole.said][-2:] == ["meh", "bye"] and whole.n_given == 0
    assert [turn.reward for turn in whole.turns][-2:] == [-1.0, 0.0]
    (corrected,) = read(feedback("correction", "bad", correction="good"))
    assert said(corrected)[-1] == (AGENT, "good", 1.0)


def test_layout_is_guessed_from_the_columns() -> None:
    rows = {
        "messages": {"messages": messages("a", "b"), "rewards": None, "score": 3},
        "completion": {"prompt": "a", "completion": "b", "score": 3},
        "preference": {"prompt": "a", "chosen": "b", "rejected": "c", "score": 3},
        "lmrl": {"sequence": SEQUENCE, "reward": [0] * 4, "done": True, "score": 3},
        "feedback": feedback("rating", "meh", rating=1),
        "tweets": {"games": [], "transitions": {}},
    }
    for layout, values in rows.items():
        row = Row(values, "x:1")
        assert guess_layout(row) == layout
        assert unread_columns(row, layout) == ([] if layout in ("feedback", "tweets") else ["score"])  # type: ignore[arg-type]
    both = {**rows["messages"], **rows["completion"]}
    assert said(read(both, "completion")[0])[-1] == (AGENT, "b", 0.0)


@pytest.mark.parametrize(
    ("values", "layout", "message"),
    [
        (
            {"a": 1},
            None,
            "has the columns of no layout: a; set layout to one of: messages: messages; completion: prompt",
        ),
        (
            {"messages": [], "prompt": "", "completion": ""},
            None,
            "has columns of several layouts (messages, completion)",
        ),
        (
            {"prompt": "a", "completion": "b"},
            "messages",
            "no column 'messages', but all rows of a log must have the same",
        ),
        ({"prompt": "a", "completion": "b", "label": "good"}, None, "label must be true, false or a finite number"),
        ({"chosen": "a b", "rejected": "a c"}, None, "plain chosen and rejected have neither a column prompt nor tags"),
        ({"sequence": [["a"]], "reward": [], "done": True}, None, "sequence must be a list of pairs [text, is_action]"),
        ({"sequence": [["a", 2]], "reward": [0], "done": True}, None, "sequence must be a list of pairs"),
        (
            {"sequence": SEQUENCE, "reward": [0, 0], "done": True},
            None,
            "each of the 4 texts of sequence, or for each but",
        ),
        ({"sequence": SEQUENCE, "reward": [1, 0, 0, 0], "done": True}, None, "reward of text 0 of sequence must be 0"),
        ({"sequence": SEQUENCE, "reward": [0, None, 0, 0], "done": True}, None, "text 1 of sequence must be a finite"),
        ({"sequence": SEQUENCE, "reward": [0, 0, 0], "done": 1}, None, "done must be true or false, not 1"),
        ({"kind": "rating", "turns": [], "replies": []}, None, "not a line of user feedback"),
    ],
)
def test_wrong_rows_are_named(values: dict[str, Any], layout: Any, message: str) -> None:
    with pytest.raises(DataError) as error:
        read(values, layout)
    assert str(error.value).startswith("log.jsonl:3: ") and message in str(error.value)


def test_examples_are_written_as_their_programs_write_them(tmp_path: Path) -> None:
    """A line of the chat's own writer."""
    from rl4dialog.core.feedback import append_feedback
    from rl4dialog.data.rows import read_rows

    item = Feedback("rating", ["a"], [JudgedReply("m", "b")], rating=1)
    append_feedback(tmp_path / "feedback.jsonl", item)
    (row,) = read_rows(tmp_path / "feedback.jsonl")
    (found,) = dialogues_of(row, 0, guess_layout(row), "assistant")
    assert said(found) == [(PARTNER, "a", 0.0), (AGENT, "b", 1.0)] and found.id == item.id
