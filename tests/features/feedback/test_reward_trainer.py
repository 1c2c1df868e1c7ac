"""Preferences are learned as by TRL's `RewardTrainer`, if it is installed."""

import copy
from functools import partial

import pytest
import torch
from tiny import WORDS, make_tokenizer
from transformers import GPT2Config, GPT2ForSequenceClassification, TrainingArguments

from rl4dialog.features.feedback.models import RewardEnsemble, RewardModelLoss, RewardModelTrainer, pad_judged
from rl4dialog.training.resumable_trainer import run_trainer

CENTER_COEF = 0.05
STEPS = {
    "max_steps": 3,
    "per_device_train_batch_size": 3,
    "optim": "sgd",
    "learning_rate": 0.5,
    "lr_scheduler_type": "constant",
    "use_cpu": True,
    "report_to": "none",
    "save_strategy": "no",
    "disable_tqdm": True,
    "train_sampling_strategy": "sequential",
    "logging_strategy": "no",
}


def test_three_steps_are_those_of_trl(tmp_path):
    trl = pytest.importorskip("trl", reason="TRL is compared in an environment of its own: make test-extras")
    datasets = pytest.importorskip("datasets")
    tokenizer = make_tokenizer()
    torch.manual_seed(0)
    size = {"n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": 32, "initializer_range": 0.2}
    no_dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    config = GPT2Config(
        vocab_size=len(tokenizer), num_labels=1, pad_token_id=tokenizer.pad_token_id, **size, **no_dropout
    )
    model = GPT2ForSequenceClassification(config)
    other = copy.deepcopy(model)
    better, worse = (
        [tokenizer(" ".join(WORDS[i + shift : 2 * i + 2 + shift]))["input_ids"] for i in range(6)] for shift in (0, 2)
    )

    rows = [{"chosen_ids": a, "rejected_ids": b} for a, b in zip(better, worse, strict=True)]
    args = trl.RewardConfig(
        output_dir=str(tmp_path),
        center_rewards_coefficient=CENTER_COEF,
        gradient_checkpointing=False,
        bf16=False,
        **STEPS,
    )
    judge = trl.RewardTrainer(
        model=other, args=args, processing_class=tokenizer, train_dataset=datasets.Dataset.from_list(rows)
    )
    judge.train()

    examples = [{"input_ids": a, "labels": 1.0, "worse_ids": b} for a, b in zip(better, worse, strict=True)]
    own = TrainingArguments(output_dir=str(tmp_path), remove_unused_columns=False, **STEPS)
    make = partial(RewardModelTrainer, loss=RewardModelLoss(center_coef=CENTER_COEF))
    run_trainer(make, RewardEnsemble([model]), own, partial(pad_judged, tokenizer), examples, description="Test")
    for (name, ours), theirs in zip(model.state_dict().items(), judge.model.state_dict().values(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5, msg=name)
