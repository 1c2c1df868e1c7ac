"""What conversations cost: rows for whole conversations, a batched partner, a partner in the environments, many turns.

The contestants of a comparison alternate in one process. The model is the benchmark's ``tiny``, with random weights;
all utterances of the agent have the same number of tokens.
"""

from __future__ import annotations

import copy
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing import get_context
from typing import Any
from unittest import mock

import numpy as np
import torch
from stable_baselines3.common.vec_env import DummyVecEnv
from transformers import PreTrainedModel

from benchmarks.workloads import WORKLOADS, build_model, build_prompts
from rl4dialog.algorithms.on_policy.ppo import PPO
from rl4dialog.core.process_memory import peak_resident_mib
from rl4dialog.core.types import Sample
from rl4dialog.envs.conversation import Conversation
from rl4dialog.envs.text_generation import TextGenEnv
from rl4dialog.envs.utterance_view import UtteranceView
from rl4dialog.functional.replies import Replies, joined_turns
from rl4dialog.partners.language_model import LanguageModelPartner
from rl4dialog.partners.scripted import ScriptedPartner
from rl4dialog.policies.causal import CausalLMActorCriticPolicy
from rl4dialog.policies.models import embedding_rows
from rl4dialog.rollouts.conversations import evaluate
from rl4dialog.rollouts.conversing import Conversing
from rl4dialog.text.end_of_turn import EndOfTurn

N_CONVERSATIONS, N_TURNS, PROMPT, AGENT_TOKENS, PARTNER_TOKENS = 64, 8, 10, 6, 4
ANSWER, ANSWER_TOKENS = "yes , it is nice .", 11  # with the markup around it


class Setup:
    """Model, tokenizer and algorithm for conversations."""

    def __init__(
        self, n_turns: int = N_TURNS, agent_tokens: int = AGENT_TOKENS, partner: int = PARTNER_TOKENS, n_more: int = 0
    ) -> None:
        self.n_turns, self.agent_tokens = n_turns, agent_tokens
        # Room for markup, and for texts that have more tokens when the other side reads them.
        self.max_prompt = PROMPT + n_more + n_turns * (2 * (agent_tokens + partner) + 4)
        workload = replace(WORKLOADS["tiny"], prompt_lengths=(self.max_prompt,), reply_lengths=(agent_tokens,))
        self.tokenizer, _ = build_prompts(workload)
        self.model: PreTrainedModel = build_model(workload, "causal", self.tokenizer)
        self.vocab_size = embedding_rows(self.model)
        self.end_of_turn = EndOfTurn(self.tokenizer, ())
        more = " you" * n_more
        self.samples = [Sample(i, f"how are you on day {i} ?{more}", []) for i in range(N_CONVERSATIONS)]

    def env(self, **kwargs: Any) -> UtteranceView:
        sizes = self.max_prompt, self.agent_tokens, self.vocab_size
        return UtteranceView(TextGenEnv(self.end_of_turn, self.samples, [], *sizes, max_turns=self.n_turns, **kwargs))

    def algorithm(self, **kwargs: Any) -> PPO:
        partner = ScriptedPartner([ANSWER] * self.n_turns)
        n_tokens = N_CONVERSATIONS * self.n_turns * self.agent_tokens
        return PPO(
            CausalLMActorCriticPolicy,
            DummyVecEnv([lambda: self.env(partner=copy.deepcopy(partner))] * N_CONVERSATIONS),
            n_steps=self.n_turns * self.agent_tokens,
            batch_size=n_tokens // 8,
            n_epochs=2,
            learning_rate=1e-5,
            seed=0,
            device="cpu",
            policy_kwargs={"model": copy.deepcopy(self.model), "end_of_turn": self.end_of_turn, "critic": "shared"},
            **kwargs,
        )


