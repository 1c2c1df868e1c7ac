"""TRL's dataset formats: messages, prompt and completion, chosen and rejected, as conversations and as plain text."""

import json

import pytest
from conversations import built

from rl4dialog.catalog import DataPoolRegistry
from rl4dialog.core.errors import DataError
from rl4dialog.data.conversational import Conversational
from rl4dialog.data.dialogue_format import DialogueFormat


def message(role, content):
    return {"role": role, "content": content}


SYSTEM, USER, REPLY = message("system", "Be kind."), message("user", "Hi!"), message("assistant", "Hello.")
AGAIN, LAST = message("user", "Tea?"), message("assistant", "Yes \U0001f600")
NO = message("assistant", "No.")
CONVERSATION = [SYSTEM, USER, REPLY, AGAIN, LAST]
PAIR, HH = {"chosen": [USER, REPLY], "rejected": [USER, NO]}, "\n\nHuman: Hi!\n\nAssistant:"


@pytest.fixture
def pool_of(write):
    def make(*rows, **args):
        folder = write({"train.jsonl": "".join(json.dumps(row) + "\n" for row in rows)})
        return DataPoolRegistry.get("conversational", {"split": "train", "path": str(folder), **args})

    return make


def render(messages):
    return "".join(f"<{m['role']}>{m['content']}" for m in messages) + "<assistant>"


def samples(pool):
    return [(sample.id, sample.prompt_or_input_text, sample.references) for sample, _ in pool]


def test_last_reply_of_the_assistant_is_the_reference(pool_of):
    pool = pool_of({"messages": CONVERSATION}, {"messages": [USER, REPLY, AGAIN]})
    assert samples(pool) == [
        (0, "Be kind.<EOU>Hi!<EOU>Hello.<EOU>Tea? <EOU>", ["Yes \U0001f600"]),
        (1, "Hi! <EOU>", ["Hello."]),
    ]
    assert pool[0][0].meta_data == {"history": ["Hi!", "Hello.", "Tea?"]}
    assert pool.end_of_turn == "<EOU>" and pool.frame().to_agent == " <EOU>"


@pytest.mark.parametrize("format", ["eou", "chat_template"])
@pytest.mark.parametrize(
    ("id", "row", "columns"),
    [
        ("conversational", {"messages": CONVERSATION}, {}),
        ("conversational", {"prompt": CONVERSATION[:-1], "completion": [LAST]}, {}),
        ("conversational", {"chosen": CONVERSATION, "rejected": [*CONVERSATION[:-1], NO]}, {}),
        ("jsonl", {"prompt": CONVERSATION[:-1], "reference": LAST["content"]}, {}),
        ("jsonl", {"talk": CONVERSATION}, {"columns": {"dialogue": "talk"}}),
    ],
)
def test_prompt_keeps_its_parts_whoever_reads_it(write, id, row, columns, format):
    form, folder = built("chatml", "byte_level").dialogue, write({"train.jsonl": json.dumps(row) + "\n"})
    args = {"split": "train", "path": str(folder), "format": format, **columns}
    pool = DataPoolRegistry.get(id, args, render_chat=form.render_chat)
    *_, (sample, _) = pool
    said = [each["content"] for each in CONVERSATION[1:-1]]
    expected = DialogueFormat(format, None, form.render_chat).prompt(said, SYSTEM["content"])
    assert vars(sample.prompt_or_input_text) == vars(expected) and sample.references == [LAST["content"]]
    assert expected.opening[1] == "Be kind." and [turn.text for turn in expected.turns] == said


def test_all_replies_to_somebody_are_samples_on_demand(pool_of):
    pool = pool_of({"messages": CONVERSATION}, {"messages": [REPLY, USER, NO]}, turns="all")
    assert [(id, references) for id, _, references in samples(pool)] == [
        ("0_2", ["Hello."]),
        ("0_4", ["Yes \U0001f600"]),
        ("1_2", ["No."]),
    ]


