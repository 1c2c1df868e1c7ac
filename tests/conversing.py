"""Conversations of one, three and six turns, with replies of all lengths, between a tiny model and a partner."""

from __future__ import annotations

import copy
import random
from typing import Any

import torch
from stable_baselines3.common.vec_env import DummyVecEnv
from tiny import WORDS, make_env, make_tokenizer, policy_class_of

from rl4dialog.core.protocols import Partner
from rl4dialog.envs.text_generation import TextGenEnv
from rl4dialog.envs.utterance_view import UtteranceView
from rl4dialog.rollouts.kl_controllers import FixedKLController
from rl4dialog.text.end_of_turn import EndOfTurn

MARKER = "<EOU>"
MAX_REPLY = 5


class Leaving(Partner):
    """Answers with one to three words, and leaves after one, three or six turns."""

    def reset(self, meta_info: dict[str, Any], seed: int) -> None:
        self._random = random.Random(seed)
        self._n_answers = self._random.choice([1, 3, 6]) - 1

    def reply(self, history: list[str]) -> str | None:
        self._n_answers -= 1
        if self._n_answers < 0:
            return None
        return " ".join(self._random.choices(WORDS, k=self._random.randint(1, 3)))


def conversation_tokenizer() -> Any:
    return make_tokenizer(marker=MARKER)


def conversation_env(tokenizer: Any, **overrides: Any) -> TextGenEnv:
    """Replies end with a marker, with an end of sequence that the history omits, or at the limit."""
    arguments = {
        "end_of_turn": EndOfTurn(tokenizer, [0], MARKER),
        "partner": Leaving(),
        "max_turns": 6,
        "max_prompt_length": 59,
        "max_episode_length": MAX_REPLY,
        **overrides,
    }
    return make_env(tokenizer, **arguments)


def ending_often(model: Any) -> Any:
    """The model, with ends of turns that are likely or unlikely, depending on what is before them."""
    factor = 1.6 if model.config.tie_word_embeddings else 5
    with torch.no_grad():
        model.get_output_embeddings().weight[len(conversation_tokenizer()) - 1] *= factor
    return model


def algorithm_on_conversations(
    algorithm: Any, model: Any, n_envs: int = 2, env_kwargs: dict[str, Any] | None = None, **kwargs: Any
) -> Any:
    """An algorithm before its first rollout; the weights are not those of the reference, so that there is a KL."""
    tokenizer = conversation_tokenizer()
    env = conversation_env(tokenizer, **(env_kwargs or {}))
    policy_kwargs = {"model": copy.deepcopy(model), "end_of_turn": env.end_of_turn, **kwargs.pop("policy_kwargs", {})}
    settings = {"n_steps": 60, "seed": 5, "device": "cpu", "learning_rate": 1e-3, **kwargs}
    trained = algorithm(
        settings.pop("policy_class", policy_class_of(model)),
        DummyVecEnv([lambda: UtteranceView(copy.deepcopy(env))] * n_envs),
        policy_kwargs=policy_kwargs,
        kl_controller=FixedKLController(0.3),
        **settings,
    )
    generator = torch.Generator().manual_seed(0)
    for parameter in [*trained.policy.actor_parameters(), *trained.policy.critic_parameters()]:
        parameter.data += 0.02 * torch.randn(parameter.shape, generator=generator)
    return trained


def collect(algorithm: Any) -> Any:
    """The rows of a rollout."""
    _, callback = algorithm._setup_learn(10**6)
    algorithm.collect_rollouts(algorithm.env, callback, algorithm.rollout_buffer, algorithm.n_steps)
    return algorithm.rollout_buffer.replies