def compare_rows(n_rounds: int) -> None:
    """Joined rows against separate rows: evaluation passes, and the update."""
    setup = Setup()
    separate = _utterances(setup)
    algorithms = {name: setup.algorithm() for name in ("joined", "separate")}
    separate.log_probs = separate.unmasked_log_probs = separate.computed(
        algorithms["joined"].policy.sequence_log_probs  # type: ignore[operator,arg-type]
    )

    def run(name: str) -> None:
        algorithm = algorithms[name]
        batch = joined_turns(separate) if name == "joined" else copy.copy(separate)
        evaluate(algorithm.policy, batch)  # type: ignore[arg-type]
        buffer: Any = algorithm.rollout_buffer
        buffer.reset()
        buffer.add(batch)
        buffer.compute_rewards(0.1)
        buffer.compute_returns_and_advantage()
        algorithm.train()

    for algorithm in algorithms.values():
        algorithm._setup_learn(10**9)
    ratio = _ratio(lambda: run("separate"), lambda: run("joined"), n_rounds)
    print(f"evaluation and update in joined rows: {ratio:.1f} x separate rows")


def compare_partner(n_rounds: int) -> None:
    """A batched language-model partner against one conversation after the other with transformers."""
    for lengths in ((AGENT_TOKENS, PARTNER_TOKENS), (20, 20)):
        _compare_partner(n_rounds, *lengths)


def _compare_partner(n_rounds: int, agent_tokens: int, partner_tokens: int) -> None:
    setup = Setup(N_TURNS, agent_tokens, partner_tokens)
    policy = setup.algorithm().policy
    with tempfile.TemporaryDirectory() as folder:
        setup.model.save_pretrained(folder)
        setup.tokenizer.save_pretrained(folder)
        partner = LanguageModelPartner(folder, max_prompt_length=setup.max_prompt, max_length=partner_tokens)
    conversing = Conversing(lambda *_: setup.env(outside_partner=partner.side), partner)

    def batched() -> None:
        talks = conversing(policy, setup.samples, [0] * N_CONVERSATIONS)  # type: ignore[arg-type]
        assert all(len(talk.replies) == N_TURNS for talk in talks)

    def one_by_one() -> None:
        generate: Any = setup.model.generate
        sampling: dict[str, Any] = {"do_sample": True, "top_k": 0, "pad_token_id": 0, "eos_token_id": None}
        for sample in setup.samples:
            text = sample.prompt_or_input_text
            for _ in range(N_TURNS):
                for n_tokens in (agent_tokens, partner_tokens):
                    all_ids: Any = setup.tokenizer(text)["input_ids"]
                    ids = torch.tensor([all_ids[-setup.max_prompt :]])
                    lengths = {"min_new_tokens": n_tokens, "max_new_tokens": n_tokens}
                    said = generate(ids, attention_mask=torch.ones_like(ids), **lengths, **sampling)
                    text += f"\n{setup.tokenizer.decode(said[0, ids.shape[1] :])}\n"

    ratio = _ratio(one_by_one, batched, n_rounds)
    lengths = f"utterances of {agent_tokens} and {partner_tokens} tokens"
    print(f"batched language-model partner, {lengths}: {ratio:.1f} x one conversation after the other")


def measure_worker_partner(n_rounds: int) -> None:
    """Share of an iteration that the conversation in the environments takes: the partner, and the longer prompts."""
    algorithm = Setup().algorithm()
    _, callback = algorithm._setup_learn(10**9)
    spent = [0.0]
    shares = []
    with ExitStack() as stack:
        for name in ("begin", "ask", "go_on"):
            stack.enter_context(mock.patch.object(Conversation, name, _timed(getattr(Conversation, name), spent)))
        for _ in range(n_rounds + 1):
            spent[0], started = 0.0, time.perf_counter()
            _iterate(algorithm, callback)
            shares.append(spent[0] / (time.perf_counter() - started))
    print(f"partner in the environments: {100 * statistics.median(shares[1:]):.1f} % of an iteration")


