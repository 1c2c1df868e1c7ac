"""Human ratings: feedback files, prepared datasets, and files of ratings."""

import errno
import json
import shutil
import tempfile

import httpx
import pytest
from feedback_files import conversation_rating, correction, preference, rating, write_feedback
from rated import DSTC9_ROW, chitchat_conversation, conversation, write_dstc9, write_lines

from rl4dialog.cli import main
from rl4dialog.core.errors import DataError
from rl4dialog.core.feedback import Feedback, JudgedReply, append_feedback
from rl4dialog.core.types import AGENT, PARTNER
from rl4dialog.data import dialogue_corpora, ratings
from rl4dialog.data.dialogue_text import dialogue_text
from rl4dialog.data.public_datasets import prepare_dataset
from rl4dialog.data.ratings import (
    conversation_of,
    count_kinds,
    judged_dialogue,
    latest,
    load_ratings,
    read_chitchat,
    read_dstc9,
    read_latest,
)
from rl4dialog.data.splits import find_prepared


def test_later_judgement_of_the_same_reply_holds_unless_turns_or_persona_differ():
    given = [rating("a", 1), rating("b", 1), rating("a", -1), correction("a", "x"), correction("a", "y")]
    assert [(each.kind, each.rating, each.correction) for each in latest(given)] == [
        ("rating", -1, None),
        ("rating", 1, None),
        ("correction", None, "y"),
    ]
    given = [rating("a", 1), rating("a", -1, turns=("hi", "oh", "why?")), rating("a", -1, persona="a cook")]
    assert latest(given) == given
    assert len({conversation_of(each) for each in given}) == 3


@pytest.mark.parametrize("last", [preference("b", "a", 0), preference("a", "b", 1)])
def test_a_over_b_and_b_over_a_is_the_later_choice(last):
    assert latest([preference("a", "b", 0), last]) == [last]


def test_later_judgement_of_a_conversation_or_of_the_same_texts_holds():
    fix, choice = correction("a", "x"), preference("a", "x", 0)
    assert latest([fix, choice]) == [choice]
    assert latest([choice, fix]) == [fix]
    assert latest([fix, choice, correction("a", "y")])[0] == choice
    given = [rating("a", 1), conversation_rating("a", 1), conversation_rating("a", -1, answer="oh")]
    assert latest([*given, again := conversation_rating("a", -1)]) == [given[0], again, given[2]]
    assert count_kinds(given) == "1 rating, 2 conversation ratings"


def test_conversation_is_judged_as_a_whole_and_a_reply_after_what_is_given():
    whole = judged_dialogue(conversation_rating("a", 1, ("hi", "oh", "why?"), answer="yes", persona="a cook"), "a")
    assert dialogue_text(whole) == "Persona: a cook\nUser: hi\nAssistant: oh\nUser: why?\nAssistant: a\nUser: yes"
    assert whole.texts(AGENT) == ["oh", "a"]
    assert judged_dialogue(rating("a", 1, ("hi", "oh", "why?")), "a").texts(AGENT) == ["a"]
    assert dialogue_text(judged_dialogue(conversation_rating("hello", 1, ()), "hello")) == "Assistant: hello"
    starts = [conversation_of(conversation_rating(text, 1, ())) for text in ("a", "b")]
    assert starts[0] != starts[1]


@pytest.mark.parametrize("given", [rating("a", 1), preference("a", "b", 0), correction("a", "x")])
def test_judgement_that_was_withdrawn_does_not_hold_until_it_is_given_again(given, tmp_path):
    other = rating("b", -1)
    assert latest([given, other, given.withdrawal()]) == [other]
    assert latest([given, given.withdrawal(), given]) == [given]
    with pytest.raises(DataError, match=r"f.jsonl has no feedback"):
        read_latest(write_feedback(tmp_path / "f.jsonl", [given, given.withdrawal()]))


def write(folder, content):
    (folder / "dataset.json").write_text(json.dumps(content))
    return folder


