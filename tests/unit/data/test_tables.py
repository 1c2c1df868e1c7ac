"""The general pools: column names, templates, weights and splits, from files, folders and a stand-in for the hub."""

import json

import datasets
import pytest

from rl4dialog.catalog import DataPoolRegistry
from rl4dialog.core.errors import ConfigError, DataError
from rl4dialog.data.tables import Csv, HFDataset, Jsonl

ROWS = [
    {"q": "Why?", "a": ["Because.", "So."], "key": "k0", "topic": "t", "often": 2},
    {"q": "", "a": "\U0001f600", "key": "k1", "topic": None, "often": 0.5},
]
COLUMNS = {"prompt": "q", "references": "a", "id": "key", "weight": "often", "meta_data": ["topic"]}


def jsonl(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def check(pool):
    assert [(s.id, s.prompt_or_input_text, s.references, s.meta_data, weight) for s, weight in pool] == [
        ("k0", "Why?", ["Because.", "So."], {"topic": "t"}, 2.0),
        ("k1", "", ["\U0001f600"], {"topic": None}, 0.5),
    ]


def test_columns_are_named_in_yaml_whatever_the_source(write, fake_hub, tmp_path):
    folder = write({"val.jsonl": jsonl(ROWS)})
    check(DataPoolRegistry.get("jsonl", {"split": "val", "path": str(folder), "columns": COLUMNS}))
    lists = [{**row, "a": row["a"] if isinstance(row["a"], list) else [row["a"]]} for row in ROWS]
    fake_hub[("my/data", "small")] = {"validation": lists}
    check(
        DataPoolRegistry.get(
            "hf_dataset", {"split": "val", "dataset_id": "my/data", "name": "small", "columns": COLUMNS}
        )
    )
    datasets.DatasetDict({"dev": datasets.Dataset.from_list(lists)}).save_to_disk(tmp_path / "saved")
    check(HFDataset.prepare("val", path=tmp_path / "saved", columns=COLUMNS))


def test_csv_has_the_same_columns_and_templates(write):
    folder = write({"test.csv": 'q;a;often\nWhy?;"Because; so.";2\n', "test.tsv": "q\ta\nWhy?\tSo\n"})
    columns = {"prompt": "q", "references": "a", "weight": "often"}
    pool = Csv.prepare("test", {"test": folder / "test.csv"}, columns, delimiter=";")
    assert (pool[0][0].id, pool[0][0].references, pool[0][1]) == (0, ["Because; so."], 2.0)
    args = {"split": "test", "path": {"test": str(folder / "test.tsv")}, "columns": {"prompt": "q", "references": None}}
    assert DataPoolRegistry.get("csv", args)[0][0].references == [""]
    folder = write({"train.jsonl": '{"c": {"title": "Tea"}, "q": "Why {not}?", "n": 3, "a": "x"}\n'})
    template = "{c.title}: {q} {{{n}}}\nAnswer:"
    pool = Jsonl.prepare("train", folder, {"references": "a"}, prompt_template=template)
    assert pool[0][0].prompt_or_input_text == "Tea: Why {not}? {3}\nAnswer:"


@pytest.mark.parametrize("template", ["", "no column", "{}", "{q!r}", "{q:>3}", "{q", "}", 3])
def test_template_must_name_columns_and_nothing_else(write, template):
    with pytest.raises(DataError, match="prompt_template"):
        Jsonl.prepare("train", write({"train.jsonl": jsonl(ROWS)}), COLUMNS, prompt_template=template)


@pytest.mark.parametrize(
    "columns, message",
    [
        ({"prompt": "question"}, r"train\.jsonl:1: no column 'question' \(columns: q, a, key, topic, often, list\)"),
        ({"prompt": "q", "references": "list"}, r"train\.jsonl:1: column 'list' is an empty list; it must"),
        ({"prompt": "q", "references": "a", "weight": "key"}, r"jsonl:1: column 'key' must contain a positive weight"),
    ],
)
def test_bad_columns_are_named(write, columns, message):
    with pytest.raises(DataError, match=message):
        Jsonl.prepare("train", write({"train.jsonl": jsonl([{**ROWS[0], "list": []}])}), columns)


@pytest.mark.parametrize(
    "columns, message",
    [
        ({"promt": "q"}, r"columns\.promt: unknown key; did you mean 'prompt'\? \(known here: prompt, references, id"),
        ({"prompt": None}, r"columns\.prompt: input should be a valid string, got None"),
        ({"agent": 0}, r"columns\.agent: input should be a valid string, got 0"),
        ({"meta_data": "topic"}, r"columns\.meta_data: input should be a valid array, got 'topic'"),
        (["q"], r"columns: input should be an object, got \['q'\]"),
    ],
)
def test_names_of_columns_are_checked_with_the_config(columns, message):
    with pytest.raises(ConfigError, match=message):
        DataPoolRegistry.check("jsonl", {"path": "x.jsonl", "columns": columns})


def test_repeated_id_names_both_rows(write):
    folder = write({"train.jsonl": '{"prompt": "a", "id": 1}\n{"prompt": "b", "id": 2}\n{"prompt": "c", "id": "1"}\n'})
    args = {"path": str(folder), "columns": {"id": "id", "references": None}}
    with pytest.raises(DataError, match=r"train\.jsonl:3: column 'id' has the same id, '1', as .*train\.jsonl:1$"):
        Jsonl.prepare("train", **args)
    assert [sample.id for sample, _ in Jsonl.prepare("train", **args, max_size=2)] == [1, 2]


def of_splits(file, **args):
    pools = [Jsonl.prepare(split, file, held_out_share=0.25, **args) for split in ("train", "val", "test")]
    return [[str(sample.prompt_or_input_text) for sample, _ in pool] for pool in pools]


def test_copies_are_in_one_split(write, caplog):
    rows = [
        {"prompt": f"{'Where' if i % 2 else 'where'} is it, no. {i % 7}{'?' * (i % 3)}", "reference": "x"}
        for i in range(60)
    ]
    train, val, test = of_splits(write({"a.jsonl": jsonl(rows)}) / "a.jsonl")
    numbers = [{prompt.split()[4][0] for prompt in each} for each in (train, val, test)]
    assert sum(map(len, numbers)) == 7 and len(train) + len(val) + len(test) == 60
    assert "a.jsonl: 53 of 60 rows repeat another prompt or dialogue" in caplog.text
    assert "6 more differ only in numbers; copies are in the same split. Rows: train" in caplog.text
    same = of_splits(write({"b.jsonl": jsonl([{"prompt": "Go!", "reference": "x"}] * 8)}) / "b.jsonl")
    assert [len(each) for each in same] == [4, 2, 2] and "copies are in all splits" in caplog.text


def test_dialogues_that_begin_alike_leave_no_copy_in_another_split(write, caplog):
    rows = [{"talk": ["hi", "hello", f"word {i}", "fine"]} for i in range(40)]
    file = write({"a.jsonl": jsonl(rows)}) / "a.jsonl"
    train, val, test = of_splits(file, columns={"dialogue": "talk"}, format="eou")
    assert len(train) == 60 and len(val) == len(test) == 10, "the last of three replies"
    assert not {*train} & {*val, *test} and not {*val} & {*test}
    assert "test: samples with a prompt of another split, left out: 20" in caplog.text


def test_rows_of_one_user_are_in_one_split(write):
    rows = [
        {"prompt": f"what is {i} of {i % 9}" if i else "hi", "reference": "x", "user": f"u{i % 9}"} for i in range(90)
    ]
    parts = of_splits(write({"a.jsonl": jsonl(rows)}) / "a.jsonl", split_by="user")
    users = [{prompt.split()[-1] for prompt in each if prompt != "hi"} for each in parts]
    assert sum(map(len, users)) == 9 and all(users)


def test_max_size_keeps_the_first_samples_and_reads_no_further(write):
    folder = write({"train.csv": "prompt,reference\na,b\nc,d\nbroken\n"})
    pool = Csv.prepare("train", folder, max_size=2)
    assert [sample.prompt_or_input_text for sample, _ in pool] == ["a", "c"]


@pytest.mark.parametrize("content", ["", "prompt,reference\n", "\n"])
def test_empty_file_is_an_empty_split(write, content):
    with pytest.raises(DataError, match=r"'csv' has no samples in split 'train' \(source: "):
        Csv.prepare("train", write({"train.csv": content}))


def test_hub_splits_may_have_other_names_and_be_parts(fake_hub, monkeypatch):
    rows = [{"prompt": str(i), "reference": "r"} for i in range(4)]
    fake_hub[("my/data", None)] = {"train_sft": rows, "train": rows[:1]}
    pool = HFDataset.prepare("val", "my/data", splits={"val": "train_sft"})
    assert len(pool) == 4
    with pytest.raises(DataError, match=r"hub dataset 'my/data' has no split 'test' \(it has: train\)\. .*splits: \{"):
        HFDataset.prepare("test", "my/data")
    asked = []

    def load(id, split=None, revision=None):
        asked.append((id, split, revision))
        return datasets.Dataset.from_list(rows)

    monkeypatch.setattr(datasets, "load_dataset", load)
    HFDataset.prepare("val", "my/data", revision="v2", splits={"val": "train[90%:]"})
    assert asked == [("my/data", "train[90%:]", "v2")]


def test_folder_of_files_is_read_by_the_datasets_package(write, tmp_path):
    folder = write({"data/train.csv": "prompt,reference\na,b\n", "data/test.csv": "prompt,reference\nc,d\n"}) / "data"
    assert [s.prompt_or_input_text for s, _ in HFDataset.prepare("test", path=folder)] == ["c"]
    with pytest.raises(DataError, match=r"has no split 'dev' \(it has: train, test\)"):
        HFDataset.prepare("val", path=folder, splits={"val": "dev"})
    datasets.Dataset.from_list([{"prompt": "x", "reference": "y"}] * 10).save_to_disk(tmp_path / "one")
    assert len(HFDataset.prepare("val", path=tmp_path / "one", held_out_share=0.2)) == 2


def test_texts_of_csv_files_that_look_like_numbers_stay_as_they_are_written(write):
    rows = [("007", "3.10", "2"), ("1e3", "12345678901234567890123", "3")]
    lines = [",".join((*row, "0.5", "4")) for row in rows]
    folder = write({"data/train.csv": "\n".join(["prompt,reference,key,often,topic", *lines])}) / "data"
    columns = {"id": "key", "weight": "often", "meta_data": ["topic"]}
    pool = HFDataset.prepare("train", path=folder, columns=columns)
    assert [(s.prompt_or_input_text, *s.references) for s, _ in pool] == [row[:2] for row in rows]
    assert [(s.id, s.meta_data, weight) for s, weight in pool] == [(n, {"topic": 4}, 0.5) for n in (2, 3)]


@pytest.mark.parametrize("args", [{}, {"dataset_id": "a/b", "path": "."}])
def test_either_hub_or_folder(args):
    with pytest.raises(DataError, match="pass either dataset_id"):
        HFDataset.prepare("train", **args)


def test_splits_are_ours():
    with pytest.raises(DataError, match=r"splits has no key 'validation' \(keys: train, val, test\)"):
        HFDataset.prepare("train", "a/b", splits={"validation": "dev"})
