"""Builds what a reward model run trains: judged texts, tokenizer and models."""

from __future__ import annotations

import logging
import math
from typing import Any, cast

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedModel, PreTrainedTokenizerBase

from rl4dialog.core.config import RewardModelConfig
from rl4dialog.core.errors import ConfigError, DataError, ModelError
from rl4dialog.core.pretrained import has_random_weights, load_model, load_pretrained
from rl4dialog.core.seeding import derive_seed
from rl4dialog.data.judged_texts import JudgedTexts, is_comparison, judged_texts
from rl4dialog.data.pool import SPLITS, TextGenPool
from rl4dialog.data.run_data import Data
from rl4dialog.functional.reward_model_losses import RatingLoss, RewardModelLoss
from rl4dialog.policies.models import embedding_rows
from rl4dialog.scores.classifiers import max_tokens
from rl4dialog.text.tokenizer import build_tokenizer
from rl4dialog.training.building.pools import build_pool
from rl4dialog.training.reward_model.ensemble import RewardEnsemble
from rl4dialog.training.reward_model.evaluation import ratings_of
from rl4dialog.training.reward_model.examples import token_ids
from rl4dialog.training.tiny_bert import TINY_BERT, TINY_BERT_CLS, tiny_bert, tiny_bert_cls, train_tokenizer

_MAX_TOKENS = 512  # of the built-in model
_BUILT_IN = {TINY_BERT: tiny_bert, TINY_BERT_CLS: tiny_bert_cls}
_logger = logging.getLogger(__name__)
_HINT = f"Use a folder, a hub id if there is a network, or {TINY_BERT}, which needs neither."


def build_judgements(config: RewardModelConfig) -> tuple[Data, PreTrainedTokenizerBase, int]:
    """Build all three splits of the datapool as judged texts, without comparisons that the model cannot learn.

    Two texts that are equal after truncation have the same score, and a loss of ln 2 without a gradient.

    Returns:
        The judgements, the tokenizer, and the maximum length of a text in tokens.
    """
    pools: dict[str, TextGenPool] = {}
    for split in SPLITS:
        args = {**config.datapool.args, "split": split}
        pools[split] = build_pool(config.datapool.id, args).judged()  # type: ignore[attr-defined]
    data = Data(pools, None)
    tokenizer = build_reward_model_tokenizer(config, data)
    max_length = longest_text(config, tokenizer)
    for split in SPLITS:
        pools[split] = _with_differences(config, cast(JudgedTexts, pools[split]), split, tokenizer, max_length)
    return data, tokenizer, max_length


def _with_differences(
    config: RewardModelConfig, pool: JudgedTexts, split: str, tokenizer: PreTrainedTokenizerBase, max_length: int
) -> JudgedTexts:
    """Leave out comparisons of equal texts."""
    samples, where = [sample for sample, _ in pool], f"datapool {config.datapool.id!r}, split {split!r}"
    read = f"in the {max_length} tokens that the model reads (truncation_side: {tokenizer.truncation_side})"
    ids = token_ids(judged_texts(samples), tokenizer, max_length)
    compared = [i for i, sample in enumerate(samples) if is_comparison(sample)]
    equal = {i for i, worse in zip(compared, ids[len(samples) :], strict=True) if ids[i] == worse}
    nothing = "so there is nothing to learn"
    if len(equal) == len(samples):
        raise DataError(
            f"{where}: the two texts of all {len(equal)} comparisons are equal {read}, {nothing}; raise "
            f"tokenizer.max_length, or change tokenizer.truncation_side"
        )
    if equal:
        _logger.warning(
            "%s: %d of %d comparisons have equal texts %s, and are left out", where, len(equal), len(compared), read
        )
    ratings = set(ratings_of(samples)) if split == "train" else set()
    if len(equal) == len(compared) and ratings:
        n = len(samples) - len(compared)
        if len(ratings) == 1:
            raise DataError(
                f"{where}: all {n} judgements are the same rating, {nothing}; judgements that differ, or preferences, "
                f"are needed"
            )
        if len({tuple(ids[i]) for i, sample in enumerate(samples) if not is_comparison(sample)}) == 1:
            raise DataError(f"{where}: all {n} rated texts are equal {read}, {nothing}; raise tokenizer.max_length")
    elif len(ratings) == 1:
        _logger.warning("%s: all ratings are equal; they only move the level of the scores", where)
    return pool.without(equal)