def measure_turns(n_rounds: int) -> None:
    """Time of an iteration over 1 to 16 turns."""
    turns = (1, 2, 4, 8, 16)
    algorithms = [Setup(n).algorithm() for n in turns]
    callbacks = [algorithm._setup_learn(10**9)[1] for algorithm in algorithms]
    seconds: list[list[float]] = [[] for _ in turns]
    for i in range(n_rounds + 1):
        for j, (algorithm, callback) in enumerate(zip(algorithms, callbacks, strict=True)):
            started = time.perf_counter()
            _iterate(algorithm, callback)
            if i:  # the first round warms up
                seconds[j].append(time.perf_counter() - started)
    medians = [statistics.median(each) for each in seconds]
    exponent = np.polyfit(np.log(turns), np.log(medians), 1)[0]
    listed = ", ".join(f"{n}: {each:.2f} s" for n, each in zip(turns, medians, strict=True))
    print(f"iteration by turns: {listed}; exponent {exponent:.2f}")


def compare_memory(n_rounds: int) -> None:
    """Peak memory of conversations, against single replies with as many tokens, of the agent and in all."""
    single = {"n_turns": 1, "agent_tokens": N_TURNS * AGENT_TOKENS, "n_more": (N_TURNS - 1) * ANSWER_TOKENS}
    with get_context("spawn").Pool(1, maxtasksperchild=1) as pool:  # a process for each
        conversations, replies = pool.map(_peak_memory, [({}, n_rounds), (single, n_rounds)], chunksize=1)
    print(f"peak memory: {conversations:.0f} MiB, {conversations / replies:.2f} x single replies with as many tokens")


def _peak_memory(setup_and_rounds: tuple[dict[str, int], int]) -> float:
    """Peak memory of the process after some iterations, in MiB."""
    kwargs, n_rounds = setup_and_rounds
    algorithm = Setup(**kwargs).algorithm()
    _, callback = algorithm._setup_learn(10**9)
    for _ in range(n_rounds):
        _iterate(algorithm, callback)
    return peak_resident_mib()


BENCHMARKS: dict[str, Callable[[int], None]] = {
    "rows": compare_rows,
    "partner": compare_partner,
    "workers": measure_worker_partner,
    "turns": measure_turns,
    "memory": compare_memory,
}


def _utterances(setup: Setup) -> Replies:
    """Conversations of random tokens, a row per utterance of the agent."""
    rng, per_turn = np.random.default_rng(0), AGENT_TOKENS + PARTNER_TOKENS
    prompts, replies = [], []
    for row in rng.integers(5, setup.vocab_size, size=(N_CONVERSATIONS, PROMPT + N_TURNS * per_turn)).tolist():
        for start in range(PROMPT, len(row), per_turn):
            prompts.append(row[:start])
            replies.append(row[start : start + AGENT_TOKENS])
    found = Replies.from_ids(prompts, replies)
    found.episode = found.group = torch.arange(N_CONVERSATIONS).repeat_interleave(N_TURNS)
    found.turn = torch.arange(N_TURNS).repeat(N_CONVERSATIONS)[:, None].expand(-1, AGENT_TOKENS).clone()
    found.last_value = torch.zeros(len(replies))
    found.task_rewards = torch.from_numpy(rng.normal(size=(len(replies), AGENT_TOKENS)).astype(np.float32))
    return found


def _iterate(algorithm: PPO, callback: Any) -> None:
    algorithm.collect_rollouts(algorithm.env, callback, algorithm.rollout_buffer, algorithm.n_steps)  # type: ignore[arg-type]
    algorithm.train()


def _timed(method: Callable[..., Any], spent: list[float]) -> Callable[..., Any]:
    """The method, which adds its time to a sum."""

    def timed(*args: Any) -> Any:
        started = time.perf_counter()
        try:
            return method(*args)
        finally:
            spent[0] += time.perf_counter() - started

    return timed


def _ratio(slow: Callable[[], None], fast: Callable[[], None], n_rounds: int) -> float:
    """Median of the ratios of time, after one round to warm up; the order alternates."""
    ratios = []
    for i in range(n_rounds + 1):
        seconds = {}
        for run in (slow, fast) if i % 2 else (fast, slow):
            started = time.perf_counter()
            run()
            seconds[run] = time.perf_counter() - started
        ratios.append(seconds[slow] / seconds[fast])
    return statistics.median(ratios[1:])
