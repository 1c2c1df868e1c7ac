"""Dialogues in a column: texts, objects with any names, whole dialogues; and what is not clear about them."""

import json
import re
from pathlib import Path
from typing import Any

import datasets
import pytest
from feature_rows import rows_of_features

from rl4dialog.catalog import DataPoolRegistry
from rl4dialog.core.errors import DataError
from rl4dialog.core.types import SYSTEM_KEY, Frame
from rl4dialog.data.dialogue_format import DialogueFormat
from rl4dialog.data.messages import read_messages, transcript_of
from rl4dialog.data.ratings import load_ratings
from rl4dialog.data.rows import Row
from rl4dialog.inference.simulation import read_prompts

TEXTS = ["Hi!", "Hello.", "Tea?"]
SPOKEN = [{"who": "Ann", "says": "Hi!"}, {"who": "Bob", "says": "Hello."}, {"who": "Ann", "says": "Tea?"}]
SHAREGPT = [
    {"from": "system", "value": "Be kind."},
    {"from": "human", "value": "Hi!"},
    {"from": "gpt", "value": "Hello."},
    {"from": "human", "value": "Tea?"},
]
NAMES = {"speaker": "who", "text": "says"}
CHAT = "<user>Hi!<assistant>Hello.<user>Tea?<assistant>"


class Render:
    """A template with one special token."""

    control_tokens = ("<user>",)

    def __call__(self, messages):
        return "".join(f"<{m['role']}>{m['content']}" for m in messages) + "<assistant>"


def pool_of(row, tmp_path, columns=None, **args):
    (tmp_path / "train.jsonl").write_text(json.dumps(row) + "\n")
    args = {"split": "train", "path": str(tmp_path), "format": "chat_template", "columns": columns or {}, **args}
    return DataPoolRegistry.get("jsonl", args, render_chat=Render())


def prompts(pool):
    return [(sample.id, sample.prompt_or_input_text, sample.references) for sample, _ in pool]


@pytest.mark.parametrize(
    ("said", "columns", "prompt"),
    [
        ("Tea?", {}, "<user>Tea?<assistant>"),
        (TEXTS, {}, CHAT),
        ([{"text": text} for text in TEXTS], {}, CHAT),
        (SPOKEN, NAMES, CHAT),
        (SPOKEN, {**NAMES, "agent": "Bob"}, CHAT),
        (SHAREGPT, {}, f"<system>Be kind.{CHAT}"),
        ([{**SHAREGPT[0], "from": "System"}, *SHAREGPT[1:]], {}, f"<system>Be kind.{CHAT}"),
        (
            [{"speaker": 1, "text": "Hi!"}, {"speaker": 0, "text": [{"text": "Tea?"}]}],
            {},
            "<assistant>Hi!<user>Tea?<assistant>",
        ),
    ],
)
def test_prompt_is_a_text_or_a_dialogue(said, columns, prompt, tmp_path):
    pool = pool_of({"prompt": said, "reference": "Yes."}, tmp_path, columns)
    assert prompts(pool) == [(0, prompt, ["Yes."])] and pool.end_of_turn is None
    history = pool[0][0].meta_data["history"]
    assert history[-1] == "Tea?" and "Be kind." not in history


def test_eou_and_context_size_hold_for_tables(tmp_path):
    pool = pool_of({"prompt": TEXTS, "reference": "Yes."}, tmp_path, format="eou", context_size=2)
    assert prompts(pool)[0][1] == "Hello.<EOU>Tea? <EOU>"
    assert pool.end_of_turn == "<EOU>" and pool.frame() == Frame(" <EOU>", "<EOU>", ("<EOU>",))
    filled = pool_of({"q": "Tea", "reference": ""}, tmp_path, prompt_template="{q}?")
    assert prompts(filled)[0][1] == "<user>Tea?<assistant>"
    plain = pool_of({"prompt": "Tea? <user>", "reference": ""}, tmp_path, format=None)
    assert prompts(plain)[0][1] == "Tea? <user>" and plain[0][0].meta_data == {} and plain.end_of_turn is None


def test_a_column_cannot_take_the_place_of_the_history(tmp_path):
    row, columns = {"prompt": TEXTS, "reference": "Yes.", "history": "mine"}, {"meta_data": ["history"]}
    with pytest.raises(DataError, match=r"columns\.meta_data: 'history' is reserved for the prompt's utterances"):
        pool_of(row, tmp_path, columns)
    plain = pool_of({**row, "prompt": "Tea?"}, tmp_path, columns, format=None)
    assert plain[0][0].meta_data == {"history": "mine"}