def test_conversations_are_read_with_joined_messages_and_without_one_liners(tmp_path):
    conversations = {
        "one": chitchat_conversation("hi", ["hello", "you"], prompt="Greet", ratings={"witty": 3}),
        "two": chitchat_conversation("nobody answers", ratings={"witty": 1}),
        "three": chitchat_conversation("a", "b"),
    }
    one, three = read_chitchat(write(tmp_path, conversations))
    assert [(turn.text, turn.speaker) for turn in one.dialogue.turns] == [("hi", PARTNER), ("hello you", AGENT)]
    assert (one.ratings, one.dialogue.topic, one.conversation) == ({"witty": 3.0}, "Greet", "one")
    assert three.ratings == {}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1], "must contain an object with one conversation per id"),
        ({"x": {"start": ""}}, "conversation x: the key 'messages' is missing"),
        ({"x": chitchat_conversation("a", "b", ratings={"witty": "5"})}, "conversation x: ratings.witty: input should"),
    ],
)
def test_malformed_file_is_an_error(tmp_path, content, message):
    with pytest.raises(DataError, match=message):
        read_chitchat(write(tmp_path, content))


def test_chatbots_are_in_numeric_order_and_raters_one_conversation(tmp_path):
    first, second, *_ = read_dstc9(write_dstc9(tmp_path))
    assert first.ratings == {"consistent": 1.0, "overall": 4.5, "topic_depth": 2.0}
    assert first.dialogue.meta_data == {"n_raters": 2}
    assert second.ratings == {"consistent": 1.0, "overall": 1.0}  # N/A is a gap
    assert (first.system, first.conversation, second.conversation) == ("chatbot1", "chatbot1_0", "chatbot1_1")
    systems = [rated.system for rated in read_dstc9(write_dstc9(tmp_path, n_bots=10))]
    assert list(dict.fromkeys(systems)) == [f"chatbot{n}" for n in range(1, 11)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"likeable": "good"}, r"row 1: the rating 'likeable' must be a number or 'N/A', not 'good'"),
        ({"context": "hello"}, "row 1: column 'context' must be utterances that"),
    ],
)
def test_malformed_row_is_named(tmp_path, change, message):
    (tmp_path / "chatbot1.json").write_text(json.dumps([DSTC9_ROW, {**DSTC9_ROW, **change}]))
    with pytest.raises(DataError, match=message):
        read_dstc9(tmp_path)


def test_rated_dialogues_are_read_with_gaps(tmp_path):
    rows = [
        conversation("a", "b", ratings={"good": 2, "kind": None}, id="x", system="bot"),
        conversation("c", "d"),
        conversation("e", "f", ratings={"kind": 1}),
    ]
    unit, (first, last) = load_ratings(write_lines(tmp_path / "r.jsonl", rows))
    assert (unit, first.ratings, last.ratings) == ("dialogue", {"good": 2.0}, {"kind": 1.0})
    assert (first.conversation, first.system, last.conversation) == ("x", "bot", 2)


def test_rated_replies_end_with_the_reply(tmp_path):
    row = conversation("a", "b", "c", "d", id=7)
    row["messages"][3]["ratings"] = {"good": 5}
    row["messages"].insert(0, {"role": "system", "content": "Be kind."})
    unit, (rated,) = load_ratings(write_lines(tmp_path / "r.jsonl", [row]))
    assert (unit, rated.conversation) == ("reply", 7)
    assert rated.dialogue.texts(AGENT) == ["d"]
    assert [turn.text for turn in rated.dialogue.turns] == ["a", "b", "c", "d"]
    assert rated.dialogue.meta_data == {"persona": "Be kind."}


def test_source_with_both_kinds_needs_a_choice(tmp_path):
    row = conversation("a", "b", ratings={"good": 1})
    row["messages"][1]["ratings"] = {"good": 5}
    path = write_lines(tmp_path / "r.jsonl", [row])
    with pytest.raises(DataError, match="both dialogues and replies; choose one"):
        load_ratings(path)
    assert load_ratings(path, "reply")[1][0].ratings == {"good": 5.0}
    assert load_ratings(path, "dialogue")[1][0].ratings == {"good": 1.0}


def test_feedback_is_read_with_the_last_rating_of_a_reply(tmp_path, caplog):
    path, reply = tmp_path / "feedback.jsonl", JudgedReply("run", "hi")
    for value in (1, -1):
        append_feedback(path, Feedback("rating", ["hello"], [reply], rating=value))
    append_feedback(path, Feedback("correction", ["hello"], [reply], correction="good morning"))
    unit, (rated,) = load_ratings(path)
    assert (unit, rated.ratings, rated.system) == ("reply", {"rating": -1.0}, "run")
    assert "1 correction: only ratings are read here; the datapool feedback reads all" in caplog.text


