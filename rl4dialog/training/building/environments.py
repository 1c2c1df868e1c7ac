"""Builds the environments of a run, and the conversations of its evaluations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rl4dialog.core.config import TextConfig
from rl4dialog.core.protocols import BatchedConversationReward, PartnerService
from rl4dialog.core.reward_parts import RewardPart
from rl4dialog.core.types import Sample
from rl4dialog.envs.utterance_view import UtteranceView
from rl4dialog.envs.vectorize import make_utterance_env
from rl4dialog.policies.base import LMActorCriticPolicy
from rl4dialog.policies.models import embedding_rows
from rl4dialog.rollouts.conversing import Conversing
from rl4dialog.rollouts.task_rewards import TaskRewards
from rl4dialog.scores.scoring import Scorer
from rl4dialog.training.building.partner import AnyPartner, build_partner
from rl4dialog.training.building.texts import Texts


def env_kwargs(
    config: TextConfig,
    texts: Texts,
    samples: Sequence[Any],
    parts: Sequence[RewardPart],
    partner: AnyPartner | None,
) -> dict[str, Any]:
    """Return the arguments of each environment, except ``end_of_turn`` and ``vocab_size``, which are the model's.

    Args:
        config: Config with an ``env`` block.
        texts: The run's texts.
        samples: Samples to talk about, or pairs with their weights.
        parts: All rewards.
        partner: The partner, if there is one.
    """
    assert config.env is not None
    args = config.env.args
    is_outside = isinstance(partner, PartnerService)
    return {
        "samples": samples,
        "reward_parts": [part for part in parts if not part.in_main_process],
        "max_prompt_length": texts.lengths.prompt,
        "max_episode_length": texts.lengths.reply,
        "prompt_truncation_side": texts.lengths.truncation_side,
        "max_turns": args.max_turns,
        "priority_scale": args.priority_scale,
        "partner": None if is_outside else partner,
        "outside_partner": partner.side if isinstance(partner, PartnerService) else None,
        "frame": texts.data.pools["train"].frame() if partner is not None else None,
        "first_speaker": args.first_speaker,
        "max_partner_length": args.max_partner_length,
        "context_turns": args.context_turns,
        "end_when": args.end_when.model_dump(),
        "shares_dialogues": any(isinstance(part.function, BatchedConversationReward) for part in parts),
    }


def build_conversing(config: TextConfig, texts: Texts, scorer: Scorer | None) -> Conversing | None:
    """Build the conversations of evaluations; ``None`` if the run has no partner."""
    if config.env is None:
        return None
    chosen = config.train_evaluation.partner or config.env.args.conversation_partner
    if chosen is None:
        return None
    partner = build_partner(chosen, config, texts, is_evaluation=True)
    is_scored = scorer is not None and config.train_evaluation.score_predictions
    parts = scorer.parts if scorer is not None and is_scored else []
    timeout_s = config.reward_fn.timeout_s if config.reward_fn is not None else None
    samples = [Sample(0, "", [])]  # each conversation is given its own
    kwargs = env_kwargs(config, texts, samples, parts, partner)
    service = partner if isinstance(partner, PartnerService) else None

    def make_env(policy: LMActorCriticPolicy, max_length: int) -> UtteranceView:
        of_model = {"end_of_turn": policy.end_of_turn, "vocab_size": embedding_rows(policy.language_model)}
        # Only now, because in self-play it depends on the policy.
        side = {"outside_partner": service.side} if service is not None else {}
        return make_utterance_env({**kwargs, **of_model, **side, "max_episode_length": max_length}, timeout_s)

    rewards = None if scorer is None or not is_scored else build_task_rewards(scorer)
    return Conversing(make_env, service, rewards, max(config.n_iters or 1, 1), timeout_s)


def build_task_rewards(scorer: Scorer) -> TaskRewards:
    """Build the sum of all rewards of a conversation."""
    in_main = [part for part in scorer.parts if part.in_main_process]
    return TaskRewards(scorer.parts, replace(scorer, parts=in_main).values)
