"""Training on a log of conversations: this toolkit, and a plain loop of the same mathematics, model and minibatches."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import torch
from stable_baselines3.common.callbacks import CallbackList
from stable_baselines3.common.logger import Logger
from torch import Tensor, nn

from benchmarks.contestants import LEARNING_RATE, Setting, Timing, config_of
from benchmarks.workloads import Workload, build_model, build_prompts
from rl4dialog.core.types import AGENT, Dialogue, Frame
from rl4dialog.data.pool import Data, TextGenPool
from rl4dialog.data.small_talk.pool import SmallTalk
from rl4dialog.features.offline.config import OfflineConfig
from rl4dialog.features.offline.conversation_log import ConversationLog
from rl4dialog.features.offline.policies.value_guided import Guidance, PriorFilter
from rl4dialog.functional.masks import padded
from rl4dialog.text.end_of_turn import EndOfTurn
from rl4dialog.training.assembly import Assembly
from rl4dialog.training.building.texts import Lengths

ALGORITHMS = ("ilql", "bc")

_N_CONVERSATIONS, _TOKENS_PER_CONVERSATION = 400, 40
TAU, GAMMA, POLYAK_RATE = 0.7, 0.99, 0.005
_MAX_GRAD_NORM = 1.0

Row: TypeAlias = tuple[Tensor, Tensor, Tensor]
"""Of a conversation: its ids, whether each is the agent's, and the rewards of the agent's."""


class PaidTalk(TextGenPool):
    """Small talk in which each reply earns the share of its letters that are an e."""

    has_rewards = True

    def __init__(self) -> None:
        self._pool = SmallTalk.prepare("train", n_train=_N_CONVERSATIONS, samples="dialogues")
        super().__init__([sample for sample, _ in self._pool])
        self.end_of_turn, self.dialogue_format = self._pool.end_of_turn, self._pool.dialogue_format

    @classmethod
    def prepare(cls, split: str, *args: Any, **kwargs: Any) -> PaidTalk:
        """The train split."""
        return cls()

    def frame(self) -> Frame:
        return self._pool.frame()

    def conversations(self) -> Iterator[Dialogue]:
        for each in self._pool.conversations():
            turns = [replace(t, reward=t.text.count("e") / 10) if t.speaker == AGENT else t for t in each.turns]
            yield replace(each, turns=tuple(turns))


def with_room(workload: Workload) -> Workload:
    """The workload with lengths in which the conversations fit."""
    return replace(workload, prompt_lengths=(224,), reply_lengths=(48,))


def run_config(setting: Setting, workload: Workload) -> OfflineConfig:
    """The config of an algorithm on a log; ``batch_size`` and ``n_episodes`` count conversations."""
    args: dict[str, Any] = {
        "n_steps": workload.n_episodes * _TOKENS_PER_CONVERSATION,
        "batch_size": workload.batch_size * _TOKENS_PER_CONVERSATION,
    }
    policy: dict[str, Any] = {"id": "causal_lm_actor_critic_policy", "args": {}}
    if setting.algorithm == "ilql":
        args |= {"tau": TAU, "gamma": GAMMA, "polyak_rate": POLYAK_RATE}
        target = "model" if setting.critic == "separate" else "heads"
        policy = {"id": "value_guided_causal_lm_policy", "args": {"critic": setting.critic, "target": target}}
    config = config_of(setting, workload, {"args": args, "policy": policy})
    assert isinstance(config, OfflineConfig)
    return config


class OfflineRl4dialog:
    """This toolkit, built and run as a trainer does it."""

    def __init__(self, setting: Setting, workload: Workload) -> None:
        tokenizer, _ = build_prompts(workload)
        pools: Any = {"train": PaidTalk()}
        config, lengths = run_config(setting, workload), Lengths(workload.max_prompt_length, workload.max_reply_length)
        parts, model = Assembly(config), build_model(workload, "causal", tokenizer)
        end = EndOfTurn(tokenizer, [tokenizer.eos_token_id], pools["train"].end_of_turn)
        vars(parts).update(tokenizer=tokenizer, data=Data(pools, None), lengths=lengths)
        vars(parts).update(initial_model=model, end_of_turn=end)
        self.algorithm = parts.algorithm
        self.algorithm.set_logger(Logger(folder=None, output_formats=[]))

    def iterate(self) -> Timing:
        started = time.perf_counter()
        self.algorithm.learn(self.algorithm.n_steps, CallbackList([]), reset_num_timesteps=False)
        total = time.perf_counter() - started
        return Timing(total, {}, self.algorithm.logger.name_to_value["rollout/tokens"])

    def close(self) -> None:
        self.algorithm.env.close()


class Decoding:
    """Replies of a policy that is guided by values of tokens, or of its language model."""

    def __init__(self, setting: Setting, workload: Workload, beta: float, top_k: int = 0) -> None:
        tokenizer, samples = build_prompts(workload)
        ours = OfflineRl4dialog(setting, workload)
        self._policy, self._n = ours.algorithm.policy, workload.max_reply_length
        self._policy.guidance = Guidance(beta=beta, prior=PriorFilter(top_k=top_k))
        self._policy.set_training_mode(False)
        prompts = [tokenizer(each.prompt_or_input_text)["input_ids"] for each in samples[: workload.n_episodes]]
        ids, mask = padded(prompts, left=True)
        self._obs = {"prompt_ids": ids.to(setting.device), "prompt_mask": mask.to(setting.device)}

    def iterate(self) -> Timing:
        started = time.perf_counter()
        lengths = {"min_length": self._n, "max_new_tokens": self._n}
        replies = self._policy.generate(self._obs, do_sample=True, top_k=0, **lengths)
        return Timing(time.perf_counter() - started, {}, replies.n_tokens)

    def close(self) -> None:
        pass


class LogLoop:
    """Another program than this toolkit that trains the workload's model on the same log, in the same minibatches."""

    def __init__(self, setting: Setting, workload: Workload) -> None:
        ours = OfflineRl4dialog(setting, workload).algorithm
        self._sampler, self._n_steps, self._rows = ours.sampler, ours.n_steps, _rows(ours.log)
        del ours
        tokenizer, _ = build_prompts(workload)
        self.language_model: Any = build_model(workload, "causal", tokenizer)

    def _step(self, rows: list[Row]) -> None:
        """Make an optimizer step on a minibatch."""
        raise NotImplementedError

    def iterate(self) -> Timing:
        started, n_tokens = time.perf_counter(), 0
        while n_tokens < self._n_steps:
            rows = [self._rows[i] for i in self._sampler.next()]
            n_tokens += sum(len(rewards) for _, _, rewards in rows)
            self._step(rows)
        return Timing(time.perf_counter() - started, {}, n_tokens)

    def close(self) -> None:
        pass


