"""Training of the intent classifier on any datapool with samples labelled with dialogue acts.

The built-in model, `rl4dialog.training.tiny_bert`, is trained in about a minute on two CPU cores. It is regularized by
word dropout, which is cheaper than dropout on a CPU. Scoring with the classifier is in `rl4dialog.scores`.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedTokenizerBase

from rl4dialog.core.cache import cached_folder, content_hash, find_cached
from rl4dialog.core.errors import DataError, ModelError
from rl4dialog.core.files import naming_errors
from rl4dialog.core.pretrained import load_model, load_pretrained
from rl4dialog.core.types import Sample
from rl4dialog.data.dialogue_format import EOU_TOKEN
from rl4dialog.data.labels import ACTS as ACT_NAMES
from rl4dialog.scores.intent import IntentClassifier, gold_intents, intent_input, last_utterances
from rl4dialog.training.resumable_trainer import ResumableTrainer, pad_labelled_texts, run_trainer
from rl4dialog.training.supervised import build_training_arguments
from rl4dialog.training.tiny_bert import TINY_BERT, architecture, tiny_bert, train_tokenizer

_logger = logging.getLogger(__name__)

_CACHED = "intent_classifier"  # cache category
ACTS = tuple(ACT_NAMES.values())
MAX_TOKENS = 128


@dataclasses.dataclass(frozen=True)
class ClassifierSettings:
    """Training settings of the classifier."""

    n_epochs: float = 4
    batch_size: int = 64
    learning_rate: float = 2e-3  # peak of a linear schedule
    weight_decay: float = 0.01
    word_dropout: float = 0.2  # fraction of input tokens to hide in training
    label_smoothing: float = 0.1  # probability mass spread over all acts, because labels of dialogue acts are noisy
    vocab_size: int = 6000  # vocabulary size of a built-in model's tokenizer
    precision: str = "fp32"  # ``bf16`` computes in bfloat16, with weights in float32


_FINE_TUNING = {"n_epochs": 2, "batch_size": 32, "learning_rate": 3e-5, "word_dropout": 0.0}


def train_intent_classifier(
    samples: Sequence[Sample],
    val_samples: Sequence[Sample],
    output_dir: str | Path,
    *,
    seed: int = 0,
    model_name: str = TINY_BERT,
    reads_reply: bool = True,
    **settings: Any,
) -> dict[str, Any]:
    """Train a classifier of the reply's act (``meta_data["intent"]``, 1 to 4), and save it with its tokenizer.

    It reads the reply and the utterance before it. Without ``reads_reply``, it predicts the act from the utterances
    before the reply: as many as the samples' longest ``history`` has. Settings are fields of `ClassifierSettings`;
    ``None`` selects the default, which is gentler for a model that is given. Returns ``accuracy`` on ``val_samples``,
    ``confusion`` with true acts as rows, ``n_train``, ``n_val`` and ``train_runtime_s``.
    """
    histories = [] if reads_reply else [(sample.meta_data or {}).get("history", []) for sample in samples]
    n_utterances = max([1, *map(len, histories)])
    texts, labels = _texts_and_labels(samples, "train", reads_reply, n_utterances)
    if len(set(labels)) == 1:
        act = f"the act {ACTS[labels[0]]}: nothing to tell apart"
        raise DataError(f"all {len(labels)} samples of split 'train' have {act}")
    _texts_and_labels(val_samples, "val")  # report invalid labels before training
    folder = Path(output_dir).expanduser()
    with naming_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    defaults = {} if model_name == TINY_BERT else _FINE_TUNING
    chosen = ClassifierSettings(**{**defaults, **{k: v for k, v in settings.items() if v is not None}})
    start = time.perf_counter()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        tokenizer, model = _build(model_name, texts, chosen.vocab_size)
    _fit(model, tokenizer, texts, labels, chosen, seed)
    seconds = time.perf_counter() - start
    if not reads_reply:
        model.config.reads_reply, model.config.n_utterances = False, n_utterances
    with naming_errors(folder):
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    measured = measure_classifier(IntentClassifier(model, tokenizer, str(model.device)), val_samples)
    return {**measured, "n_train": len(samples), "train_runtime_s": seconds}


def builtin_intent_classifier(samples: Sequence[Sample], val_samples: Sequence[Sample], seed: int) -> Path:
    """Folder of the built-in classifier for a datapool, trained once and cached by the samples' content."""

    def build(folder: Path) -> None:
        measured = train_intent_classifier(samples, val_samples, folder, seed=seed)
        (folder / "measured.json").write_text(json.dumps(measured), encoding="utf-8")

    folder = cached_folder(_CACHED, _key(samples, seed), build)
    accuracy = json.loads((folder / "measured.json").read_text(encoding="utf-8"))["accuracy"]
    _logger.info("intent classifier (%s): accuracy %.3f on the validation split", folder, accuracy)
    return folder


def is_builtin_classifier_cached(samples: Sequence[Sample], seed: int) -> bool:
    """Whether :func:`builtin_intent_classifier` would find the classifier in the cache."""
    return find_cached(_CACHED, _key(samples, seed)) is not None


