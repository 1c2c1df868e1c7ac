"""The loss of reward models."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from reward_models import TEXTS, make_config
from torch.nn.functional import mse_loss
from transformers import TrainingArguments

from rl4dialog.core.config import parse_config
from rl4dialog.core.reward_model_config import RewardModelConfig
from rl4dialog.metrics.sequence_classifier import SequenceClassifier
from rl4dialog.training.building.reward_model import build_reward_model
from rl4dialog.training.resumable_trainer import run_trainer
from rl4dialog.training.reward_model.trainer import RewardModelTrainer
from rl4dialog.training.tiny_bert import tiny_bert, train_tokenizer
from rl4dialog.training.trainer_support import pad_labelled_texts

RATINGS = [0.0, 1.0, 0.25, 0.5, 0.75]


def examples(tokenizer: Any) -> list[dict[str, Any]]:
    texts = [*TEXTS, " ".join(TEXTS)]
    return [{"input_ids": tokenizer(t)["input_ids"], "labels": y} for t, y in zip(texts, RATINGS, strict=True)]


def with_comparisons(tokenizer: Any) -> list[dict[str, Any]]:
    """Three ratings and two comparisons."""
    rows = examples(tokenizer)
    for number, worse in ((1, "User: no"), (4, "Assistant: good to know fine")):
        rows[number] |= {"labels": 1.0, "worse_ids": tokenizer(worse)["input_ids"]}
    return rows


def trained(tmp_path: Path, batch_size: int, n_parts: int) -> tuple[torch.Tensor, float]:
    """The head after one step of SGD, and the loss."""
    torch.manual_seed(0)
    tokenizer = train_tokenizer(TEXTS, 300, 64)
    model = tiny_bert(tokenizer, num_labels=1)
    args = TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=1,
        per_device_train_batch_size=batch_size,
        gradient_accumulation_steps=n_parts,
        optim="sgd",
        learning_rate=0.1,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    rows = examples(tokenizer)
    state = run_trainer(
        RewardModelTrainer, model, args, partial(pad_labelled_texts, tokenizer), rows, description="Test"
    )
    return model.classifier.weight.detach(), state["total_loss"] + state["unlogged_loss"]


@pytest.mark.parametrize(("batch_size", "n_parts"), [(1, 5), (2, 3), (3, 2)])
def test_split_batch_gives_the_same_step(tmp_path: Path, batch_size: int, n_parts: int) -> None:
    (whole, loss), (split, other) = trained(tmp_path, 5, 1), trained(tmp_path, batch_size, n_parts)
    assert other == pytest.approx(loss, abs=1e-6)
    torch.testing.assert_close(split, whole, atol=1e-6, rtol=1e-5)


def test_loss_is_the_mean_squared_error(tmp_path: Path) -> None:
    torch.manual_seed(0)
    tokenizer = train_tokenizer(TEXTS, 300, 64)
    model = tiny_bert(tokenizer, num_labels=1)
    with torch.no_grad():
        logits = [model(torch.tensor([row["input_ids"]])).logits[0, 0] for row in examples(tokenizer)]
    expected = mse_loss(torch.stack(logits), torch.tensor(RATINGS)).item()
    assert trained(tmp_path, 5, 1)[1] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(("name", "kind"), [("builtin/tiny-bert", "modernbert"), ("builtin/tiny-bert-cls", "bert")])
def test_built_in_models_start_near_the_mean_rating(name: str, kind: str) -> None:
    tokenizer = train_tokenizer(TEXTS, 300, 48)
    blocks = make_config()
    blocks["alg"]["model_name"] = blocks["tokenizer"]["model_name"] = name
    config = parse_config(blocks, "c.yml")
    assert isinstance(config, RewardModelConfig)
    model = build_reward_model(config, tokenizer, 0.7)
    assert model.config.model_type == kind
    classifier = SequenceClassifier(model, tokenizer)
    assert classifier.logits(TEXTS)[:, 0].tolist() == pytest.approx([0.7] * len(TEXTS), abs=0.05)
