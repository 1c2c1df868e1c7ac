"""The datapools of user feedback and of rated dialogues."""

import logging
from collections import Counter

import pytest
from feedback_files import conversation_rating, correction, mixed_feedback, preference, rating, write_feedback
from rated import conversation, write_lines

from rl4dialog.core.errors import ConfigError, DataError
from rl4dialog.data.dialogue_format import DialogueFormat
from rl4dialog.data.mixture import Mixture
from rl4dialog.data.pool import SPLITS
from rl4dialog.features.feedback.judged_texts import RATING, WORSE, FeedbackPool, RatedDialogues, judged
from rl4dialog.training.building.texts import build_pool


@pytest.fixture
def path(tmp_path):
    return str(write_feedback(tmp_path / "feedback.jsonl", mixed_feedback()))


def pool_of(*given):
    return FeedbackPool(given, DialogueFormat("eou", None))


def test_replies_to_learn_are_corrections_choices_and_those_rated_up_but_not_corrected():
    pool = pool_of(rating("a", 1), rating("b", -1), preference("c", "d", 1), correction("e", "f"))
    assert [(str(s.prompt_or_input_text), s.references) for s, _ in pool] == [
        ("hello <EOU>", ["a"]),
        ("hello <EOU>", ["d"]),
        ("hello <EOU>", ["f"]),
    ]
    pool = pool_of(preference("a", "b", 0), rating("a", -1), preference("c", "d", 0), correction("c", "e"))
    assert [sample.references for sample, _ in pool] == [["e"]]


def test_judgements_are_ratings_from_0_to_1_and_pairs():
    judged = pool_of(rating("a", -1), preference("b b", "c", 1), correction("d", "e e e")).judged()
    down, choice, better = [(sample.prompt_or_input_text, sample.meta_data or {}) for sample, _ in judged]
    assert (down[0], down[1][RATING]) == ("User: hello\nAssistant: a", 0.0)
    assert (choice[0], choice[1][WORSE]) == ("User: hello\nAssistant: c", "User: hello\nAssistant: b b")
    assert (choice[1]["n_words"], choice[1]["n_words_of_worse"]) == (1, 2)
    assert (better[0], better[1][WORSE]) == ("User: hello\nAssistant: e e e", "User: hello\nAssistant: d")
    assert (judged.unit, judged.ratings, judged.scale) == ("reply", ("rating",), (-1.0, 1.0))


def test_splits_are_drawn_by_conversation_or_all_in_train(path):
    pools = [FeedbackPool.prepare(split, path).judged() for split in SPLITS]
    parts = [{(sample.meta_data or {})["conversation"] for sample, _ in pool} for pool in pools]
    assert [len(part) for part in parts] == [6, 3, 3] and len(set.union(*parts)) == 12
    assert sum(map(len, pools)) == 36
    sizes = [len(FeedbackPool.prepare(split, path, use="corrections", held_out_share=0.0)) for split in SPLITS]
    assert sizes == [12, 0, 0]
    with pytest.raises(DataError, match="held_out_share 0, there are no judgements to evaluate on"):
        FeedbackPool.prepare("val", path, held_out_share=0.0).judged()


@pytest.mark.parametrize(("use", "n"), [("preferences", 6), ("corrections", 6), ("ratings", 6), ("all", 18)])
def test_use_selects_the_judgements(path, use, n):
    assert len(FeedbackPool.prepare("train", path, use=use).judged()) == n


def test_conversation_ratings_are_read_apart_from_judgements_of_replies(tmp_path):
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


def test_prompt_and_text_have_the_persona_the_context_and_markup(path):
    pool = FeedbackPool.prepare("train", path, context_size=1)
    assert pool[0][0].prompt_or_input_text == "how are you <EOU>"
    assert pool.judged()[0][0].prompt_or_input_text.startswith("User: how are you\nAssistant: ")
    pool = pool_of(rating("a", 1, persona="you are a cook"))
    assert pool[0][0].prompt_or_input_text == "you are a cook<EOU>hello <EOU>"
    assert pool.judged()[0][0].prompt_or_input_text == "Persona: you are a cook\nUser: hello\nAssistant: a"
    prompt = FeedbackPool.prepare("train", path, in_conversation=True)[0][0].prompt_or_input_text
    assert prompt.endswith("hi<EOU>how are you <EOU>") and prompt.count(" <EOU>") == 2


