"""Reward models: judged texts as examples, the models and their loss, and the agreement of scores with judgements."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit
from torch import Tensor, cat, nn
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid
from torch.nn.utils import clip_grad_norm_
from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedModel, PreTrainedTokenizerBase

from rl4dialog.core.errors import ConfigError, DataError, ModelError
from rl4dialog.core.pretrained import has_random_weights, load_model, load_pretrained
from rl4dialog.core.seeding import derive_seed
from rl4dialog.core.types import Sample
from rl4dialog.data.pool import SPLITS, Data, TextGenPool
from rl4dialog.features.feedback.config import RewardModelConfig
from rl4dialog.features.feedback.judged_texts import (
    N_WORDS_OF_WORSE,
    RATING,
    JudgedTexts,
    is_comparison,
    judged,
    judged_texts,
    meta_data_of,
    without_judgements,
)
from rl4dialog.functional.statistics import spearman
from rl4dialog.policies.models import embedding_rows
from rl4dialog.policies.saving import load_language_model_weights, weights_hash
from rl4dialog.scores.classifiers import class_logits, max_tokens
from rl4dialog.scores.reward_models import member_folder
from rl4dialog.text.tokenizer import build_tokenizer
from rl4dialog.training.building.components import check_epochs, check_pool
from rl4dialog.training.building.texts import build_pool
from rl4dialog.training.plan import Rows
from rl4dialog.training.resumable_trainer import ResumableTrainer
from rl4dialog.training.tiny_bert import TINY_BERT, TINY_BERT_CLS, tiny_bert, tiny_bert_cls, train_tokenizer

Array = NDArray[np.float64]
_N_BINS = 10
_EPSILON = 1e-6  # of probabilities, so that their logarithm is finite
RatingLoss = Literal["squared_error", "cross_entropy"]


@dataclass(frozen=True)
class RewardModelLoss:
    """The loss of a judgement: a comparison of two texts, or a rating of one, weighted by ``rating_weight``.

    See :func:`rating_losses` and :func:`comparison_losses` for ``rating_loss`` and ``center_coef``.
    """

    rating_loss: RatingLoss = "squared_error"
    rating_weight: float = 1.0
    center_coef: float = 0.0

    def __call__(self, scores: Tensor, labels: Tensor, is_comparison: Tensor, weights: Tensor | None = None) -> Tensor:
        """Compute the sum over N judgements, C of them comparisons, for each of K models. Shape (K,).

        Args:
            scores: Scores of all first texts, then of the worse text of each comparison, in the same order. Shape (N +
                C, K).
            labels: Ratings from 0 to 1; not read where a judgement is a comparison. Shape (N,).
            is_comparison: True where two texts are compared, of which the first one is better. Shape (N,).
            weights: How often each judgement counts for each model; 1 by default. Shape (N, K).
        """
        first, worse = scores[: len(labels)], scores[len(labels) :]
        losses = torch.empty_like(first)
        losses[is_comparison] = comparison_losses(first[is_comparison], worse, self.center_coef)
        ratings = labels[~is_comparison].unsqueeze(-1)
        losses[~is_comparison] = self.rating_weight * rating_losses(first[~is_comparison], ratings, self.rating_loss)
        return (losses if weights is None else losses * weights).sum(0)


def comparison_losses(better: Tensor, worse: Tensor, center_coef: float = 0.0) -> Tensor:
    """Negative log-likelihood of choices by the model of Bradley and Terry (1952): -log sigmoid(better - worse).

    As in Ouyang et al. 2022 (arXiv 2203.02155, eq. 1). The likelihood depends on differences only; the added
    ``center_coef * (better + worse)**2`` keeps scores, in nats, near 0 (Eisenstein et al. 2023, arXiv 2312.09244).
    """
    return center_coef * (better + worse) ** 2 - logsigmoid(better - worse)


def rating_losses(scores: Tensor, ratings: Tensor, kind: RatingLoss) -> Tensor:
    """Loss of each score for a rating from 0 to 1, broadcastable to the scores.

    With ``squared_error``, the best score is the mean rating, and scores have no bounds. With ``cross_entropy``, it is
    the log-odds of the mean rating, as the scores that explain comparisons are.
    """
    if kind == "squared_error":
        return (scores - ratings) ** 2
    return binary_cross_entropy_with_logits(scores, ratings.expand_as(scores), reduction="none")


def ratings_of(samples: Sequence[Sample]) -> list[float]:
    """The ratings of rated samples, from 0 to 1."""
    return [float(meta_data_of(sample)[RATING]) for sample in samples if not is_comparison(sample)]


def agreement(
    first: Sequence[float], worse: Sequence[float], samples: Sequence[Sample], constant: float | None, loss: RatingLoss
) -> dict[str, float]:
    """Agreement of scores of texts, and of the worse texts of comparisons, with judgements.

    The constant is the mean rating of the train split, the best prediction that does not read the texts; ``None`` if it
    has no ratings. Besides :func:`comparison_metrics` and :func:`rating_metrics`, as far as there are such judgements,
    ``length/spearman_with_score`` is the correlation of scores with the agent's number of words. NaN for constant
    columns.
    """
    scores, compared = np.asarray(first, dtype=np.float64), np.asarray([is_comparison(each) for each in samples])
    other = np.asarray(worse, dtype=np.float64)
    lengths = np.asarray([float(meta_data_of(each)["n_words"]) for each in samples])
    of_worse = np.asarray([float(meta_data_of(each)[N_WORDS_OF_WORSE]) for each in samples if is_comparison(each)])
    found: dict[str, float] = {}
    if compared.any():
        found |= comparison_metrics(scores[compared], other, lengths[compared], of_worse)
    if not compared.all():
        ratings = np.asarray(ratings_of(samples))
        found |= rating_metrics(scores[~compared], ratings, constant, loss)
        found["length/spearman_with_rating"] = spearman(lengths[~compared], ratings)
    all_lengths, all_scores = np.concatenate([lengths, of_worse]), np.concatenate([scores, other])
    found["length/spearman_with_score"] = spearman(all_lengths, all_scores)
    return found


def comparison_metrics(better: Array, worse: Array, words_of_better: Array, words_of_worse: Array) -> dict[str, float]:
    """Agreement of scores with choices between two texts; all arrays have shape (N,).

    ``preference/accuracy``: share of comparisons in which the better text has the higher score, where a tie counts
    half; ``preference/accuracy_of_longer``: the same if the longer reply always wins; ``preference/log_loss`` in nats
    (a coin has 0.693); ``preference/calibration_error``: see :func:`calibration_error`, of the text with the higher
    score.
    """
    differences = better - worse
    correct, longer = ((np.sign(each) + 1) / 2 for each in (differences, words_of_better - words_of_worse))
    return {
        "preference/accuracy": float(correct.mean()),
        "preference/accuracy_of_longer": float(longer.mean()),
        "preference/log_loss": float(np.logaddexp(0.0, -differences).mean()),
        "preference/calibration_error": calibration_error(expit(np.abs(differences)), correct),
    }


def rating_metrics(scores: Array, ratings: Array, constant: float | None, rating_loss: RatingLoss) -> dict[str, float]:
    """Agreement of scores with ratings from 0 to 1, and of a constant, the mean rating, with them. Shapes (N,)."""
    found = {"agreement/spearman": spearman(scores, ratings)}
    if rating_loss == "squared_error":
        found["agreement/mse"] = float(np.mean((scores - ratings) ** 2))
        if constant is not None:
            found["agreement/mse_of_constant"] = float(np.mean((constant - ratings) ** 2))
        return found
    found["rating/log_loss"] = float(np.mean(np.logaddexp(0.0, scores) - ratings * scores))
    if constant is not None:
        odds = log_odds(constant)
        found["rating/log_loss_of_constant"] = float(np.mean(np.logaddexp(0.0, odds) - ratings * odds))
    found["rating/calibration_error"] = calibration_error(expit(scores), ratings)
    return found


def calibration_error(probabilities: Array, outcomes: Array) -> float:
    """Expected calibration error (Guo et al. 2017, arXiv 1706.04599, eq. 3) with ten equally wide bins.

    Mean distance between the mean probability and the mean outcome (from 0 to 1) of a bin, weighted by its number of
    predictions. Shapes (N,).
    """
    bins = np.minimum((probabilities * _N_BINS).astype(int), _N_BINS - 1)
    gaps = [abs(float((probabilities - outcomes)[bins == each].sum())) for each in np.unique(bins)]
    return math.fsum(gaps) / len(probabilities)


def log_odds(probability: float) -> float:
    """The score whose sigmoid is a probability; that of 0 and 1 is finite."""
    inside = min(max(probability, _EPSILON), 1 - _EPSILON)
    return math.log(inside) - math.log1p(-inside)


_logger = logging.getLogger(__name__)


def encode_judged(samples: Sequence[Sample], tokenizer: PreTrainedTokenizerBase, limit: int) -> list[dict[str, Any]]:
    """Examples of judgements: ``input_ids`` and ``labels`` (the rating, or 1 for a comparison), and ``worse_ids``."""
    texts = judged_texts(samples)
    if n_cut := sum(len(ids) > limit for ids in tokenizer(texts, verbose=False)["input_ids"]):
        lost = "beginning" if tokenizer.truncation_side == "left" else "end"
        message = "%d of %d texts are longer than %d tokens and lose their %s"
        _logger.warning(message, n_cut, len(texts), limit, lost)
    encoded = token_ids(texts, tokenizer, limit)
    of_worse = iter(encoded[len(samples) :])
    return [
        {"input_ids": ids, "labels": 1.0, "worse_ids": next(of_worse)}
        if is_comparison(sample)
        else {"input_ids": ids, "labels": float(meta_data_of(sample)[RATING])}
        for sample, ids in zip(samples, encoded, strict=False)
    ]


def token_ids(texts: list[str], tokenizer: PreTrainedTokenizerBase, max_length: int) -> list[list[int]]:
    """Token ids of texts as the model reads them, truncated."""
    return tokenizer(texts, truncation=True, max_length=max_length)["input_ids"] if texts else []


def bootstrap_weights(samples: Sequence[Sample], n_models: int, seed: int) -> list[list[float]]:
    """How often each sample is drawn for each model, which draws whole conversations with replacement."""
    numbers: dict[Any, int] = {}
    rows = [numbers.setdefault(meta_data_of(sample)["conversation"], len(numbers)) for sample in samples]
    draws = np.random.default_rng(seed).integers(len(numbers), size=(n_models, len(numbers)))
    counts = np.stack([np.bincount(drawn, minlength=len(numbers)) for drawn in draws], axis=-1)
    return counts[rows].astype(float).tolist()


def pad_judged(tokenizer: PreTrainedTokenizerBase, examples: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Pad texts on the right: decoders read their output off the last token that is not padding.

    ``labels`` and ``is_comparison`` have shape (N,), ``weights`` (N, K), and ``input_ids`` and ``attention_mask``
    (N + C, longest): all first texts, then those that are worse.
    """
    texts = [each["input_ids"] for each in examples] + [each["worse_ids"] for each in examples if "worse_ids" in each]
    padded = tokenizer.pad({"input_ids": texts}, padding_side="right", return_tensors="pt")
    batch = {
        "labels": torch.tensor([each["labels"] for each in examples]),
        "is_comparison": torch.tensor(["worse_ids" in each for each in examples]),
        "input_ids": padded["input_ids"],
        "attention_mask": padded["attention_mask"],
    }
    if "weights" in examples[0]:
        batch["weights"] = torch.tensor([each["weights"] for each in examples])
    return batch


