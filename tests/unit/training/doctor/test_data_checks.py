"""The doctor's checks of logged conversations, and of those with a partner."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from guided_runs import walks_config
from runs import make_config

from rl4dialog.catalog import PartnerRegistry
from rl4dialog.core.config import parse_config
from rl4dialog.core.errors import DataError
from rl4dialog.core.protocols import Partner
from rl4dialog.core.types import PartnerReply
from rl4dialog.text.prompts import encode_prompt
from rl4dialog.training.doctor import data_checks
from rl4dialog.training.doctor.data_checks import conversation
from rl4dialog.training.doctor.examination import CHECKS, examine
from rl4dialog.training.doctor.subject import Finding, NotApplicable, Subject


class Says(Partner):
    """Answers as a test wants it to."""

    outcomes = ("success",)

    def __init__(self, what: str) -> None:
        self._what = what

    def reset(self, meta_info: dict[str, Any], seed: int) -> None:
        self._fails = self._what == "fails" and seed % 2 == 0

    def reply(self, history: list[str]) -> PartnerReply:
        if self._fails:
            raise ConnectionError("no line")
        text = {"echoes": history[-1], "says nothing": None}.get(self._what, "i see .")
        return PartnerReply(text, leaves=self._what == "leaves")

    def outcome(self) -> dict[str, float]:
        return {"success": 1.0}


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(PartnerRegistry, "_entries", dict(PartnerRegistry._entries))
    PartnerRegistry.register("says")(Says)
    yield


def found_with(tmp_path: Path, what: str, **overrides: Any) -> Finding:
    config = make_config(
        tmp_path,
        env__args__partner={"id": "says", "args": {"what": what}},
        env__args__max_turns=overrides.pop("max_turns", 3),
        env__args__max_prompt_length=60,
        reward_fn={"id": "outcome", "args": {"per_turn": -0.25}},
        **overrides,
    )
    subject = Subject(parse_config(config, "test"), tmp_path)
    try:
        return CHECKS["conversation"](subject)
    finally:
        subject.close()


def test_conversation_is_shown_with_rewards_and_its_end(tmp_path: Path) -> None:
    found = found_with(tmp_path, "i see .")
    assert found.level == "pass"
    lines = found.measured.splitlines()
    assert [line for line in lines if line.startswith("partner: i see .")] == ["partner: i see ."] * 3
    assert [line.rsplit(" ", 1)[1] for line in lines if line.startswith("agent: ")][-3:] == [
        *("(-0.25)", "(-0.25)", "(+0.75)")
    ]
    assert lines[-1] == "(the model as loaded)" and "success 1" in lines[-2]


@pytest.mark.parametrize(
    ("what", "overrides", "level", "words"),
    [
        ("fails", {}, "fail", "failed in [1-7] of 8 conversations: partner 'Says' failed on sample .*no line"),
        ("fails", {"env__args__partner_on_error": "mask"}, "warn", "the partner failed in"),
        ("leaves", {}, "warn", "leaves after the first turn of every conversation"),
        ("leaves", {"max_turns": 1}, "pass", "agent:"),
        ("says nothing", {}, "warn", "never says anything"),
        ("says nothing", {"max_turns": 1}, "pass", "agent:"),
        ("echoes", {}, "warn", r"of the partner's \d+ answers repeat the agent"),
    ],
)
def test_partner_who_takes_no_part_is_told(
    tmp_path: Path, what: str, overrides: dict[str, Any], level: str, words: str
) -> None:
    found = found_with(tmp_path, what, **overrides)
    assert found.level == level
    assert re.search(words, found.measured, flags=re.DOTALL)
    assert bool(found.advice) == (level != "pass")


def test_samples_are_examined_before_anything_is_said(tmp_path: Path) -> None:
    config = parse_config(make_config(tmp_path, env__args__partner={"id": "replay"}), "test")
    with pytest.raises(DataError, match="partner 'replay' needs samples"):
        conversation(Subject(config, tmp_path))


def test_run_without_partner_is_skipped(tmp_path: Path) -> None:
    with pytest.raises(NotApplicable, match="no conversation partner"):
        conversation(Subject(parse_config(make_config(tmp_path), "test"), tmp_path))


def test_metrics_of_conversations_are_not_measured_on_reference_replies(tmp_path: Path) -> None:
    of_conversations = [{"id": "conversation"}, {"id": "conversation_diversity"}]
    for metrics, words in (([*of_conversations, {"id": "length"}], "1 scores of 4"), (of_conversations, None)):
        config = make_config(tmp_path, train_evaluation__metrics=metrics)
        subject = Subject(parse_config(config, "test"), tmp_path)
        if words is None:
            with pytest.raises(NotApplicable, match="whole conversations"):
                CHECKS["metrics"](subject)
        else:
            found = CHECKS["metrics"](subject)
            assert (found.level, found.measured.startswith(words)) == ("pass", True), found
        subject.close()


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
        data_checks.logged_conversations(subject).measured
    )


def test_replies_that_lose_their_end_are_told(tmp_path: Path) -> None:
    found = data_checks.logged_conversations(subject_of(tmp_path, env__args__max_episode_length=4))
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
    assert data_checks.prior_likelihood(subject).level == level


def test_loss_that_is_not_finite_fails(tmp_path: Path) -> None:
    subject = subject_of(tmp_path)
    with torch.no_grad():
        subject.initial_model.get_input_embeddings().weight.fill_(float("nan"))
    assert data_checks.prior_likelihood(subject).level == "fail"
