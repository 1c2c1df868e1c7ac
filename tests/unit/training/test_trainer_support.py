"""What surrounds transformers' `Trainer`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from reward_models import TEXTS
from tiny import make_gpt2

from rl4dialog.training.tiny_bert import train_tokenizer
from rl4dialog.training.trainer_support import ProgressBar, pad_labelled_texts, unchanged


def test_progress_tells_description_steps_and_loss(capsys: pytest.CaptureFixture[str]) -> None:
    bar = ProgressBar("Warm start")
    bar.on_train_begin(None, SimpleNamespace(max_steps=4, global_step=0), None)
    bar.on_log(None, None, None, logs={"loss": 1.23456})
    bar.on_step_end(None, SimpleNamespace(global_step=4), None)
    bar.close()
    assert capsys.readouterr().err == "Warm start, step 4/4: loss 1.235, after 0 s\n"


def test_progress_of_a_resumed_training_counts_on(capsys: pytest.CaptureFixture[str]) -> None:
    bar = ProgressBar("Supervised")
    bar.on_train_begin(None, SimpleNamespace(max_steps=4, global_step=3), None)
    bar.on_step_end(None, SimpleNamespace(global_step=4), None)
    bar.close()
    assert capsys.readouterr().err.startswith("Supervised, step 4/4: ")


def test_bar_that_never_began_can_be_closed() -> None:
    bar = ProgressBar("x")
    bar.on_log(None, None, None, logs={"loss": 1.0})
    bar.on_step_end(None, SimpleNamespace(global_step=1), None)
    bar.close()


@pytest.mark.parametrize("training", [True, False])
def test_unchanged_restores_mode_and_generator_also_after_an_error(tokenizer: Any, training: bool) -> None:
    model = make_gpt2(tokenizer).train(training)
    state = torch.random.get_rng_state()
    with pytest.raises(KeyError), unchanged(model):
        torch.manual_seed(5)
        model.train(not training)
        model.config.use_cache = False
        raise KeyError
    assert model.training == training
    assert model.config.use_cache is True
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize(("labels", "dtype"), [([0.25, 1.0], torch.float32), ([3, 0], torch.int64)])
def test_labelled_texts_are_padded_on_the_right(labels: list[float], dtype: torch.dtype) -> None:
    tokenizer = train_tokenizer(TEXTS, 300, 64)
    ids = tokenizer([TEXTS[0], " ".join(TEXTS)])["input_ids"]
    examples = [{"input_ids": row, "labels": label} for row, label in zip(ids, labels, strict=True)]
    batch = pad_labelled_texts(tokenizer, examples)
    assert batch["input_ids"][0, : len(ids[0])].tolist() == ids[0]
    assert batch["input_ids"][1].tolist() == ids[1]
    assert batch["attention_mask"].sum(dim=1).tolist() == [len(ids[0]), len(ids[1])]
    assert batch["attention_mask"][:, 0].all()
    assert batch["labels"].tolist() == labels and batch["labels"].dtype == dtype
