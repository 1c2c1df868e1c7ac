"""IMDB, CNN/DailyMail and NarrativeQA from their files, from tables and from a stand-in for the hub."""

import io
import json
import tarfile

import pytest
from stand_in_data import IMDB_REVIEWS, QUESTIONS, STORY, SUMMARIES, story_name

from rl4dialog.catalog import DataPoolRegistry
from rl4dialog.core.errors import DataError
from rl4dialog.features.corpora.documents import (
    CNN_ID,
    IMDB,
    IMDB_ID,
    NARRATIVE_QA_ID,
    CNNDailyMail,
    IMDBForSeq2Seq,
    NarrativeQA,
)


@pytest.fixture
def release(write):
    return write(IMDB_REVIEWS) / "aclImdb"


def test_prompt_is_the_first_half_of_the_words(release):
    for sample, weight in IMDB.prepare("train", path=release):
        (text,) = sample.references
        assert text.startswith(sample.prompt_or_input_text) and weight == 1.0
        assert sample.prompt_or_input_text.split(" ") == text.split(" ")[:3]
        assert sample.meta_data == {"label": int(text.startswith("pos"))}


def test_splits_share_no_review_and_both_labels_are_mixed(release):
    texts = {
        split: [s.references[0] for s, _ in IMDB.prepare(split, path=release)] for split in ("train", "val", "test")
    }
    assert {split: len(part) for split, part in texts.items()} == {"train": 16, "val": 4, "test": 20}
    assert {text for part in texts.values() for text in part} == {t for n, t in IMDB_REVIEWS.items() if "_7" in n}
    assert {text[:3] for text in texts["test"][:8]} == {"pos", "neg"}
    assert texts["val"] == [s.references[0] for s, _ in IMDB.prepare("val", path=release)]
    assert texts["val"] != [s.references[0] for s, _ in IMDB.prepare("val", path=release, seed=1)]


def test_archive_gives_the_same_samples_as_the_folder(release, tmp_path):
    with tarfile.open(tmp_path / "aclImdb_v1.tar.gz", "w:gz") as tar:
        for name, text in reversed(IMDB_REVIEWS.items()):
            data = text.encode()
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    from_archive = list(IMDB.prepare("train", path=tmp_path / "aclImdb_v1.tar.gz"))
    assert from_archive == list(IMDB.prepare("train", path=release)) == list(IMDB.prepare("train", path=tmp_path))


def test_seq2seq_trains_on_the_second_half_of_positive_reviews(release):
    pool = DataPoolRegistry.get("imdb_seq2seq", {"split": "train", "path": str(release)})
    for sample, _ in pool:
        text = sample.meta_data["reference"]
        assert f"{sample.prompt_or_input_text} {sample.references[0]}" == text
        assert sample.meta_data["label"] == 1 and text.startswith("pos")
    assert len(IMDBForSeq2Seq.prepare("train", 0.5, path=release)) == len(pool) // 2
    assert {sample.meta_data["label"] for sample, _ in IMDBForSeq2Seq.prepare("test", path=release)} == {0, 1}


def test_hub_rows_become_samples_and_labels_are_checked(fake_hub, write):
    fake_hub[(IMDB_ID, None)] = {"test": [{"text": "so so good", "label": 1}, {"text": "", "label": 0}]}
    samples = [sample for sample, _ in IMDB.prepare("test")]
    assert sorted((s.prompt_or_input_text, s.references[0]) for s in samples) == [("", ""), ("so", "so so good")]
    fake_hub[(IMDB_ID, None)]["train"] = [{"text": f"film {i}", "label": i % 2} for i in range(3000)]
    sizes = {split: len(IMDB.prepare(split)) for split in ("train", "val")}
    assert sizes == {"train": 2400, "val": 600}, "a fifth is for val, and nothing is left out"
    assert len(IMDB.prepare("train", max_size=7)) == 7
    folder = write({"train.csv": "text,label\na b,positive\n"})
    with pytest.raises(DataError, match=r"train\.csv:2: label must be 0 \(negative\) or 1 \(positive\), not"):
        IMDB.prepare("train", path=folder)


def test_stories_are_read_in_the_order_of_the_url_list(write):
    folder = write(
        {
            story_name("http://a"): STORY,
            story_name("http://b"): STORY.replace("fox", "cat"),
            story_name("http://c"): STORY,
            "url_lists/all_train.txt": "http://b\nhttp://gone\nhttp://a\n",
            "url_lists/all_val.txt": "http://c\n",
        }
    )
    samples = [sample for sample, _ in CNNDailyMail.prepare("train", path=folder, prompt_prefix="Summarize: ")]
    assert [s.prompt_or_input_text for s in samples] == [
        "Summarize: A cat ran. Photo of the cat .",
        "Summarize: A fox ran. Photo of the fox .",
    ]
    assert samples[0].references == ["Fox runs .\nIt is fast!"]
    assert len(CNNDailyMail.prepare("val", path=folder)) == 1


