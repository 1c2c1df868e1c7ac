"""How fast a reward at the end of a conversation reaches its first turn: credit per token, per turn, and RLOO.

The task: six turns of six tokens. Only the first turn decides the reward, which is paid at the end: the share of its
tokens that are the wanted one.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.vec_env import DummyVecEnv
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from rl4dialog.algorithms.on_policy.critic_free import RLOO
from rl4dialog.algorithms.on_policy.ppo import PPO
from rl4dialog.core.protocols import ConversationReward
from rl4dialog.core.reward_parts import RewardPart
from rl4dialog.core.types import AGENT, Dialogue, Sample
from rl4dialog.envs.text_generation import TextGenEnv
from rl4dialog.envs.utterance_view import UtteranceView
from rl4dialog.partners.scripted import ScriptedPartner
from rl4dialog.policies.causal import CausalLMActorCriticPolicy
from rl4dialog.runs.plots import plain_figure, save_figure
from rl4dialog.text.end_of_turn import EndOfTurn

N_TURNS, N_TOKENS, N_ENVS = 6, 6, 64
WORDS = [f"w{i}" for i in range(16)]
WANTED = WORDS[3]
ENOUGH = 0.9

_PPO = {"n_epochs": 4, "gae_lambda": 0.95, "gamma": 1.0, "ent_coef": 0.0, "batch_size": 576}
CONTESTANTS: dict[str, tuple[type, dict[str, Any]]] = {
    "PPO, credit: token": (PPO, {**_PPO, "credit": "token"}),
    "PPO, credit: turn": (PPO, {**_PPO, "credit": "turn"}),
    "RLOO, 4 conversations per prompt": (RLOO, {"n_epochs": 4, "n_generations": 4, "batch_size": 576}),
}


class FirstTurnOnly(ConversationReward):
    """Share of wanted tokens in the first turn, paid at the end."""

    def __call__(self, dialogue: Dialogue, over: bool) -> float:
        return dialogue.texts(AGENT)[0].split().count(WANTED) / N_TOKENS if over else 0.0


def compare_credit(n_iters: int, seeds: Sequence[int], folder: Path) -> None:
    """Train each contestant with each seed; print the iterations that it needs, and write curves and a picture."""
    curves = {name: [_train(name, seed, n_iters) for seed in seeds] for name in CONTESTANTS}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "credit.json").write_text(json.dumps(curves, indent=1), encoding="utf-8")
    print(f"Iterations until the mean reward of five iterations is {ENOUGH}, seeds {', '.join(map(str, seeds))}:")
    for name, runs in curves.items():
        learned = [f"{len(run)}" if _has_learned(run) else f"more than {n_iters}" for run in runs]
        print(f"{name}: {', '.join(learned)}")
    _plot(curves, folder / "credit.png")


def _has_learned(rewards: Sequence[float]) -> bool:
    return len(rewards) >= 5 and float(np.mean(rewards[-5:])) >= ENOUGH


def _train(name: str, seed: int, n_iters: int) -> list[float]:
    """Mean reward of each iteration, until enough is learned."""
    random.seed(seed), np.random.seed(seed), torch.manual_seed(seed)
    algorithm, kwargs = CONTESTANTS[name]
    tokenizer = _tokenizer()
    end_of_turn = EndOfTurn(tokenizer, ())
    samples = [Sample(i, word, []) for i, word in enumerate(WORDS)]

    def make_env() -> UtteranceView:
        parts = [RewardPart("first_turn", 1.0, FirstTurnOnly())]
        partner = ScriptedPartner(["w0"] * N_TURNS)
        env = TextGenEnv(end_of_turn, samples, parts, 64, N_TOKENS, len(tokenizer), max_turns=N_TURNS, partner=partner)
        return UtteranceView(env)

    size: dict[str, Any] = {"n_layer": 2, "n_embd": 64, "n_head": 4, "n_positions": 80}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), bos_token_id=0, eos_token_id=0, **size)).eval()
    critic = "shared" if algorithm.needs_critic else "none"  # type: ignore[attr-defined]
    trained = algorithm(
        CausalLMActorCriticPolicy,
        DummyVecEnv([make_env] * N_ENVS),
        n_steps=N_TURNS * N_TOKENS,
        learning_rate=1e-3,
        policy_kwargs={"model": model, "end_of_turn": end_of_turn, "critic": critic},
        seed=seed,
        device="cpu",
        **kwargs,
    )
    rewards: list[float] = []
    _, callback = trained._setup_learn(10**9)
    while len(rewards) < n_iters and not _has_learned(rewards):
        trained.collect_rollouts(trained.env, callback, trained.rollout_buffer, trained.n_steps)
        rewards.append(float(np.mean([episode["r"] for episode in list(trained.ep_info_buffer)[-N_ENVS:]])))
        trained.train()
    print(f"{name}, seed {seed}: {rewards[-1]:.2f} after {len(rewards)} iterations", flush=True)
    return rewards


def _tokenizer() -> PreTrainedTokenizerFast:
    vocab = {word: i for i, word in enumerate(["<pad>", "<unk>", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>")


def _plot(curves: dict[str, list[list[float]]], path: Path) -> None:
    figure, (axes,) = plain_figure(7.0, 4.0)
    for i, (name, runs) in enumerate(curves.items()):
        for j, run in enumerate(runs):
            axes.plot(range(1, len(run) + 1), run, color=f"C{i}", alpha=0.8, label=name if j == 0 else None)
    axes.axhline(ENOUGH, color="gray", linewidth=0.8, linestyle="--")
    axes.set(xlabel="iteration", ylabel="mean reward", title="Six turns; the first alone decides the reward at the end")
    axes.legend()
    save_figure(figure, path)