def test_first_reply_comes_with_all_that_follows(pool_of):
    pool = pool_of({"messages": CONVERSATION}, {"messages": [SYSTEM, REPLY, USER, NO]}, turns="first")
    assert samples(pool) == [
        (0, "Be kind.<EOU>Hi! <EOU>", ["Hello."]),
        (1, "Be kind.<EOU>Hello.<EOU>Hi! <EOU>", ["No."]),
    ]
    assert [sample.meta_data["continuation"] for sample, _ in pool] == [["Tea?", "Yes \U0001f600"], []]
    with pytest.raises(DataError, match=r"jsonl:1: with turns: first, .*one of the assistant instead of the user"):
        pool_of({"messages": [USER, REPLY, NO]}, turns="first")


def test_plain_prompt_is_the_users_message_in_a_chat_template(pool_of):
    chat = {"format": "chat_template", "render_chat": render}
    rows = {"prompt": "Hi!", "completion": "Hello."}, {"prompt": [USER, REPLY, AGAIN]}
    pool = pool_of(*rows, **chat)
    assert [prompt for _, prompt, _ in samples(pool)] == [
        "<user>Hi!<assistant>",
        "<user>Hi!<assistant>Hello.<user>Tea?<assistant>",
    ]
    assert pool[0][0].meta_data == {"history": ["Hi!"]}
    pool = pool_of({"prompt": "Hi!", "chosen": "Hello.", "rejected": "No."}, **chat)
    assert samples(pool) == [(0, "<user>Hi!<assistant>", ["Hello."])]
    with pytest.raises(DataError, match=r"jsonl:1: plain chosen and rejected have neither a column prompt nor tags"):
        pool_of({"chosen": "Hi! Hello.", "rejected": "Hi! No."}, **chat)
    with pytest.raises(DataError, match=r"jsonl:1: a text ends with '<assistant>', which is markup of the chat"):
        pool_of({"prompt": "<user>Hi!<assistant>"}, **chat)


def test_plain_prompts_stay_as_they_are_and_do_not_mix(pool_of, caplog):
    assert samples(pool_of({"prompt": "Hi!"}))[0][1] == "Hi!"
    assert (
        "plain text and used verbatim, whatever the format; format: chat_template makes each a user message"
        in caplog.text
    )
    with pytest.raises(DataError, match="mixes plain prompts and conversations"):
        pool_of({"prompt": "a"}, {"prompt": [USER]})


def test_context_is_cut_but_the_system_message_stays(pool_of):
    pool = pool_of({"messages": CONVERSATION}, context_size=1, format="chat_template", render_chat=render)
    assert samples(pool)[0][1] == "<system>Be kind.<user>Tea?<assistant>"
    assert pool_of({"messages": CONVERSATION}, context_size=1)[0][0].meta_data == {"history": ["Tea?"]}


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": CONVERSATION[:4], "chosen": [LAST], "rejected": [NO]},
        {"chosen": CONVERSATION, "rejected": [*CONVERSATION[:4], NO]},
        # As in UltraFeedback: the prompt stands beside the whole conversations, and messages repeats the chosen one.
        {"prompt": [AGAIN], "chosen": CONVERSATION, "rejected": [*CONVERSATION[:4], NO]},
        {"prompt": "Tea?", "messages": CONVERSATION, "chosen": CONVERSATION, "rejected": [*CONVERSATION[:4], NO]},
    ],
)
def test_chosen_reply_is_the_reference_and_the_rejected_one_is_kept(pool_of, row):
    pool = pool_of(row)
    assert samples(pool) == [(0, "Be kind.<EOU>Hi!<EOU>Hello.<EOU>Tea? <EOU>", ["Yes \U0001f600"])]
    assert pool[0][0].meta_data == {"rejected": "No.", "history": ["Hi!", "Hello.", "Tea?"]}


