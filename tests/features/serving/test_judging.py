from dataclasses import replace

import pytest
from echo_model import Echo
from page_client import Tab
from page_process import served, served_page
from studies import PREFERENCE, QUALITY, REPLIES, answer

from rl4dialog.cli import main
from rl4dialog.core.errors import ConfigError, DataError, ModelError
from rl4dialog.core.feedback import (
    JudgedReply,
    QueuedReplies,
    append_feedback,
    check_feedback_file,
    read_feedback,
    write_queue,
)
from rl4dialog.core.types import PartnerReply
from rl4dialog.data.ratings import latest
from rl4dialog.features.serving.judging import QueueJudging, StudyJudging, StudyPage
from rl4dialog.features.serving.teaching import Situation, Teaching

PAIRS = [QueuedReplies(str(i), [f"hello {i}"], [JudgedReply("m", "<a>"), JudgedReply("n", f"b {i}")]) for i in range(4)]
WHOLE = QueuedReplies("w", ["hi", "oh", "why?"], [JudgedReply("m", "so")], is_conversation=True, answer="bye")
SINGLE = QueuedReplies("s", ["bye"], [JudgedReply("m", "see you")])


def test_every_judgement_is_written_before_the_next_pair(tmp_path):
    file = tmp_path / "feedback.jsonl"
    judging = QueueJudging(PAIRS, file)
    judging.correct("me", "0", 1, " c ")
    judging.rate("me", "0", 0, -1)
    assert [(each.correction, each.rating) for each in read_feedback(file)] == [("c", None), (None, -1)]
    assert judging.progress == "0 of 4 done." and judging.current("me") is PAIRS[0]
    judging.pick("me", "0", 1, "better")
    assert read_feedback(file)[2].chosen == 1
    assert judging.skip("me", "1") == "Nothing was recorded."
    assert judging.given == read_feedback(file) and len(judging.given) == 3
    assert judging.current("me") is PAIRS[2] and judging.progress == "2 of 4 done." and not judging.is_done
    again = QueueJudging(PAIRS, file)
    assert again.progress == "1 of 4 done." and again.current("me") is PAIRS[1]


def test_person_can_go_back_and_judge_again(tmp_path):
    file = tmp_path / "feedback.jsonl"
    judging = QueueJudging([*PAIRS[:2], SINGLE], file)
    with pytest.raises(ConfigError, match="nothing to go back to"):
        judging.go_back("me", "0")
    judging.pick("me", "0", 1, "better")
    judging.skip("me", "1")
    judging.rate("me", "s", 0, -1)
    assert judging.is_done and judging.can_go_back("me") and not judging.can_go_back("other")
    with pytest.raises(ConfigError, match="out of date"):
        judging.go_back("me", "s")
    assert "The rating was withdrawn" in judging.go_back("me", "") and judging.current("me") is SINGLE
    assert judging.go_back("me", "s") == "" and judging.current("me") is PAIRS[1]
    assert "The preference was withdrawn" in judging.go_back("me", "1")
    assert judging.current("me") is PAIRS[0] and judging.progress == "0 of 3 done." and not judging.can_go_back("me")
    assert QueueJudging(PAIRS, file).current("me") is PAIRS[0]
    judging.pick("me", "0", 0, "better")
    assert [each.chosen for each in latest(read_feedback(file))] == [0]


@pytest.mark.parametrize(("action", "verdict"), [("rate", 1), ("correct", "bye bye")])
def test_single_reply_is_done_when_it_is_rated_or_corrected(tmp_path, action, verdict):
    file = tmp_path / "feedback.jsonl"
    judging = QueueJudging([SINGLE], file)
    for each, has_pairs in ((judging, False), (QueueJudging([SINGLE, PAIRS[0]], file), True)):
        assert ("better reply" in each.hint) == ("The keys 1 and 2" in each.advice) == has_pairs
    getattr(judging, action)("me", "s", 0, verdict)
    assert judging.is_done and judging.current("me") is None and QueueJudging([SINGLE], file).is_done


