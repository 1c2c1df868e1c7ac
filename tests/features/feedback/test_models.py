"""Examples, loss and agreement of reward models."""

import logging
import math
from functools import partial

import numpy as np
import pytest
import torch
from reward_models import TEXTS, make_config
from two_processes import in_two_processes

from rl4dialog.core.config import parse_config
from rl4dialog.core.types import Sample
from rl4dialog.features.feedback.config import RewardModelConfig
from rl4dialog.features.feedback.models import (
    RewardEnsemble,
    RewardModelLoss,
    RewardModelTrainer,
    agreement,
    bootstrap_weights,
    build_reward_ensemble,
    build_reward_model,
    calibration_error,
    comparison_metrics,
    encode_judged,
    pad_judged,
    rating_losses,
)
from rl4dialog.scores.classifiers import SequenceClassifier
from rl4dialog.training.resumable_trainer import run_trainer
from rl4dialog.training.supervised import build_training_arguments
from rl4dialog.training.tiny_bert import tiny_bert, train_tokenizer


def test_choices_with_ties():
    better, worse = np.array([2.0, 0.0, 1.0]), np.array([0.0, 1.0, 1.0])
    found = comparison_metrics(better, worse, np.array([3.0, 2, 1]), np.array([2.0, 2, 5]))
    assert found["preference/accuracy"] == found["preference/accuracy_of_longer"] == pytest.approx(0.5)
    losses = [math.log(1 + math.exp(-d)) for d in (2, -1, 0)]
    assert found["preference/log_loss"] == pytest.approx(sum(losses) / 3)


def test_calibration_error_is_the_weighted_gap_of_the_bins():
    probabilities, outcomes = np.array([0.81, 0.89, 0.55, 1.0]), np.array([1.0, 0.0, 1.0, 1.0])
    assert calibration_error(probabilities, outcomes) == pytest.approx((0.7 + 0.45 + 0.0) / 4)


def test_both_kinds_have_their_numbers_and_share_the_length():
    samples = [
        Sample(0, "a", [], {"rating": 1.0, "n_words": 1}),
        Sample(1, "b", [], {"worse_text": "c", "n_words": 2, "n_words_of_worse": 3}),
        Sample(2, "d", [], {"rating": 0.0, "n_words": 4}),
    ]
    found = agreement([4.0, 3.0, 1.0], [2.0], samples, 0.5, "cross_entropy")
    assert found["preference/accuracy"] == 1 and found["preference/accuracy_of_longer"] == 0
    assert found["agreement/spearman"] == pytest.approx(1)
    assert found["rating/log_loss"] == pytest.approx((math.log(1 + math.exp(-4)) + math.log(1 + math.exp(1))) / 2)
    assert found["rating/log_loss_of_constant"] == pytest.approx(math.log(2))
    assert found["length/spearman_with_score"] == pytest.approx(-1)
    assert "agreement/mse" not in found
    found = agreement([3.0], [2.0], samples[1:2], None, "cross_entropy")
    assert {key.split("/")[0] for key in found} == {"preference", "length"}


SAMPLES = [
    Sample(0, TEXTS[0], [], {"rating": 0.25}),
    Sample(1, TEXTS[1], [], {"worse_text": TEXTS[2]}),
    Sample(2, TEXTS[3], [], {"worse_text": " ".join(TEXTS)}),
]


def test_batch_has_all_first_texts_before_the_worse_ones(caplog):
    caplog.set_level(logging.WARNING, "rl4dialog")
    tokenizer = train_tokenizer(TEXTS, 300, 64)
    batch = pad_judged(tokenizer, encode_judged(SAMPLES, tokenizer, 64))
    assert batch["labels"].tolist() == [0.25, 1, 1] and batch["is_comparison"].tolist() == [False, True, True]
    texts = [TEXTS[0], TEXTS[1], TEXTS[3], TEXTS[2], " ".join(TEXTS)]
    for ids, mask, text in zip(batch["input_ids"], batch["attention_mask"], texts, strict=True):
        assert ids[mask.bool()].tolist() == tokenizer(text)["input_ids"]
        assert mask.tolist() == sorted(mask.tolist(), reverse=True)
    assert "weights" not in batch and not caplog.text
    encode_judged(SAMPLES, tokenizer, 10)
    assert "4 of 5 texts are longer than 10 tokens and lose their beginning" in caplog.text


