"""What init guesses of strangers' tables, and that datapools read them the same way."""

import csv
import json

import pyarrow
import pyarrow.parquet
import pytest

from rl4dialog.catalog import DataPoolRegistry
from rl4dialog.core.errors import DataError
from rl4dialog.data.guessed_columns import POOLS, read_table
from rl4dialog.data.rows import table_suffix

ASKED, ANSWERED = "where is parcel {} ?", "it is in street {} ."
PROMPT, REPLY = ASKED.format(0), ANSWERED.format(0)


def of_two(n, first, second):
    return [{first: ASKED.format(i), second: ANSWERED.format(i)} for i in range(n)]


def talk(i, speaker, text, names):
    return [{speaker: names[0], text: ASKED.format(i)}, {speaker: names[1], text: ANSWERED.format(i)}]


def chatgpt(i):
    """An export of ChatGPT, in which a first reply was replaced by a second one."""

    def node(parent, role=None, text=None):
        message = role and {"author": {"role": role}, "content": {"content_type": "text", "parts": [text]}}
        return {"message": message, "parent": parent}

    said = {"old": node("ask", "assistant", "what ?"), "new": node("ask", "assistant", ANSWERED.format(i))}
    start = {"root": node(None), "none": node("root", "system", ""), "ask": node("none", "user", ASKED.format(i))}
    return {"title": "", "mapping": {**start, **said}, "current_node": "new"}


UTTERANCES = [
    {
        "ticket id": i,
        "sent": f"2025-03-01T10:0{n}",
        "author": ("kunde", "laden")[n],
        "body": (ASKED, ANSWERED)[n].format(i),
    }
    for i in range(8)
    for n in (1, 0)
]
TABLES = {
    "words.csv": (
        [{"no": 1, **each} for each in of_two(8, "Customer message", "Agent reply")],
        {"prompt": "Customer message"},
    ),
    "order.csv": (of_two(8, "Was gefragt wurde", "Was wir sagten"), {"prompt": "Was gefragt wurde"}),
    "t.parquet": (of_two(8, "question", "our answer"), {"prompt": "question", "references": "our answer"}),
    "turns.csv": (
        [
            {"customer_1": ASKED.format(i), "helper_1": ANSWERED.format(i), "customer_2": "", "helper_2": ""}
            for i in range(8)
        ],
        {"dialogue": ["customer_1", "helper_1", "customer_2", "helper_2"]},
    ),
    "cells.csv": (
        [{"talk": json.dumps(talk(i, "from", "text", ("customer", "agent")))} for i in range(8)] + [{"talk": ""}],
        {"dialogue": "talk"},
    ),
    "lines.csv": (
        [
            {"score": "5", "chat": f"Customer: {ASKED.format(i)}\nAgent: {ANSWERED.format(i)}", "personas 1": "a b"}
            for i in range(8)
        ],
        {"dialogue": "chat"},
    ),
    "help.csv": (
        [{"Ticket Subject": "some words", **each} for each in of_two(8, "Ticket Description", "Resolution")],
        {"prompt": "Ticket Description", "references": "Resolution"},
    ),
    "utterances.csv": (
        UTTERANCES,
        {"conversation": "ticket id", "speaker": "author", "order": "sent", "agent": "laden"},
    ),
    "conversations.json": ([chatgpt(i) for i in range(8)], {"dialogue": "mapping"}),
    "openai.jsonl": (
        [{"messages": talk(i, "role", "content", ("user", "assistant"))} for i in range(8)],
        {"dialogue": "messages"},
    ),
    "sharegpt.jsonl": (
        [{"system": "Be kind.", "conversations": talk(i, "from", "value", ("human", "gpt"))} for i in range(8)],
        {"dialogue": "conversations", "system": "system"},
    ),
    "convlab.json": (
        [{"turns": talk(i, "speaker", "utterance", ("user", "system"))} for i in range(8)],
        {"dialogue": "turns"},
    ),
    "sgd.json": (
        [{"turns": talk(i, "speaker", "utterance", ("USER", "SYSTEM"))} for i in range(8)],
        {"dialogue": "turns"},
    ),
}


def write(path, rows, encoding="utf-8", delimiter=","):
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".csv":
        with open(path, "w", newline="", encoding=encoding) as file:
            writer = csv.DictWriter(file, rows[0], delimiter=delimiter)
            writer.writeheader()
            writer.writerows(rows)
    else:
        text = json.dumps(rows) if path.suffix == ".json" else "\n".join(map(json.dumps, rows))
        path.write_text(text, encoding="utf-8")
    return path


def read_pool(path, split="train", **args):
    return DataPoolRegistry.get(POOLS[table_suffix(path)], {"path": str(path), "format": "eou", "split": split, **args})


