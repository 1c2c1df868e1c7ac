"""Conversations of one, three and six turns, with replies of all lengths, between a tiny model and a partner."""

import copy
import random

import torch
from collected import make
from tiny import WORDS, make_env, make_tokenizer

from rl4dialog.core.protocols import Partner
from rl4dialog.text.end_of_turn import EndOfTurn

MARKER = "<EOU>"
MAX_REPLY = 5


class Leaving(Partner):
    """Answers with one to three words, and leaves after one, three or six turns."""

    def reset(self, meta_info, seed):
        self._random = random.Random(seed)
        self._n_answers = self._random.choice([1, 3, 6]) - 1

    def reply(self, history):
        self._n_answers -= 1
        if self._n_answers < 0:
            return None
        return " ".join(self._random.choices(WORDS, k=self._random.randint(1, 3)))


def conversation_tokenizer():
    return make_tokenizer(marker=MARKER)


def conversation_env(tokenizer, **overrides):
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


def ending_often(model):
    """The model, with ends of turns that are likely or unlikely, depending on what is before them."""
    factor = 1.6 if model.config.tie_word_embeddings else 5
    with torch.no_grad():
        model.get_output_embeddings().weight[len(conversation_tokenizer()) - 1] *= factor
    return model


def algorithm_on_conversations(algorithm, model, n_envs=2, env_kwargs=None, **kwargs):
    """An algorithm before its first rollout; the weights are not those of the reference, so that there is a KL."""
    env = conversation_env(conversation_tokenizer(), **(env_kwargs or {}))
    trained = make(
        algorithm,
        model=copy.deepcopy(model),
        n_envs=n_envs,
        kl_coeff=0.3,
        env=lambda: copy.deepcopy(env),
        **{"n_steps": 60, "seed": 5, "learning_rate": 1e-3, **kwargs},
    )
    generator = torch.Generator().manual_seed(0)
    for parameter in [*trained.policy.actor_parameters(), *trained.policy.critic_parameters()]:
        parameter.data += 0.02 * torch.randn(parameter.shape, generator=generator)
    return trained