def _key(samples: Sequence[Sample], seed: int) -> dict[str, Any]:
    texts, labels = _texts_and_labels(samples, "train")
    return {
        "texts": content_hash(texts),
        "labels": content_hash(map(str, labels)),
        "architecture": architecture(MAX_TOKENS),
        "settings": dataclasses.asdict(ClassifierSettings()),
        "seed": seed,
    }


def _texts_and_labels(
    samples: Sequence[Sample], split: str, reads_reply: bool = True, n_utterances: int = 1
) -> tuple[list[str], list[int]]:
    if not samples:
        raise DataError(f"the intent classifier needs samples, but the split {split!r} has none")
    infos = [sample.meta_data or {} for sample in samples]
    labels = [intent - 1 for intent in gold_intents(infos)]
    texts = []
    for sample, info, label in zip(samples, infos, labels, strict=True):
        if not 0 <= label < len(ACTS):
            raise DataError(f"sample {sample.id!r} ({split}) has intent {label + 1}, but intents are 1 to {len(ACTS)}")
        if not sample.references:
            raise DataError(f"sample {sample.id!r} ({split}) has no reference to classify")
        before = last_utterances(sample.prompt_or_input_text, info, n_utterances)
        texts.append(intent_input(before, sample.references[0] if reads_reply else ""))
    return texts, labels


def _build(model_name: str, texts: list[str], vocab_size: int) -> tuple[PreTrainedTokenizerBase, Any]:
    names: dict[str, Any] = {"id2label": dict(enumerate(ACTS)), "label2id": {act: i for i, act in enumerate(ACTS)}}
    tokenizer: PreTrainedTokenizerBase
    if model_name == TINY_BERT:
        tokenizer = train_tokenizer(texts, vocab_size, MAX_TOKENS, EOU_TOKEN)
        return tokenizer, tiny_bert(tokenizer, **names)
    hint = f"Use a folder, a hub id (requires network access), or {TINY_BERT} (requires neither)."
    source = model_name, "classifier model", hint
    tokenizer = load_pretrained(AutoTokenizer, *source, truncation_side="left")
    options = {"num_labels": len(ACTS), "new_head": True, "dtype": torch.float32, **names}
    model = load_model(AutoModelForSequenceClassification, *source, **options)
    if tokenizer.pad_token is None:
        raise ModelError(f"the tokenizer of the classifier model {model_name!r} has no pad token")
    model.config.pad_token_id = tokenizer.pad_token_id
    return tokenizer, model


class _WordDropout:
    """Makes a batch, and hides a fraction of its words."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, fraction: float) -> None:
        self._tokenizer, self._fraction = tokenizer, fraction
        self._kept_ids = torch.tensor([*tokenizer.all_special_ids, tokenizer.convert_tokens_to_ids(EOU_TOKEN)])

    def __call__(self, examples: list[dict[str, Any]]) -> dict[str, Tensor]:
        batch = pad_labelled_texts(self._tokenizer, examples)
        if self._fraction and self._tokenizer.unk_token_id is not None:
            ids = batch["input_ids"]
            hidden = (torch.rand(ids.shape) < self._fraction) & ~torch.isin(ids, self._kept_ids)
            batch["input_ids"] = torch.where(hidden, self._tokenizer.unk_token_id, ids)
        return batch


def _fit(
    model: Any, tokenizer: Any, texts: list[str], labels: list[int], settings: ClassifierSettings, seed: int
) -> None:
    max_length = min(MAX_TOKENS, tokenizer.model_max_length)
    encoded = tokenizer(texts, truncation=True, max_length=max_length)["input_ids"]
    dataset = [{"input_ids": ids, "labels": label} for ids, label in zip(encoded, labels, strict=True)]
    arguments = {
        "num_train_epochs": settings.n_epochs,
        "per_device_train_batch_size": settings.batch_size,
        "learning_rate": settings.learning_rate,
        "weight_decay": settings.weight_decay,
        "label_smoothing_factor": settings.label_smoothing,
        "warmup_steps": 0.06,
        "bf16": settings.precision == "bf16",
        "logging_steps": 20,
    }
    with tempfile.TemporaryDirectory() as scratch:
        args = build_training_arguments(arguments, scratch, seed, with_val=False)
        collator = _WordDropout(tokenizer, settings.word_dropout)
        run_trainer(ResumableTrainer, model, args, collator, dataset, description="Intent classifier")


def measure_classifier(classifier: IntentClassifier, samples: Sequence[Sample]) -> dict[str, Any]:
    """The ``accuracy`` on samples, ``confusion`` with true acts as rows, and ``n_val``."""
    _texts_and_labels(samples, "val")  # report invalid labels
    infos, n = [sample.meta_data or {} for sample in samples], len(ACTS)
    prompts = [sample.prompt_or_input_text for sample in samples]
    predicted = classifier.predict(prompts, [sample.references[0] for sample in samples], infos)
    pairs = (np.array(gold_intents(infos)) - 1) * n + np.array(predicted) - 1
    confusion = np.bincount(pairs, minlength=n * n).reshape(n, n)
    accuracy = float(np.trace(confusion) / confusion.sum())
    return {"accuracy": accuracy, "confusion": confusion.tolist(), "n_val": len(samples)}