class OfflineLoop(LogLoop):
    """BC or ILQL in a page of torch and transformers.

    Nothing is split by length: a minibatch is padded to its longest conversation. Logits and values are computed only
    where they are needed, as a careful author would: at the tokens of the agent, and Q only of the logged tokens.
    """

    def __init__(self, setting: Setting, workload: Workload, all_values: bool = False) -> None:
        super().__init__(setting, workload)
        self.setting, self._all_values = setting, all_values
        model = self.model = self.language_model.eval()
        trained = list(model.parameters())
        if setting.algorithm == "ilql":
            width, n_tokens = model.config.n_embd, model.config.vocab_size
            self.critic: Any = copy.deepcopy(model.transformer) if setting.critic == "separate" else None
            self.heads: Any = nn.ModuleList(head(width, n) for n in (n_tokens, n_tokens, 1))  # Q, Q and V
            self.target_critic: Any = copy.deepcopy(self.critic)
            self.target_heads: Any = copy.deepcopy(self.heads[:2])
            trained += [*self.heads.parameters(), *(self.critic.parameters() if self.critic is not None else ())]
        self.trained = trained
        self.optimizer = torch.optim.Adam(trained, lr=LEARNING_RATE, eps=1e-5, fused=True)

    def _step(self, rows: list[Row]) -> None:
        self.optimizer.zero_grad()
        self.loss(rows).backward()
        nn.utils.clip_grad_norm_(self.trained, _MAX_GRAD_NORM)
        self.optimizer.step()
        if self.setting.algorithm == "ilql":
            self._move_targets()

    def loss(self, rows: list[Row]) -> Tensor:
        """Loss of a minibatch."""
        ids = nn.utils.rnn.pad_sequence([row for row, _, _ in rows], batch_first=True)
        own = nn.utils.rnn.pad_sequence([flags for _, flags, _ in rows], batch_first=True)[:, 1:]
        rewards = torch.cat([paid for _, _, paid in rows])
        chosen = ids[:, 1:][own]
        hidden = self.model.transformer(input_ids=ids[:, :-1], use_cache=False).last_hidden_state[own]
        loss = nn.functional.cross_entropy(self.model.lm_head(hidden), chosen)
        if self.setting.algorithm == "ilql":
            loss = loss + self._value_loss(ids[:, :-1], own, chosen, rewards, hidden)
        return loss

    def _value_loss(self, ids: Tensor, own: Tensor, chosen: Tensor, rewards: Tensor, hidden: Tensor) -> Tensor:
        target_hidden = hidden.detach()
        if self.critic is not None:
            hidden = self.critic(input_ids=ids, use_cache=False).last_hidden_state[own]
            with torch.no_grad():
                target_hidden = self.target_critic(input_ids=ids, use_cache=False).last_hidden_state[own]
        *q_heads, v_head = self.heads
        values = v_head(hidden).squeeze(-1)
        with torch.no_grad():
            target_q = torch.min(*(self._q(head, target_hidden, chosen) for head in self.target_heads))
            episodes = own.nonzero()[:, 0]
            following = torch.cat([values[1:] * (episodes[1:] == episodes[:-1]), values.new_zeros(1)])
            targets = rewards + GAMMA * following
        errors = target_q - values
        loss = torch.where(errors < 0, 1 - TAU, TAU) * errors.square()
        for head in q_heads:
            loss = loss + (self._q(head, hidden, chosen) - targets).square()
        return loss.mean()

    def _q(self, head: Any, hidden: Tensor, ids: Tensor) -> Tensor:
        """Values of one token per state. Shapes (N, H), (N,) -> (N,)."""
        if self._all_values:
            return head(hidden).gather(-1, ids.unsqueeze(-1)).squeeze(-1)  # type: ignore[no-any-return]
        last = head[-1]
        return (head[:-1](hidden) * last.weight[ids]).sum(dim=-1) + last.bias[ids]  # type: ignore[no-any-return]

    @torch.no_grad()
    def _move_targets(self) -> None:
        pairs = [(self.target_heads, self.heads[:2]), (self.target_critic, self.critic)]
        for lagging, trained in pairs:
            if lagging is not None:
                for old, new in zip(lagging.parameters(), trained.parameters(), strict=True):
                    old.lerp_(new, POLYAK_RATE)


