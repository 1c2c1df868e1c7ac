"""Training steps of reward models."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from reward_models import TEXTS, make_config
from transformers import TrainingArguments

from rl4dialog.core.config import RewardModelConfig, parse_config
from rl4dialog.functional.reward_model_losses import RewardModelLoss
from rl4dialog.scores.classifiers import SequenceClassifier
from rl4dialog.training.building.reward_model import build_reward_ensemble, build_reward_model
from rl4dialog.training.resumable_trainer import run_trainer
from rl4dialog.training.reward_model.ensemble import RewardEnsemble
from rl4dialog.training.reward_model.examples import pad_judged
from rl4dialog.training.reward_model.trainer import RewardModelTrainer
from rl4dialog.training.tiny_bert import tiny_bert, train_tokenizer

RATINGS = [0.0, 1.0, 0.25, 0.5, 0.75]
LOSS = RewardModelLoss("cross_entropy", 0.5, 0.1)


def examples(tokenizer: Any) -> list[dict[str, Any]]:
    """Three ratings and two comparisons."""
    texts = [*TEXTS, " ".join(TEXTS)]
    rows = [{"input_ids": tokenizer(t)["input_ids"], "labels": y} for t, y in zip(texts, RATINGS, strict=True)]
    for number, worse in ((1, "User: no"), (4, "Assistant: good to know fine")):
        rows[number] |= {"labels": 1.0, "worse_ids": tokenizer(worse)["input_ids"]}
    return rows


def new_model(tokenizer: Any, seed: int) -> Any:
    torch.manual_seed(seed)
    return tiny_bert(tokenizer, num_labels=1)


def trained(
    tmp_path: Path, batch_size: int, n_parts: int, seeds: Any = (0,), weights: Any = None, **settings: Any
) -> tuple[list[torch.Tensor], float]:
    """The heads after one step of SGD, and the loss."""
    tokenizer = train_tokenizer(TEXTS, 300, 64)
    ensemble = RewardEnsemble([new_model(tokenizer, seed) for seed in seeds])
    args = TrainingArguments(
        **{
            "output_dir": str(tmp_path),
            "max_steps": 1,
            "per_device_train_batch_size": batch_size,
            "gradient_accumulation_steps": n_parts,
            "optim": "sgd",
            "learning_rate": 0.1,
            "lr_scheduler_type": "constant",
            "max_grad_norm": 0.0,
            "use_cpu": True,
            "report_to": "none",
            "save_strategy": "no",
            "disable_tqdm": True,
            "remove_unused_columns": False,
            **settings,
        }
    )
    rows = examples(tokenizer)
    if weights is not None:
        rows = [{**row, "weights": own} for row, own in zip(rows, weights, strict=True)]
    make = partial(RewardModelTrainer, loss=LOSS)
    state = run_trainer(make, ensemble, args, partial(pad_judged, tokenizer), rows, description="Test")  # type: ignore[arg-type]
    heads = [member.classifier.weight.detach() for member in ensemble.members]
    return heads, state["total_loss"] + state["unlogged_loss"]


@pytest.mark.parametrize(("batch_size", "n_parts"), [(1, 5), (2, 3), (3, 2)])
def test_split_batch_gives_the_same_step(tmp_path: Path, batch_size: int, n_parts: int) -> None:
    ((whole,), loss), ((split,), other) = trained(tmp_path, 5, 1), trained(tmp_path, batch_size, n_parts)
    assert other == pytest.approx(loss, abs=1e-6)
    torch.testing.assert_close(split, whole, atol=1e-6, rtol=1e-5)


def test_loss_is_the_mean_over_single_judgements(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(TEXTS, 300, 64)
    model = new_model(tokenizer, 0)

    def score(ids: list[int]) -> torch.Tensor:
        return model(torch.tensor([ids])).logits[0, 0]  # type: ignore[no-any-return]

    with torch.no_grad():
        losses = []
        for row in examples(tokenizer):
            r = score(row["input_ids"])
            if "worse_ids" in row:
                s = score(row["worse_ids"])
                losses.append(-torch.log(torch.sigmoid(r - s)) + 0.1 * (r + s) ** 2)
            else:
                p = torch.sigmoid(r)
                losses.append(-0.5 * (row["labels"] * torch.log(p) + (1 - row["labels"]) * torch.log(1 - p)))
    assert trained(tmp_path, 5, 1)[1] == pytest.approx(torch.stack(losses).mean().item(), abs=1e-5)


def test_models_trained_together_are_those_trained_alone(tmp_path: Path) -> None:
    clipped = {"max_grad_norm": 0.01}
    weights = [[1.0, 0.0], [0.0, 2.0], [2.0, 1.0], [1.0, 0.0], [1.0, 2.0]]
    together, loss = trained(tmp_path, 5, 1, (0, 1), weights, **clipped)
    losses = []
    for member in (0, 1):
        own = [[row[member]] for row in weights]
        (alone,), each = trained(tmp_path, 5, 1, (member,), own, **clipped)
        torch.testing.assert_close(together[member], alone, atol=1e-7, rtol=1e-5)
        losses.append(each)
    assert loss == pytest.approx(sum(losses) / 2, abs=1e-6)


@pytest.mark.parametrize(("name", "kind"), [("builtin/tiny-bert", "modernbert"), ("builtin/tiny-bert-cls", "bert")])
def test_built_in_models_start_near_the_first_score(name: str, kind: str) -> None:
    tokenizer = train_tokenizer(TEXTS, 300, 48)
    blocks = make_config()
    blocks["alg"]["model_name"] = blocks["tokenizer"]["model_name"] = name
    config = parse_config(blocks, "c.yml")
    assert isinstance(config, RewardModelConfig)
    model = build_reward_model(config, tokenizer, 0.7, 0)
    assert model.config.model_type == kind
    classifier = SequenceClassifier(model, tokenizer)
    assert classifier.logits(TEXTS)[:, 0].tolist() == pytest.approx([0.7] * len(TEXTS), abs=0.05)


@pytest.mark.parametrize("n_labels", [1, 2])
def test_a_replaced_head_is_named(n_labels: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = train_tokenizer(TEXTS, 300, 48)
    tiny_bert(tokenizer, num_labels=n_labels).save_pretrained(tmp_path)
    blocks = make_config()
    blocks["alg"] |= {"model_name": str(tmp_path), "ensemble": 2}
    config = parse_config(blocks, "c.yml")
    assert isinstance(config, RewardModelConfig)
    build_reward_ensemble(config, tokenizer, 0.7)
    assert caplog.text.count("has a head for one score already; it is replaced") == (n_labels == 1)