def test_every_reply_of_a_whole_dialogue_is_a_sample(tmp_path):
    dialogue = {"dialogue": "talk"}
    found = prompts(pool_of({"talk": TEXTS}, tmp_path, dialogue))
    assert found == [
        ("0_1", "<user>Hi!<assistant>", ["Hello."]),
        ("0_2", "<assistant>Hi!<user>Hello.<assistant>", ["Tea?"]),
    ]
    assert prompts(pool_of({"talk": SPOKEN}, tmp_path, {**dialogue, **NAMES, "agent": "Bob"})) == found[:1]
    assert prompts(pool_of({"talk": SPOKEN}, tmp_path, {**dialogue, **NAMES, "agent": "Ann"})) == found[1:]
    assert prompts(pool_of({"talk": SHAREGPT}, tmp_path, dialogue)) == [
        ("0_2", "<system>Be kind.<user>Hi!<assistant>", ["Hello."])
    ]


def test_csv_and_datasets_read_the_same_dialogues(tmp_path):
    (tmp_path / "train.csv").write_text('talk\n"[""Hi!"", ""Hello.""]"\n')
    args = {"split": "train", "format": "eou", "columns": {"dialogue": "talk"}}
    found = prompts(DataPoolRegistry.get("csv", {**args, "path": str(tmp_path)}))
    assert found == [("0_1", "Hi! <EOU>", ["Hello."])]
    datasets.DatasetDict({"train": datasets.Dataset.from_list([{"talk": TEXTS[:2]}])}).save_to_disk(tmp_path / "d")
    assert prompts(DataPoolRegistry.get("hf_dataset", {**args, "path": str(tmp_path / "d")})) == found


@pytest.mark.parametrize(
    ("row", "columns", "message"),
    [
        ({"prompt": ["Hi!", "\ud800"]}, {}, "a text of column 'prompt' is not valid Unicode"),
        ({"prompt": [{"x": "Hi!"}]}, {}, r"has no known key for its text; set columns\.text \(keys: x\)"),
        ({"prompt": [{"who": "A", "text": "Hi!"}]}, {}, r"no known key for its speaker; set columns\.speaker \(keys:"),
        ({"prompt": [{"role": "a", "text": "Hi!", "content": ""}]}, {}, r"several keys that can be its text; set"),
        ({"prompt": SPOKEN}, {"speaker": "whom", "text": "says"}, r"has no key 'whom'; did you mean 'who'\? \(keys:"),
        ({"prompt": [*SPOKEN, {"who": "A"}]}, NAMES, r"utterance 3 of column 'prompt' has no key 'says' \(keys: who\)"),
        ({"prompt": [*SPOKEN, "Hi!"]}, NAMES, r"utterance 3 of column 'prompt' must be an object with speaker and"),
        ({"prompt": [{"who": None, "says": "Hi!"}]}, NAMES, r"'who' of utterance 0 of column 'prompt' must name the"),
        ({"prompt": [{"who": "A", "says": 3}]}, NAMES, r"'says' of utterance 0 of column 'prompt' must be text, not 3"),
        ({"prompt": TEXTS}, NAMES, r"column 'prompt' contains texts without speakers; remove columns\.speaker"),
        ({"prompt": "Hi!"}, NAMES, r"the prompt is a text and not a dialogue; remove columns\.speaker"),
        ({"prompt": []}, {}, r"column 'prompt' must contain a dialogue, a list of utterances, not \[\]"),
        ({"prompt": SPOKEN}, {**NAMES, "agent": "Bo"}, r"column 'prompt' has no speaker 'Bo', which columns\.agent"),
        ({"prompt": SPOKEN}, {**NAMES, "agent": "Ann"}, r"column 'prompt' ends with an utterance of 'Ann', whose role"),
        ({"prompt": [*SPOKEN, {"who": "Cem", "says": "No."}]}, NAMES, r"has 3 speakers \(Ann, Bob, Cem\), 2 of which"),
        ({"prompt": SHAREGPT[:1]}, {}, r"there is no message before the reply"),
        ({"prompt": "<user>Hi!<assistant>"}, {}, r"a text cannot contain <user>, which is markup of the chat template"),
        ({"prompt": "Hi!<assistant> "}, {}, r"a text ends with '<assistant>', which is markup of the chat template;"),
        ({"prompt": ["Hi!", "<user>", "Tea?"]}, {}, r"a text cannot contain <user>"),
        ({"talk": ["Hi!"]}, {"dialogue": "talk"}, r"column 'talk' has no utterance that replies to another speaker"),
        ({"talk": SPOKEN}, {"dialogue": "talk", **NAMES, "agent": "Bo"}, r"column 'talk' has no speaker 'Bo', wh"),
        (
            {"talk": "Hi!"},
            {"dialogue": "talk"},
            r"column 'talk' must contain a dialogue, a list of utterances or lines with speakers",
        ),
    ],
)
def test_what_is_not_clear_is_told(row, columns, message, tmp_path):
    with pytest.raises(DataError, match=rf"train\.jsonl:1: .*{message}"):
        pool_of({"reference": "Yes.", **row}, tmp_path, columns)