def test_bootstrap_draws_whole_conversations():
    samples = [Sample(i, "a", [], {"conversation": i // 2}) for i in range(20)]
    weights = np.array(bootstrap_weights(samples, 3, seed=0))
    assert weights.shape == (20, 3) and (weights.sum(0) == 20).all()
    assert (weights[::2] == weights[1::2]).all()
    assert (weights[:, 0] != weights[:, 1]).any() and (weights == 0).any()
    assert (weights == np.array(bootstrap_weights(samples, 3, seed=0))).all()


RATINGS = [0.0, 1.0, 0.25, 0.5, 0.75]


def examples(tokenizer):
    """Three ratings and two comparisons."""
    texts = [*TEXTS, " ".join(TEXTS)]
    rows = [{"input_ids": tokenizer(t)["input_ids"], "labels": y} for t, y in zip(texts, RATINGS, strict=True)]
    for number, worse in ((1, "User: no"), (4, "Assistant: good to know fine")):
        rows[number] |= {"labels": 1.0, "worse_ids": tokenizer(worse)["input_ids"]}
    return rows


def new_model(tokenizer, seed):
    torch.manual_seed(seed)
    return tiny_bert(tokenizer, num_labels=1)


def trained(tmp_path, batch_size, n_parts, seeds=(0,), weights=None, **settings):
    """The heads after one step of SGD, and the loss."""
    tokenizer = train_tokenizer(TEXTS, 300, 64)
    ensemble = RewardEnsemble([new_model(tokenizer, seed) for seed in seeds])
    steps = {"max_steps": 1, "per_device_train_batch_size": batch_size, "gradient_accumulation_steps": n_parts}
    sgd = {"optim": "sgd", "learning_rate": 0.1, "lr_scheduler_type": "constant", "max_grad_norm": 0.0}
    args = build_training_arguments({**steps, **sgd, **settings}, tmp_path, 42, with_val=False, by_length=False)
    rows = examples(tokenizer)
    if weights is not None:
        rows = [{**row, "weights": own} for row, own in zip(rows, weights, strict=True)]
    make = partial(RewardModelTrainer, loss=RewardModelLoss("cross_entropy", 0.5, 0.1))
    state = run_trainer(make, ensemble, args, partial(pad_judged, tokenizer), rows, description="Test")
    heads = [member.classifier.weight.detach() for member in ensemble.members]
    return heads, state["total_loss"] + state["unlogged_loss"]


@pytest.mark.parametrize(("batch_size", "n_parts"), [(2, 3)])
def test_split_batch_gives_the_same_step(tmp_path, batch_size, n_parts):
    ((whole,), loss), ((split,), other) = trained(tmp_path, 5, 1), trained(tmp_path, batch_size, n_parts)
    assert other == pytest.approx(loss, abs=1e-6)
    torch.testing.assert_close(split, whole, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(("batch_size", "n_parts"), [(5, 1), (2, 3)])
def test_two_processes_share_a_batch(tmp_path, batch_size, n_parts):
    """The last part of the step has one example, so that a process has none."""
    weights = [[1.0, 0.0], [0.0, 2.0], [2.0, 1.0], [1.0, 0.0], [1.0, 2.0]]

    def work(number):
        heads, loss = trained(tmp_path, batch_size, n_parts, (0, 1), weights, max_grad_norm=0.01)
        return [head.tolist() for head in heads], loss

    heads, loss = trained(tmp_path, 5, 1, (0, 1), weights, max_grad_norm=0.01)
    first, second = in_two_processes(work, tmp_path)
    assert first == second
    assert first[1] == pytest.approx(loss, abs=1e-6)
    for found, head in zip(first[0], heads, strict=True):
        torch.testing.assert_close(torch.tensor(found), head, atol=1e-6, rtol=1e-5)


def test_models_trained_together_are_those_trained_alone(tmp_path):
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
def test_built_in_models_start_near_the_first_score(name, kind):
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
def test_a_replaced_head_is_named(n_labels, tmp_path, caplog):
    tokenizer = train_tokenizer(TEXTS, 300, 48)
    tiny_bert(tokenizer, num_labels=n_labels).save_pretrained(tmp_path)
    blocks = make_config()
    blocks["alg"] |= {"model_name": str(tmp_path), "ensemble": 2}
    config = parse_config(blocks, "c.yml")
    assert isinstance(config, RewardModelConfig)
    build_reward_ensemble(config, tokenizer, 0.7)
    assert caplog.text.count("has a head for one score already; it is replaced") == (n_labels == 1)


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def test_rating_is_a_squared_error_or_a_cross_entropy():
    scores, ratings = torch.tensor([2.0, -1.0]), torch.tensor([1.0, 0.25])
    assert rating_losses(scores, ratings, "squared_error").tolist() == pytest.approx([1.0, 1.5625])
    expected = [-math.log(sigmoid(2)), -0.25 * math.log(sigmoid(-1)) - 0.75 * math.log(sigmoid(1))]
    assert rating_losses(scores, ratings, "cross_entropy").tolist() == pytest.approx(expected)


def test_batch_is_the_plain_formula_over_single_judgements_with_its_gradient():
    torch.manual_seed(0)
    first, worse = torch.randn(5, 2, dtype=torch.float64), torch.randn(2, 2, dtype=torch.float64)
    labels = torch.tensor([0.3, 1.0, 1.0, 0.0, 1.0], dtype=torch.float64)
    is_comparison = torch.tensor([False, True, False, False, True])
    weights = torch.tensor([[1.0, 0], [2, 1], [0, 3], [1, 1], [1, 0]], dtype=torch.float64)
    loss = RewardModelLoss("cross_entropy", rating_weight=0.5, center_coef=0.01)

    scores = torch.cat([first, worse]).requires_grad_()
    found = loss(scores, labels, is_comparison, weights)
    found.sum().backward()

    plain = torch.cat([first, worse]).requires_grad_()
    expected, n_compared = [torch.zeros((), dtype=torch.float64) for _ in range(2)], 0
    for row in range(5):
        for member in range(2):
            score = plain[row, member]
            if is_comparison[row]:
                other = plain[5 + n_compared, member]
                term = -torch.log(1 / (1 + torch.exp(other - score))) + 0.01 * (score + other) ** 2
            else:
                p = 1 / (1 + torch.exp(-score))
                term = -0.5 * (labels[row] * torch.log(p) + (1 - labels[row]) * torch.log(1 - p))
            expected[member] = expected[member] + weights[row, member] * term
        n_compared += int(is_comparison[row])
    torch.stack(expected).sum().backward()
    torch.testing.assert_close(found, torch.stack(expected))
    torch.testing.assert_close(scores.grad, plain.grad)


@pytest.mark.parametrize("all_alike", [True, False])
def test_batch_of_one_kind_only(all_alike):
    scores = torch.zeros(4 if all_alike else 2, 1)
    found = RewardModelLoss("cross_entropy")(scores, torch.ones(2), torch.tensor([all_alike] * 2))
    assert found.item() == pytest.approx(2 * math.log(2))