def test_feedback_has_ratings_of_replies_and_conversations(tmp_path):
    path, reply = tmp_path / "feedback.jsonl", JudgedReply("run", "hi")
    append_feedback(path, Feedback("rating", ["hello"], [reply], rating=1))
    append_feedback(path, Feedback("conversation_rating", ["hello"], [reply], rating=-1, answer="bye"))
    with pytest.raises(DataError, match="has ratings of both dialogues and replies"):
        load_ratings(path)
    _, (rated,) = load_ratings(path, "dialogue")
    assert [turn.text for turn in rated.dialogue.said] == ["hello", "hi", "bye"]
    assert (rated.ratings, rated.system) == ({"rating": -1.0}, "run")


def test_prepared_dataset_is_found_by_name(tmp_path, monkeypatch):
    monkeypatch.setenv("RL4DIALOG_CACHE", str(tmp_path / "cache"))
    with pytest.raises(DataError, match="dstc9 is not in the cache; run this first: rl4dialog prepare dstc9"):
        load_ratings("dstc9")
    prepare_dataset("dstc9", write_dstc9(tmp_path / "files"))
    assert len(load_ratings("dstc9")[1]) == 4


def reply_rated(rating, role=1):
    row = conversation("a", "b")
    row["messages"][role]["ratings"] = rating
    return row


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (conversation("a", "b"), "has no ratings of dialogues or replies"),
        (conversation("a", "b", ratings=[4]), "r.jsonl:1: ratings: input should be a valid dictionary"),
        (conversation("a", "b", ratings={"good": "4"}), "ratings.good: input should be a valid number, got '4'"),
        (conversation("a", "b", ratings={"good": float("nan")}), "ratings.good: input should be a finite number"),
        (conversation("a", "b", ratings={"good": 10**400}), "not valid JSON .it has a number of 401 digits"),
        (conversation("a", "b", ratings={"good": 1}, id=[1]), r"r.jsonl:1: column 'id' must contain text, not \[1\]"),
        (conversation("a", "b", ratings={"good": 1}, system={}), "column 'system' must contain text, not {}"),
        (conversation("a", "\ud800", ratings={"good": 1}), "'content' of message 1 of messages is not valid Unicode"),
        (conversation("a", ratings={"good": 1}), "is rated, but has no message of the role assistant"),
        (reply_rated({"good": 1}, role=0), r"message 0 has ratings, but is not a reply \(role: user\)"),
        ({"messages": [{"role": "tool", "content": "x"}], "ratings": {"a": 1}}, "message 0 of messages has the"),
        ({"ratings": {"good": 1}}, "no column 'messages'"),
    ],
)
def test_malformed_line_is_an_error(tmp_path, row, message):
    with pytest.raises(DataError, match=message):
        load_ratings(write_lines(tmp_path / "r.jsonl", [row]))


def test_system_and_id_can_be_numbers_or_null(tmp_path):
    rows = [conversation("a", "b", ratings={"good": 1}, id=id, system=id) for id in ("x", 7, None)]
    rated = load_ratings(write_lines(tmp_path / "r.jsonl", rows))[1]
    assert [(each.conversation, each.system) for each in rated] == [("x", "x"), (7, "7"), (2, None)]
    with pytest.raises(DataError, match="does not exist"):
        load_ratings(tmp_path / "nothing.jsonl")


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("RL4DIALOG_CACHE", str(tmp_path / "cache"))


def prepared(name):
    folder = find_prepared(name)
    assert folder is not None
    return folder


def test_dataset_is_replaced_by_a_good_one_and_kept_after_a_bad_one(tmp_path):
    for content in ({"x": chitchat_conversation("a", "b")}, {"x": chitchat_conversation("c", "d")}):
        (tmp_path / "dataset.json").write_text(json.dumps(content))
        prepare_dataset("chitchat", tmp_path)
    (tmp_path / "dataset.json").write_text("{")
    with pytest.raises(DataError, match=rf"{tmp_path}/dataset.json: not valid JSON"):
        prepare_dataset("chitchat", tmp_path)
    assert '"c"' in (prepared("chitchat") / "dataset.json").read_text()


