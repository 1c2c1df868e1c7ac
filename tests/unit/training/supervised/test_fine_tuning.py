"""Supervised fine-tuning, and its loss beside RL."""

import copy
import random
import re

import numpy as np
import pytest
import torch
from runs import make_config
from tiny import make_env, make_gpt2, make_policy, make_t5, make_tokenizer, next_token
from torch.nn import functional

from rl4dialog.core.config import parse_config
from rl4dialog.core.errors import ConfigError
from rl4dialog.core.types import Sample
from rl4dialog.data.pool import Data, TextGenPool
from rl4dialog.policies.saving import weights_hash
from rl4dialog.training.building.language_model import build_warm_start_examples
from rl4dialog.training.building.texts import Texts, run_lengths
from rl4dialog.training.supervised.examples import (
    IGNORED_LABEL,
    ExampleSets,
    PaddingCollator,
    Truncation,
    build_example_sets,
    build_examples,
)
from rl4dialog.training.supervised.fine_tuning import (
    SupervisedLoss,
    known_training_args,
    memorised,
    train_supervised,
    warm_start,
)

LENGTHS = {"end_of_turn": None, "max_prompt_length": 6, "max_reply_length": 6}
# Replies count on from the prompt's last word: something to learn.
SAMPLES = [Sample(i, f"w{i}", [" ".join(f"w{j}" for j in range(i + 1, i + 2 + i % 3))]) for i in range(8)]


def make_model(tokenizer, **overrides):
    no_dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return make_gpt2(tokenizer, **{**no_dropout, **overrides})


def example_sets(model, tokenizer, samples=SAMPLES, **kwargs):
    return build_example_sets(model.config, tokenizer, samples, **LENGTHS, **kwargs)


def train(model, tokenizer, seed=0, samples=SAMPLES, **args):
    arguments = {"per_device_train_batch_size": 8, "num_train_epochs": 1, "learning_rate": 1e-3, **args}
    examples = example_sets(model, tokenizer, samples)
    metrics = train_supervised(model, tokenizer, examples, training_args=arguments, seed=seed)
    model.to("cpu")
    return metrics


def weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def naive_mean_loss(model, examples):
    """Token by token, without padding."""
    losses = [
        -functional.log_softmax(next_token(model, example["input_ids"][:position], [])[0], dim=-1)[label]
        for example in examples
        for position, label in enumerate(example["labels"])
        if label != IGNORED_LABEL
    ]
    return torch.stack(losses).mean()


@pytest.mark.parametrize(("batch_size", "n_accumulated"), [(8, 1), (2, 4)])
def test_one_full_batch_step_equals_a_step_by_hand(tokenizer, batch_size, n_accumulated):
    ours, by_hand = make_model(tokenizer), make_model(tokenizer)
    optimizer = torch.optim.SGD(by_hand.parameters(), lr=0.1)
    loss = naive_mean_loss(by_hand, build_examples(SAMPLES, tokenizer, **LENGTHS)[0])
    loss.backward()
    optimizer.step()
    sgd = {"optim": "sgd", "learning_rate": 0.1, "lr_scheduler_type": "constant", "max_grad_norm": 0.0}
    size = {"per_device_train_batch_size": batch_size, "gradient_accumulation_steps": n_accumulated}
    metrics = train(ours, tokenizer, **sgd, **size)
    n_tokens = sum(len(example["input_ids"]) for example in build_examples(SAMPLES, tokenizer, **LENGTHS)[0])
    assert (metrics["n_steps"], metrics["n_examples"]) == (1, 8)
    assert metrics["tokens_per_s"] * metrics["train_runtime_s"] == pytest.approx(n_tokens)
    assert metrics["train_loss"] == pytest.approx(loss.item(), rel=1e-5)
    torch.testing.assert_close(weights(ours), weights(by_hand), rtol=1e-5, atol=1e-6)