class BarePasses(OfflineLoop):
    """ILQL's passes through the transformers without heads, losses and optimizer: a bound, apart from padding."""

    def _step(self, rows: list[Row]) -> None:
        ids = nn.utils.rnn.pad_sequence([row for row, _, _ in rows], batch_first=True)[:, :-1]
        trained = [self.model.transformer, *([self.critic] if self.critic is not None else [])]
        self.optimizer.zero_grad()
        for each in trained:
            each(input_ids=ids, use_cache=False).last_hidden_state.sum().backward()
        if self.target_critic is not None:
            with torch.no_grad():
                self.target_critic(input_ids=ids, use_cache=False)


def head(width: int, n_outputs: int) -> nn.Sequential:
    """Values of a state with one hidden layer. They begin at 0."""
    last = nn.Linear(2 * width, n_outputs)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), last)


def _rows(log: ConversationLog) -> list[Row]:
    """Of each conversation: its ids, whether each is the agent's, and the rewards of the agent's."""
    batch = log.replies(np.arange(len(log)))
    assert len(batch) == len(log), "each conversation is one row"
    rows = []
    for i, rewards in enumerate(batch.per_row("rewards")):
        prompt, told = batch.prompt_ids[i][batch.prompt_mask[i]], batch.token_mask[i]
        flags = torch.cat([torch.zeros(len(prompt), dtype=torch.bool), batch.response_mask[i][told]])
        rows.append((torch.cat([prompt, batch.response_ids[i][told]]), flags, torch.from_numpy(rewards)))
    return rows