def test_choice_of_always_the_same_side_is_a_warning(caplog):
    caplog.set_level(logging.WARNING, "rl4dialog")
    pool_of(*(preference(f"a {i}", "b", 0) for i in range(10))).judged()
    assert "in all 10 preferences of a split, the first reply was chosen" in caplog.text


def test_missing_kind_and_too_few_conversations_are_errors(tmp_path):
    one = str(write_feedback(tmp_path / "one.jsonl", [rating("a", 1)]))
    with pytest.raises(DataError, match=r"has no corrections \(it has 1 rating\); choose another use"):
        FeedbackPool.prepare("train", one, use="corrections")
    with pytest.raises(DataError, match=r"of 1 judged conversations, held_out_share 0\.25 leaves none for split 'val'"):
        FeedbackPool.prepare("val", one)
    with pytest.raises(ConfigError, match="set either path, to a feedback file, or dataset"):
        FeedbackPool.prepare("train", one, dataset="small_talk")


def test_simulated_feedback_has_all_kinds():
    pool = FeedbackPool.prepare("test", dataset="small_talk", context_size=1)
    kinds = {(sample.meta_data or {})["kind"] for sample, _ in pool}
    assert kinds == {"rating", "preference", "correction"}
    again = FeedbackPool.prepare("test", dataset="small_talk", context_size=1)
    assert [s for s, _ in again] == [s for s, _ in pool]


def test_start_utterances_tell_conversations_with_one_opening_apart(tmp_path):
    given = [preference("a", "b", 0, ("hello", "hi", f"{number}")) for number in range(9)]
    path = str(write_feedback(tmp_path / "same.jsonl", given))
    with pytest.raises(DataError, match="of 1 judged conversations"):
        FeedbackPool.prepare("val", path)
    pools = [FeedbackPool.prepare(split, path, start_utterances=3) for split in SPLITS]
    starts = [{(sample.meta_data or {})["conversation"] for sample, _ in pool} for pool in pools]
    assert [len(each) for each in starts] == [5, 2, 2] and len(set.union(*starts)) == 9


def replies_file(folder, n=12):
    """Conversations with two rated replies each: ``good`` is 1 to 5, ``kind`` is missing in each first reply."""
    rows = []
    for i in range(n):
        row = conversation(f"a {i}", f"b {i}", "c", f"d {i} d")
        row["messages"][1]["ratings"] = {"good": 1 + i % 5}
        row["messages"][3]["ratings"] = {"good": 5 - i % 5, "kind": i % 2}
        rows.append(row)
    return write_lines(folder / "ratings.jsonl", rows)


def meta(pool):
    return [sample.meta_data or {} for sample, _ in pool]


def test_rating_is_scaled_and_text_ends_with_the_reply(tmp_path):
    pool = RatedDialogues.prepare("train", str(replies_file(tmp_path)), ratings="good", context_size=1, scale=(0, 10))
    for sample, _ in pool:
        info = sample.meta_data or {}
        assert info["rating"] == info["ratings"]["good"] / 10
        assert sample.prompt_or_input_text.count("\n") == 1
        assert info["n_words"] == len(sample.prompt_or_input_text.split("Assistant: ")[1].split())
    assert (pool.unit, pool.ratings, pool.scale, pool.context_size) == ("reply", ("good",), (0, 10), 1)


def test_splits_share_no_conversation_and_lose_nothing(tmp_path):
    path = str(replies_file(tmp_path))
    pools = [RatedDialogues.prepare(split, path, ratings="good") for split in SPLITS]
    parts = [{info["conversation"] for info in meta(pool)} for pool in pools]
    assert [len(part) for part in parts] == [6, 3, 3]
    assert set.union(*parts) == set(range(12)) and sum(map(len, pools)) == 24
    again = RatedDialogues.prepare("val", path, ratings="good", split_seed=1)
    assert {info["conversation"] for info in meta(again)} != parts[1]