class RewardEnsemble(nn.Module):
    """Models with one score each, which read the same texts. `Trainer` reads the ``config``, of the first."""

    def __init__(self, members: Sequence[PreTrainedModel]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.config: Any = members[0].config

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **kwargs: Any) -> Tensor:
        """Scores of each model, (B, K), of texts padded on the right, (B, longest); ``kwargs`` are `Trainer`'s."""
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        return cat([class_logits(member, inputs) for member in self.members], dim=-1)

    def _places(self, folder: Path) -> Iterator[tuple[PreTrainedModel, Path]]:
        for number, member in enumerate(self.members):
            yield cast(PreTrainedModel, member), member_folder(folder, number, len(self.members))

    def hash(self) -> str:
        """Hash of the weights; for one model, that of the model itself."""
        return weights_hash(self.members[0] if len(self.members) == 1 else self)

    def save(self, folder: Path, tokenizer: PreTrainedTokenizerBase) -> None:
        """Save each model with its tokenizer, in the layout that `load_reward_model` reads."""
        for member, place in self._places(folder):
            member.save_pretrained(place)
            tokenizer.save_pretrained(place)

    def load(self, folder: Path) -> None:
        for member, place in self._places(folder):
            load_language_model_weights(member, place, AutoModelForSequenceClassification, None)


