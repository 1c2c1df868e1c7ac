"""A tiny BERT vocabulary for the metrics that run a model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertForSequenceClassification, BertModel, PreTrainedTokenizerFast

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "cat", "dog", "sat", "mat", "hi", "<", ">", "EOU"]


@pytest.fixture
def bert_tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(VOCABULARY)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {"unk": "[UNK]", "pad": "[PAD]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **{f"{key}_token": name for key, name in names.items()})


@pytest.fixture
def bert_config() -> BertConfig:
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
def bert_folder(tmp_path: Path, bert_tokenizer: PreTrainedTokenizerFast, bert_config: BertConfig) -> str:
    torch.manual_seed(0)
    bert_tokenizer.save_pretrained(tmp_path)
    BertModel(bert_config).save_pretrained(tmp_path)
    return str(tmp_path)


@pytest.fixture
def classifier_model(bert_config: BertConfig) -> BertForSequenceClassification:
    torch.manual_seed(0)
    return BertForSequenceClassification(bert_config)