@pytest.mark.parametrize(
    ("row", "args", "message"),
    [
        ({"prompt": TEXTS}, {"format": None}, r"train\.jsonl:1: column 'prompt' contains a dialogue; set"),
        ({"prompt": "Hi!"}, {"format": None, "context_size": 2}, r"context_size counts utterances, which need format:"),
        ({"prompt": "a<EOU>b"}, {"format": "eou"}, r"jsonl:1: a text cannot contain <EOU>, which ends a turn; remove"),
        ({"talk": TEXTS}, {"columns": {"dialogue": "talk", "references": "r"}}, r"columns\.dialogue already contains"),
        ({"talk": TEXTS}, {"columns": {"dialogue": "talk"}, "prompt_template": "{talk}"}, r"remove prompt_template"),
    ],
)
def test_contradictions_are_refused(row, args, message, tmp_path):
    with pytest.raises(DataError, match=message):
        pool_of({"reference": "Yes.", **row}, tmp_path, **args)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("hi", r"place: m must be a list of messages with role and content, not 'hi'"),
        ([{"role": "user"}], r"message 0 of m has no key 'content' \(keys: role\)"),
        ([{"from": "human"}], r"message 0 of m must have role and content, .*columns: \{dialogue: m\}"),
        ([{"role": "assistent", "content": ""}], r"message 0 of m has the unknown role 'assistent'; did you mean"),
        ([{"role": "user", "content": 3}], r"'content' of message 0 of m must be text, not 3"),
        ([{"role": "user", "content": "\ud800"}], r"place: 'content' of message 0 of m is not valid Unicode"),
        ([{"role": "user", "content": [{"text": "\ud800"}]}], r"'content' of message 0 of m is not valid Unicode"),
    ],
)
def test_messages_have_role_and_content(value, message):
    with pytest.raises(DataError, match=message):
        read_messages(Row({"m": value}, "place"), "m")
    wanted = [{"role": "user", "content": "ab"}]
    assert read_messages(Row({"m": [{"role": "user", "content": [{"text": "a"}, {"text": "b"}]}]}, "p"), "m") == wanted


# The tables of docs/datapools.md, for all readers of messages.

USER, HELLO = {"role": "user", "content": "Hi!"}, {"role": "assistant", "content": "Hello."}
AGAIN, REPLY = {"role": "user", "content": "Tea?"}, {"role": "assistant", "content": "Yes."}
ALSO = {"role": "system", "content": "Be brief."}
PARTS = [{"type": "text", "text": "Te"}, {"type": "text", "text": "a?"}]
IMAGE = [*PARTS, {"type": "image_url", "image_url": {"url": "x"}, "text": "y"}]
CALL = [{"type": "function", "function": {"name": "f", "arguments": "{}"}}]


def at(number, **changes):
    """A conversation in which one message is another, whose number is given back."""
    messages = [{"role": "system", "content": "Be kind."}, USER, HELLO, AGAIN]
    changed = {**messages[number], **changes}
    return number, [*messages[:number], {k: v for k, v in changed.items() if v != "absent"}, *messages[number + 1 :]]


def anywhere(**changes):
    return [at(number, **changes) for number in range(4)]


LEARNED = "a key that says how much it is learned, such as `train: false`"
NOT_LEARNED: list[dict[str, Any]] = [
    *({"weight": 0}, {"weight": 0.5}, {"train": False}, {"loss_mask": 0}, {"masked": True}, {"loss": False}),
    {"content": [{"type": "text", "text": "Te"}, {"type": "text", "text": "a?", "train": False}]},
]

