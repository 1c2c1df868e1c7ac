"""Runs are read back, also unfinished and damaged ones, with their predictions and conversations."""

import json
import math

import pytest
from run_files import game, prediction, write_json, write_lines, write_run

from rl4dialog.core.errors import DataError
from rl4dialog.core.files import to_plain
from rl4dialog.core.types import AGENT, PARTNER, Dialogue, Turn
from rl4dialog.runs.reading import (
    changed_conversations,
    conversation_record,
    ending,
    pair,
    read_predictions,
    read_run,
    read_undamaged,
    recorded_conversation,
)


def test_whole_run_is_read(tmp_path):
    write_json(write_run(tmp_path) / "provenance.json", {"git": {"commit": "abc"}})
    run = read_run(tmp_path)
    assert run.column("iteration") == [1, 2, 3]
    assert run.column("rollout/kl") == pytest.approx([0.01, 0.02, 0.03])
    assert run.column("train/entropy_loss") == pytest.approx([-1.9, -1.8, -1.7])
    assert run.metrics["test"] == {0: {"m": 0.5, "d": 7.0}, 3: {"m": 1.0, "d": 8.0}}
    assert run.epochs("test") == [0, 3] and run.epochs("val") == []
    assert run.provenance == {"git": {"commit": "abc"}} and run.config["seed"] == 0 and run.notes == []


def test_last_line_that_was_cut_is_left_out_with_a_note(tmp_path):
    path = write_run(tmp_path) / "rollout_info.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    run = read_run(tmp_path)
    assert math.isnan(run.column("rollout/kl")[2]) and run.column("rollout/kl")[:2] == pytest.approx([0.01, 0.02])
    assert run.notes == ["The last line of rollout_info.jsonl is truncated and was skipped."]


def test_damaged_line_in_the_middle_is_an_error_with_its_number(tmp_path):
    path = write_run(tmp_path) / "rollout_info.jsonl"
    with path.open("a", encoding="utf-8") as file:
        file.write('{"iteration": 4, "rollout/note": "a\u2028b"}\n')  # a line separator in a record ends no line
    assert read_run(tmp_path).column("iteration") == [1, 2, 3, 4]
    first, *others = path.read_text().split("\n")
    path.write_text("\n".join([first[:-5], *others]))
    with pytest.raises(DataError, match=r"rollout_info\.jsonl:1 is not JSON"):
        read_run(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", "{", r"config\.json is not JSON"),
        ("config.json", "[1]", r"config\.json must be a JSON object, not \[1\]"),
        ("training_info.jsonl", "3\n", r"training_info\.jsonl:1 must be a JSON object, not 3"),
        ("rollout_info.jsonl", '{"iteration": null}\n', "the iteration of a logged line must be a whole number, not N"),
        ("test_split_metrics.jsonl", '{"epoch": 0}\n', r"test_split_metrics\.jsonl: every line must be"),
    ],
)
def test_files_of_another_form_are_errors(tmp_path, name, content, message):
    (write_run(tmp_path) / name).write_text(content)
    with pytest.raises(DataError, match=message):
        read_run(tmp_path)


def test_folder_that_is_no_run_is_an_error(tmp_path):
    with pytest.raises(DataError, match=r"is not a run folder: it contains none of config\.json"):
        read_run(tmp_path)
    with pytest.raises(DataError, match="is not a folder"):
        read_run(tmp_path / "none")


def test_iterations_without_numbers_are_counted_and_the_last_of_doubles_stands(tmp_path):
    write_lines(tmp_path / "rollout_info.jsonl", [{"a": 1}, {"a": 2}, {"iteration": 2, "a": 5}])
    run = read_run(tmp_path)
    assert run.column("iteration") == [1, 2] and run.column("a") == [1, 5]
    assert run.notes == ["There is no config.json."]