class RewardModelTrainer(ResumableTrainer):
    """Trains all models of an ensemble in the same steps, each as if it were alone."""

    model: RewardEnsemble

    def __init__(self, *args: Any, loss: RewardModelLoss, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._loss = loss

    def rows_of(self, batch: dict[str, Tensor], own: Tensor) -> dict[str, Tensor]:
        compared = batch["is_comparison"]
        worse = len(compared) + compared.cumsum(dim=0)[own[compared[own].cpu()]].cpu() - 1
        of_texts = ("input_ids", "attention_mask")
        return {name: rows[torch.cat([own, worse]) if name in of_texts else own] for name, rows in batch.items()}

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        scores = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])
        labels = inputs["labels"]
        # The batch of an optimizer step can be split (gradient_accumulation_steps), and its last part can be smaller.
        n = len(labels) if num_items_in_batch is None else num_items_in_batch
        losses = self._loss(scores.float(), labels, inputs["is_comparison"], inputs.get("weights")) / n
        # The value is the mean over the models, and the gradient that of the sum: each model has its own.
        loss = losses.sum() - losses.detach().sum() + losses.detach().mean()
        return (loss, scores) if return_outputs else loss

    def _clip_grad_norm(self, model: Any) -> Tensor:
        """Clip the gradient of each model; returns the largest norm."""
        return max(clip_grad_norm_(each.parameters(), self.args.max_grad_norm) for each in self.model.members)