def loss_of(config: RewardModelConfig, data: Data) -> RewardModelLoss:
    """Determine the loss; by default that of ratings depends on whether there are comparisons too."""
    kinds = {is_comparison(sample) for sample in data.samples("train")}
    used = {"center_coef": True in kinds, "rating_weight": False in kinds, "bootstrap": config.alg.ensemble > 1}
    for key in config.alg.model_fields_set.intersection(key for key, is_used in used.items() if not is_used):
        _logger.warning("alg.%s has no effect with this kind of judgements and this size of the ensemble", key)
    by_default: RatingLoss = "cross_entropy" if True in kinds else "squared_error"
    return RewardModelLoss(config.alg.rating_loss or by_default, config.alg.rating_weight, config.alg.center_coef)


def check_model_names(config: RewardModelConfig) -> None:
    """Check that model and tokenizer fit."""
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
    texts = judged_texts(data.samples("train"))
    tokenizer = train_tokenizer(texts, chosen.vocab_size, chosen.max_length or _MAX_TOKENS)
    tokenizer.truncation_side = chosen.truncation_side
    return tokenizer


def build_reward_ensemble(
    config: RewardModelConfig, tokenizer: PreTrainedTokenizerBase, first_score: float
) -> RewardEnsemble:
    """Build all models of the run; they differ in the random seed of their new weights.

    Args:
        config: The run's config.
        tokenizer: The models' tokenizer.
        first_score: As for :func:`build_reward_model`.
    """
    if (name := config.alg.model_name) not in _BUILT_IN:
        known = load_pretrained(AutoConfig, name, "reward model", _HINT)
        if known.num_labels == 1 and any("ForSequenceClassification" in each for each in known.architectures or ()):
            _logger.warning("%r has a head for one score already; it is replaced by a new head", name)
    numbers = range(config.alg.ensemble)
    seeds = [derive_seed(config.seed, "reward_model", *([number] if number else [])) for number in numbers]
    return RewardEnsemble([build_reward_model(config, tokenizer, first_score, seed) for seed in seeds])


def build_reward_model(
    config: RewardModelConfig, tokenizer: PreTrainedTokenizerBase, first_score: float, seed: int
) -> PreTrainedModel:
    """Load an encoder or decoder with a new head for one score, or build the built-in model.

    Args:
        config: The run's config.
        tokenizer: The model's tokenizer.
        first_score: What a head with a bias predicts at first for every text, such as the mean rating.
        seed: Random seed of new weights.
    """
    head: dict[str, Any] = {"num_labels": 1, "problem_type": "regression"}
    name = config.alg.model_name
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if name in _BUILT_IN:
            model: PreTrainedModel = _BUILT_IN[name](tokenizer, **head)
        else:
            options = {"new_head": True, "dtype": torch.float32, **head}
            model = load_model(AutoModelForSequenceClassification, name, "reward model", _HINT, **options)
        _start_near(model, first_score)
    n_embeddings = embedding_rows(model)
    if len(tokenizer) > n_embeddings:
        raise ModelError(
            f"the tokenizer has {len(tokenizer)} tokens, but {name!r} has only {n_embeddings} embeddings; "
            f"tokenizer.model_name and alg.model_name do not match"
        )
    model.config.pad_token_id = tokenizer.pad_token_id
    return model


def _start_near(model: PreTrainedModel, first_score: float) -> None:
    """Give the head small weights, and the score as bias: large random scores take many steps to unlearn."""
    *_, output = [module for module in model.modules() if isinstance(module, nn.Linear) and module.out_features == 1]
    nn.init.normal_(output.weight, std=0.01 / math.sqrt(output.in_features))
    if output.bias is not None:
        nn.init.constant_(output.bias, first_score)


def longest_text(config: RewardModelConfig, tokenizer: PreTrainedTokenizerBase) -> int:
    """Maximum length of a text in tokens: that of tokenizer and model."""
    if config.alg.model_name in _BUILT_IN:
        return int(tokenizer.model_max_length)
    return max_tokens(tokenizer, load_pretrained(AutoConfig, config.alg.model_name, "reward model", _HINT))