def test_tokenized_files_are_joined_again_and_articles_cut(write):
    row = {"src": [["a", "fox", "ran", "."], ["fast", "."]], "tgt": [["fox", "runs"], ["fast"]]}
    folder = write({"cnndm.train.0.json": json.dumps([row]), "cnndm.train.1.json": json.dumps([row])})
    sample, _ = CNNDailyMail.prepare("train", path=folder)[0]
    assert (sample.prompt_or_input_text, sample.references) == ("a fox ran . fast .", ["fox runs\nfast"])
    assert len(CNNDailyMail.prepare("train", path=folder)) == 2
    folder = write({"test.jsonl": json.dumps({"article": "It's late. Go home, all.", "highlights": "Late."})})
    args = {"split": "test", "path": str(folder), "truncate_article": 7, "prompt_suffix": " TL;DR:"}
    sample = DataPoolRegistry.get("cnn_daily_mail", args)[0][0]
    assert sample.prompt_or_input_text == "It 's late . Go home , TL;DR:"


def test_hub_rows_of_cnn_daily_mail_become_samples(fake_hub):
    rows = [{"article": f"a{i}", "highlights": f"h{i}", "id": str(i)} for i in range(3)]
    fake_hub[(CNN_ID, "3.0.0")] = {"validation": rows}
    pool = CNNDailyMail.prepare("val", max_size=2)
    assert [(s.id, s.prompt_or_input_text, s.references) for s, _ in pool] == [
        ("val_0", "a0", ["h0"]),
        ("val_1", "a1", ["h1"]),
    ]


@pytest.mark.parametrize(
    "files, message",
    [
        ({"all_train.txt": "http://a\n"}, r"contains the URL list all_train\.txt but no \.story file"),
        ({"train.json": '[{"src": 3, "tgt": []}]'}, r"row 0: column 'src' must be a list of sentences"),
        ({"train.csv": "article,summary\nx,y\n"}, r"csv:2: no column 'highlights' \(columns: article, summary\)"),
    ],
)
def test_bad_files_of_cnn_daily_mail_are_named(write, files, message):
    with pytest.raises(DataError, match=message):
        CNNDailyMail.prepare("train", path=write(files))


PROMPT = "who is ann? \\n ann is a nurse."
ANSWERS = ["a nurse", "a nurse, in rome"]


def test_original_files_give_unified_qa_prompts(write):
    folder = write({"qaps.csv": QUESTIONS, "third_party/wikipedia/summaries.csv": SUMMARIES})
    pool = DataPoolRegistry.get("narrative_qa", {"split": "train", "path": str(folder)})
    assert [(s.id, s.prompt_or_input_text, s.references) for s, _ in pool] == [("train_0", PROMPT, ANSWERS)]
    assert [s.references for s, _ in NarrativeQA.prepare("val", path=folder)] == [["the house", "a house"]]


def test_unified_qa_files_are_grouped_by_question(write):
    line = "Who is Ann? \\n Ann is a nurse. \t "
    folder = write({"dev.tsv": f"{line}A Nurse \nOther? \\n x \t y \n{line}A nurse, in Rome \n"})
    samples = [s for s, _ in NarrativeQA.prepare("val", path=folder)]
    assert [(s.prompt_or_input_text, s.references) for s in samples] == [(PROMPT, ANSWERS), ("other? \\n x", ["y"])]
    assert len(NarrativeQA.prepare("test", path={"test": folder / "dev.tsv"})) == 2


def test_hub_rows_of_narrative_qa_become_samples(fake_hub):
    row = {
        "document": {"id": "d1", "text": "the whole book", "summary": {"text": "Ann is\n a nurse.", "title": "Ann"}},
        "question": {"text": "Who is Ann?", "tokens": ["Who"]},
        "answers": [{"text": "A Nurse", "tokens": ["A"]}, {"text": "A nurse, in Rome", "tokens": ["A"]}],
    }
    fake_hub[(NARRATIVE_QA_ID, None)] = {"validation": [row]}
    assert [(s.prompt_or_input_text, s.references) for s, _ in NarrativeQA.prepare("val")] == [(PROMPT, ANSWERS)]


@pytest.mark.parametrize(
    "files, message",
    [
        ({"train.tsv": "a\tb\nno answer\n"}, r"train\.tsv:2: expected 'question and summary<TAB>answer', but found 1"),
        ({"test.tsv": "a\tb\n"}, r"contains no NarrativeQA files: tried qaps\.csv .* and train\.tsv"),
        ({"qaps.csv": QUESTIONS}, r"summaries\.csv cannot be read: No such file"),
        (
            {"qaps.csv": QUESTIONS, "third_party/wikipedia/summaries.csv": "document_id,summary\n"},
            r"qaps\.csv:2: .*summaries\.csv has no summary of document 'd1'",
        ),
    ],
)
def test_bad_files_of_narrative_qa_are_named(write, files, message):
    with pytest.raises(DataError, match=message):
        NarrativeQA.prepare("train", path=write(files))
