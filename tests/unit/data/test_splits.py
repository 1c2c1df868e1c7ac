"""Finding the files and hub datasets of a split, and drawing splits that are missing."""

import itertools

import datasets
import pytest
from datasets import config
from huggingface_hub import constants

from rl4dialog.core import downloads as core_hub
from rl4dialog.core.errors import DataError
from rl4dialog.data.rows import Row
from rl4dialog.data.splits import (
    drawn_groups,
    drawn_rows,
    file_readers,
    folded,
    load_hub_dataset,
    shuffled,
    split_files,
    split_reader,
)


def read_split(*args):
    return split_reader(*args)()


def values(rows):
    return [row["n"] for row in rows]


def jsonl(*numbers):
    return "".join(f'{{"n": {number}}}\n' for number in numbers)


@pytest.mark.parametrize("name", ["val", "validation", "valid", "dev"])
def test_every_usual_name_of_val_is_found(write, name):
    readers = file_readers(write({f"{name}.jsonl": jsonl(1), "train.jsonl": jsonl(2), "README.md": ""}))
    assert {split: values(read()) for split, read in readers.items()} == {"train": [2], "val": [1]}


def test_files_of_a_split_are_read_in_order_and_one_of_just_the_name_alone(write):
    folder = write({"my_train_1.jsonl": jsonl(3), "my_train_0.jsonl": jsonl(1, 2), "trainer.jsonl": jsonl(9)})
    assert values(file_readers(folder)["train"]()) == [1, 2, 3]
    folder = write({"train.jsonl": jsonl(1), "train_small.jsonl": jsonl(2)})
    assert [path.name for path in split_files(folder, [".jsonl"])["train"]] == ["train.jsonl"]


def test_several_formats_of_one_split_are_an_error(write):
    folder = write({"train.jsonl": jsonl(1), "train.csv": "n\n1\n"})
    with pytest.raises(DataError, match=r"several formats for split 'train': train\.csv, train\.jsonl"):
        file_readers(folder)
    assert list(file_readers(folder, [".csv"])) == ["train"]


def test_mapping_names_a_file_per_split(write):
    folder = write({"a.jsonl": jsonl(1), "b.jsonl": jsonl(2)})
    readers = file_readers({"train": folder / "a.jsonl", "test": str(folder / "b.jsonl")})
    assert {split: values(read()) for split, read in readers.items()} == {"train": [1], "test": [2]}
    with pytest.raises(DataError, match="path must contain a file for each of train, val, test, not"):
        file_readers({"dev": folder / "a.jsonl"})
    with pytest.raises(DataError, match=r"b\.jsonl is not a \.csv or \.tsv file"):
        file_readers({"train": folder / "b.jsonl"}, [".csv", ".tsv"])
    with pytest.raises(DataError, match=r"gone\.jsonl does not exist"):
        file_readers({"train": folder / "gone.jsonl"})


def test_missing_split_lists_those_that_exist_and_a_folder_what_was_looked_for(write, tmp_path):
    readers = file_readers(write({"train.jsonl": jsonl(1), "test.jsonl": jsonl(2)}))
    with pytest.raises(DataError, match=r"here has no split 'val' \(it has: train, test\)\. Set a file for each"):
        read_split("val", readers, "here")
    assert values(read_split("train", readers, "here")) == [1]
    with pytest.raises(DataError, match=r"contains no \.csv file named after a split: tried names with train, val"):
        file_readers(tmp_path, [".csv"])


def readers_of(**splits):
    rows = {split: [Row({"n": (split, i)}, "") for i in range(size)] for split, size in splits.items()}
    return {split: lambda split=split: rows[split] for split in splits}


def test_missing_splits_are_drawn_from_train_once(write):
    parts = {
        split: values(read_split(split, readers_of(train=50), "here", 0.1, 3)) for split in ("train", "val", "test")
    }
    assert {split: len(part) for split, part in parts.items()} == {"train": 40, "val": 5, "test": 5}
    assert len({value for part in parts.values() for value in part}) == 50
    assert parts["val"] == values(read_split("val", readers_of(train=50), "here", 0.1, 3))
    assert parts["val"] != values(read_split("val", readers_of(train=50), "here", 0.1, 4))


def test_split_that_exists_is_not_drawn_and_others_the_same_everywhere():
    readers = readers_of(train=10, test=3)
    assert values(read_split("test", readers, "here", 0.2)) == [("test", i) for i in range(3)]
    assert len(values(read_split("train", readers, "here", 0.2))) == 8
    assert len(values(read_split("val", readers, "here", 0.2))) == 2
    everything = readers_of(train=10, val=1, test=1)
    assert len(values(read_split("train", everything, "here", 0.2))) == 10
    assert shuffled(6, "seed") == [4, 0, 1, 3, 2, 5]
    assert [len(drawn_rows(3, split, ("val", "test"), 0.01, "s")) for split in ("train", "val", "test")] == [1, 1, 1]


