"""Checks of logged conversations, on a healthy run and on sick ones."""

import math

import pytest
from guided_runs import walks_config

from rl4dialog.core.config import parse_config
from rl4dialog.core.errors import DataError
from rl4dialog.features.offline.doctor import logged_conversations, logged_rewards, prior_likelihood
from rl4dialog.text.prompts import encode_prompt
from rl4dialog.training.findings import Finding, NotApplicable

examination = pytest.importorskip("rl4dialog.features.inspection.examination")


def of_walks(tmp_path, **overrides):
    return examination.Subject(parse_config(walks_config(**overrides), "test"), tmp_path)


def test_run_on_a_log_passes_and_skips_what_it_has_not(tmp_path):
    subject = of_walks(tmp_path, env__args__max_episode_length=12)
    found = examination.examine(subject, show_tracebacks=True)
    assert list(found) == [*examination.CHECKS, "logged_conversations", "logged_rewards", "prior_likelihood"]
    # Few walks are possible, so that some are in two splits.
    assert {name for name, each in found.items() if each.level not in ("pass", "skip")} <= {"held_out", "evaluations"}
    assert found["reward"] == Finding("skip", "alg.id: ilql has no rollouts")
    assert "returns from -10 to -" in found["logged_rewards"].measured
    assert " nats per token of the agent" in found["prior_likelihood"].measured
    n_agent = int(subject.log.n_tokens.sum())
    prompts = [sample.prompt_or_input_text for sample in subject.data.samples("train")]
    n_all = n_agent + sum(len(encode_prompt(subject.tokenizer, prompt, 100)) for prompt in prompts)
    share = f"40 conversations, {n_agent:,} tokens of the agent ({n_agent / n_all:.0%} of all); 0.0% of the replies"
    assert found["logged_conversations"].measured.startswith(share)


def test_replies_that_lose_their_end_and_equal_returns_are_told(tmp_path):
    found = logged_conversations(of_walks(tmp_path, env__args__max_episode_length=4))
    assert found.level == "warn" and "raise env.args.max_episode_length" in found.advice
    reward = {"reward_fn": {"id": "regex", "args": {"pattern": "never said"}}, "alg__rewards": "reward_fn"}
    with pytest.raises(DataError, match="nothing to learn from"):
        logged_rewards(of_walks(tmp_path, **reward))
    imitating = {"alg__id": "bc", "alg__policy__id": "causal_lm_actor_critic_policy"}
    of_ilql = ("alg__args__polyak_rate", "alg__policy__args__guidance", "alg__policy__args__init_value")
    with pytest.raises(NotApplicable, match=r"alg\.id: bc needs no rewards"):
        logged_rewards(of_walks(tmp_path, **imitating, **dict.fromkeys(of_ilql)))


@pytest.mark.parametrize(("trained", "weight", "level"), [(1, 0, "pass"), (0, 0, "warn"), (1, math.nan, "fail")])
def test_model_that_does_not_know_the_replies_must_be_trained(tmp_path, trained, weight, level):
    subject = of_walks(tmp_path, alg__policy__args__train_prior=bool(trained))
    subject.initial_model.get_input_embeddings().weight.data += weight
    assert prior_likelihood(subject).level == level