def test_training_does_not_depend_on_the_callers_grad_mode(tokenizer):
    with_grad, without = make_model(tokenizer), make_model(tokenizer)
    train(with_grad, tokenizer)
    with torch.no_grad():
        train(without, tokenizer)
    assert torch.equal(weights(with_grad), weights(without))


@pytest.mark.parametrize("of_dialogues", [False, True])
def test_batches_have_examples_of_similar_length_but_dialogues_are_shuffled(tokenizer, of_dialogues, monkeypatch):
    model = make_model(tokenizer)
    short, long = ({"input_ids": [5] * n, "labels": [5] * n} for n in (2, 6))
    lengths = []

    class Recorder(PaddingCollator):
        def __call__(self, examples):
            lengths.append({len(example["input_ids"]) for example in examples})
            return super().__call__(examples)

    monkeypatch.setattr("rl4dialog.training.supervised.fine_tuning.PaddingCollator", Recorder)
    sets = ExampleSets([short, long] * 32, Truncation(), of_dialogues=of_dialogues)
    arguments = {"per_device_train_batch_size": 4, "num_train_epochs": 1}
    train_supervised(model, tokenizer, sets, training_args=arguments, seed=0)
    assert len(lengths) == 16 and (sum(len(each) > 1 for each in lengths) > 8) == of_dialogues


def test_same_seed_gives_the_same_weights_and_another_one_others(tokenizer):
    trained = []
    for seed in (0, 0, 1):
        torch.manual_seed(random.randrange(1000))
        model = make_gpt2(tokenizer)  # with dropout
        train(model, tokenizer, seed=seed, per_device_train_batch_size=2)
        trained.append(weights(model))
    assert torch.equal(trained[0], trained[1])
    assert not torch.equal(trained[0], trained[2])


def test_nothing_but_the_weights_is_changed(tokenizer):
    model = make_model(tokenizer)
    config, generation_config = copy.deepcopy(model.config.to_dict()), model.generation_config.to_dict()
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.random.get_rng_state()
    train(model, tokenizer, seed=123)
    assert model.config.to_dict() == config
    assert model.config.use_cache is True
    assert model.generation_config.to_dict() == generation_config
    assert not model.training
    assert random.getstate() == states[0]
    assert np.random.get_state()[1].tolist() == states[1]
    assert torch.equal(torch.random.get_rng_state(), states[2])


def test_progress_and_nothing_else_is_printed(tokenizer, capfd):
    train(make_model(tokenizer), tokenizer, num_train_epochs=3, logging_steps=1)
    printed = capfd.readouterr()
    assert printed.out == ""
    lines = printed.err.splitlines()
    assert all(line.startswith("Supervised, step ") for line in lines)
    assert lines[-1].startswith("Supervised, step 3/3: loss ")


def test_warm_start_draws_its_samples_by_the_seed(tokenizer, tmp_path):
    model, drawn = make_model(tokenizer), []
    data = Data({"train": TextGenPool(SAMPLES)}, None)
    for seed in (0, 0, 1):
        config = parse_config(make_config(tmp_path, seed=seed, warm_start={"max_samples": 4}), "test")
        texts = Texts(tokenizer, data, run_lengths(config, tokenizer, data))
        drawn.append(build_warm_start_examples(config, texts, model.config).train)
    assert drawn[0] == drawn[1] != drawn[2]
    assert len({tuple(example["input_ids"]) for example in drawn[0]}) == 4


def test_held_out_losses_are_measured_without_changing_the_warm_start(tokenizer):
    trained, losses = [], []
    for val_samples in (None, SAMPLES):
        model = make_model(tokenizer)
        examples = example_sets(model, tokenizer, val_samples=val_samples)
        losses.append(warm_start(model, tokenizer, examples, n_epochs=2.5, batch_size=4)["held_out_losses"])
        trained.append(weights_hash(model))
    assert trained[0] == trained[1]
    assert losses[0] == [] and len(losses[1]) == 4
    assert losses[1] == sorted(losses[1], reverse=True)