def test_damaged_predictions_and_result_are_left_out_with_a_note(tmp_path):
    path = write_run(tmp_path) / "epoch_3_test_split_predictions.json"
    path.write_text(path.read_text()[:-30])
    (tmp_path / "result.json").write_text("{")
    run = read_run(tmp_path)
    assert run.predictions("test", 3) is None and run.predictions("test", 1) is None
    assert run.notes == [
        "result.json is damaged, so the run counts as not complete.",
        "epoch_3_test_split_predictions.json is skipped: it is truncated.",
    ]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("rollout_info.jsonl", "", r"rollout_info\.jsonl ends at iteration 0 of 3\."),
        ("rollout_info.jsonl", '{"iteration": 2}\n', r"rollout_info\.jsonl ends at iteration 2 of 3\."),
        ("val_split_metrics.jsonl", '{"epoch": 1, "metrics": {}}\n', "metrics.jsonl ends at iteration 1 of 3"),
        ("training_info.jsonl", '{"iteration": 3}\n{"it', "last line of training_info.jsonl is truncated"),
        ("rollout_info.jsonl", None, "Is a directory"),
    ],
)
def test_a_complete_run_that_lacks_something_is_not_compared(tmp_path, name, content, message):
    write_run(tmp_path)
    write_json(tmp_path / "result.json", {"iterations": 3})
    assert read_undamaged(tmp_path).notes == []
    (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / name).mkdir() if content is None else (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=f"{message}.* remove its folder"):
        read_undamaged(tmp_path)


def read(tmp_path, rows):
    write_json(tmp_path / "file.json", rows)
    found = read_predictions(tmp_path / "file.json")
    assert found is not None
    return found


def test_texts_references_and_scores_are_read(tmp_path):
    empty = {**prediction(1, "c", m=None, n="n/a"), "ref_text": "<START-1><END-1>"}
    found = read(tmp_path, [prediction(0, "a b", m=1, n="n/a"), empty])
    assert found.replies == ["a b", "c"] and found.references == [["fine 0", "good"], []]
    assert list(found.scores) == ["m"] and found.scores["m"][0] == 1 and math.isnan(found.scores["m"][1])
    assert found.reply_lengths().tolist() == [2, 1]


def test_utterances_of_a_chat_template_come_without_its_markup(tmp_path):
    chat = {**prediction(0, "a"), "prompt_text": "<|im_start|>user\nHi!<|im_end|>\n"}
    marked = {**prediction(1, "b"), "prompt_text": "Hi! <EOU> Hello.<EOU>"}
    found = read(tmp_path, [{**chat, "history": ["Hi!"]}, chat, marked])
    assert found.utterances == [["Hi!"], ["<|im_start|>user\nHi!<|im_end|>"], ["Hi!", "Hello."]]


def test_episodes_have_scores_and_no_texts(tmp_path):
    found = read(tmp_path, [{"split_name": "val", "sample_id": i, "episode/return": 1.5 * i} for i in range(2)])
    assert not found.has_texts and list(found.scores) == ["episode/return"] and found.sample_ids == ["0", "1"]


def test_conversations_are_read_and_paired_with_their_samples(tmp_path):
    games = game(0, ("a b", "yes")), game(1, ("c", "no"), ("d e f", "yes"), won=True)
    before = read(tmp_path, [*games, prediction(2, "x")])
    assert before.has_conversations and list(before.scores) == []
    assert before.reply_lengths().tolist() == [2, 1, 3, 1]
    after = read(tmp_path, [prediction(2, "y"), game(1, ("g", "yes"))])
    old, new = pair(before, after)
    assert [said and said.texts(AGENT) for said in old.conversations] == [["c", "d e f"], None]
    assert [said and said.texts(AGENT) for said in new.conversations] == [["g"], None]
    assert not read(tmp_path, [prediction(2, "y")]).has_conversations


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{**game(0, ("a", "b")), "turns": [{"speaker": "me", "text": "a"}]}], "read: each turn needs a speaker"),
        ([{"prompt_text": "a"}], "must be a list of objects, each with the texts prompt_text"),
        ({}, "must be a list"),
    ],
)
def test_predictions_of_other_forms_are_errors_with_the_file(tmp_path, rows, message):
    with pytest.raises(DataError, match=rf"file\.json .*{message}"):
        read(tmp_path, rows)


