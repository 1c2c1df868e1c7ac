"""What the partner knows reaches the values of a critic that reads it, and nothing else."""

import copy
import random

import numpy as np
import pytest
import torch
from collected import collect, make
from conversing import MARKER, Leaving, algorithm_on_conversations, conversation_tokenizer, ending_often
from tiny import MODELS, WORDS, make_env, make_env_kwargs, make_gpt2, make_llama, make_policy, make_t5, make_tokenizer

from rl4dialog.algorithms.on_policy.ppo import PPO
from rl4dialog.core.errors import ModelError
from rl4dialog.core.reward_parts import RewardPart
from rl4dialog.core.types import Sample
from rl4dialog.data.dialogue_format import DialogueFormat
from rl4dialog.envs.vectorize import make_vec_env
from rl4dialog.functional.masks import padded
from rl4dialog.functional.replies import Replies
from rl4dialog.scores.conversation import OutcomeReward
from rl4dialog.tasks import guess_what
from rl4dialog.text.end_of_turn import EndOfTurn

PROMPTS = [[3], [4, 5, 6], [7, 8], [4, 5, 6]]
RESPONSES = [[11, 12, 13, 0], [15, 0], [16, 17, 0], [9, 10, 0]]
SECRETS = [[5, 6, 7], [8], [9, 10, 3, 4], [6]]
OF_TURNS = ("log_probs", "ref_log_probs", "unmasked_log_probs", "task_rewards", "turn")


def shown(rows):
    """Secrets in observations, with more padding than the longest needs."""
    ids, mask = padded([*rows, [0] * 9], left=True)
    return {"secret_ids": ids[:-1], "secret_mask": mask[:-1].long()}


def policy_that_reads(architecture):
    tokenizer = make_tokenizer()
    model = MODELS[architecture](tokenizer)
    env = make_env(tokenizer, vocab_size=model.get_input_embeddings().weight.shape[0], max_secret_length=9)
    return make_policy(env, model, critic_reads="secret", generation_kwargs={"do_sample": True})


@pytest.mark.parametrize("architecture", MODELS)
def test_other_secrets_change_values_only(architecture):
    policy, found = policy_that_reads(architecture), []
    plain = Replies.from_ids(PROMPTS, RESPONSES)
    for secrets in (SECRETS, SECRETS[::-1]):
        torch.manual_seed(0)
        replies = Replies.from_observations({**plain.observations, **shown(secrets)})
        said = policy.generate(replies.observations)
        _, log_probs, entropies = policy.evaluate_actions(replies.observations, replies.flat("response_ids"))
        read = [policy.sequence_log_probs(replies), policy.reference_log_probs(replies), log_probs, entropies]
        found.append([said.response_ids, said.log_probs, *read, policy.predict_values(replies.observations)])
    (*others, values), (*others_again, values_again) = found
    assert all(torch.equal(one, other) for one, other in zip(others, others_again, strict=True))
    assert (values - values_again).abs().max() > 1e-3
    with pytest.raises(ModelError, match="the critic reads the secrets of conversations, but these"):
        policy.predict_sequence_values(plain)


@pytest.mark.parametrize("architecture", MODELS)
def test_values_are_those_of_the_prompt_behind_the_secret(architecture):
    policy, plain = policy_that_reads(architecture), Replies.from_ids(PROMPTS, RESPONSES)
    replies = Replies.from_observations({**plain.observations, **shown(SECRETS)})
    found = policy.predict_sequence_values(replies)
    part = replies[torch.tensor([2, 0])]
    torch.testing.assert_close(policy.predict_sequence_values(part), found[[2, 0]][:, : part.response_ids.shape[1]])
    # The value before the first token, as in the observation of an environment.
    first = {"prompt_ids": plain.prompt_ids, "prompt_mask": plain.prompt_mask, **shown(SECRETS)}
    nothing = torch.zeros(len(PROMPTS), 5, dtype=torch.long)
    at_start = policy.predict_values({**first, "context_ids": nothing, "context_mask": nothing})
    torch.testing.assert_close(at_start[:, 0], found[:, 0], rtol=1e-4, atol=1e-5)
    policy._reads_secret = False
    for i, (secret, prompt, response) in enumerate(zip(SECRETS, PROMPTS, RESPONSES, strict=True)):
        alone = policy.predict_sequence_values(Replies.from_ids([secret + prompt], [response]))
        torch.testing.assert_close(found[i, : len(response)], alone[0], rtol=1e-4, atol=1e-5)


class Knowing(Leaving):
    """Knows words that nobody hears."""

    def reset(self, meta_info, seed):
        super().reset(meta_info, seed)
        chosen = random.Random(seed + 1)
        self._secret = " ".join(chosen.choices(WORDS, k=chosen.randint(1, 4)))

    def secret(self):
        return self._secret


def conversations(reads, make_model=make_gpt2, **kwargs):
    """An algorithm after a rollout of conversations whose partner knows something."""
    tokenizer = conversation_tokenizer()
    model = ending_often(make_t5(tokenizer) if make_model is make_t5 else make_model(tokenizer, n_positions=80))
    env = {"partner": Knowing(), "max_prompt_length": kwargs.pop("max_prompt_length", 59)}
    env |= {"max_secret_length": 6} if reads == "secret" else {}
    settings = {"policy_kwargs": {"critic_reads": reads}, "n_epochs": 1, "batch_size": 10**6, **kwargs}
    trained = algorithm_on_conversations(PPO, model, env_kwargs=env, **settings)
    return trained, collect(trained)