# The number of the message that is kept or refused, and the messages before the reply, for each row of the table.
TABLE = {
    ("`system`, `developer`", "at the beginning", "text"): [
        at(0),
        at(0, role="developer"),
        (1, [ALSO, {**ALSO, "role": "developer"}, USER]),
    ],
    ("`system`, `developer`", "later", "text"): [
        (2, [USER, HELLO, ALSO, AGAIN]),
        (1, [USER, {**ALSO, "role": "developer"}, HELLO, AGAIN]),
        (2, [ALSO, USER, ALSO]),
    ],
    ("`user`, `assistant`", "after the other one", "text"): [(2, [USER, HELLO, AGAIN]), (1, [HELLO, AGAIN])],
    ("`user`, `assistant`", "after the same one", "text"): [(1, [USER, AGAIN]), (1, [USER, HELLO, REPLY, AGAIN])],
    ("`assistant`", "last before the reply", "text"): [(1, [USER, HELLO])],
    ("`tool`", "in place of the user", "text"): [at(3, role="tool"), (1, [HELLO, {**AGAIN, "role": "tool"}])],
    ("other", "any", "text"): [at(3, role="narrator"), at(1, role="narrator"), at(0, role="narrator")],
    ("any", "any", "empty text"): anywhere(content=""),
    ("any", "any", "`null`, or no content"): [*anywhere(content=None), *anywhere(content="absent")],
    ("any", "any", "list of texts"): [*anywhere(content=PARTS), *anywhere(content=[{"text": "Tea?"}])],
    ("any", "any", "empty list, or a list with an image"): [*anywhere(content=[]), *anywhere(content=IMAGE)],
    ("any", "any", "text and a tool call, or a refusal"): [
        *anywhere(tool_calls=CALL),
        *anywhere(tool_calls=CALL, content=None),
        *anywhere(function_call=CALL[0]["function"]),
        *anywhere(refusal="I cannot."),
        *anywhere(train_detail=[{"begin_offset": 0, "end_offset": 1, "train": False}]),
    ],
    ("`assistant`", "any", f"text and {LEARNED}"): [at(2, **key) for key in NOT_LEARNED],
    ("`user`", "any", f"text and {LEARNED}"): [at(number, **key) for number in (0, 1, 3) for key in NOT_LEARNED],
}


def documented(first_cell):
    """The rows of a table of the page."""
    text = (Path(__file__).parents[3] / "docs" / "datapools.md").read_text(encoding="utf-8")
    table = next(block for block in text.split("\n\n") if block.startswith(f"| {first_cell} |"))
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()[2:]]


def read_by(reader, messages, form, tmp_path, **columns_beside):
    """All texts before the reply, as the reader gives them to a model."""
    args = {"split": "train", "path": str(tmp_path / "train.jsonl"), "format": form}
    chat = {"render_chat": Render()} if form == "chat_template" else {}
    rows = {
        "jsonl dialogue": {"talk": [*messages, REPLY]},
        "jsonl prompt": {"prompt": messages, "reference": "Yes."},
        "conversational messages": {"messages": [*messages, REPLY]},
        "conversational prompt": {"prompt": messages, "completion": [REPLY]},
        "conversations": {"messages": [*messages, REPLY]},
    }
    row = {**rows.get(reader, {"messages": messages}), **columns_beside}
    (tmp_path / "train.jsonl").write_text(json.dumps(row) + "\n")
    if reader == "prompt file":
        return read_prompts(tmp_path / "train.jsonl", DialogueFormat(form, None, **chat))[0].prompt
    if reader in OF_FEATURES:
        return OF_FEATURES[reader](messages, DialogueFormat(form, None, **chat))
    id, _, column = reader.partition(" ")
    columns = {"columns": {"dialogue": "talk"} if column == "dialogue" else {}} if id == "jsonl" else {}
    pool = DataPoolRegistry.get(id, {**args, **columns}, **chat)
    if id == "conversations":
        (dialogue,) = pool.conversations()
        return " ".join([dialogue.meta_data.get(SYSTEM_KEY, ""), *(turn.text for turn in dialogue.turns)])
    return pool[len(pool) - 1][0].prompt_or_input_text


OF_FEATURES = rows_of_features("READERS_OF_MESSAGES")
READERS = (
    *("jsonl dialogue", "jsonl prompt", "conversational messages", "conversational prompt"),
    *("prompt file", "conversations"),
)


@pytest.mark.parametrize("form", ["eou", "chat_template"])
@pytest.mark.parametrize("reader", [*READERS, *OF_FEATURES])
@pytest.mark.parametrize("row", TABLE, ids=" ".join)
def test_readers_of_messages_agree(row, reader, form, tmp_path):
    in_plain, in_chat = next(cells[3:] for cells in documented("role") if tuple(cells[:3]) == row)
    verdict = in_chat if form == "chat_template" and reader != "conversations" else in_plain
    verdict = verdict.removeprefix("refused, but ") if reader == "conversations" else verdict
    for number, messages in TABLE[row]:
        if verdict.startswith("kept"):
            found = read_by(reader, messages, form, tmp_path)
            texts = [m["content"] if isinstance(m["content"], str) else "Tea?" for m in messages]
            assert re.search(".*".join(map(re.escape, texts)), found), (messages, found)
        else:
            with pytest.raises(DataError, match=r"message|utterance|speakers|key") as raised:
                read_by(reader, messages, form, tmp_path)
            # Speakers of tables are not roles, so that three of them leave the agent unclear.
            if not (reader.startswith("jsonl") and row[0] == "other"):
                assert re.search(rf"\b{number}\b", str(raised.value)), raised.value