@pytest.mark.parametrize("name", TABLES)
def test_tables_are_read_as_they_were_guessed(tmp_path, name):
    rows, expected = TABLES[name]
    table = read_table(write(tmp_path / name, rows))
    assert table.columns | expected == table.columns and table.n_rows == 8
    samples = [sample for sample, _ in read_pool(table.path, columns=table.columns)]
    assert [each.references for each in samples] == [[ANSWERED.format(i)] for i in range(8)]
    opening = "Be kind.<EOU>" if name.startswith("sharegpt") else ""
    assert samples[0].prompt_or_input_text == f"{opening}{PROMPT} <EOU>"
    assert [example.references for _, example in table.examples] == [each.references for each in samples]


@pytest.mark.parametrize(
    ("encoding", "delimiter", "form"),
    [
        ("utf-8-sig", ",", {}),
        ("cp1252", ";", {"encoding": "cp1252", "delimiter": ";"}),
        ("utf-16", "\t", {"delimiter": "\t"}),
        ("utf-16-le", ",", {"encoding": "utf-16-le"}),
    ],
)
def test_encodings_and_delimiters_are_found(tmp_path, encoding, delimiter, form):
    rows = [{"question, if any": f"Größe {i}; in grün ?", "answer": "ja, größer ."} for i in range(5)]
    table = read_table(write(tmp_path / "t.csv", rows, encoding, delimiter))
    assert table.form == form and table.columns == {"prompt": "question, if any", "references": "answer"}
    for given in ({}, form):
        found = [str(each.prompt_or_input_text) for each, _ in read_pool(table.path, columns=table.columns, **given)]
        assert found[0] == "Größe 0; in grün ? <EOU>" and len(found) == 5


def test_incomplete_rows_are_left_out_and_counted(tmp_path):
    path = write(
        tmp_path / "t.csv",
        [*of_two(6, "prompt", "reply"), {"prompt": "", "reply": "b"}, {"prompt": "a b", "reply": " "}],
    )
    path.write_text(path.read_text() + "half a row\n")
    table = read_table(path)
    assert table.notes.total() == 2 and table.notes["rows without a reply in 'reply', left out"] == 1
    pool = read_pool(path, columns=table.columns)
    assert len(pool) == 6 and pool.notes == table.notes
    one_sided = [
        {"talk": json.dumps(said)}
        for said in (talk(0, "from", "text", ("user", "bot")), [{"from": "user", "text": "hi you"}])
    ]
    assert (
        read_table(write(tmp_path / "d.csv", one_sided)).notes["dialogues without a reply of the agent, left out"] == 1
    )
    with pytest.raises(DataError, match="none of which is known as the agent"):
        read_table(write(tmp_path / "d.csv", one_sided[1:]))


def test_texts_of_fields_are_no_dialogues(tmp_path):
    rows = [{"order": f"Item: shoes {i}\nPlease send: today", "reply": "it is sent ."} for i in range(8)]
    assert read_table(write(tmp_path / "t.csv", rows)).columns == {"prompt": "order", "references": "reply"}


def test_texts_without_speakers_are_left_out_of_dialogues(tmp_path):
    rows = [*TABLES["lines.csv"][0], {"score": "1", "chat": "hung up", "personas 1": "c d"}]
    table = read_table(write(tmp_path / "t.csv", rows))
    assert table.n_rows == 8 and table.notes["dialogues without a reply of the agent, left out"] == 1


def test_agent_of_three_speakers_is_asked_for(tmp_path):
    said = [{"from": name, "text": f"I am {name} ."} for name in ("Ann", "Bo", "Cem", "Bo")]
    path = write(tmp_path / "t.json", [{"talk": said}] * 3)
    with pytest.raises(DataError, match=r"3 speakers \(Ann, Bo, Cem\).* with --agent NAME$"):
        read_table(path)
    assert read_table(path, agent="Bo").columns["agent"] == "Bo"


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("CSAT", ["1", "", "5"], "CSAT (1 to 5, in 2 of 3 rows)"),
        ("thumbsUp", ["yes", "no", "yes"], "thumbsUp (no or yes, in 3 of 3 rows)"),
        ("rating", ["fair", "poor", "1"], ""),
        ("size", ["1", "2", "3"], ""),
    ],
)
def test_ratings_are_recognized(tmp_path, name, values, said):
    rows = [{**each, name: value} for each, value in zip(of_two(3, "prompt", "reply"), values, strict=True)]
    assert read_table(write(tmp_path / "t.csv", rows)).ratings == said


def test_person_is_asked_with_the_guess_as_default(tmp_path):
    path, asked = write(tmp_path / "t.csv", of_two(3, "one", "two")), []

    def ask(question, likely):
        asked.append(likely)
        return {"one": "two", "two": "one"}[likely]

    assert read_table(path, ask=ask).columns == {"prompt": "two", "references": "one"} and asked == ["one", "two"]
