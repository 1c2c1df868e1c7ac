"""A few samples of each datapool in the format of its original release, with made-up text."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import Any

from rl4dialog.core.errors import ConfigError

NOUNS = ["tea", "rain", "music", "bread", "trains", "snow", "books", "cats"]
STORY = "A fox ran.\n\nPhoto of the fox\n\n@highlight\n\nFox runs\n\n@highlight\n\nIt is fast!\n"

COMMONGEN = (
    '{"concept_set": "boat_N#row_V", "scene": ["They row a boat.", "A boat is rowed."], "reason": ["n/a"]}\n'
    '{"concept_set": "sing_V#song_N", "scene": ["We sing a song."], }\n'
)

LOG = "".join(
    f'{{"messages": [{{"role": "user", "content": "Do you like {noun}?"}}, '
    f'{{"role": "assistant", "content": "I like {noun}.", "reward": {number}}}]}}\n'
    for number, noun in enumerate(NOUNS)
)

IMDB_REVIEWS = {
    f"aclImdb/{split}/{label}/{number}_7.txt": f"{label} film number {number} of {split} \U0001f600"
    for split in ("train", "test")
    for label in ("pos", "neg")
    for number in range(10)
} | {"aclImdb/train/unsup/0_0.txt": "not labelled", "aclImdb/README": ""}

QUESTIONS = (
    "document_id,set,question,answer1,answer2\n"
    'd1,train,Who is Ann?,A Nurse,"A nurse, in Rome "\n'
    "d2,valid,What burns?,The house,A House\n"
    "d2,test,Does it burn?,Yes,It does\n"
)
SUMMARIES = 'document_id,set,summary\nd1,train,"Ann is\n a nurse."\nd2,valid,A house burns.\n'
PERSONAS = """1 your persona: i grow tea.
2 partner's persona: i like rain.
3 hello !\thi , what do you do ?
4 i walk in the rain .\ti grow tea .
5 bye .\tsee you !
"""


RESTAURANT = {"area": "north", "pricerange": "cheap", "address": "1 Tea Road", "phone": "123", "postcode": "A1"}
_FOODS = {"train": "thai", "val": "greek", "test": "french"}


def _restaurant_dialogues(food: str) -> list[dict[str, Any]]:
    """Four dialogues of CamRest676 in ConvLab-2's format."""
    wish = {"transcript": f"{food} food in the north?", "dialog_act": {"inform": [["food", food], ["area", "north"]]}}
    offer = {"sent": f"Try {food}.", "dialog_act": {"inform": [["name", food], ["food", food]]}}
    question = {"transcript": "What is the phone number?", "dialog_act": {"request": [["phone", "?"]]}}
    answer = {"sent": "It is 123.", "dialog_act": {"inform": [["name", food], ["phone", "123"]]}}
    turns = [{"usr": wish, "sys": offer}, {"usr": question, "sys": answer}]
    goal = {"text": f"Find {food} food in the north.", "info": {"food": food, "area": "north"}, "reqt": ["phone"]}
    return [{"dialogue_id": i, "dial": turns, "goal": goal} for i in range(4)]


def story_name(url: str) -> str:
    """Path of the story of a URL in CNN's release."""
    return f"cnn/stories/{hashlib.sha1(url.encode()).hexdigest()}.story"


def cell(value: str, is_header: bool = False, column_span: int = 1) -> dict[str, Any]:
    """Return a cell of a ToTTo table."""
    return {"value": value, "is_header": is_header, "column_span": column_span, "row_span": 1}


TABLE_EXAMPLE: dict[str, Any] = {
    "example_id": 7,
    "table_page_title": "Tea",
    "table_section_title": "",
    "table": [
        [cell("Kind", True), cell("Place", True, column_span=2)],
        [cell("Green", True), cell("China"), cell("Japan")],
    ],
    "highlighted_cells": [[1, 2]],
    "overlap_subset": True,
    "sentence_annotations": [
        {"original_sentence": "o1", "final_sentence": "Green tea is from Japan."},
        {"original_sentence": "o2", "final_sentence": "Japan makes green tea."},
    ],
}


def write_dialogues(folder: Path, n_dialogues: int = 12, n_turns: int = 4) -> Path:
    """Write DailyDialog's original files with made-up dialogues; returns the folder."""
    rng = random.Random(0)
    folder.mkdir(parents=True, exist_ok=True)
    for split in ("train", "validation", "test"):
        texts, acts, emotions = [], [], []
        for dialogue in range(n_dialogues):
            noun = rng.choice(NOUNS)
            turns = [f"do you like {noun} ?", f"yes , i like {noun} .", f"tell me more about {noun} .", "all right ."]
            order = [(dialogue + number) % len(turns) for number in range(n_turns)]
            texts.append(" __eou__ ".join(turns[i] for i in order) + " __eou__")
            acts.append(" ".join("2134"[i] for i in order))
            emotions.append(" ".join("0400"[i] for i in order))
        for name, lines in (("", texts), ("act_", acts), ("emotion_", emotions)):
            (folder / f"dialogues_{name}{split}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def write_original(datapool: str, folder: Path) -> Path:
    """Write a release with all three splits; returns the ``path`` for the datapool."""
    if datapool == "daily_dialog":
        return write_dialogues(folder)
    releases = _releases()
    files = releases.get(datapool.removesuffix("_seq2seq"))
    if files is None:
        raise ConfigError(
            f"datapool.id: there is no stand-in for the data of {datapool!r} (available: daily_dialog, "
            f"{', '.join(releases)})"
        )
    for name, text in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return folder / "aclImdb" if datapool.startswith("imdb") else folder


def _persona_rows(split: str) -> str:
    return "Fact 1,Fact 2\n" + "".join(f"i have {i} cats .,i live in {split} .\n" for i in range(30))


def _releases() -> dict[str, dict[str, str]]:
    table = json.dumps(TABLE_EXAMPLE) + "\n"
    without_sentences = {key: value for key, value in TABLE_EXAMPLE.items() if key != "sentence_annotations"}
    return {
        "camrest": {f"{split}.json": json.dumps(_restaurant_dialogues(food)) for split, food in _FOODS.items()}
        | {"db/CamRestDB.json": json.dumps([RESTAURANT | {"food": food, "name": food} for food in _FOODS.values()])},
        "cnn_daily_mail": {story_name("http://a"): STORY}
        | {f"all_{split}.txt": "http://a\n" for split in ("train", "val", "test")},
        "conversations": {f"{split}.jsonl": LOG for split in ("train", "val", "test")},
        "commongen": {f"commongen.{split}.jsonl": COMMONGEN for split in ("train", "dev", "test")},
        "imdb": IMDB_REVIEWS,
        "iwslt2017en_de": {
            f"{split}.{language}": text
            for split in ("train", "val", "test")
            for language, text in (("en", "Good day.\nTea?\n"), ("de", "Guten Tag.\nTee?\n"))
        },
        "narrative_qa": {"qaps.csv": QUESTIONS, "third_party/wikipedia/summaries.csv": SUMMARIES},
        "persona_chat": {f"{split}_both_original.txt": PERSONAS for split in ("train", "valid", "test")},
        "persona_pairs": {f"{split}_personas.csv": _persona_rows(split) for split in ("train", "val", "test")},
        "totto": {
            "totto_train_data.jsonl": table,
            "totto_dev_data.jsonl": table,
            "unlabeled_totto_test_data.jsonl": json.dumps(without_sentences) + "\n",
        },
    }