_MAX_TOKENS = 512  # of the built-in model
_BUILT_IN = {TINY_BERT: tiny_bert, TINY_BERT_CLS: tiny_bert_cls}
_HINT = f"Use a folder, a hub id if there is a network, or {TINY_BERT}, which needs neither."


def build_judgements(config: RewardModelConfig) -> tuple[Data, PreTrainedTokenizerBase, int]:
    """All splits as judged texts that differ where they are compared, the tokenizer, and the maximum length."""
    pool = config.datapool
    pools: dict[str, TextGenPool] = {
        split: judged(build_pool(pool.id, {**pool.args, "split": split})) for split in SPLITS
    }
    data = Data(pools, None)
    tokenizer = build_reward_model_tokenizer(config, data)
    name, max_length = config.alg.model_name, int(tokenizer.model_max_length)
    if name not in _BUILT_IN:
        max_length = max_tokens(tokenizer, load_pretrained(AutoConfig, name, "reward model", _HINT))
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
    nothing, longer = "so there is nothing to learn", "raise tokenizer.max_length"
    if len(equal) == len(samples):
        what = f"the two texts of all {len(equal)} comparisons are equal {read}"
        raise DataError(f"{where}: {what}, {nothing}; {longer}, or change tokenizer.truncation_side")
    if equal:
        message = "%s: %d of %d comparisons have equal texts %s, and are left out"
        _logger.warning(message, where, len(equal), len(compared), read)
    ratings = set(ratings_of(samples)) if split == "train" else set()
    if len(equal) == len(compared) and ratings:
        n = len(samples) - len(compared)
        if len(ratings) == 1:
            raise DataError(f"{where}: all {n} judgements are the same rating, {nothing}; others are needed")
        if len({tuple(ids[i]) for i, sample in enumerate(samples) if not is_comparison(sample)}) == 1:
            raise DataError(f"{where}: all {n} rated texts are equal {read}, {nothing}; {longer}")
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


def check_reward_model(config: RewardModelConfig) -> None:
    """Check the datapool and the training arguments, and that model and tokenizer fit."""
    check_pool(config.datapool, why_not=without_judgements)
    names = {"alg.model_name": config.alg.model_name, "tokenizer.model_name": config.tokenizer.model_name}
    for key, name in names.items():
        if has_random_weights(name) and name not in _BUILT_IN:
            raise ConfigError(f"{key}: {name} cannot be a reward model; built-in ones are {', '.join(_BUILT_IN)}")
    if (found := [name for name in _BUILT_IN if name in names.values()]) and len(set(names.values())) > 1:
        raise ConfigError(f"alg.model_name and tokenizer.model_name must both be {found[0]}, or neither")
    check_epochs(config, config.alg.training_args, config.alg.training_args)


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
    """Build all models of the run; they differ in the random seed of their new weights."""
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

    The head has small weights, as large random scores take many steps to unlearn. With a bias, it predicts
    ``first_score`` for every text at first, such as the mean rating.
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
        *_, output = [each for each in model.modules() if isinstance(each, nn.Linear) and each.out_features == 1]
        nn.init.normal_(output.weight, std=0.01 / math.sqrt(output.in_features))
        if output.bias is not None:
            nn.init.constant_(output.bias, first_score)
    if len(tokenizer) > (n_embeddings := embedding_rows(model)):
        sizes = f"the tokenizer has {len(tokenizer)} tokens, but {name!r} has only {n_embeddings} embeddings"
        raise ModelError(f"{sizes}; tokenizer.model_name and alg.model_name do not match")
    model.config.pad_token_id = tokenizer.pad_token_id
    return model


def reward_model_rows(config: RewardModelConfig) -> Rows:
    data, tokenizer, max_length = build_judgements(config)
    pool = data.pools["train"]
    assert isinstance(pool, JudgedTexts)
    if pool.ratings:
        scale = "several scales" if pool.scale is None else f"{pool.scale[0]:g} to {pool.scale[1]:g}"
        yield "ratings", f"{', '.join(pool.ratings)} of each {pool.unit}, {scale}"
    for split, each in data.pools.items():
        n_compared = sum(is_comparison(sample) for sample, _ in each)
        yield f"{split} samples", f"{len(each):,}" + (f", {n_compared:,} comparisons" if n_compared else "")
    loss = loss_of(config, data)
    if pool.ratings:
        yield "loss of ratings", loss.rating_loss
    examples = encode_judged(data.samples("train"), tokenizer, max_length)
    lengths = [len(ids) for each in examples for ids in (each["input_ids"], each.get("worse_ids", ()))]
    yield "longest text", f"{max(lengths)} tokens, at most {max_length}"
    if config.alg.ensemble > 1:
        yield "models", f"{config.alg.ensemble}, trained together"
    yield "epochs", f"{config.n_iters}"
