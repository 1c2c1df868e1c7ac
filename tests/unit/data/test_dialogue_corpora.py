"""DailyDialog from its files, in every layout, and from a stand-in for the hub."""

import logging
import zipfile

import datasets
import pytest

from rl4dialog.core import downloads as hub
from rl4dialog.core.errors import DataError
from rl4dialog.data.dialogue_corpora import DailyDialog, load_dialogues

TEXT = (
    "Hello , Ann . __eou__ Hi ! How are you ? __eou__ I \u2019 m fine . __eou__\n"
    "Go home ! __eou__ All right . __eou__\n"
)
ACTS = "1 2 1 \n3 4 \n"
EMOTIONS = "0 4 0 \n1 0 \n"


def split_files(split, text=TEXT, acts=ACTS, emotions=EMOTIONS):
    names = f"dialogues_{split}.txt", f"dialogues_act_{split}.txt", f"dialogues_emotion_{split}.txt"
    return dict(zip(names, (text, acts, emotions), strict=True))


def write_files(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(content, encoding="utf-8", newline="")
    return folder


def write_zip(folder, split):
    with zipfile.ZipFile(folder / f"{split}.zip", "w") as archive:
        for name, content in split_files(split).items():
            archive.writestr(f"{split}/{name}", content)
    return folder


def test_sample_is_that_of_rl4lms(tmp_path):
    pool = DailyDialog.prepare("train", context_size=2, path=write_files(tmp_path, split_files("train")))
    sample, _ = pool[0]
    assert len(pool) == 1
    assert sample.id == 2
    assert sample.prompt_or_input_text == "Hello , Ann .<EOU>Hi ! How are you ? <EOU>"
    assert sample.references == ["I \u2019 m fine ."]
    assert sample.meta_data == {"emotion": [0], "intent": [1], "history": ["Hello , Ann .", "Hi ! How are you ?"]}
    assert pool.end_of_turn == "<EOU>" == DailyDialog.EOU_TOKEN


def test_whole_dialogues_can_be_replayed(tmp_path):
    folder = write_files(tmp_path, split_files("train"))
    pool = DailyDialog.prepare("train", context_size=2, path=folder, samples="dialogues")
    assert [(sample.prompt_or_input_text, sample.references) for sample, _ in pool] == [
        ("Hello , Ann . <EOU>", ["Hi ! How are you ?"]),
        ("Go home ! <EOU>", ["All right ."]),
    ]
    assert [(sample.meta_data or {})["continuation"] for sample, _ in pool] == [["I \u2019 m fine ."], []]


@pytest.mark.parametrize("layout", ["zip", "folder", "same_folder"])
@pytest.mark.parametrize("split, file_split", [("train", "train"), ("val", "validation"), ("test", "test")])
def test_published_splits_are_read_from_every_layout(tmp_path, layout, split, file_split):
    if layout == "zip":
        write_zip(tmp_path, file_split)
    else:
        folder = tmp_path / file_split if layout == "folder" else tmp_path
        write_files(folder, split_files(file_split))
    dialogues = load_dialogues(split, tmp_path)
    assert [[turn.act for turn in dialogue.turns] for dialogue in dialogues] == [[1, 2, 1], [3, 4]]
    assert [[turn.emotion for turn in dialogue.turns] for dialogue in dialogues] == [[0, 4, 0], [1, 0]]
    assert [turn.speaker for turn in dialogues[0].turns] == [0, 1, 0]
    assert dialogues[1].turns[0].text == "Go home !"


def flat_files(n_rows):
    rows = range(n_rows)
    return {
        "dialogues_text.txt": "".join(f"row {row} __eou__ yes __eou__\n" for row in rows),
        "dialogues_act.txt": "2 1 \n" * n_rows,
        "dialogues_emotion.txt": "0 0 \n" * n_rows,
    }


def test_whole_release_is_split_once_and_in_published_proportions(tmp_path):
    write_files(tmp_path, flat_files(1312))
    texts = {split: [d.turns[0].text for d in load_dialogues(split, tmp_path)] for split in ("train", "val", "test")}
    assert {split: len(rows) for split, rows in texts.items()} == {"train": 1112, "val": 100, "test": 100}
    assert {text for rows in texts.values() for text in rows} == {f"row {row}" for row in range(1312)}
    assert texts["val"] == [d.turns[0].text for d in load_dialogues("val", tmp_path)]
    assert texts["val"] != [f"row {row}" for row in range(100)], "the rows must be drawn, not cut off"


def test_whole_release_never_stands_in_for_a_missing_published_split(tmp_path):
    write_zip(write_files(tmp_path, flat_files(20)), "train")
    assert len(load_dialogues("train", tmp_path)) == 2
    with pytest.raises(DataError, match=r"no DailyDialog files of split 'test': tried test\.zip"):
        load_dialogues("test", tmp_path)


def test_rows_with_unequal_numbers_are_skipped(tmp_path, caplog):
    folder = write_files(tmp_path, split_files("train", acts="1 2 1 \n3 \n"))
    with caplog.at_level(logging.WARNING):
        dialogues = load_dialogues("train", folder)
    assert [len(dialogue.turns) for dialogue in dialogues] == [3]
    assert len(caplog.records) == 1
    message = caplog.records[0].getMessage()
    assert "dialogues_train.txt: skipped 1 dialogue(s)" in message
    assert "line 2 (2 utterances, 1 acts, 2 emotions)" in message


def test_folder_must_have_files_of_which_the_last_marker_may_be_missing(tmp_path):
    text = "Hello . __eou__ Hi .\n"
    folder = write_files(tmp_path, split_files("train", text, "1 1\n", "0 0\n"))
    assert [turn.text for turn in load_dialogues("train", folder)[0].turns] == ["Hello .", "Hi ."]
    with pytest.raises(DataError, match=r"contains no DailyDialog files of .*validation\.zip.*dialogues_text\.txt"):
        load_dialogues("val", tmp_path)
    write_zip(tmp_path, "train")
    with pytest.raises(DataError, match=r"train\.zip is not a folder, such as one with"):
        load_dialogues("train", tmp_path / "train.zip")


@pytest.mark.parametrize(
    "files, message",
    [
        ({"acts": "1 2 1\n3 five\n"}, r"dialogues_act_train\.txt:2: 'five' is not a valid label \(1 to 4\)"),
        ({"acts": "1 2 1\n3 5\n"}, r"dialogues_act_train\.txt:2: '5' is not a valid label \(1 to 4\)"),
        ({"acts": "1 2 0\n3 4\n"}, r"dialogues_act_train\.txt:1: '0' is not a valid label"),
        ({"emotions": "0 4 0\n7 0\n"}, r"dialogues_emotion_train\.txt:2: '7' is not a valid label \(0 to 6\)"),
        ({"emotions": "0 4 0\n-1 0\n"}, r"dialogues_emotion_train\.txt:2: '-1' is not a valid label"),
        ({"text": "a __eou__ b __eou__ c __eou__\nno marker\n"}, r"dialogues_train\.txt:2: no __eou__ in this line"),
        ({"text": "a __eou__ __eou__ c __eou__\nd __eou__\n"}, r"dialogues_train\.txt:1: utterance 2 is empty"),
        ({"acts": "1 2 1\n"}, r"the same number of lines, but .*dialogues_train\.txt has 2, .*act_train\.txt has 1"),
    ],
)
def test_malformed_line_names_file_and_line(tmp_path, files, message):
    folder = write_files(tmp_path, split_files("train", **files))
    with pytest.raises(DataError, match=message):
        load_dialogues("train", folder)


def test_max_size_and_chat_template_are_honoured(tmp_path):
    folder = write_files(tmp_path, split_files("train"))
    pool = DailyDialog.prepare(
        "train", 1, folder, "chat_template", max_size=2, render_chat=lambda messages: repr(messages)
    )
    assert len(pool) == 2
    assert pool[0][0].prompt_or_input_text == "[{'role': 'user', 'content': 'Hello , Ann .'}]"
    assert pool.end_of_turn is None


ROWS = [
    {"dialog": [" Hello . ", " Hi . "], "act": [1, 1], "emotion": [0, 4]},
    {"dialog": ["a", "b", "c"], "act": [1, 2], "emotion": [0, 0]},
]


def test_hub_rows_give_the_same_samples_as_files(monkeypatch):
    asked = []

    def load(id, split):
        asked.append((id, split))
        return ROWS

    monkeypatch.setattr(hub, "_resolves", lambda host: True)
    monkeypatch.setattr(datasets, "load_dataset", load)
    pool = DailyDialog.prepare("val", context_size=1)
    assert asked == [("li2017dailydialog/daily_dialog", "validation")]
    assert len(pool) == 1
    assert pool[0][0].prompt_or_input_text == "Hello . <EOU>"
    assert pool[0][0].meta_data == {"emotion": [4], "intent": [1], "history": ["Hello ."]}


def test_hub_dataset_with_other_columns_is_an_error(monkeypatch):
    monkeypatch.setattr(hub, "_resolves", lambda host: True)
    monkeypatch.setattr(datasets, "load_dataset", lambda id, split: [{"text": "x"}])
    with pytest.raises(DataError, match=r"'some/id', split validation, row 0: no column 'dialog' \(columns: text\)"):
        DailyDialog.prepare("val", dataset_id="some/id")