@pytest.mark.parametrize("cause", ["full", "read-only"])
def test_cache_that_cannot_be_written_is_an_error_and_keeps_the_dataset(tmp_path, monkeypatch, capsys, cause):
    folder = write_dstc9(tmp_path / "files")
    prepare_dataset("dstc9", folder)

    def fail(*args, **kwargs):
        raise OSError(errno.ENOSPC if cause == "full" else errno.EROFS, "no")

    monkeypatch.setattr(shutil if cause == "full" else tempfile, "copyfile" if cause == "full" else "mkdtemp", fail)
    assert main(["prepare", "dstc9", "--path", str(folder)]) == 2
    assert f"{tmp_path / 'cache'} cannot be written" in capsys.readouterr().err
    monkeypatch.undo()
    monkeypatch.setenv("RL4DIALOG_CACHE", str(tmp_path / "cache"))
    assert len(ratings.read_dstc9(prepared("dstc9"))) == 4
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [prepared("dstc9").name]


def test_daily_dialog_finds_the_prepared_files(tmp_path):
    files = tmp_path / "files"
    files.mkdir()
    for split in ("train", "validation", "test"):
        (files / f"dialogues_{split}.txt").write_text(f"{split} __eou__ yes __eou__\n")
        for label in ("act", "emotion"):
            (files / f"dialogues_{label}_{split}.txt").write_text("1 1\n")
    assert "1 dialogues in train, 1 dialogues in val" in prepare_dataset("daily_dialog", files)
    assert dialogue_corpora.load_dialogues("val")[0].turns[0].text == "validation"


def test_daily_dialog_is_not_downloaded_but_its_source_is_named():
    with pytest.raises(DataError, match=r"http://yanran.li/dailydialog.*rl4dialog prepare daily_dialog --path FOLDER"):
        prepare_dataset("daily_dialog")
    assert find_prepared("daily_dialog") is None


def serve(monkeypatch, folder):
    """Downloads come from a folder."""

    def answer(request):
        file = folder / request.url.path.rsplit("/", 1)[-1]
        return httpx.Response(200, content=file.read_bytes()) if file.exists() else httpx.Response(404)

    def stream(method, url, **settings):
        return httpx.Client(transport=httpx.MockTransport(answer), **settings).stream(method, url)

    monkeypatch.setattr(httpx, "stream", stream)


def test_download_with_another_hash_is_refused_and_not_kept(tmp_path, monkeypatch):
    serve(monkeypatch, write_dstc9(tmp_path / "files", n_bots=11))
    with pytest.raises(DataError, match=r"chatbot1.json is not the expected file: its SHA-256 is .* instead of 1106"):
        prepare_dataset("dstc9")
    assert find_prepared("dstc9") is None


def test_downloads_with_the_right_hashes_are_cached(tmp_path, monkeypatch):
    from rl4dialog.core.files import file_hash

    files = write_dstc9(tmp_path / "files", n_bots=11)
    monkeypatch.setattr(ratings, "_HASHES", [file_hash(files / f"chatbot{n}.json") for n in range(1, 12)])
    serve(monkeypatch, files)
    assert "22 rated dialogues of 11 chatbots" in prepare_dataset("dstc9")


def test_download_without_a_network_names_the_address(tmp_path, monkeypatch):
    serve(monkeypatch, tmp_path)
    address = r"https://raw.githubusercontent.com/\S*/chatbot1.json cannot be downloaded"
    with pytest.raises(DataError, match=rf"{address}.*rl4dialog prepare dstc9 --path FOLDER"):
        prepare_dataset("dstc9")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "needs either a name, or --config_path"),
        (["dstc"], "unknown dataset 'dstc'; did you mean 'dstc9'?"),
        (["dstc9", "--path", "missing"], "missing does not exist"),
        (["dstc9", "--config_path", "x.yml"], "needs either a name, or --config_path"),
        (["--path", "x", "--config_path", "x.yml"], "--path is the folder of a dataset"),
    ],
)
def test_wrong_arguments_are_an_error(arguments, message, capsys):
    assert main(["prepare", *arguments]) == 2
    assert message in capsys.readouterr().err
