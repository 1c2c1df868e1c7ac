"""PersonaChat from text files in ConvAI2's format, and from a stand-in for the hub."""

import datasets
import pytest

from rl4dialog.core import downloads as hub
from rl4dialog.core.errors import DataError
from rl4dialog.features.personas.persona_chat import PersonaChat, find_file, parse_exchanges

SELF = """1 your persona: i have two dogs.
2 your persona: i like cars.
3 hi ! how are you ?\tgreat , with my dogs .
4 nice . what do you drive ?\tan old mustang .
1 your persona: i am a nurse.
2 hello\thi there
"""
BOTH = """1 your persona: i have two dogs.
2 partner's persona: i run.
3 hi !\thello .\t\tbye .|hello .|no .
"""


def write(folder, name, content=SELF):
    (folder / name).write_text(content, encoding="utf-8", newline="")
    return folder / name


def test_prompt_is_persona_then_history(tmp_path):
    pool = PersonaChat.prepare("val", context_size=2, path=write(tmp_path, "x.txt"))
    persona = "i have two dogs. i like cars."
    assert [sample.prompt_or_input_text for sample, _ in pool] == [
        f"{persona}<EOU>hi ! how are you ? <EOU>",
        f"{persona}<EOU>great , with my dogs .<EOU>nice . what do you drive ? <EOU>",
        "i am a nurse.<EOU>hello <EOU>",
    ]
    assert [sample.references for sample, _ in pool] == [["great , with my dogs ."], ["an old mustang ."], ["hi there"]]
    assert [sample.id for sample, _ in pool] == [0, 1, 2]
    assert pool.end_of_turn == "<EOU>"


def test_whole_dialogues_can_be_replayed(tmp_path):
    opened = "1 your persona: i sail.\n2 __SILENCE__\thi .\n3 oh , hi .\thow are you ?\n4 fine .\tgreat .\n"
    pool = PersonaChat.prepare("val", path=write(tmp_path, "x.txt", SELF + opened + SELF), samples="dialogues")
    found = [
        (sample.id, sample.prompt_or_input_text, sample.references, (sample.meta_data or {})["continuation"])
        for sample, _ in pool
    ]
    first = "i have two dogs. i like cars.<EOU>hi ! how are you ? <EOU>", ["great , with my dogs ."]
    later = ["nice . what do you drive ?", "an old mustang ."]
    nurse = "i am a nurse.<EOU>hello <EOU>", ["hi there"], []
    assert found == [
        (0, *first, later),
        (2, *nurse),
        (4, "i sail.<EOU>hi .<EOU>oh , hi . <EOU>", ["how are you ?"], ["fine .", "great ."]),
        (6, *first, later),
        (8, *nurse),
    ]


def test_whole_dialogues_keep_both_personas(tmp_path):
    (sample, _), *others = PersonaChat.prepare("val", path=write(tmp_path, "x.txt", BOTH), samples="dialogues")
    assert not others and sample.meta_data == {
        "history": ["hi !"],
        "persona": ["i have two dogs."],
        "partner_persona": ["i run."],
        "candidates": ["bye .", "hello .", "no ."],
        "continuation": [],
    }


@pytest.mark.parametrize(
    "side, prompt",
    [
        ("self", "i have two dogs.<EOU>hi ! <EOU>"),
        ("other", "i run.<EOU>hi ! <EOU>"),
        ("both", "your persona: i have two dogs. partner's persona: i run.<EOU>hi ! <EOU>"),
        ("none", "hi ! <EOU>"),
    ],
)
def test_persona_side_chooses_whose_persona_is_shown(tmp_path, side, prompt):
    pool = PersonaChat.prepare("val", path=write(tmp_path, "x.txt", BOTH), persona_side=side)
    assert pool[0][0].prompt_or_input_text == prompt


def test_persona_that_the_file_lacks_is_an_error(tmp_path):
    with pytest.raises(DataError, match=r"x\.txt has a dialogue without a 'partner's persona:' line"):
        PersonaChat.prepare("val", path=write(tmp_path, "x.txt"), persona_side="other")


def test_chat_template_puts_the_persona_into_the_system_message(tmp_path):
    seen = []

    def render(messages):
        seen.append(messages)
        return f"{messages[-1]['content']} {messages[0]['content']}"  # in no order, so the prompt has no parts

    pool = PersonaChat.prepare("val", path=write(tmp_path, "x.txt"), format="chat_template", render_chat=render)
    assert pool[0][0].prompt_or_input_text == "hi ! how are you ? i have two dogs. i like cars."
    written = [each for each in seen if "Placeholder" not in str(each)]
    assert [message["role"] for message in written[1]] == ["system", "user", "assistant", "user"]
    assert written[1][0]["content"] == "i have two dogs. i like cars."
    assert pool.end_of_turn is None


