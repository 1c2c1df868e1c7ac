"""Builds what a reward model run trains: rated texts, tokenizer and model."""

from __future__ import annotations

import logging
import math
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedModel, PreTrainedTokenizerBase

from rl4dialog.catalog import DataPoolRegistry
from rl4dialog.core.errors import ConfigError, ModelError
from rl4dialog.core.pretrained import has_random_weights, load_model, load_pretrained
from rl4dialog.core.reward_model_config import RewardModelConfig
from rl4dialog.core.seeding import derive_seed
from rl4dialog.core.types import Sample
from rl4dialog.data.pool import SPLITS
from rl4dialog.data.run_data import Data
from rl4dialog.metrics.sequence_classifier import max_tokens
from rl4dialog.policies.models import embedding_rows
from rl4dialog.text.tokenizer import build_tokenizer
from rl4dialog.training.reward_model.evaluation import ratings_of
from rl4dialog.training.tiny_bert import TINY_BERT, TINY_BERT_CLS, tiny_bert, tiny_bert_cls, train_tokenizer

_logger = logging.getLogger(__name__)
_MAX_TOKENS = 512  # of the built-in model
_BUILT_IN = {TINY_BERT: tiny_bert, TINY_BERT_CLS: tiny_bert_cls}
_HINT = f"Use a folder, a hub id if there is a network, or {TINY_BERT}, which needs neither."


def build_rated_data(config: RewardModelConfig) -> Data:
    """Build all three splits of the datapool.

    Raises:
        DataError: If the ratings are missing or malformed, or a split is empty.
    """
    args = config.datapool.args
    return Data({split: DataPoolRegistry.get(config.datapool.id, {**args, "split": split}) for split in SPLITS}, None)


def check_model_names(config: RewardModelConfig) -> None:
    """Check that model and tokenizer fit.

    Raises:
        ConfigError: If one is a built-in model that cannot be a reward model, or only one is the built-in one.
    """
    names = {"alg.model_name": config.alg.model_name, "tokenizer.model_name": config.tokenizer.model_name}
    for key, name in names.items():
        if has_random_weights(name) and name not in _BUILT_IN:
            raise ConfigError(f"{key}: {name} cannot be a reward model; built-in ones are {', '.join(_BUILT_IN)}")
    if (found := [name for name in _BUILT_IN if name in names.values()]) and len(set(names.values())) > 1:
        raise ConfigError(f"alg.model_name and tokenizer.model_name must both be {found[0]}, or neither")


def build_reward_model_tokenizer(config: RewardModelConfig, data: Data) -> PreTrainedTokenizerBase:
    """Load the tokenizer, or train the built-in one on the train split."""
    chosen = config.tokenizer
    if chosen.model_name not in _BUILT_IN:
        return build_tokenizer(**chosen.model_dump(), padding_side="right")
    texts = [sample.prompt_or_input_text for sample in data.samples("train")]
    tokenizer = train_tokenizer(texts, chosen.vocab_size, chosen.max_length or _MAX_TOKENS)
    tokenizer.truncation_side = chosen.truncation_side
    return tokenizer


def build_reward_model(
    config: RewardModelConfig, tokenizer: PreTrainedTokenizerBase, mean_rating: float
) -> PreTrainedModel:
    """Load an encoder or decoder with a new head for one score, or build the built-in model.

    Args:
        config: The run's config.
        tokenizer: The model's tokenizer.
        mean_rating: Mean rating of the train split, which a head with a bias predicts at first for every text.

    Raises:
        ModelError: If the model cannot be loaded, or has no head for sequence classification.
    """
    head: dict[str, Any] = {"num_labels": 1, "problem_type": "regression"}
    name = config.alg.model_name
    with torch.random.fork_rng():
        torch.manual_seed(derive_seed(config.seed, "reward_model"))
        if name in _BUILT_IN:
            model: PreTrainedModel = _BUILT_IN[name](tokenizer, **head)
        else:
            options = {"new_head": True, "dtype": torch.float32, **head}
            model = load_model(AutoModelForSequenceClassification, name, "reward model", _HINT, **options)
        _start_near(model, mean_rating)
    n_embeddings = embedding_rows(model)
    if len(tokenizer) > n_embeddings:
        raise ModelError(
            f"the tokenizer has {len(tokenizer)} tokens, but {name!r} has only {n_embeddings} embeddings; "
            f"tokenizer.model_name and alg.model_name do not match"
        )
    model.config.pad_token_id = tokenizer.pad_token_id
    return model


def _start_near(model: PreTrainedModel, mean_rating: float) -> None:
    """Give the head small weights, and the mean rating as bias: large random scores take many steps to unlearn."""
    *_, output = [module for module in model.modules() if isinstance(module, nn.Linear) and module.out_features == 1]
    nn.init.normal_(output.weight, std=0.01 / math.sqrt(output.in_features))
    if output.bias is not None:
        nn.init.constant_(output.bias, mean_rating)


def longest_text(config: RewardModelConfig, tokenizer: PreTrainedTokenizerBase) -> int:
    """Maximum length of a text in tokens: that of tokenizer and model."""
    if config.alg.model_name in _BUILT_IN:
        return int(tokenizer.model_max_length)
    return max_tokens(tokenizer, load_pretrained(AutoConfig, config.alg.model_name, "reward model", _HINT))


def encode_rated(samples: list[Sample], tokenizer: PreTrainedTokenizerBase, max_length: int) -> list[dict[str, Any]]:
    """Encode rated texts as examples with ``input_ids`` and ``labels``; says how many are truncated."""
    texts = [sample.prompt_or_input_text for sample in samples]
    full = tokenizer(texts, verbose=False)["input_ids"]
    if n_cut := sum(len(ids) > max_length for ids in full):
        lost = "beginning" if tokenizer.truncation_side == "left" else "end"
        _logger.warning(
            "%d of %d texts are longer than %d tokens and lose their %s", n_cut, len(texts), max_length, lost
        )
    encoded = tokenizer(texts, truncation=True, max_length=max_length)["input_ids"]
    return [{"input_ids": ids, "labels": y} for ids, y in zip(encoded, ratings_of(samples), strict=True)]
