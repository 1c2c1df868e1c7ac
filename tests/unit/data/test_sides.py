"""The partner's side of logs: what is learned of it, goals, groups of people, and what is refused."""

import json
import logging
from collections import Counter

import pytest
from conversations import TEMPLATES
from tiny import make_tokenizer

from rl4dialog.core.errors import DataError
from rl4dialog.data.conversations.pool import LoggedConversations
from rl4dialog.data.sides import END, Sides, alternating, grouped
from rl4dialog.data.tables import Csv, Jsonl
from rl4dialog.text.chat_template import ChatTemplate

COLUMNS = {"dialogue": "messages", "meta_data": ["user"]}


def dialogue(number, **columns):
    said = ["book a ride", "where to ?", f"to {number}", "done ."]
    roles = ["system", *["user", "assistant"] * 2]
    messages = [{"role": role, "content": text} for role, text in zip(roles, ["be kind", *said], strict=True)]
    return {
        "messages": messages,
        "goal": f"ride {number}",
        "user": f"u{number % 8}",
        "clerk": f"c{number % 3}",
        **columns,
    }


def log(tmp_path, rows):
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


ROWS = [dialogue(i) for i in range(80)]


def pool_of(tmp_path, rows=ROWS, pool=Jsonl, split="train", **kwargs):
    of_pool = {"columns": COLUMNS} if pool is Jsonl else {}
    settings = {"format": "eou", "held_out_share": 0.2, "learn": "partner", "goal": "goal", **of_pool, **kwargs}
    return pool.prepare(split, log(tmp_path, rows), **settings)


@pytest.mark.parametrize("pool", [Jsonl, LoggedConversations])
def test_conversation_is_learned_from_the_first_utterance_to_the_last(tmp_path, pool):
    sample = pool_of(tmp_path, pool=pool)[0][0]
    number = sample.meta_data["goal"].removeprefix("ride ")
    assert sample.prompt_or_input_text == f"ride {number} <EOU>" and sample.references == ["book a ride"]
    assert sample.meta_data["continuation"] == ["where to ?", f"to {number}", "done .", END]
    assert "be kind" not in str(sample)


def test_agent_that_begins_is_in_the_prompt_and_last_words_have_the_end(tmp_path):
    rows = [{**row, "messages": row["messages"][2:4]} for row in ROWS * 2]
    sample = pool_of(tmp_path, rows)[0][0]
    assert sample.prompt_or_input_text.endswith("<EOU>where to ? <EOU>") and sample.meta_data["history"] == [
        "where to ?"
    ]
    assert sample.references[0].endswith(f" {END}") and sample.meta_data["continuation"] == []


def test_conversations_that_were_cut_teach_no_end(tmp_path):
    rows = [{**row, "ended_by": "max_turns"} for row in ROWS]
    assert END not in str([sample for sample, _ in pool_of(tmp_path, rows, LoggedConversations)])


def test_what_tools_say_is_not_heard_and_utterances_of_one_side_are_joined():
    said = [("user", "a"), ("assistant", "b"), ("tool", "c"), ("assistant", "d"), ("user", " "), ("assistant", "e")]
    assert alternating([{"role": role, "content": text} for role, text in said]) == [(True, "a"), (False, "b\nd\ne")]


def test_agent_of_the_same_log_has_the_goal_in_its_meta_data(tmp_path):
    sample = pool_of(tmp_path, learn="agent")[0][0]
    assert sample.meta_data["goal"].startswith("ride ") and sample.references != ["book a ride"]


@pytest.mark.parametrize("pool", [Jsonl, LoggedConversations])
def test_groups_have_no_person_in_common_and_splits_neither(tmp_path, pool):
    rows = [{**row, "meta_data": {"user": row["user"]}} for row in ROWS * 3]
    people = [{"by": "user", "groups": 2, "only": [group]} for group in (0, 1)]
    found = [
        [
            {(sample.meta_data or {})["user"] for sample, _ in pool_of(tmp_path, rows, pool, split, people=each)}
            for split in ("train", "val", "test")
        ]
        for each in people
    ]
    for splits in found:
        assert sum(map(len, splits)) == len(set().union(*splits)) == 4
    assert set().union(*found[0]).isdisjoint(set().union(*found[1]))


def test_conversations_between_groups_are_left_out_and_counted(tmp_path, caplog):
    people = {"by": ["user", "clerk"], "groups": 2, "only": [0]}
    with caplog.at_level(logging.WARNING):
        pool_of(tmp_path, ROWS * 4, people=people)
    assert "conversations with people of other groups" in caplog.text