def test_silent_partner_is_no_utterance(tmp_path):
    text = "1 your persona: a.\n2 __SILENCE__\thello\n3 hi\tbye\n"
    pool = PersonaChat.prepare("val", path=write(tmp_path, "x.txt", text))
    assert [sample.prompt_or_input_text for sample, _ in pool] == ["a.<EOU>hello<EOU>hi <EOU>"]


def test_files_of_a_folder_are_found_by_split_and_side_or_given_by_split(tmp_path):
    write(tmp_path, "train_self_original.txt")
    write(tmp_path, "valid_self_original_no_cands.txt")
    write(tmp_path, "valid_both_revised.txt")
    assert find_file("train", tmp_path).name == "train_self_original.txt"
    assert find_file("val", tmp_path).name == "valid_self_original_no_cands.txt"
    assert find_file("val", tmp_path, "other").name == "valid_both_revised.txt"
    write(tmp_path, "valid_self_original.txt")
    assert find_file("val", tmp_path).name == "valid_self_original.txt", "the file with candidates comes first"
    paths = {"train": write(tmp_path, "a.txt"), "val": str(write(tmp_path, "b.txt", BOTH))}
    assert len(PersonaChat.prepare("train", path=paths)) == 3
    assert len(PersonaChat.prepare("val", path=paths)) == 1
    with pytest.raises(DataError, match="path has no file for split 'test', only for train, val"):
        PersonaChat.prepare("test", path=paths)


def test_missing_split_lists_the_names_and_the_mapping(tmp_path):
    write(tmp_path, "valid_self_original.txt")
    with pytest.raises(DataError) as caught:
        PersonaChat.prepare("test", path=tmp_path)
    assert "tried test_self_original.txt, test_self_original_no_cands.txt" in str(caught.value)
    assert "path: {train: FILE, val: FILE, test: FILE}" in str(caught.value)


@pytest.mark.parametrize(
    "text, message",
    [
        ("1 your persona: a.\nhello\thi\n", "x.txt:2: the line must start with its number"),
        ("1 your persona: a.\n3 hello\thi\n", "x.txt:2: number 3 follows 1; expected 2, or 1"),
        ("2 hello\thi\n", "x.txt:1: number 2 follows 0"),
        ("1 hello there\n", r"x.txt:1: expected 'partner<TAB>reply'.* 1 column"),
        ("1 a\tb\t\tc|d\te\n", r"x.txt:1: expected 'partner<TAB>reply'.* 5 column"),
        ("1 hello\t\n", "x.txt:1: the reply is empty"),
        ("1 \thello\n", "x.txt:1: the utterance of the partner is empty"),
        ("1 your persona:\n", "x.txt:1: no sentence after 'your persona:'"),
        ("1 a\tb\n\n2 c\td\n", "x.txt:2: the line must start with its number"),
    ],
)
def test_malformed_line_names_file_and_line(text, message):
    with pytest.raises(DataError, match=message):
        parse_exchanges(text.splitlines(), "x.txt")


def hub_row(conversation, *history):
    return {
        "conv_id": conversation,
        "personality": ["i run.", "i sing."],
        "history": list(history),
        "candidates": ["wrong", f"reply {conversation}"],
    }


@pytest.fixture
def fake_hub(monkeypatch):
    splits = {
        "train": [hub_row(0, "hi")],
        "validation": [hub_row(1, "hi"), hub_row(1, "hi", "x", "y"), hub_row(2, "hi"), hub_row(3, "hi")],
    }
    monkeypatch.setattr(hub, "_resolves", lambda host: True)
    monkeypatch.setattr(datasets, "load_dataset", lambda id, split=None: splits)
    return splits


def test_hub_rows_become_samples_and_val_and_test_share_conversations_of_validation(fake_hub):
    sample, _ = PersonaChat.prepare("train")[0]
    assert sample.prompt_or_input_text == "i run. i sing.<EOU>hi <EOU>"
    assert sample.references == ["reply 0"]
    assert sample.meta_data is not None and sample.meta_data["candidates"] == ["wrong", "reply 0"]
    replies = {split: [sample.references[0] for sample, _ in PersonaChat.prepare(split)] for split in ("val", "test")}
    assert replies == {"val": ["reply 1", "reply 1", "reply 2"], "test": ["reply 3"]}
    fake_hub["test"] = [hub_row(9, "hi")]
    assert PersonaChat.prepare("test")[0][0].references == ["reply 9"]
    assert len(PersonaChat.prepare("val")) == 4
