"""METEOR by hand, and WordNet wherever it is."""

import pickle
import shutil
import zipfile
from pathlib import Path

import nltk
import pytest

from rl4dialog.core.errors import ModelError
from rl4dialog.scores import meteor
from rl4dialog.scores.meteor import MeteorMetric


@pytest.fixture
def wordnet(tmp_path, monkeypatch):
    for part in ("noun", "verb", "adj", "adv"):
        for name in (f"index.{part}", f"data.{part}", f"{part}.exc"):
            (tmp_path / name).write_text("")
    (tmp_path / "index.noun").write_text("car n 1 0 1 0 00000000  \nauto n 1 0 1 0 00000000  \n")
    (tmp_path / "data.noun").write_text("00000000 06 n 02 car 0 auto 0 000 | a vehicle  \n")
    monkeypatch.setattr(nltk.data, "path", list(nltk.data.path))
    return str(tmp_path)


def test_synonym_counts_only_with_wordnet(wordnet):
    text, references = "the auto stopped", ["the car stopped"]
    # All three words match in one chunk: the penalty is 0.5 * (1/3)**3.
    found = MeteorMetric(wordnet_path=wordnet).compute([""], [text], [references])
    assert found == {"lexical/meteor": ([pytest.approx(1 - 0.5 / 27)], pytest.approx(1 - 0.5 / 27))}
    # Two of three match in two chunks: F = 2/3, and the penalty is 0.5.
    assert MeteorMetric(synonyms=False).sentence_score(text, references) == pytest.approx(1 / 3)
    score = MeteorMetric(synonyms=False).sentence_score("dogs walked", ["dog walks"])
    assert score == pytest.approx(1 - 0.5 / 8)


def test_wordnet_is_read_when_the_metric_is_unpickled(wordnet):
    pickled = pickle.dumps(MeteorMetric(wordnet_path=wordnet))
    meteor._load_wordnet.cache_clear()
    pickle.loads(pickled)
    assert meteor._load_wordnet.cache_info().currsize == 1, "before workers are forked, which then share it"


def test_each_process_opens_wordnets_files_itself(wordnet, monkeypatch):
    metric = MeteorMetric(wordnet_path=wordnet)
    reader = meteor._load_wordnet(wordnet)
    assert not reader._data_file_map, "reading the index leaves no file open"
    score = metric.sentence_score("the auto stopped", ["the car stopped"])
    file = reader._data_file("n")
    assert reader._data_file("n") is file
    monkeypatch.setattr(meteor.os, "getpid", lambda: -1)  # as after a fork
    assert reader._data_file("n") is not file
    assert metric.sentence_score("the auto stopped", ["the car stopped"]) == score


def test_wordnet_of_nltks_data_is_read_from_folder_and_archive(wordnet, tmp_path_factory, monkeypatch):
    (Path(wordnet) / "lexnames").write_text("".join(f"{i}\tfile{i}\t0\n" for i in range(45)))
    scores = set()
    for kind in ("folder", "archive"):
        data = tmp_path_factory.mktemp(kind)
        (data / "corpora").mkdir()
        if kind == "folder":
            shutil.copytree(wordnet, data / "corpora" / "wordnet")
        else:
            with zipfile.ZipFile(data / "corpora" / "wordnet.zip", "w") as archive:
                archive.mkdir("wordnet")
                for file in Path(wordnet).iterdir():
                    archive.write(file, f"wordnet/{file.name}")
        monkeypatch.setattr(nltk.data, "path", [str(data)])
        meteor._load_wordnet.cache_clear()
        scores.add(MeteorMetric().sentence_score("the auto stopped", ["the car stopped"]))
    meteor._load_wordnet.cache_clear()
    assert list(scores) == [pytest.approx(1 - 0.5 / 27)]


def test_missing_wordnet_names_every_way_out(tmp_path, monkeypatch):
    with pytest.raises(ModelError, match=r"apt-get install wordnet-base.*nltk_data.*synonyms: false"):
        MeteorMetric(wordnet_path=str(tmp_path / "none"))