def omits(messages):
    return Render()([m for m in messages if m["role"] in ("user", "assistant")])


def renames(messages):
    return Render()([m if m["role"] in ("system", "user") else {**m, "role": "assistant"} for m in messages])


def moves(messages):
    return Render()(sorted(messages, key=lambda m: m["role"] != "system"))


def rejects(messages):
    if any(m["role"] not in ("user", "assistant") for m in messages):
        raise DataError("only user and assistant")
    return Render()(messages)


@pytest.mark.parametrize(
    ("template", "messages", "refused"),
    [
        (omits, [ALSO, USER], "message 0 has the role system, for which the chat template has no place there: leave"),
        (omits, [USER, HELLO, ALSO, AGAIN], "message 2 has the role system, .* there: move it to the beginning, leave"),
        (moves, [USER, HELLO, ALSO, AGAIN], "message 2 has the role system"),
        (moves, [ALSO, USER, HELLO, {**AGAIN, "role": "tool"}], None),
        (renames, [ALSO, USER, HELLO, AGAIN], None),
        (renames, [{**ALSO, "role": "developer"}, USER], "message 0 has the role developer"),
        (rejects, [USER, HELLO, ALSO, AGAIN], "message 2 has the role system"),
        (rejects, [HELLO, AGAIN, HELLO, {**AGAIN, "role": "tool"}], "message 3 has the role tool"),
        (rejects, [ALSO, USER], "only user and assistant"),
        (renames, [USER, HELLO, {**AGAIN, "role": "tool"}], "message 2 has the role tool, .* there: leave it out"),
    ],
)
def test_template_without_a_place(template, messages, refused, tmp_path):
    (tmp_path / "train.jsonl").write_text(json.dumps({"messages": [*messages, REPLY]}))
    args = {"split": "train", "path": str(tmp_path), "format": "chat_template"}
    if refused is None:
        assert DataPoolRegistry.get("conversational", args, render_chat=template)[0][0].references == ["Yes."]
        return
    with pytest.raises(DataError, match=rf"train\.jsonl:1: {refused}"):
        DataPoolRegistry.get("conversational", args, render_chat=template)


def test_later_instructions_stay_with_a_short_context_and_are_not_said(tmp_path):
    said = [ALSO, USER, HELLO, {**ALSO, "content": "Be kind."}, AGAIN, HELLO, USER, REPLY]
    pool = pool_of({"talk": said}, tmp_path, {"dialogue": "talk"}, context_size=1)
    assert prompts(pool)[-1][1] == "<system>Be brief.<system>Be kind.<user>Hi!<assistant>"
    assert pool[len(pool) - 1][0].meta_data["history"] == ["Hi!"]


@pytest.mark.parametrize(
    ("speakers", "agent"),
    [
        ("human chatgpt human chatgpt", "chatgpt"),
        ("prompter assistant", "assistant"),
        ("customer Agent", "Agent"),
        ("human Vicuna", "Vicuna"),
        ("Ann bot", "bot"),
        ("system human customer model", r"messages 1 and 2 are both of 'user'"),
        ("Ann Bob", r"has 2 speakers \(Ann, Bob\), 2 of which can be the agent; set columns\.agent"),
        ("human agent bot", r"has 3 speakers \(human, agent, bot\), 2 of which can be the agent; set columns\.agent"),
        ("user assistant narrator", r"has 3 speakers .*, 2 of which can be the agent; set columns\.agent"),
        ("human user", r"has 2 speakers \(human, user\), none of which is known as the agent; set columns\.agent"),
        ("human gpt function_call observation", "message 2 has the role function_call, which has no place"),
    ],
)
def test_agent_is_known_by_name_or_asked_for(speakers, agent, tmp_path):
    talk = [{"from": name, "value": f"text {number}"} for number, name in enumerate(speakers.split())]
    row, columns = {"talk": [*talk, *talk[:2]] if "function" in speakers else talk}, {"dialogue": "talk"}
    if agent not in speakers.split():
        with pytest.raises(DataError, match=rf"train\.jsonl:1: .*{agent}"):
            pool_of(row, tmp_path, columns, format="eou")
        return
    wanted = [one["value"] for one in talk if one["from"] == agent]
    assert [sample.references for sample, _ in pool_of(row, tmp_path, columns)] == [[text] for text in wanted]


def corpus(speakers, text="utterance", speaker="speaker"):
    """A dialogue as corpora of task-oriented dialogues have it, whose texts are the numbers of its utterances."""
    return [{speaker: name, text: str(number), "dialogue_acts": {}} for number, name in enumerate(speakers.split())]


