"""The checks of the log of an offline run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from guided_runs import walks_config

from rl4dialog.core.config import parse_config
from rl4dialog.text.prompts import encode_prompt
from rl4dialog.training.doctor import log_checks
from rl4dialog.training.doctor.examination import CHECKS, examine
from rl4dialog.training.doctor.finding import Finding
from rl4dialog.training.doctor.subject import Subject


def subject_of(tmp_path: Path, **overrides: Any) -> Subject:
    return Subject(parse_config(walks_config(**overrides), "test"), tmp_path)


def test_run_on_a_log_passes_and_skips_what_it_has_not(tmp_path: Path) -> None:
    found = examine(subject_of(tmp_path, env__args__max_episode_length=12), show_tracebacks=True)
    assert list(found) == list(CHECKS)
    # Few walks are possible, so that some are in two splits.
    assert {name for name, each in found.items() if each.level not in ("pass", "skip")} <= {"held_out", "evaluations"}
    assert found["reward"] == Finding("skip", "alg.id: ilql has no rollouts")
    measured = found["logged_conversations"].measured
    assert measured.startswith("40 conversations, ") and "0.0% of the replies lose their end" in measured
    assert "returns from -10 to -" in found["logged_rewards"].measured
    assert " nats per token of the agent" in found["prior_likelihood"].measured


def test_share_of_the_agents_tokens_is_theirs(tmp_path: Path) -> None:
    subject = subject_of(tmp_path, env__args__max_episode_length=12)
    log = subject.log
    n_agent = int(log.n_tokens.sum())
    prompts = [sample.prompt_or_input_text for sample in subject.data.samples("train")]
    n_all = n_agent + sum(len(encode_prompt(subject.tokenizer, prompt, 100)) for prompt in prompts)
    assert f"{n_agent:,} tokens of the agent ({n_agent / n_all:.0%} of all)" in (
        log_checks.logged_conversations(subject).measured
    )


def test_replies_that_lose_their_end_are_told(tmp_path: Path) -> None:
    found = log_checks.logged_conversations(subject_of(tmp_path, env__args__max_episode_length=4))
    assert found.level == "warn" and "raise env.args.max_episode_length" in found.advice


def test_equal_returns_are_told(tmp_path: Path) -> None:
    reward = {"reward_fn": {"id": "regex", "args": {"pattern": "never said"}}, "alg__rewards": "reward_fn"}
    found = examine(subject_of(tmp_path, **reward))["logged_rewards"]
    assert found.level == "fail" and "nothing to learn from" in found.measured
    imitating = {
        "alg__id": "bc",
        "alg__args__polyak_rate": None,
        "alg__policy__id": "causal_lm_actor_critic_policy",
        "alg__policy__args__guidance": None,
        "alg__policy__args__init_value": None,
    }
    assert examine(subject_of(tmp_path, **imitating))["logged_rewards"] == Finding(
        "skip", "alg.id: bc needs no rewards"
    )


@pytest.mark.parametrize(("trained", "level"), [(True, "pass"), (False, "warn")])
def test_model_that_does_not_know_the_replies_must_be_trained(tmp_path: Path, trained: bool, level: str) -> None:
    subject = subject_of(tmp_path, alg__policy__args__train_prior=trained)
    assert log_checks.prior_likelihood(subject).level == level


def test_loss_that_is_not_finite_fails(tmp_path: Path) -> None:
    subject = subject_of(tmp_path)
    with torch.no_grad():
        subject.model.get_input_embeddings().weight.fill_(float("nan"))
    assert log_checks.prior_likelihood(subject).level == "fail"