def test_pairs_are_of_the_same_prompts_also_where_ids_repeat(tmp_path):
    before = read(tmp_path, [prediction(i, f"old {n}") for n, i in enumerate((5, 7, 7, 9))])
    after = read(tmp_path, [prediction(i, f"new {n}") for n, i in enumerate((7, 5, 7))])
    old, new = pair(before, after)
    assert old.replies == ["old 0", "old 1", "old 2"]
    assert new.replies == ["new 1", "new 0", "new 2"]


DIALOGUE = Dialogue(
    "7",
    (
        *(Turn("guess what", PARTNER), Turn("a reply of the sample", AGENT, reward=9.0)),
        *(Turn("is it a dog ?", AGENT, reward=-0.05), Turn("no", PARTNER), Turn("", AGENT, reward=0.95)),
    ),
    n_given=2,
    outcome={"success": 1.0},
    ended_by="partner",
)


def test_record_has_speakers_texts_rewards_and_what_was_given():
    assert conversation_record(DIALOGUE) == {
        "turns": [
            {"speaker": "partner", "text": "guess what", "given": True},
            {"speaker": "agent", "text": "a reply of the sample", "given": True},
            {"speaker": "agent", "text": "is it a dog ?", "reward": -0.05},
            {"speaker": "partner", "text": "no"},
            {"speaker": "agent", "text": "", "reward": 0.95},
        ],
        "outcome": {"success": 1.0},
        "ended_by": "partner",
    }


@pytest.mark.parametrize("dialogue", [DIALOGUE, Dialogue("7", ()), Dialogue("7", DIALOGUE.turns[:2], n_given=2)])
def test_record_is_read_back_from_json(dialogue):
    record = json.loads(json.dumps({"sample_id": 7, **conversation_record(dialogue)}))
    found = recorded_conversation(record)
    assert found is not None and conversation_record(found) == conversation_record(dialogue)
    assert (found.id, found.n_given, found.ended_by) == ("7", dialogue.n_given, dialogue.ended_by)


def test_numbers_that_were_not_finite_are_unknown():
    dialogue = Dialogue("7", (Turn("a", AGENT, reward=math.inf),), outcome={"success": math.nan, "score": 2.0})
    found = recorded_conversation(json.loads(json.dumps(to_plain(conversation_record(dialogue)))))
    assert found is not None and math.isnan(found.turns[0].reward) and found.outcome == {"score": 2.0}
    assert recorded_conversation({"prompt_text": "a", "generated_text": "b"}) is None, "a single reply"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"turns": "a b"}, "needs turns"),
        ({"outcome": None}, "needs turns"),
        ({"ended_by": "nobody"}, "ended_by"),
        ({"turns": [{"speaker": "agent"}]}, "a speaker .partner, agent, tool. and a text"),
        ({"turns": [{"speaker": "user", "text": "a"}]}, "a speaker .partner, agent, tool."),
        ({"turns": ["a"]}, "a speaker"),
        ({"turns": [{"speaker": "agent", "text": "a"}, {"speaker": "partner", "text": "b", "given": True}]}, "first"),
    ],
)
def test_other_forms_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        recorded_conversation({**conversation_record(DIALOGUE), **change})


def test_ending_tells_cause_and_outcome():
    assert ending(DIALOGUE) == "ended by the partner; success 1"
    assert ending(Dialogue("x", (), outcome={"success": 0.0, "score": 1 / 3})) == "success 0; score 0.3333"
    assert ending(Dialogue("x", (), ended_by="max_turns")) == "ended after max_turns"
    assert ending(Dialogue("x", ())) == ""


def test_conversations_that_changed_are_selected_evenly():
    before = [game(i, ("old", "yes")) for i in range(9)]
    after = [game(i, ("old" if i % 2 else "new", "yes")) for i in range(9)]
    found = changed_conversations(before, after, n=2)
    assert [(old.id, old.texts(AGENT), new.texts(AGENT)) for old, new in found] == [
        ("0", ["old"], ["new"]),
        ("4", ["old"], ["new"]),
    ]
    assert changed_conversations(before, before, n=2) == []
    assert changed_conversations([{"generated_text": "a"}], [{"generated_text": "b"}], n=2) == []
