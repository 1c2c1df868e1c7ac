"""What evaluations measure by the values of a policy."""

import dataclasses

import numpy as np
import pytest
import torch
from guided_runs import walks_config
from runs import lines, run_folder, train
from tiny import make_gpt2

from rl4dialog.core.config import parse_config
from rl4dialog.core.types import Sample
from rl4dialog.features.offline.algorithms.q_learning import ILQL
from rl4dialog.features.offline.config import OfflineConfig
from rl4dialog.features.offline.evaluation import ValueNumbers
from rl4dialog.features.offline.policies.value_guided import Guidance
from rl4dialog.functional.replies import Replies
from rl4dialog.rollouts.talk import talk_of_one_reply
from rl4dialog.training.building.texts import Lengths
from tests.offline import make_learner, make_log, marked_tokenizer, whole_batch


@pytest.fixture
def learner(tmp_path):
    model = make_gpt2(marked_tokenizer())
    found = make_learner(ILQL, make_log(tmp_path / "log", model), model)
    found.policy.set_training_mode(False)
    return found


def numbers():
    config = parse_config(walks_config(train_evaluation__eval_batch_size=2), "the test's config")
    assert isinstance(config, OfflineConfig)
    return ValueNumbers(config, Lengths(20, 8, turn_end="<EOU>"))


def test_kl_is_that_of_the_two_distributions(learner):
    batch, policy = whole_batch(learner), learner.policy
    found = policy.kl_to_prior(batch)
    guided = policy._logits(batch, policy._policy_hidden(batch)).log_softmax(-1)
    policy.guidance = dataclasses.replace(policy.guidance, beta=0.0)
    prior = policy._logits(batch, policy._policy_hidden(batch)).log_softmax(-1)
    expected = torch.nn.functional.kl_div(prior, guided, log_target=True, reduction="none").sum(-1)
    torch.testing.assert_close(found[batch.response_mask], expected.detach())
    assert (expected > 0).all() and not found[~batch.response_mask].any()
    assert not policy.kl_to_prior(batch).any(), "with beta 0 it is the language model"


def test_kl_counts_excluded_tokens_as_nothing(learner):
    batch, policy = whole_batch(learner), learner.policy
    policy.guidance = Guidance.from_settings({"beta": 2.0, "prior": {"top_k": 2}})
    found = policy.kl_to_prior(batch)[batch.response_mask]
    assert found.isfinite().all() and (found > 0).all()


def test_numbers_are_means_over_the_tokens_of_a_conversation(learner):
    policy = learner.policy
    samples = [Sample(i, f"w{i} <EOU>", []) for i in range(3)]
    talks = [talk_of_one_reply(sample, "w1 w2 w3"[: 2 + 3 * i]) for i, sample in enumerate(samples)]
    metrics, records = numbers()(policy, samples, talks)
    tokenizer = policy.end_of_turn.tokenizer
    for key, numbers_of in (("advantage", policy.advantages), ("kl_to_prior", policy.kl_to_prior)):
        for sample, talk, record in zip(samples, talks, records, strict=True):
            ids = [
                tokenizer(text)["input_ids"] for text in (sample.prompt_or_input_text, f"{talk.replies[0].text} <EOU>")
            ]
            batch = Replies.from_ids([ids[0]], [ids[1]])
            assert record[key] == pytest.approx(numbers_of(batch)[batch.response_mask].mean().item(), abs=1e-5)
            assert record["values"] == pytest.approx([policy.predict_sequence_values(batch)[0, 0].item()], abs=1e-5)
        assert metrics[key] == pytest.approx(np.mean([record[key] for record in records]))
    assert [len(record["advantages"]) for record in records] == [1, 1, 1]
    assert "q_rank" not in metrics


def test_q_rank_is_the_share_of_pairs_in_the_right_order(learner):
    policy = learner.policy
    policy.ranks = lambda batch: batch.response_ids[:, 0].float()  # by the id of the first token
    tokenizer = policy.end_of_turn.tokenizer
    low, high = sorted(("w1", "w2"), key=lambda word: tokenizer(word)["input_ids"][0])
    pairs = [(high, low), (low, high), (high, high), (high, low)]
    samples = [Sample(i, "w3 <EOU>", [chosen], {"rejected": other}) for i, (chosen, other) in enumerate(pairs)]
    metrics, _ = numbers()(policy, samples, [talk_of_one_reply(sample, "w4") for sample in samples])
    assert metrics["q_rank"] == (1 + 0 + 0.5 + 1) / 4


def test_run_reports_them_and_the_report_shows_utterances(tmp_path):
    assert train(tmp_path, walks_config(train_evaluation__max_eval_samples=6)) == 0
    folder = run_folder(tmp_path)
    metrics = lines(folder / "test_split_metrics.jsonl")[-1]["metrics"]
    assert {"advantage", "kl_to_prior"} <= metrics.keys() and metrics["kl_to_prior"] >= 0
    assert "Utterances by advantage" in (folder / "report.html").read_text()