@pytest.mark.parametrize(
    ("said", "agent", "wanted"),
    [
        (corpus("USER SYSTEM USER SYSTEM USER"), None, ["1", "3"]),
        (corpus("system user system user system"), None, ["2", "4"]),
        (corpus("User System"), "System", ["1"]),
        (corpus("USER SYSTEM USER SYSTEM"), "USER", ["2"]),
        (corpus("SYSTEM USER SYSTEM USER"), "USER", ["1", "3"]),
        (corpus("usr sys usr sys"), None, ["1", "3"]),
        (corpus("system user gpt", "value", "from"), None, ["2"]),
        (corpus("system user bot user"), "bot", ["2"]),
        (corpus("user system user system", "content", "role"), "system", ["1", "3"]),
        (corpus("system user assistant", "content", "role"), None, ["2"]),
        (corpus("user system user system", "content", "role"), None, r"as the agent; .*, or to 'system' if that is it"),
        (corpus("user system user system"), "SYSTEM", r"has no speaker 'SYSTEM', .* \(speakers: user, system\)"),
        (corpus("USER SYSTEM SYSTEM USER SYSTEM"), "SYSTEM", "message 1, the last before .* own"),
        (corpus("USER SYSTEM SYSTEM USER SYSTEM"), None, r"1 speakers \(USER\), none .*, or to 'SYSTEM' if that is it"),
        (corpus("user system bot"), None, "message 1 has the role system, which has no place there"),
        (corpus("SYSTEM USER"), None, r"has 1 speakers \(USER\), none of which .*, or to 'SYSTEM' if that is it"),
    ],
)
def test_agent_of_corpora_is_called_system(said, agent, wanted, tmp_path):
    columns = {"dialogue": "talk", "agent": agent}
    if isinstance(wanted, str):
        with pytest.raises(DataError, match=wanted):
            pool_of({"talk": said}, tmp_path, columns, format="eou")
        return
    pool = pool_of({"talk": said}, tmp_path, columns, format="eou")
    assert [sample.references for sample, _ in pool] == [[text] for text in wanted]
    texts = [next(text for text in one.values() if isinstance(text, str) and text.isdigit()) for one in said]
    before = texts[: int(wanted[0])]
    assert pool[0][0].prompt_or_input_text == f"{'<EOU>'.join(before)} <EOU>"
    asked = pool_of({"prompt": said[: int(wanted[-1])], "reference": wanted[-1]}, tmp_path, {"agent": agent})
    assert asked[0][0].prompt_or_input_text == pool_of({"talk": said}, tmp_path, columns)[-1][0].prompt_or_input_text


def test_unread_and_empty_messages_are_counted(tmp_path, caplog):
    said = [USER, {**HELLO, "content": " "}, AGAIN]
    for id, args in (("jsonl", {"columns": {"dialogue": "messages"}}), ("conversational", {})):
        (tmp_path / "train.jsonl").write_text(f"{json.dumps({'messages': said})}\n" * 2)
        caplog.clear()
        DataPoolRegistry.get(id, {"split": "train", "path": str(tmp_path), "format": "eou", **args})
        assert "train: messages after the last reply of a conversation, which are not read: 2" in caplog.text
        assert "train: empty replies: 2" in caplog.text


