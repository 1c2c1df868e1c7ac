"""Dialogues in a column: texts, objects with any names, whole dialogues; and what is not clear about them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import pytest

from rl4dialog.catalog import DataPoolRegistry
from rl4dialog.core.errors import DataError
from rl4dialog.core.types import Frame
from rl4dialog.data.messages import read_messages
from rl4dialog.data.rows import Row

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

    def __call__(self, messages: list[dict[str, str]]) -> str:
        return "".join(f"<{m['role']}>{m['content']}" for m in messages) + "<assistant>"


def pool_of(row: dict[str, Any], tmp_path: Path, columns: dict[str, Any] | None = None, **args: Any) -> Any:
    (tmp_path / "train.jsonl").write_text(json.dumps(row) + "\n")
    args = {"split": "train", "path": str(tmp_path), "format": "chat_template", "columns": columns or {}, **args}
    return DataPoolRegistry.get("jsonl", args, render_chat=Render())


def prompts(pool: Any) -> list[tuple[Any, str, list[str]]]:
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
def test_prompt_is_a_text_or_a_dialogue(said: Any, columns: dict[str, Any], prompt: str, tmp_path: Path) -> None:
    pool = pool_of({"prompt": said, "reference": "Yes."}, tmp_path, columns)
    assert prompts(pool) == [(0, prompt, ["Yes."])] and pool.end_of_turn is None
    history = pool[0][0].meta_data["history"]
    assert history[-1] == "Tea?" and "Be kind." not in history


def test_eou_and_context_size_hold_for_tables(tmp_path: Path) -> None:
    pool = pool_of({"prompt": TEXTS, "reference": "Yes."}, tmp_path, format="eou", context_size=2)
    assert prompts(pool)[0][1] == "Hello.<EOU>Tea? <EOU>"
    assert pool.end_of_turn == "<EOU>" and pool.frame() == Frame(" <EOU>", "<EOU>", ("<EOU>",))
    filled = pool_of({"q": "Tea", "reference": ""}, tmp_path, prompt_template="{q}?")
    assert prompts(filled)[0][1] == "<user>Tea?<assistant>"
    plain = pool_of({"prompt": "Tea? <user>", "reference": ""}, tmp_path, format=None)
    assert prompts(plain)[0][1] == "Tea? <user>" and plain[0][0].meta_data == {} and plain.end_of_turn is None


def test_a_column_cannot_take_the_place_of_the_history(tmp_path: Path) -> None:
    row, columns = {"prompt": TEXTS, "reference": "Yes.", "history": "mine"}, {"meta_data": ["history"]}
    with pytest.raises(DataError, match=r"columns\.meta_data: 'history' is reserved for the prompt's utterances"):
        pool_of(row, tmp_path, columns)
    plain = pool_of({**row, "prompt": "Tea?"}, tmp_path, columns, format=None)
    assert plain[0][0].meta_data == {"history": "mine"}


def test_every_reply_of_a_whole_dialogue_is_a_sample(tmp_path: Path) -> None:
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


def test_csv_and_datasets_read_the_same_dialogues(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text('talk\n"[""Hi!"", ""Hello.""]"\n')
    args: dict[str, Any] = {"split": "train", "format": "eou", "columns": {"dialogue": "talk"}}
    found = prompts(DataPoolRegistry.get("csv", {**args, "path": str(tmp_path)}))
    assert found == [("0_1", "Hi! <EOU>", ["Hello."])]
    datasets.DatasetDict({"train": datasets.Dataset.from_list([{"talk": TEXTS[:2]}])}).save_to_disk(tmp_path / "d")
    assert prompts(DataPoolRegistry.get("hf_dataset", {**args, "path": str(tmp_path / "d")})) == found


@pytest.mark.parametrize(
    ("row", "columns", "message"),
    [
        ({"prompt": ["Hi!", "\ud800"]}, {}, "a text of column 'prompt' is not valid Unicode"),
        (
            {"prompt": [{"x": "Hi!"}]},
            {},
            r"has no known key for its text; set columns\.text \(keys: x\)",
        ),
        (
            {"prompt": [{"who": "A", "text": "Hi!"}]},
            {},
            r"no known key for its speaker; set columns\.speaker \(keys: who, text\)",
        ),
        (
            {"prompt": [{"role": "a", "text": "Hi!", "content": ""}]},
            {},
            r"several keys that can be its text; set columns\.text \(keys: content, text\)",
        ),
        (
            {"prompt": SPOKEN},
            {"speaker": "whom", "text": "says"},
            r"has no key 'whom'; did you mean 'who'\? \(keys: who, says\)",
        ),
        ({"prompt": [*SPOKEN, {"who": "A"}]}, NAMES, r"utterance 3 of column 'prompt' has no key 'says' \(keys: who\)"),
        (
            {"prompt": [*SPOKEN, "Hi!"]},
            NAMES,
            r"utterance 3 of column 'prompt' must be an object with speaker and text",
        ),
        (
            {"prompt": [{"who": None, "says": "Hi!"}]},
            NAMES,
            r"'who' of utterance 0 of column 'prompt' must name the speaker, not None",
        ),
        ({"prompt": [{"who": "A", "says": 3}]}, NAMES, r"'says' of utterance 0 of column 'prompt' must be text, not 3"),
        ({"prompt": TEXTS}, NAMES, r"column 'prompt' contains texts without speakers; remove columns\.speaker"),
        ({"prompt": "Hi!"}, NAMES, r"the prompt is a text and not a dialogue; remove columns\.speaker"),
        ({"prompt": []}, {}, r"column 'prompt' must contain a dialogue, a list of utterances, not \[\]"),
        (
            {"prompt": SPOKEN},
            {**NAMES, "agent": "Bo"},
            r"column 'prompt' has no speaker 'Bo', which columns\.agent requires \(speakers: Ann, Bob\)",
        ),
        (
            {"prompt": SPOKEN},
            {**NAMES, "agent": "Ann"},
            r"column 'prompt' ends with an utterance of 'Ann', whose role the model takes",
        ),
        (
            {"prompt": [*SPOKEN, {"who": "Cem", "says": "No."}]},
            NAMES,
            r"has 3 speakers \(Ann, Bob, Cem\), 2 of which can be the agent; set columns\.agent",
        ),
        ({"prompt": SHAREGPT[:1]}, {}, r"there is no message before the reply"),
        (
            {"prompt": "<user>Hi!<assistant>"},
            {},
            r"a text cannot contain <user>, which is markup of the chat template; remove format if",
        ),
        (
            {"prompt": "Hi!<assistant> "},
            {},
            r"a text ends with '<assistant>', which is markup of the chat template; remove format if",
        ),
        ({"prompt": ["Hi!", "<user>", "Tea?"]}, {}, r"a text cannot contain <user>"),
        ({"talk": ["Hi!"]}, {"dialogue": "talk"}, r"column 'talk' has no utterance that replies to another speaker"),
        (
            {"talk": SPOKEN},
            {"dialogue": "talk", **NAMES, "agent": "Bo"},
            r"column 'talk' has no utterance of 'Bo' that replies",
        ),
        (
            {"talk": "Hi!"},
            {"dialogue": "talk"},
            r"column 'talk' must contain a dialogue, a list of utterances: not valid JSON",
        ),
    ],
)
def test_what_is_not_clear_is_told_with_file_and_row(
    row: dict[str, Any], columns: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=rf"train\.jsonl:1: .*{message}"):
        pool_of({"reference": "Yes.", **row}, tmp_path, columns)


@pytest.mark.parametrize(
    ("row", "args", "message"),
    [
        (
            {"prompt": TEXTS},
            {"format": None},
            r"train\.jsonl:1: column 'prompt' contains a dialogue; set datapool\.args\.format",
        ),
        (
            {"prompt": "Hi!"},
            {"format": None, "context_size": 2},
            r"context_size counts utterances, which need format: eou or",
        ),
        (
            {"prompt": "a<EOU>b"},
            {"format": "eou"},
            r"jsonl:1: a text cannot contain <EOU>, which ends a turn; remove format if",
        ),
        (
            {"talk": TEXTS},
            {"columns": {"dialogue": "talk", "references": "r"}},
            r"columns\.dialogue already contains prompts and replies; remove columns\.references",
        ),
        ({"talk": TEXTS}, {"columns": {"dialogue": "talk"}, "prompt_template": "{talk}"}, r"remove prompt_template"),
    ],
)
def test_arguments_that_do_not_go_together_are_refused(
    row: dict[str, Any], args: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=message):
        pool_of({"reference": "Yes.", **row}, tmp_path, **args)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("hi", r"place: m must be a list of messages with role and content, not 'hi'"),
        ([{"role": "user"}], r"message 0 of m has no key 'content' \(keys: role\)"),
        ([{"from": "human"}], r"message 0 of m must have role and content, .*columns: \{dialogue: m\}"),
        (
            [{"role": "assistent", "content": ""}],
            r"message 0 of m has the unknown role 'assistent'; did you mean 'assis",
        ),
        ([{"role": "user", "content": 3}], r"'content' of message 0 of m must be text, not 3"),
        ([{"role": "user", "content": "\ud800"}], r"place: 'content' of message 0 of m is not valid Unicode"),
        ([{"role": "user", "content": [{"text": "\ud800"}]}], r"'content' of message 0 of m is not valid Unicode"),
    ],
)
def test_messages_have_role_and_content(value: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_messages(Row({"m": value}, "place"), "m")
    wanted = [{"role": "user", "content": "ab"}]
    assert read_messages(Row({"m": [{"role": "user", "content": [{"text": "a"}, {"text": "b"}]}]}, "p"), "m") == wanted