@pytest.mark.parametrize("held_out", [("val", "test"), ("val",)])
@pytest.mark.parametrize("n_rows", [2, 3, 4, 11, 100])
def test_rows_without_copies_are_drawn_as_ever(n_rows, held_out):
    for groups in (range(n_rows), [None, *range(1, n_rows)]):
        found = drawn_groups(groups, held_out, 0.2, "s")
        assert found == {split: drawn_rows(n_rows, split, held_out, 0.2, "s") for split in (*held_out, "train")}


@pytest.mark.parametrize(
    "groups", ["aaabbc", "abcd" * 20, "a" * 90 + "bcdefghijk", "aabbccddeeffgghh", "aab" + "c" * 97]
)
def test_groups_are_in_one_split_and_no_split_is_empty(groups):
    for seed in map(str, range(20)):
        found = drawn_groups(groups, ("val", "test"), 0.2, seed)
        members = [{groups[row] for row in rows} for rows in found.values()]
        assert all(members) and sum(map(len, members)) == len({*groups})
        assert sorted(itertools.chain(*found.values())) == [*range(len(groups))]


@pytest.mark.parametrize(("share", "is_of_train"), [(0.2, True), (0.4, False)])
def test_a_frequent_group_fills_no_held_out_split_where_others_can(share, is_of_train):
    groups = ["hello"] * 20 + [*range(91)] * 2
    of_train = [0 in drawn_groups(groups, ("val", "test"), share, str(seed))["train"] for seed in range(20)]
    assert all(of_train) is is_of_train


def test_copies_differ_in_case_space_and_punctuation():
    assert folded("Where's  my PARCEL?!") == folded("where s my parcel") != folded("where is my parcel")
    assert folded("3 - 4 = ?") != folded("3 + 4 = ?") and folded("?!") != folded("")


def test_split_is_read_anew_each_time(write):
    path = write({"x.jsonl": jsonl(*range(20))}) / "x.jsonl"
    read = split_reader("val", file_readers(path), "x", 0.1)
    assert values(read()) == values(read()) == values(read_split("val", file_readers(path), "x", 0.1))
    path.write_text(jsonl(*range(21)))
    with pytest.raises(DataError, match=r"x\.jsonl:21: x had 20 rows when its splits were sampled"):
        list(read())


def test_shards_are_one_split(write):
    folder = write({"a/2.jsonl": jsonl(2), "a/1.jsonl": jsonl(1), "b/1.jsonl": jsonl(3), "b/1.csv": "n\n1\n"})
    assert values(file_readers(folder / "a", with_shards=True)["train"]()) == [1, 2]
    readers = file_readers({"train": folder / "a", "val": folder / "b" / "1.jsonl"}, with_shards=True)
    assert values(readers["train"]()) == [1, 2] and values(readers["val"]()) == [3]
    with pytest.raises(DataError, match="several formats for split 'train'"):
        file_readers(folder / "b", with_shards=True)
    with pytest.raises(DataError, match="named after a split"):
        file_readers(folder / "a")


@pytest.fixture(autouse=True)
def _reachable(monkeypatch):
    monkeypatch.setattr(core_hub, "_resolves", lambda host: True)


def test_configuration_and_revision_are_passed_on(monkeypatch):
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **kwargs: kwargs)
    expected = {"split": "test", "name": "de-en", "revision": "v1"}
    assert load_hub_dataset("a/b", "hint", "test", "de-en", "v1") == expected


def test_failure_names_dataset_reason_and_way_out(monkeypatch):
    def fail(*args, **kwargs):
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(DataError) as caught:
        load_hub_dataset("a/b", "Give the files as 'path:'.", "test")
    message = str(caught.value)
    assert "'a/b' (split: test)" in message
    assert "ConnectionError: no route to host" in message
    assert message.endswith("Give the files as 'path:'.")
    assert "\n" not in message


@pytest.mark.parametrize(("name", "folder"), [(None, {}), ("de-en", {"data_dir": "de-en"})])
def test_script_datasets_are_read(monkeypatch, name, folder):
    def load(id, split, **options):
        if "revision" not in options:
            raise RuntimeError("Dataset scripts are no longer supported, but found b.py")
        return options

    monkeypatch.setattr(datasets, "load_dataset", load)
    assert load_hub_dataset("a/b", "hint", "train", name) == {**folder, "revision": "refs/convert/parquet"}


@pytest.mark.parametrize("reachable", [True, False])
def test_unreachable_hub_means_cache_only(monkeypatch, reachable):
    monkeypatch.setattr(core_hub, "_resolves", lambda host: reachable)
    monkeypatch.setattr(core_hub.urllib.request, "getproxies", dict)
    monkeypatch.setattr(config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets, "load_dataset", lambda *a, **k: (config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE))
    assert load_hub_dataset("a/b", "hint") == (not reachable, not reachable)
    assert (config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE) == (False, False)