@pytest.mark.parametrize(
    ("losses", "words"),
    [
        ([], None),
        ([4.0, 3.0, 2.0], None),
        ([4.0, 2.0, 2.03], None),
        ([4.0, 2.0, 2.5, 2.6], r"lowest after epoch 1 of 3 \(2 nats per token\) and has risen to 2\.6"),
        ([2.0, 3.0], "lowest before training"),
    ],
)
def test_rising_held_out_loss_is_memorising(losses, words):
    found = memorised(losses)
    assert found is None if words is None else re.search(words, str(found))


def test_diverged_training_says_so(tokenizer):
    with pytest.raises(ConfigError, match=r"diverged.*lower learning_rate"):
        train(make_model(tokenizer), tokenizer, learning_rate=1e30, max_grad_norm=0.0, num_train_epochs=4)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"learning_rte": 1.0}, "no key 'learning_rte'; did you mean 'learning_rate'"),
        ({"learning_rate": "fast"}, "learning_rate must be a number, not 'fast'"),
        ({"num_train_epochs": True}, "num_train_epochs must be a number, not True"),
        ({"use_cpu": 1}, "use_cpu must be true or false, not 1"),
        ({"learning_rate": -1}, "learning_rate must be a finite number of at least 0, not -1"),
        ({"num_train_epochs": float("nan")}, "num_train_epochs must be a finite number of at least 0, not nan"),
        ({"per_device_train_batch_size": 0}, "batch_size must be a whole number of at least 1, not 0"),
        ({"gradient_accumulation_steps": 1.5}, "accumulation_steps must be a whole number of at least 1, not 1.5"),
        ({"warmup_ratio": 1.5}, "warmup_ratio must be at least 0 and less than 1"),
        ({"lr_scheduler_type": "steep"}, r"alg\.training_args: steep is not a valid"),
    ],
)
def test_wrong_training_argument_is_named(tokenizer, args, message):
    with pytest.raises(ConfigError, match=message):
        train(make_model(tokenizer), tokenizer, **args)


def test_arguments_of_older_transformers_still_work():
    old = {"evaluation_strategy": "epoch", "warmup_ratio": 0.1, "no_cuda": True, "group_by_length": False}
    assert known_training_args(old) == {
        "eval_strategy": "epoch",
        "warmup_steps": 0.1,
        "use_cpu": True,
        "train_sampling_strategy": "random",
    }
    assert known_training_args({"overwrite_output_dir": True}) == {}


PROMPTS, REPLIES = [[3, 4, 5], [6]], [[7, 8, 0], [9, 0]]


@pytest.mark.parametrize("make_model", [make_gpt2, make_t5])
def test_loss_is_the_mean_over_the_tokens_of_the_drawn_replies(make_model):
    tokenizer = make_tokenizer()
    policy = make_policy(make_env(tokenizer), make_model(tokenizer))
    model = policy.language_model
    examples = [
        {"input_ids": prompt, "labels": reply}
        if model.config.is_encoder_decoder
        else {"input_ids": prompt + reply, "labels": [-100] * len(prompt) + reply}
        for prompt, reply in zip(PROMPTS, REPLIES, strict=True)
    ]
    torch.manual_seed(3)
    drawn = torch.randint(2, (5,)).tolist()
    assert set(drawn) == {0, 1}
    losses = [
        -next_token(model, PROMPTS[i], REPLIES[i][:t])[0].log_softmax(-1)[token]
        for i in drawn
        for t, token in enumerate(REPLIES[i])
    ]
    torch.manual_seed(3)
    loss = SupervisedLoss(examples, 1)(policy, 5)
    torch.testing.assert_close(loss, torch.stack(losses).mean(), rtol=1e-4, atol=1e-5)
    loss.backward()
    assert all(parameter.grad is not None for parameter in policy.actor_parameters())