def test_outdated_page_and_empty_correction_record_nothing(tmp_path):
    judging = QueueJudging(PAIRS, tmp_path / "feedback.jsonl")
    for id in ("1", ""):
        with pytest.raises(ConfigError, match="out of date, so nothing was recorded"):
            judging.pick("me", id, 0, "better")
    for text in (" ", "<a>"):
        with pytest.raises(ConfigError, match="must not be empty, and must differ"):
            judging.correct("me", "0", 0, text)
    with pytest.raises(ConfigError, match="these replies have no goals"):
        judging.set_goal("me", "0", "food")
    assert not (tmp_path / "feedback.jsonl").exists() and judging.current("me") is PAIRS[0]


def test_each_person_has_another_pair_until_few_are_left(tmp_path):
    judging = QueueJudging(PAIRS[:3], tmp_path / "feedback.jsonl")
    assert [judging.current(who) for who in ("one", "other", "one")] == [PAIRS[0], PAIRS[1], PAIRS[0]]
    judging.pick("other", "1", 0, "better")
    assert judging.current("other") is PAIRS[2]
    judging.pick("one", "0", 0, "better")
    assert judging.current("one") is PAIRS[2]  # the other one may have left
    judging.pick("other", "2", 0, "better")
    with pytest.raises(ConfigError, match="out of date"):
        judging.pick("one", "2", 1, "better")
    assert judging.is_done and [each.chosen for each in judging.given] == [0, 0, 0]


def correct(tab, text, index=0):
    tab.edit(text, index, name="correct")


def text_of(tab):
    return f"{tab.value('help')} {tab.status}"


def test_page_shows_what_is_left_until_all_is_judged(tmp_path):
    file = tmp_path / "feedback.jsonl"
    append_feedback(file, PAIRS[0].chosen(0))
    with served(QueueJudging([*PAIRS[:2], SINGLE], file)) as address:
        tab = Tab(address)
        assert "1 of 3 done. Choose the better reply" in text_of(tab)
        assert (tab.turns(0), tab.turns(1)) == (["hello 1", "<a>"], ["hello 1", "b 1"])
        correct(tab, "<a>", 1)
        correct(tab, "<a>", 0)
        assert "error: a correction must not be empty, and must differ" in text_of(tab)
        tab.choose("better", 1, "choose")
        assert "The preference was appended" in text_of(tab) and tab.turns(0) == ["bye", "see you"]
        assert tab.props["chat-1"]["value"] == [] and tab.options(0) == []
        tab.rate(False)
        assert "3 of 3 done. You can close this page." in text_of(tab)
        tab.choose("better", 0, "choose")
        assert "error: this page was out of date" in text_of(tab)
    given = read_feedback(file)
    assert [each.kind for each in given] == ["preference", "correction", "preference", "rating"]
    assert given[1].compared == ("<a>", "b 1")


def test_correction_that_is_not_saved_stays_in_its_bubble(tmp_path):
    (tmp_path / "folder").write_text("no folder")
    with served(QueueJudging(PAIRS, tmp_path / "folder/feedback.jsonl")) as address:
        tab = Tab(address)
        correct(tab, "<c>", 1)
        assert "feedback.jsonl cannot be written" in tab.status
        assert tab.turns(1) == ["hello 0", "<c>"] and "not saved" in tab.below(1) and tab.options(1) == ["better"]
        (tmp_path / "folder").unlink()
        correct(tab, tab.turns(1)[1], 1)
        assert "The correction was appended" in tab.status and "your correction of the reply" in tab.below(1)
        tab.choose("better", 0, "choose")
    (correction, _) = read_feedback(tmp_path / "folder/feedback.jsonl")
    assert correction.correction == "<c>"