def test_default_scale_is_the_range_in_train_for_all_splits(tmp_path, caplog):
    caplog.set_level(logging.INFO, "rl4dialog")
    path = str(replies_file(tmp_path))
    pools = [RatedDialogues.prepare(split, path, ratings="good") for split in SPLITS]
    ratings = [info["rating"] for info in meta(pools[0])]
    assert (min(ratings), max(ratings)) == (0, 1)
    assert pools[0].scale == pools[1].scale == pools[2].scale
    assert caplog.text.count("become 0 to 1") == 1


def test_gaps_are_left_out_and_counted(tmp_path, caplog):
    pool = RatedDialogues.prepare("train", str(replies_file(tmp_path)), ratings=["kind", "good"], scale=(0, 5))
    assert "12 of 24 replies lack one and are left out" in caplog.text
    assert all(info["rating"] == (info["ratings"]["kind"] + info["ratings"]["good"]) / 10 for info in meta(pool))
    assert pool.ratings == ("good", "kind")


def test_generated_dialogues_are_rated_by_the_rule():
    replies = RatedDialogues.prepare("test", dataset="small_talk", unit="reply")
    dialogues = RatedDialogues.prepare("test", dataset="small_talk", unit="dialogue")
    found = {True: set(), False: set()}
    for sample, _ in replies:
        asks = "?" in sample.prompt_or_input_text.rsplit("\n", 1)[1]
        found[asks].add((sample.meta_data or {})["ratings"]["interest"])
    assert found == {True: {3, 4, 5}, False: {1, 2, 3}}
    assert {info["conversation"] for info in meta(dialogues)} == {info["conversation"] for info in meta(replies)}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"ratings": "god"}, "no rating 'god'; did you mean 'good'"),
        ({}, "choose one or several of good, kind"),
        ({"ratings": "good", "dataset": "dstc9"}, "set either path, to a ratings file, or dataset"),
        ({"ratings": "good", "scale": (5, 1)}, "the lowest and the highest rating, not"),
    ],
)
def test_contradicting_arguments_are_errors(tmp_path, args, message):
    with pytest.raises(ConfigError, match=message):
        RatedDialogues.prepare("train", str(replies_file(tmp_path)), **args)


def test_ratings_and_conversations_that_do_not_fit_are_errors(tmp_path):
    with pytest.raises(DataError, match=r"the rating 5 of '.*' is not in scale \[1, 4\]"):
        RatedDialogues.prepare("train", str(replies_file(tmp_path)), ratings="good", scale=(1, 4))
    path = str(replies_file(tmp_path, n=2))
    with pytest.raises(DataError, match=r"of 2 judged conversations, held_out_share 0.25 leaves none for split 'val';"):
        RatedDialogues.prepare("val", path, ratings="good")
    rows = [conversation("a", "b", ratings={"good": 3}) for _ in range(8)]
    with pytest.raises(DataError, match="the rating is always 3 in split 'train'"):
        RatedDialogues.prepare("train", str(write_lines(tmp_path / "r.jsonl", rows)))
    with pytest.raises(ConfigError, match="context_size has no meaning with dialogues"):
        RatedDialogues.prepare("train", str(tmp_path / "r.jsonl"), context_size=2)


def feedback(folder, share=1, **args):
    path = write_feedback(folder / "feedback.jsonl", mixed_feedback()) if not list(folder.iterdir()) else None
    return {"id": "feedback", "args": {"path": str(path or folder / "feedback.jsonl"), **args}, "share": share}


def mixture(*pools):
    return Mixture.prepare("train", list(pools), build_pool=build_pool)


def test_judgements_of_ratings_and_feedback_are_mixed(tmp_path):
    rated = {"id": "rated_dialogues", "args": {"dataset": "small_talk", "unit": "reply", "max_size": 18}, "share": 1}
    found = judged(mixture(feedback(tmp_path), rated))
    assert Counter((sample.meta_data or {})["pool"] for sample, _ in found) == {"feedback": 18, "rated_dialogues": 18}
    assert (found.unit, found.ratings, found.scale) == ("reply", ("interest", "rating"), None)
    with pytest.raises(ConfigError, match="the context_size of all datapools of a reward model must be equal"):
        judged(mixture(feedback(tmp_path, context_size=1), rated))