@pytest.mark.parametrize(
    "row, prompt, chosen, rejected",
    [
        ({"prompt": HH, "chosen": f"{HH} Hello.", "rejected": f"{HH} No."}, HH, " Hello.", " No."),
        ({"prompt": " Hi!", "chosen": f"{HH} Hello.", "rejected": f"{HH} No."}, HH, " Hello.", " No."),
        ({"prompt": HH, "chosen": " Human: x", "rejected": " No."}, HH, " Human: x", " No."),
        ({"prompt": "Hi", "chosen": "Hi there", "rejected": "Hi"}, "Hi", "Hi there", "Hi"),
        ({"prompt": "The sky is", "chosen": " blue.", "rejected": " green."}, "The sky is", " blue.", " green."),
        ({"chosen": "The sky is blue.", "rejected": "The sky is green."}, "The sky is", " blue.", " green."),
        ({"chosen": "A: Hello", "rejected": "A: Hi"}, "A:", " Hello", " Hi"),
        ({"chosen": "A:\nyes", "rejected": "A:\nno"}, "A:\n", "yes", "no"),
        ({"chosen": "same text", "rejected": "same text"}, "same", " text", " text"),
        ({"chosen": "yes", "rejected": "no"}, "", "yes", "no"),
    ],
)
def test_plain_preferences_are_used(pool_of, row, prompt, chosen, rejected):
    pool = pool_of(row)
    assert samples(pool) == [(0, prompt, [chosen])]
    assert pool[0][0].meta_data == {"rejected": rejected}
    assert pool.end_of_turn is None


def test_prompt_and_completion_with_further_columns(pool_of):
    assert samples(pool_of({"prompt": [USER], "completion": [REPLY]})) == [(0, "Hi! <EOU>", ["Hello."])]
    assert samples(pool_of({"prompt": "1 +", "completion": " 1"})) == [(0, "1 +", [" 1"])]
    assert samples(pool_of({"prompt": [USER]})) == [(0, "Hi! <EOU>", [""])]
    pool = pool_of({"prompt": "a", "completion": "b", "label": True}, meta_data_columns=["label"])
    assert pool[0][0].meta_data == {"label": True}


def test_hub_dataset_is_read(fake_hub):
    fake_hub[("my/chat", None)] = {
        "train_sft": [{"messages": CONVERSATION}] * 10,
        "train": [{"messages": [USER, REPLY]}],
    }
    args = {"split": "val", "dataset_id": "my/chat", "splits": {"val": "train_sft"}, "max_size": 3}
    assert len(DataPoolRegistry.get("conversational", args)) == 3
    with pytest.raises(DataError, match="pass either path"):
        Conversational.prepare("val", ".", dataset_id="my/chat")


@pytest.mark.parametrize(
    "row, message",
    [
        ({"text": "x"}, r"jsonl:2: no column 'prompt'.*\(columns: text\)"),
        ({"messages": []}, "jsonl:2: messages must be a list of messages with role and content, not \\[\\]"),
        ({"messages": [SYSTEM, REPLY]}, "messages contains no reply of the assistant"),
        ({"prompt": [SYSTEM], "completion": [REPLY]}, "there is no message before the reply"),
        ({"prompt": [USER], "completion": [REPLY, AGAIN]}, "completion must end with one message .* not with"),
        ({"prompt": [USER], "chosen": [REPLY], "rejected": "No."}, "chosen and rejected must both be texts, or both"),
        ({"prompt": [USER], "chosen": [REPLY]}, r"jsonl:2: no column 'rejected' \(columns: prompt, chosen\)"),
        ({"prompt": "Tea?", **PAIR}, "jsonl:2: column 'prompt' has 'Tea\\?', but .* share 'Hi!' before the reply"),
        ({"prompt": [AGAIN], **PAIR}, "column 'prompt' has 'Tea\\?', but chosen and rejected are whole conversations"),
        ({"prompt": [SYSTEM, USER], **PAIR}, "column 'prompt' has 'Hi!', but .* which share 'Hi!' before the reply"),
        ({"prompt": [USER, REPLY], **PAIR}, "column 'prompt' has 'Hello.', but .* which share 'Hi!' before the reply"),
        ({"prompt": "Tea?", "chosen": f"{HH} x", "rejected": f"{HH} y"}, "has 'Tea\\?', but .* which share 'Hi!'"),
        ({"prompt": f"{HH} x\n\nHuman: y", "chosen": f"{HH} x", "rejected": f"{HH} y"}, "has 'y', but .* share 'Hi!'"),
    ],
)
def test_bad_row_is_named(pool_of, row, message):
    with pytest.raises(DataError, match=message):
        pool_of({"messages": [USER, REPLY]}, row)