@pytest.mark.parametrize("make_model", [make_gpt2, make_t5])
def test_rollout_says_and_earns_the_same_whatever_the_critic_reads(make_model):
    """With the cache of prompts, and joined turns where the model has them."""
    (_, history), (_, secret) = (conversations(reads, make_model) for reads in ("history", "secret"))
    assert history.secret_ids is None and secret.secret_ids is not None
    assert torch.equal(history.response_ids, secret.response_ids)
    for name in OF_TURNS:
        assert torch.equal(getattr(history, name), getattr(secret, name)), name
    assert (history.flat("values") - secret.flat("values")).abs().max() > 1e-3


@pytest.mark.parametrize("max_prompt_length", [59, 25])
def test_every_row_of_a_conversation_has_its_secret(max_prompt_length):
    """Rows of joined turns, also those that begin anew where context was dropped, and rows of single turns."""
    found = []
    for join_turns in (True, False):
        trained, replies = conversations("secret", join_turns=join_turns, max_prompt_length=max_prompt_length)
        found.append(replies)
        shown = [tuple(ids[mask].tolist()) for ids, mask in zip(replies.secret_ids, replies.secret_mask, strict=True)]
        of_episodes = {(episode, secret) for episode, secret in zip(replies.episode.tolist(), shown, strict=True)}
        assert len(of_episodes) == len(np.unique(replies.episode)) > 2 and len({*shown}) > 2
        trained.train()
    joined, single = found
    assert len(joined) < len(single)
    assert (len(joined) == len(np.unique(joined.episode))) == (max_prompt_length == 59)
    torch.testing.assert_close(joined.flat("values"), single.flat("values"), rtol=1e-5, atol=1e-5)


def test_value_of_a_truncated_conversation_reads_its_secret_and_lockstep_reads_all_at_once():
    found = []
    for lockstep in (False, True):
        trained, _ = conversations("secret")
        trained.collector.bootstrap_truncated, trained.policy.lockstep = True, lockstep
        found.append(collect(trained))
    assert found[0].last_value.abs().max() > 0
    torch.testing.assert_close(found[0].last_value, found[1].last_value, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found[0].flat("values"), found[1].flat("values"), rtol=1e-5, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["blocks", "subproc"])
def test_workers_show_the_same_secrets(kind):
    kwargs = make_env_kwargs(partner=Knowing(), max_turns=2, max_secret_length=6, max_prompt_length=30)
    seen = []
    for where in ("dummy", kind):
        env = make_vec_env(kwargs, 3, where, 2 if where == "blocks" else None)
        env.seed(4)
        observations = [env.reset()]
        for word in (3, 4, 5):
            action = np.full((3, 5), -1)
            action[:, :2] = [word, 0]
            observations.append(env.step(action)[0])
        env.close()
        seen.append(observations)
    for one, other in zip(*seen, strict=True):
        assert one["secret_mask"].any(axis=1).all() and one.keys() == other.keys()
        assert all(np.array_equal(one[name], other[name]) for name in one)
    assert len(np.unique(np.concatenate([each["secret_ids"] for each in seen[0]]), axis=0)) > 3


@pytest.mark.parametrize(("reads", "low", "high"), [("history", -0.5, 0.5), ("secret", 0.9, 1.0)])
def test_critic_that_reads_the_thing_explains_more_of_the_returns_of_guess_what(reads, low, high):
    """An agent that always guesses an apple and then a dog wins if it is one of them, which only the secret tells."""
    things, guesses = ["apple", "dog", "bee", "car"], ["is it an apple ?", "is it a dog ?"]
    words = " ".join([guess_what.OPENING, *guesses, *map(guess_what.win, things), guess_what.NO, *things]).split()
    tokenizer = make_tokenizer(marker=MARKER, words=[*dict.fromkeys(words)])
    prompt = DialogueFormat("eou", None, in_conversation=True).prompt([guess_what.OPENING])
    env = {
        "samples": [Sample(t, prompt, [], {"history": [guess_what.OPENING], "thing": t}) for t in things],
        "reward_parts": [RewardPart("outcome", 1.0, OutcomeReward(per_turn=-0.05))],
        "end_of_turn": EndOfTurn(tokenizer, [0], MARKER),
        "partner": guess_what.GuessWhatPartner(),
        "max_secret_length": 4 if reads == "secret" else None,
        **{"max_turns": 2, "max_prompt_length": 30, "max_episode_length": 6, "vocab_size": len(tokenizer)},
    }
    trained = make(
        env=lambda: make_env(tokenizer, **copy.deepcopy(env)),
        model=make_llama(tokenizer),
        policy_kwargs={"critic_reads": reads},
        **{"n_envs": 8, "n_steps": 24, "batch_size": 96, "n_epochs": 8, "learning_rate": 3e-3, "vf_coef": 1.0},
        **{"gamma": 1.0, "gae_lambda": 1.0, "max_grad_norm": 10.0, "critic_warmup_iters": 3},
    )
    policy = trained.policy
    rows = [[*tokenizer(guess)["input_ids"], 0] for guess in guesses]

    def says(obs, **kwargs):
        turns = (obs["prompt_ids"] == len(tokenizer) - 1).sum(dim=1) // 2
        said = Replies.from_ids([[0]] * len(turns), [rows[turn] for turn in turns])
        said.prompt_ids, said.prompt_mask = obs["prompt_ids"].long(), obs["prompt_mask"].bool()
        said.log_probs = said.unmasked_log_probs = policy.sequence_log_probs(said)
        return said

    policy.generate = says
    for _ in range(3):
        collect(trained)
        trained.train()
    assert low < trained.logger.name_to_value["train/return_explained_variance"] < high