def test_groups_are_of_about_as_many_conversations():
    counts = Counter({f"p{i}": i for i in range(1, 20)})
    groups = grouped(counts, 4, 0)
    sizes = [sum(counts[name] for name, group in groups.items() if group == i) for i in range(4)]
    assert max(sizes) - min(sizes) <= 3 and groups == grouped(counts, 4, 0)


def test_person_of_a_table_of_utterances_is_in_any_of_its_rows(tmp_path):
    lines = ["chat,who,text,person,wish"]
    for i in range(400):
        lines += [f"{i},agent,hello {i} .,,", f"{i},user,a ride,p{i % 5},ride {i}", f"{i},agent,ok .,,"]
    path = tmp_path / "log.csv"
    path.write_text("\n".join(lines))
    columns = {"conversation": "chat", "speaker": "who", "text": "text"}
    settings = {"format": "eou", "held_out_share": 0.2, "learn": "partner", "goal": "wish"}
    pool = Csv.prepare("train", path, columns, people={"by": "person", "only": ["p0", "p1", "p2"]}, **settings)
    assert 80 <= len(pool) <= 240 and pool[0][0].references == ["a ride"]


@pytest.mark.parametrize(
    ("change", "people", "message"),
    [
        ({}, {"by": "clerk", "groups": 4}, r"name only 3 \(c0, c1, c2\), so nobody can be held out"),
        ({"user": "me"}, {"by": "user"}, r"only 1 \(me\)"),
        ({"user": None}, {"by": "user"}, "name nobody"),
        ({}, {"by": "user", "groups": 2, "only": [2]}, "2 is none of the groups 0 to 1"),
        ({}, {"by": "user", "only": ["u0", "u1"]}, "2 of 8 people are used, and at least 3"),
        ({}, {"by": "user", "only": ["x"]}, "'x' is none of the people such as u0"),
        ({"goal": ""}, None, "no conversation has a goal in 'goal'"),
    ],
)
def test_wrong_people_and_goals_are_named(tmp_path, change, people, message):
    with pytest.raises(DataError, match=message):
        pool_of(tmp_path, [{**row, **change} for row in ROWS], people=people)


def test_group_with_ten_turns_is_refused(tmp_path):
    people = {"by": "user", "groups": 2, "only": [0]}
    with pytest.raises(
        DataError, match=r"the partner says [0-9]+ utterances .* at least 50 are needed: use more people"
    ):
        pool_of(tmp_path, ROWS[:9], people=people)


def test_groups_divide_one_file(tmp_path):
    Sides(people={"by": "user", "only": ["u1"]}).check(["train", "val"])
    with pytest.raises(DataError, match=r"several splits \(train, val\)"):
        Sides(people={"by": "user", "groups": 2}).check(["train", "val"])


def test_weak_logs_are_named(tmp_path, caplog):
    again = [{**row, "messages": row["messages"] + row["messages"][1:3]} for row in ROWS]
    pool_of(tmp_path, again, goal=None)
    for said in ("learn: partner without goal", "without people", "33% of the partner's utterances repeat"):
        assert said in caplog.text, caplog.text


def test_names_of_people_in_what_they_said_are_named(tmp_path, caplog):
    rows = [{**row, "user": ["Ann", "Bob", "Cleo", "Dan"][i % 4]} for i, row in enumerate(ROWS * 2)]
    pool_of(tmp_path, rows, people={"by": "user"})
    assert "the name of their person" not in caplog.text
    told = [json.loads(json.dumps(row).replace("book a ride", f"i am {row['user'].lower()} .")) for row in rows]
    n_train = len(pool_of(tmp_path, told, people={"by": "user"}))
    assert f"{n_train} conversations of the train split have the name of their person in them" in caplog.text


def test_goal_is_the_system_message_of_a_chat_template_and_the_partner_its_assistant(tmp_path):
    tokenizer = make_tokenizer()
    tokenizer.chat_template = TEMPLATES["chatml"].source
    render = ChatTemplate(tokenizer)
    pool = pool_of(tmp_path, format="chat_template", render_chat=render)
    sample, frame = pool[0][0], pool.frame()
    number = sample.meta_data["goal"].removeprefix("ride ")
    said = ["book a ride", "where to ?", f"to {number}", "done ."]
    roles = ["system", *["assistant", "user"] * 2]
    messages = [{"role": role, "content": text} for role, text in zip(roles, [f"ride {number}", *said], strict=True)]
    written = sample.prompt_or_input_text + said[0] + frame.to_partner + said[1] + frame.to_agent + said[2]
    assert render(messages).startswith(written)
