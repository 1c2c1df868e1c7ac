"""CRD3 from its files, in every layout, and from a stand-in for the hub."""

import json
import logging
import zipfile

import huggingface_hub
import pytest

from rl4dialog.catalog import DataPoolRegistry
from rl4dialog.core import downloads as hub
from rl4dialog.core.errors import DataError
from rl4dialog.features.corpora.crd3 import CRD3


def turn(number, name, *utterances):
    return {"NAMES": [name], "UTTERANCES": list(utterances), "NUMBER": number}


TURNS = [
    turn(0, "MATT", "Roll,", "please."),
    turn(1, "SAM", "Nine!"),
    turn(2, "MATT", "Missed."),
    turn(3, "SAM", "Oh."),
]
LISTS = {f"data/aligned data/{split}_files": f"{name}\n" for split, name in
         (("train", "C1E001"), ("val", "C1E002"), ("test", "C1E003"))}  # fmt: skip
EPISODE = "data/cleaned data/C1E001.json"
CLEANED = {f"data/cleaned data/C1E00{i}.json": json.dumps({"METADATA": {}, "TURNS": TURNS}) for i in (1, 2, 3)}
# The same turns in two overlapping series of pieces.
ALIGNED = {
    "data/aligned data/c=2/C1E001_2_0.json": json.dumps([{"CHUNK": "", "TURNS": TURNS[2:]}, {"TURNS": TURNS[:2]}]),
    "data/aligned data/c=2/C1E001_2_1.json": json.dumps([{"CHUNK": "", "TURNS": TURNS[1:3]}]),
    "data/aligned data/c=3/C1E001_3_0.json": "never read",
    "baseline/data/aligned data/c=2/C1E001_2_0.json": "never read",
}


def zipped(folder, files):
    with zipfile.ZipFile(folder / "CRD3.zip", "w") as archive:
        for name, content in files.items():
            archive.writestr(f"CRD3-master/{name}", content)
    return folder / "CRD3.zip"


def test_prompt_is_that_of_rl4lms(write):
    args = {"split": "train", "path": str(write(LISTS | CLEANED)), "max_context_size": 2}
    samples = [sample for sample, _ in DataPoolRegistry.get("crd3", args)]
    assert [sample.prompt_or_input_text for sample in samples] == [
        "MATT: Roll, please.\nSAM: Nine!\nMATT: ",
        "SAM: Nine!\nMATT: Missed.\nSAM: ",
    ]
    assert [sample.references for sample in samples] == [["Missed."], ["Oh."]]
    assert [sample.id for sample in samples] == ["train_ep_0_turn_2", "train_ep_0_turn_3"]
    assert samples[1].meta_data == {"history": ["Nine!", "Missed."], "speaker": "SAM"}


def test_zip_and_aligned_data_give_the_same_samples(write, tmp_path):
    expected = list(CRD3.prepare("train", path=write(LISTS | CLEANED)))
    assert list(CRD3.prepare("train", path=zipped(tmp_path, LISTS | CLEANED))) == expected
    assert list(CRD3.prepare("train", path=zipped(tmp_path, LISTS | ALIGNED))) == expected


def test_hub_file_is_read(monkeypatch, tmp_path):
    place = zipped(tmp_path, LISTS | ALIGNED)
    asked = []

    def download(*args, **kwargs):
        asked.append((args, kwargs))
        return str(place)

    monkeypatch.setattr(hub, "_resolves", lambda host: True)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    assert len(CRD3.prepare("train")) == 2
    assert asked == [(("microsoft/crd3", "data/aligned data.zip"), {"repo_type": "dataset"})]


def test_missing_episode_is_named_in_a_warning(write, caplog):
    lists = LISTS | {"data/aligned data/train_files": "C1E009\nC1E001\n"}
    with caplog.at_level(logging.WARNING):
        assert len(CRD3.prepare("train", path=write(lists | CLEANED))) == 2
    assert "lacks 1 episode(s) of split 'train': C1E009" in caplog.text


@pytest.mark.parametrize(
    "files, message",
    [
        ({EPISODE: "{}"}, "has no file 'aligned data/train_files'"),
        (LISTS, "has no episodes: tried 'cleaned data"),
        (LISTS | {EPISODE: "{}"}, r"C1E001\.json: the key 'TURNS' is missing"),
        (LISTS | {EPISODE: "{"}, r"C1E001\.json: not valid JSON"),
        (LISTS | {EPISODE: json.dumps({"TURNS": [{"NAMES": ["A"]}]})}, r"TURNS\[0\]: the key 'UTTERANCES' is missing"),
        (
            LISTS | {EPISODE: json.dumps({"TURNS": [{**TURNS[0], "NUMBER": "x"}]})},
            r"TURNS\[0\].NUMBER: input should be",
        ),
        (LISTS | {EPISODE: json.dumps({"TURNS": TURNS[:2]})}, "'crd3' has no samples in split"),
    ],
)
def test_bad_files_are_named(write, files, message):
    with pytest.raises(DataError, match=message):
        CRD3.prepare("train", path=write(files))