def test_page_shows_a_whole_conversation_to_rate(tmp_path):
    file = tmp_path / "feedback.jsonl"
    with served(QueueJudging([WHOLE], file)) as address:
        tab = Tab(address)
        assert tab.turns() == ["hi", "oh", "why?", "so", "bye"] and tab.props["chat-0"]["label"] == "Conversation"
        assert tab.props["chat-0"]["editable"] == "none" and tab.options() == []
        assert "0 of 1 done. The thumbs rate the whole conversation." in text_of(tab)
        tab.rate(True)
        assert "The conversation rating was appended" in text_of(tab) and "1 of 1 done." in text_of(tab)
        tab.act("back")
        assert "The conversation rating was withdrawn" in text_of(tab) and tab.turns()[0] == "hi"
        tab.rate(False)
    assert [(each.kind, each.rating) for each in latest(read_feedback(file))] == [("conversation_rating", -1)]


def test_bubbles_show_the_judgements_in_the_file(tmp_path):
    file = tmp_path / "feedback.jsonl"
    with served(QueueJudging(PAIRS, file)) as address:
        tab = Tab(address)
        tab.rate(True, 0)
        correct(tab, "better", 1)
        for shown in (tab, Tab(address, tab.key)):
            assert (shown.ratings(0), shown.ratings(1)) == (["Like"], [None])
            assert shown.turns(1) == ["hello 0", "better"] and "your correction of the reply: b 0" in shown.below(1)
            labels = [each["label"] for i in (0, 1) for each in shown.value(f"chat-{i}")[-1]["options"]]
            assert labels == ["This reply is better", "The original reply is better"]
        assert QueueJudging(PAIRS, file).standing(PAIRS[0]) == [(1, None), (None, "better")]
        tab.rate("", 0)
        tab.rate("", 0)
        assert "error: this reply has no rating to take back" in text_of(tab)
        correct(tab, "b 0", 1)
        assert tab.ratings(0) == [None] and tab.turns(1) == ["hello 0", "b 0"] and tab.below(1) == ""
        assert latest(read_feedback(file)) == []
        tab.rate(True, 0, number=0)
        assert "error: only the last reply can be judged" in text_of(tab)
        assert not tab.props["back"]["visible"]
        tab.choose("better", 1, "choose")
        assert tab.turns(0)[0] == "hello 1" and tab.props["back"]["visible"]
        tab.act("back")
        assert "The preference was withdrawn" in text_of(tab) and tab.turns(0)[0] == "hello 0"
        assert latest(read_feedback(file)) == []


def test_two_people_do_not_mix(tmp_path):
    file = tmp_path / "feedback.jsonl"
    with served(QueueJudging(PAIRS, file)) as address:
        one, other = Tab(address), Tab(address)
        assert one.key != other.key and one.turns()[0] == "hello 0" and other.turns()[0] == "hello 1"
        other.choose("better", 1, "choose")
        correct(one, "of the first person", 0)
        # A pair stays until its better reply is chosen.
        assert other.turns()[0] == "hello 2" and one.turns()[0] == "hello 0"
        Tab(address, one.key).choose("better", 0, "choose")  # after a reload
        one.choose("better", 0, "choose")  # in the old tab
        assert "this page was out of date, so nothing was recorded" in text_of(one) and one.turns()[0] == "hello 3"
        other.choose("better", 0, "choose")
    given = [(each.turns[0], each.correction or each.chosen) for each in read_feedback(file)]
    assert given == [("hello 1", 1), ("hello 0", "of the first person"), ("hello 0", 0), ("hello 2", 0)]