HH = "\n\nHuman: Hi!\n\nAssistant: Hello.\n\nHuman: Tea?\n\nAssistant: I "
PAIR = {"chosen": f"{HH}do.", "rejected": f"{HH}do not."}
LATER = {**PAIR, "rejected": f"{HH}do.\n\nHuman: Oh.\n\nAssistant: Yes."}
BINARY = {"prompt": "Tea?", "chosen": [AGAIN, REPLY], "rejected": [AGAIN, HELLO], "messages": [AGAIN, REPLY]}
REPLIES = [{"model": "a", "response": "Yes."}, {"model": "b", "response": "No."}]
ULTRA_COLUMNS = {"prompt": "instruction", "references": "completions.response"}
ULTRA = {"source": "evol_instruct", "instruction": "Tea?", "models": ["a", "b"], "completions": REPLIES}
GPT = {"id": "1", "conversations": [{"from": "human", "value": "Hi!"}, {"from": "gpt", "value": "Hello."}]}
CALLS = [
    USER,
    {"role": "assistant", "content": None, "tool_calls": CALL},
    {"role": "tool", "tool_call_id": "c", "content": "2"},
    REPLY,
]
WITH_TOOLS = {"messages": [USER, {**HELLO, "tool_calls": None, "weight": 1}, AGAIN, REPLY], "tools": CALL}
IN_CHAT = {"format": "chat_template"}
TALK = {"columns": {"dialogue": "conversations"}, **IN_CHAT}
FOREIGN_GPT = r"'conversations' is that of ShareGPT; .* columns: \{dialogue: conversations\}"
SGD = [{"speaker": ("USER", "SYSTEM")[n % 2], "utterance": str(n), "frames": [{"slots": []}]} for n in range(4)]
PUBLIC = {
    "ShareGPT": [
        (GPT, "jsonl", TALK, [("<user>Hi!<assistant>", ["Hello."])]),
        (
            {**GPT, "system": "Sell tea.", "tools": ""},
            "jsonl",
            {**TALK, "columns": {"dialogue": "conversations", "system": "system"}},
            [("<system>Sell tea.<user>Hi!<assistant>", ["Hello."])],
        ),
        (GPT, "conversational", {}, FOREIGN_GPT),
        (GPT, "conversations", {}, FOREIGN_GPT),
    ],
    "Alpaca": [
        (
            {"instruction": "Add.", "input": "1, 2", "output": "3", "system": "", "history": []},
            "jsonl",
            {"columns": {"references": "output"}, "prompt_template": "{instruction}\n{input}"},
            [("Add.\n1, 2", ["3"])],
        )
    ],
    "Schema-Guided Dialogue, MultiWOZ 2.2, ConvLab-3": [
        (
            {"dialogue_id": "1_00", "services": ["Hotels_1"], "turns": SGD},
            "jsonl",
            {"columns": {"dialogue": "turns"}, **IN_CHAT},
            [("<user>0<assistant>", ["1"]), ("<user>0<assistant>1<user>2<assistant>", ["3"])],
        )
    ],
    "UltraFeedback, binarized": [
        ({**BINARY, "prompt": "Coffee?"}, "conversational", {}, "column 'prompt' has 'Coffee\\?', but chosen and"),
        ({**BINARY, "prompt_id": "p", "score_chosen": 8.0}, "conversational", {}, [("Tea? <EOU>", ["Yes."])]),
    ],
    "UltraFeedback, original": [
        (ULTRA, "conversational", {}, "'completions' is that of UltraFeedback before .*; use ultrafeedback_binarized"),
        (ULTRA, "jsonl", {"columns": ULTRA_COLUMNS}, [("Tea?", ["Yes.", "No."])]),
    ],
    "hh-rlhf": [
        (PAIR, "conversational", {}, [(HH.removesuffix(" I "), [" I do."])]),
        (PAIR, "conversational", IN_CHAT, [(CHAT, ["I do."])]),
        (PAIR, "conversations", IN_CHAT, [(CHAT, ["I do."]), (CHAT, ["I do not."])]),
        (LATER, "conversations", {}, "chosen and rejected must have the same turns before one last reply"),
    ],
    "OpenAI's chat format": [
        (WITH_TOOLS, "conversational", {}, [("Hi!<EOU>Hello.<EOU>Tea? <EOU>", ["Yes."])]),
        ({"messages": CALLS}, "conversational", {}, "message 1 of messages has tool_calls: calls are not supported;"),
        ({"messages": CALLS}, "jsonl", {**TALK, "columns": {"dialogue": "messages"}}, "utterance 1 .* has tool_calls"),
    ],
    "ChatGPT export": [({"title": "t", "mapping": {}}, "conversational", {}, "is that of a ChatGPT export")],
}


@pytest.mark.parametrize("name", PUBLIC)
def test_public_formats_are_read_or_refused_with_the_way(name, tmp_path):
    assert name in [row[0].partition(": ")[0] for row in documented("data")]
    for row, id, args, wanted in PUBLIC[name]:
        (tmp_path / "train.jsonl").write_text(json.dumps(row) + "\n")
        kwargs = {"split": "train", "path": str(tmp_path), **args}
        chat = {"render_chat": Render()} if args.get("format") == "chat_template" else {}
        if isinstance(wanted, str):
            with pytest.raises(DataError, match=rf"train\.jsonl:1: .*{wanted}"):
                DataPoolRegistry.get(id, kwargs, **chat)
        else:
            assert [found[1:] for found in prompts(DataPoolRegistry.get(id, kwargs, **chat))] == wanted


def test_every_row_of_the_tables_is_tested():
    assert [row[0].partition(": ")[0] for row in documented("data")] == [*PUBLIC]
    assert [tuple(row[:3]) for row in documented("role")] == [*TABLE]


