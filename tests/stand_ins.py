"""Fixtures that stand in for what comes from outside: tiny BERTs and T5s of random weights, SPICE, the hub."""

import sys

import datasets
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

from rl4dialog.core import downloads as hub

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "cat", "dog", "sat", "mat", "hi", "<", ">", "EOU"]

# SPICE's program as a script: scores a text by the share of its words in its references, and notes what it was told.
FAKE_SPICE = f"""#!{sys.executable}
import json, sys
arguments = sys.argv[1:]
jar = arguments.index("-jar")
tasks = json.load(open(arguments[jar + 2]))
json.dump(arguments, open("seen.json", "w"))
scores = []
for task in tasks:
    words = task["test"].split()
    f = sum(word in " ".join(task["refs"]).split() for word in words) / len(words)
    scores.append({{"image_id": task["image_id"], "scores": {{"All": {{"f": f if f else float("nan")}}}}}})
json.dump(scores[::-1], open(arguments[arguments.index("-out") + 1], "w"))
"""


@pytest.fixture
def bert_tokenizer():
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(VOCABULARY)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {"unk": "[UNK]", "pad": "[PAD]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **{f"{key}_token": name for key, name in names.items()})


@pytest.fixture
def bert_config():
    return BertConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=32,
        num_labels=4,
        initializer_range=0.5,
    )


@pytest.fixture
def bert_folder(tmp_path, bert_tokenizer, bert_config):
    torch.manual_seed(0)
    bert_tokenizer.save_pretrained(tmp_path)
    BertModel(bert_config).save_pretrained(tmp_path)
    return str(tmp_path)


@pytest.fixture
def classifier_model(bert_config):
    torch.manual_seed(0)
    return BertForSequenceClassification(bert_config)


@pytest.fixture
def save_classifier(tmp_path, bert_tokenizer, bert_config):
    """Saves a classifier of random weights with given labels, and gives its folder."""

    def save(labels):
        torch.manual_seed(0)
        bert_config.id2label = dict(enumerate(labels))
        bert_config.label2id = {label: i for i, label in enumerate(labels)}
        folder = tmp_path / "classifier"
        bert_tokenizer.save_pretrained(folder)
        BertForSequenceClassification(bert_config).save_pretrained(folder)
        return str(folder)

    return save


@pytest.fixture
def save_t5(tmp_path):
    """Saves a T5 of random weights that knows given words, and gives its folder."""

    def save(words):
        vocabulary = ["<pad>", "</s>", "<unk>", *words]
        tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(vocabulary)}, unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
        special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
        folder = tmp_path / "t5"
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
        torch.manual_seed(0)
        size = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
        config = T5Config(vocab_size=len(vocabulary), **size, decoder_start_token_id=0)
        T5ForConditionalGeneration(config).save_pretrained(folder)
        return str(folder)

    return save


@pytest.fixture
def spice_folder(tmp_path):
    """A folder like that of SPICE's program, with ``java`` in it."""
    folder = tmp_path / "spice"
    (folder / "lib").mkdir(parents=True)
    for name in ("spice-1.0.jar", "lib/stanford-corenlp-3.6.0.jar", "lib/stanford-corenlp-3.6.0-models.jar"):
        (folder / name).touch()
    (folder / "java").write_text(FAKE_SPICE)
    (folder / "java").chmod(0o755)
    return folder


@pytest.fixture
def fake_hub(monkeypatch):
    """Rows of each split, by id and configuration of a hub dataset."""
    tables = {}

    def load(id, split=None, name=None):
        splits = datasets.DatasetDict(
            {key: datasets.Dataset.from_list(rows) for key, rows in tables[(id, name)].items()}
        )
        return splits if split is None else splits[split]

    monkeypatch.setattr(hub, "_resolves", lambda host: True)
    monkeypatch.setattr(datasets, "load_dataset", load)
    return tables


@pytest.fixture
def write(tmp_path):
    def write_files(files):
        for name, content in files.items():
            file = tmp_path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content if isinstance(content, bytes) else content.encode())
        return tmp_path

    return write_files