def test_model_is_taught_on_the_page(tmp_path):
    file, model = tmp_path / "feedback.jsonl", Echo()
    situations = [
        Situation([text], "i sing .", "food", lambda: lambda said: PartnerReply(f"re {said}")) for text in "ab"
    ]
    with served(Teaching(model, situations, file, goals=["food", "work"])) as address:
        one, other = Tab(address), Tab(address)
        assert one.turns() == ["a", "A"] and other.turns() == ["b", "B"]
        assert "Persona: i sing . goal : food" in text_of(one)
        one.rate(True)
        assert one.turns()[:3] == ["a", "A", "re A"] and "Persona: i sing . goal : work" in text_of(one)
        assert one.ratings() == [None, None]
        one.act("goal", goal="music")
        assert "This is a reply to the goal music." in text_of(one)
        assert model.asked[-1][0].startswith("i sing . goal : music")
        correct(one, "no <EOU>")
        assert "error: a text cannot contain &lt;EOU&gt;" in text_of(one)
        correct(other, "better")
        assert other.turns()[2] == "re better"
        model.fails_with = ModelError("the model is broken")
        one.rate(True)
        assert "error: the model is broken" in text_of(one) and one.turns() == []
        model.fails_with = None
        one.act("skip")
        assert "1 of 2 done." in text_of(one)
    given = read_feedback(file)
    assert [each.kind for each in given] == ["rating", "correction", "rating"]
    assert [each.persona for each in given] == [f"i sing . goal : {goal}" for goal in ("food", "food", "music")]
    assert given[2].turns == ["a", "A", "re A"]


def test_item_of_a_study_is_shown_to_each_rater_once_until_enough_answered(tmp_path):
    file = tmp_path / "answers.jsonl"
    judging = StudyJudging(QUALITY, REPLIES[:2], file)
    first = {name: judging.current(name).turns for name in ("ann", "bob", "cyd")}
    assert first == {"ann": ["hello 0"], "bob": ["hello 0"], "cyd": ["hello 1"]}  # two raters are enough
    for name, option in (("ann", "4"), ("bob", "5")):
        assert judging.pick(name, judging.current(name).id, 0, option).startswith(f"Your answer was saved: {option}")
    again = StudyJudging(QUALITY, REPLIES[:2], file)  # after the command was killed
    assert [each.rating for each in again._known] == [4, 5] and again.current("cyd").turns == ["hello 1"]
    assert again.counts("ann") == (1, 1) and again.current("ann").turns == ["hello 1"]
    for name in ("ann", "cyd"):
        again.pick(name, again.current(name).id, 0, "1")
        assert again.current(name) is None
    assert again.current("bob") is None and again.current("") is None
    assert again.go_back("ann", "") == "Your answer was taken back: 1: bad." and again.current("bob").turns == [
        "hello 1"
    ]
    with pytest.raises(ConfigError, match="an answer must be one of 1, 2, 3, 4, 5, not '6'"):
        again.pick("ann", again.current("ann").id, 0, "6")
    again.skip("bob", again.current("bob").id)
    assert again.current("bob") is None and len(latest(read_feedback(file))) == 3


def test_pairs_of_a_study_have_an_order_for_each_rater(tmp_path):
    file = tmp_path / "answers.jsonl"
    judging = StudyJudging(PREFERENCE, PAIRS, file)
    orders = {tuple(reply.text for reply in judging.current(str(i)).replies) for i in range(20)}
    assert ("<a>", "b 0") in orders and ("b 0", "<a>") in orders
    assert judging.skip("ann", judging.current("ann").id) == "Your answer was saved: No difference."
    assert read_feedback(file)[0].is_tie and judging.skip_label(None) == "No difference"
    shown = judging.current("ann")
    assert judging.pick("ann", shown.id, 1, "better") == "Your answer was saved: Reply 2."
    given = read_feedback(file)[1]
    assert given.replies[given.chosen].text == shown.replies[1].text and given.rater == "ann"


