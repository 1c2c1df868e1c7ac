"""The datapool of user feedback."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from feedback_files import conversation_rating, correction, mixed_feedback, preference, rating, write_feedback

from rl4dialog.core.errors import ConfigError, DataError
from rl4dialog.core.feedback import Feedback
from rl4dialog.data.dialogue_format import DialogueFormat
from rl4dialog.data.feedback import FeedbackPool
from rl4dialog.data.judged_texts import RATING, WORSE
from rl4dialog.data.pool import SPLITS


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(write_feedback(tmp_path / "feedback.jsonl", mixed_feedback()))


def pool_of(*given: Feedback) -> FeedbackPool:
    return FeedbackPool(given, DialogueFormat("eou", None))


def test_replies_to_learn_are_corrections_choices_and_replies_rated_up() -> None:
    pool = pool_of(rating("a", 1), rating("b", -1), preference("c", "d", 1), correction("e", "f"))
    assert [(str(s.prompt_or_input_text), s.references) for s, _ in pool] == [
        ("hello <EOU>", ["a"]),
        ("hello <EOU>", ["d"]),
        ("hello <EOU>", ["f"]),
    ]


def test_reply_that_was_corrected_or_rated_down_is_not_learned() -> None:
    pool = pool_of(preference("a", "b", 0), rating("a", -1), preference("c", "d", 0), correction("c", "e"))
    assert [sample.references for sample, _ in pool] == [["e"]]


def test_judgements_are_ratings_from_0_to_1_and_pairs() -> None:
    judged = pool_of(rating("a", -1), preference("b b", "c", 1), correction("d", "e e e")).judged()
    down, choice, better = [(sample.prompt_or_input_text, sample.meta_data or {}) for sample, _ in judged]
    assert (down[0], down[1][RATING]) == ("User: hello\nAssistant: a", 0.0)
    assert (choice[0], choice[1][WORSE]) == ("User: hello\nAssistant: c", "User: hello\nAssistant: b b")
    assert (choice[1]["n_words"], choice[1]["n_words_of_worse"]) == (1, 2)
    assert (better[0], better[1][WORSE]) == ("User: hello\nAssistant: e e e", "User: hello\nAssistant: d")
    assert (judged.unit, judged.ratings, judged.scale) == ("reply", ("rating",), (-1.0, 1.0))


def test_pool_without_ratings_has_no_scale() -> None:
    judged = pool_of(preference("a", "b", 0)).judged()
    assert (judged.ratings, judged.scale) == ((), None)


def test_splits_are_drawn_by_conversation(path: str) -> None:
    pools = [FeedbackPool.prepare(split, path).judged() for split in SPLITS]
    parts = [{(sample.meta_data or {})["conversation"] for sample, _ in pool} for pool in pools]
    assert [len(part) for part in parts] == [6, 3, 3] and len(set.union(*parts)) == 12
    assert sum(map(len, pools)) == 36


@pytest.mark.parametrize(("use", "n"), [("preferences", 6), ("corrections", 6), ("ratings", 6), ("all", 18)])
def test_use_selects_the_judgements(path: str, use: Any, n: int) -> None:
    assert len(FeedbackPool.prepare("train", path, use=use).judged()) == n


def test_conversation_ratings_are_read_apart_from_judgements_of_replies(tmp_path: Path) -> None:
    ratings = [conversation_rating("c d", (-1) ** i, (f"hello {i}", "a b", "why?"), answer="oh") for i in range(4)]
    path = str(write_feedback(tmp_path / "feedback.jsonl", [*mixed_feedback(3), *ratings]))
    judged = FeedbackPool.prepare("train", path, use="conversation_ratings").judged()
    assert (judged.unit, judged.scale, len(judged)) == ("dialogue", (-1.0, 1.0), 2)
    text, meta_data = judged[0][0].prompt_or_input_text, judged[0][0].meta_data or {}
    assert text.endswith("Assistant: a b\nUser: why?\nAssistant: c d\nUser: oh") and meta_data["n_words"] == 4
    assert {(sample.meta_data or {})[RATING] for sample, _ in judged} <= {0.0, 1.0}
    assert FeedbackPool.prepare("train", path).judged().unit == "reply"
    with pytest.raises(ConfigError, match="context_size has no meaning with conversations, which are read whole"):
        FeedbackPool.prepare("train", path, use="conversation_ratings", context_size=2)
    write_feedback(tmp_path / "only.jsonl", ratings)
    with pytest.raises(DataError, match=r"has no judgements of replies \(it has 4 conversation ratings\)"):
        FeedbackPool.prepare("train", str(tmp_path / "only.jsonl"))


def test_no_reply_of_a_rated_conversation_is_learned() -> None:
    assert len(pool_of(conversation_rating("a", 1))) == 0


def test_context_size_cuts_prompt_and_text(path: str) -> None:
    pool = FeedbackPool.prepare("train", path, context_size=1)
    assert pool[0][0].prompt_or_input_text == "how are you <EOU>"
    assert pool.judged()[0][0].prompt_or_input_text.startswith("User: how are you\nAssistant: ")


def test_persona_is_in_prompt_and_text() -> None:
    pool = pool_of(rating("a", 1, persona="you are a cook"))
    assert pool[0][0].prompt_or_input_text == "you are a cook<EOU>hello <EOU>"
    assert pool.judged()[0][0].prompt_or_input_text == "Persona: you are a cook\nUser: hello\nAssistant: a"


def test_choice_of_always_the_same_side_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "rl4dialog")
    pool_of(*(preference(f"a {i}", "b", 0) for i in range(10))).judged()
    assert "in all 10 preferences of a split, the first reply was chosen" in caplog.text


def test_missing_kind_and_too_few_conversations_are_errors(tmp_path: Path) -> None:
    one = str(write_feedback(tmp_path / "one.jsonl", [rating("a", 1)]))
    with pytest.raises(DataError, match=r"has no corrections \(it has 1 rating\); choose another use"):
        FeedbackPool.prepare("train", one, use="corrections")
    with pytest.raises(DataError, match=r"of 1 judged conversations, held_out_share 0\.25 leaves none for split 'val'"):
        FeedbackPool.prepare("val", one)
    with pytest.raises(ConfigError, match="set either path, to a feedback file, or dataset"):
        FeedbackPool.prepare("train", one, dataset="small_talk")


def test_simulated_feedback_has_all_kinds() -> None:
    pool = FeedbackPool.prepare("test", dataset="small_talk", context_size=1)
    kinds = {(sample.meta_data or {})["kind"] for sample, _ in pool}
    assert kinds == {"rating", "preference", "correction"}
    again = FeedbackPool.prepare("test", dataset="small_talk", context_size=1)
    assert [s for s, _ in again] == [s for s, _ in pool]


def test_without_held_out_share_all_is_in_train(path: str) -> None:
    sizes = [len(FeedbackPool.prepare(split, path, use="corrections", held_out_share=0.0)) for split in SPLITS]
    assert sizes == [12, 0, 0]
    with pytest.raises(DataError, match="held_out_share 0, there are no judgements to evaluate on"):
        FeedbackPool.prepare("val", path, held_out_share=0.0).judged()


def test_prompts_of_conversations_have_their_markup(path: str) -> None:
    prompt = FeedbackPool.prepare("train", path, in_conversation=True)[0][0].prompt_or_input_text
    assert prompt.endswith("hi<EOU>how are you <EOU>") and prompt.count(" <EOU>") == 2


def test_start_utterances_tell_conversations_with_one_opening_apart(tmp_path: Path) -> None:
    given = [preference("a", "b", 0, ("hello", "hi", f"{number}")) for number in range(9)]
    path = str(write_feedback(tmp_path / "same.jsonl", given))
    with pytest.raises(DataError, match="of 1 judged conversations"):
        FeedbackPool.prepare("val", path)
    pools = [FeedbackPool.prepare(split, path, start_utterances=3) for split in SPLITS]
    starts = [{(sample.meta_data or {})["conversation"] for sample, _ in pool} for pool in pools]
    assert [len(each) for each in starts] == [5, 2, 2] and len(set.union(*starts)) == 9