def test_pairs_of_texts_say_what_is_left_out_or_guessed(tmp_path, caplog):
    """Some pairs of hh-rlhf differ in an earlier turn; texts without tags do not show where the reply begins."""
    rows = [
        {"chosen": f"{HH}do.", "rejected": f"{HH}do not."},
        {"chosen": f"{HH}do.", "rejected": "\n\nHuman: Hi!\n\nAssistant: No."},
        {"chosen": f"{HH}do.", "rejected": "No."},
        {"chosen": "I do.", "rejected": "I do not.", "score": 1},
    ]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pool = DataPoolRegistry.get("conversational", {"split": "train", "path": str(tmp_path)})
    assert [sample.references for sample, _ in pool] == [[" I do."], [" do."]]
    assert "texts do not have the same turns before one last reply, left out: 2" in caplog.text
    assert "a column prompt makes it clear: 1" in caplog.text


@pytest.mark.parametrize("reader", [*READERS, "csv", "hf_dataset", "ratings"])
def test_what_is_not_read_is_named(reader, tmp_path, caplog):
    """Empty values say nothing; what only some rows have, or only some readers know, is named nevertheless."""
    known = {"weight": 1, "mask": None, "tool_calls": []}
    messages = [{"role": "user", "content": "Hi!", **known}, {**HELLO, "reasoning_content": "A greeting."}, AGAIN]
    columns = {"tools": json.dumps(CALL), "topic": "tea", "note": ""}
    keys = ", 'reasoning_content' of (messages|talk|prompt)"
    if reader in ("csv", "hf_dataset"):
        rows = [{"prompt": "Tea?", "reference": "Yes.", **columns}, {"prompt": "Tea?", "reference": "", "note": ""}]
        (tmp_path / "train.csv").write_text("".join("\t".join(text) + "\n" for text in (rows[0], rows[0].values())))
        datasets.DatasetDict({"train": datasets.Dataset.from_list(rows)}).save_to_disk(tmp_path / "d")
        args = {"path": str(tmp_path)} if reader == "csv" else {"path": str(tmp_path / "d")}
        DataPoolRegistry.get(reader, {"split": "train", **args})
        keys = ""
    elif reader == "ratings":
        rated = [{"messages": [*messages, {**REPLY, "ratings": {"fun": n}}], **columns} for n in (1, 2)]
        (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rated))
        load_ratings(tmp_path / "train.jsonl")
    else:
        read_by(reader, messages, "eou", tmp_path, **columns)
    place = r"(train\.\w+:[12]|row 0)"
    assert re.search(rf"{place}: these columns are not read: tools, topic{keys}; tools: write them as", caplog.text)


@pytest.mark.parametrize("form", ["eou", "chat_template"])
def test_system_message_can_stand_in_a_column(form, tmp_path):
    columns, chat = {"system": "sys"}, form == "chat_template"
    opening = "<system>Be kind." if chat else "Be kind.<EOU>"
    for row, more in (({"prompt": "Hi!", "reference": "Hello."}, {}), ({"talk": [USER, HELLO]}, {"dialogue": "talk"})):
        pool = pool_of({**row, "sys": "Be kind."}, tmp_path, {**columns, **more}, format=form)
        assert pool[0][0].prompt_or_input_text.startswith(opening) and pool[0][0].meta_data["history"] == ["Hi!"]
        plain = pool_of({**row, "sys": None}, tmp_path, {**columns, **more}, format=form)
        assert opening + str(plain[0][0].prompt_or_input_text) == pool[0][0].prompt_or_input_text
    said = [{"from": "system", "value": "Be kind. "}, *SHAREGPT[1:3]]
    twice = pool_of({"talk": said, "sys": "Be kind."}, tmp_path, {**columns, "dialogue": "talk"}, format=form)
    assert twice[0][0].prompt_or_input_text.count("Be kind.") == 1
    with pytest.raises(DataError, match=r"column 'sys' has the system message 'Be rude\.', and the dialogue has 'Be k"):
        pool_of({"talk": said, "sys": "Be rude."}, tmp_path, {**columns, "dialogue": "talk"}, format=form)
    with pytest.raises(DataError, match=r"columns\.system is a message, which needs format: eou or chat_template"):
        pool_of({"prompt": "Hi!", "reference": "", "sys": "Be kind."}, tmp_path, columns, format=None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("User: hi\nBot: hello", [("User", "hi"), ("Bot", "hello")]),
        ("**User 1:** hi\n\n**User 2:** at 10:30\nor so", [("User 1", "hi"), ("User 2", "at 10:30\nor so")]),
        ("A: x\nB: y\nNote: w\nA: v\nB: u", [("A", "x"), ("B", "y\nNote: w"), ("A", "v"), ("B", "u")]),
        ("A: x\nB: y\nC: z\nA: 1\nB: 2\nC: 3", [*zip("ABCABC", "xyz123", strict=True)]),
        ("we talked\nA: x\nB: y", []),
        ("A: x", []),
        ("no names", []),
    ],
)
def test_lines_with_speakers_are_utterances(text, said):
    assert [(each["speaker"], each["text"]) for each in transcript_of(text)] == said