def test_file_of_a_study_has_nothing_else(tmp_path):
    file = tmp_path / "answers.jsonl"
    append_feedback(file, answer(QUALITY, REPLIES[0], "ann", 4))
    other = replace(QUALITY, scale={1: "", 2: "", 3: "", 4: ""})
    for study in (replace(QUALITY, title="Other"), other):
        with pytest.raises(ConfigError, match="has answers of another study or scale"):
            StudyJudging(study, REPLIES, file)
    for study, message in ((None, "choose another --feedback; answers to a study"), ("Other", "of the study 'Other'")):
        with pytest.raises(DataError, match=message):
            check_feedback_file(file, study)


def test_conversation_that_the_partner_ends_is_rated_beneath_it_and_a_failure_saves_nothing(tmp_path):
    file = tmp_path / "folder/answers.jsonl"
    whole = replace(REPLIES[0], is_conversation=True, answer="bye", persona="i sing .")
    with served_page(lambda: StudyPage(StudyJudging(QUALITY, [whole], file))) as address:
        tab = Tab(address)
        tab.act("begin", rater="ann")
        # Gradio shows options only beneath a reply; the style hides an empty one.
        assert tab.turns() == ["hello 0", "reply 0", "bye", ""] and tab.options() == ["1", "2", "3", "4", "5"]
        assert "Role of the computer program: i sing ." in text_of(tab)
        (tmp_path / "folder").write_text("no folder")
        tab.choose("4", name="choose")
        assert "nothing was saved; please tell those who asked you" in tab.status and tab.options()
        (tmp_path / "folder").unlink()
        tab.choose("4", name="choose")
        assert "Your answer was saved: 4." in tab.status and read_feedback(file)[0].rating == 4


def test_raters_of_two_tabs_do_not_mix_on_the_page_of_a_study(tmp_path):
    file = tmp_path / "answers.jsonl"
    with served_page(lambda: StudyPage(StudyJudging(QUALITY, REPLIES[:2], file))) as address:
        tab = Tab(address)
        assert tab.props["intro"]["visible"] and not tab.props["skip"]["visible"]
        tab.act("begin", rater=" ")
        assert "error: please enter your name" in tab.status and tab.props["intro"]["visible"]
        tab.choose("3", name="choose")
        assert "out of date" in tab.status and not file.exists()
        tab.act("begin", rater=" Ann ")
        assert tab.options() == ["1", "2", "3", "4", "5"] and "How good? (0 of 2 done)" in text_of(tab)
        same, other = Tab(address, tab.key), Tab(address, tab.key)
        same.act("begin", rater="ann")
        other.act("begin", rater="Bob")
        same.choose("5", name="choose")
        tab.choose("1", name="choose")
        assert "out of date" in tab.status and "(1 of 2 done)" in text_of(tab)
        other.choose("2", name="choose")
        tab.choose("3", name="choose")
        assert "Thank you, ann! You answered 2" in text_of(tab) and not tab.props["skip"]["visible"]
    assert [(each.rater, each.rating) for each in read_feedback(file)] == [("ann", 5), ("bob", 2), ("ann", 3)]


def test_options_that_do_not_fit_are_errors(tmp_path, capsys):
    pytest.importorskip("gradio", reason="needs gradio: pip install 'rl4dialog[ui]'")
    write_queue(tmp_path / "q.jsonl", PAIRS)
    queue = ["--queue", str(tmp_path / "q.jsonl")]
    for flags, message in (
        ([*queue, "--run", "x"], "--queue shows replies that are already written; remove --run"),
        ([*queue, "--seed", "0"], "already written; remove --seed"),
        ([*queue, "--teach"], "--teach shows one reply of one model at a time; remove --queue"),
        (["--run", "x", "--teach", "--show_reward"], "at a time; remove --show_reward"),
        (["--run", "x", "--study", "s.yml"], "--study is about the replies of a --queue, which is missing"),
        (["--run", "x", "--n", "3"], "--split and --n select the situations of --teach, which is missing"),
        (["--run", "x", "--teach", "--n", "0"], "--n must be at least 1, not 0"),
    ):
        assert main(["ui", *flags]) == 2
        assert message in capsys.readouterr().err
