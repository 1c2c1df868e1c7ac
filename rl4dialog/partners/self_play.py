"""The agent's own language model as its partner: as it is, as it was, or as it was at the beginning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from rl4dialog.core.arguments import Count, Fraction, NonNegativeInt
from rl4dialog.core.errors import ConfigError
from rl4dialog.core.protocols import PartnerService
from rl4dialog.core.seeding import derive_seed
from rl4dialog.envs.conversation import OutsidePartner
from rl4dialog.functional.distributed import all_reduce_max, copy_all
from rl4dialog.functional.replies import Replies
from rl4dialog.policies.answering import answering_policy, sampled_replies
from rl4dialog.policies.base import LMActorCriticPolicy
from rl4dialog.policies.models import embedding_rows
from rl4dialog.policies.references import WeightCopy

POOL_SIZE, LATEST_SHARE = 4, 0.8


@dataclass(frozen=True)
class _Opponent:
    """A speaker of the partner's side."""

    iteration: int  # the iteration before which its weights were copied
    weights: WeightCopy | None  # its weights; None for those of the agent
    policy: LMActorCriticPolicy  # speaks with the weights of the agent, or with these if they are in place

    def in_place(self) -> AbstractContextManager[None]:
        return nullcontext() if self.weights is None else self.weights.in_place()


class SelfPlayPartner(PartnerService):
    """The agent's own language model, from the other side of the conversation, or a pool of copies of it.

    Its prompts have the format of the run's datapool, in which its own utterances are those of the assistant.

    With ``snapshot_every: n``, a pool starts with the initial policy, the weights before training, which always stay
    in it. At the beginning of iterations 1 + n, 1 + 2n and so on, a copy of the agent's language model is added (with
    LoRA, of the adapters). A full pool first drops one copy at random, any but the initial policy; the draw depends
    on the run's seed and the iteration. Each conversation has one opponent, drawn with a seed of the conversation; the
    conversations of a group, which RLOO and GRPO compare, have the same one. Opponents of many ages keep the agent from
    forgetting how to talk with earlier ones (Bansal et al. 2018, arXiv 1710.03748; the default share of the newest one
    is that of the current policy in OpenAI Five, Berner et al. 2019, arXiv 1912.06680).

    Evaluations are held with the initial policy, unless ``train_evaluation.partner`` names another partner; as such,
    ``self_play`` is the current policy. Values that guide a policy, and masks, are not part of the partner.

    Args:
        snapshot_every: Iterations between copies. 0: the partner is the current policy, without copies.
        pool_size: Maximum number of copies, the initial policy included; by default 4.
        latest_share: Probability of the newest copy as opponent; otherwise, each copy is equally likely, the newest one
            too. By default 0.8.
        learns: ``agent``: only the agent's side is trained. ``both``: in rollouts, the partner's utterances are trained
            on, too. Each side is a row of its own, and both get the reward of a turn, so they should have a common
            goal. Only for the current policy.
        persona_key: Key of the partner's persona in the samples' ``meta_data``: a text or a list of sentences; samples
            without the key have none.
        generation_kwargs: Sampling settings; by default those of the agent in rollouts.
        own_side: Tokenizer, format and lengths of the agent, passed by the run.
        is_frozen: Whether to stay the initial policy, passed by the run.
        run_seed: Seed of the run, passed by the run.
    """

    def __init__(
        self,
        own_side: OutsidePartner,
        snapshot_every: NonNegativeInt = 0,
        pool_size: Count | None = None,
        latest_share: Fraction | None = None,
        learns: Literal["agent", "both"] = "agent",
        persona_key: str = "partner_persona",
        generation_kwargs: dict[str, Any] | None = None,
        is_frozen: bool = False,
        run_seed: int = 0,
    ) -> None:
        check_pool(snapshot_every, pool_size, latest_share, learns)
        self.learns = learns == "both" and not is_frozen
        self._every = 0 if is_frozen else snapshot_every
        self._pool_size = POOL_SIZE if pool_size is None else pool_size
        self._latest_share = LATEST_SHARE if latest_share is None else latest_share
        self._generation_kwargs, self._is_frozen, self._seed = generation_kwargs, is_frozen, run_seed
        self._side = replace(own_side, persona_key=persona_key, is_seeded=self._every > 0)
        self._opponents: list[_Opponent] = []
        self._iteration, self._ages = 1, list[float]()

    @property
    def side(self) -> OutsidePartner:
        return self._side

    @property
    def in_lockstep(self) -> bool:  # type: ignore[override]
        return self._policy.sharded

    @property
    def needs_initial_weights(self) -> bool:  # type: ignore[override]
        return self._is_frozen or self._every > 0

    def begin_run(self, policy: LMActorCriticPolicy, initial: WeightCopy | None = None) -> None:
        self._policy = policy
        n_rows = embedding_rows(policy.language_model)
        self._side = replace(self._side, end_of_turn=policy.end_of_turn, vocab_size=n_rows)
        weights = (initial or policy.initial_weights()) if self.needs_initial_weights else None
        self._opponents = [self._opponent(1, weights)]

    def _opponent(self, iteration: int, weights: WeightCopy | None) -> _Opponent:
        """An opponent with its own cache of prompts, beside that of the agent."""
        side, agent = self._side, self._policy
        policy = agent.compute(  # it runs the model
            lambda _: answering_policy(
                agent.language_model,
                side.end_of_turn,
                side.max_prompt_length,
                side.max_length,
                self._generation_kwargs,
                precision=agent.precision,
                share_prompts=agent.share_prompts,
            )
        )
        policy.sampler, policy.lockstep = agent.sampler, agent.sharded
        return _Opponent(iteration, weights, policy)

    def begin_iteration(self, iteration: int) -> None:
        self._iteration, self._ages = iteration, []
        if not self._every or iteration == 1 or (iteration - 1) % self._every:
            return
        if len(self._opponents) == self._pool_size:
            random = np.random.default_rng(derive_seed(self._seed, "self_play", iteration))
            del self._opponents[int(random.integers(1, self._pool_size))]
        self._opponents.append(self._opponent(iteration, self._policy.copied_weights()))

    def answers(self, observations: dict[str, np.ndarray]) -> list[Sequence[int] | None]:
        n_prompts = len(observations["prompt_ids"])
        found: list[Sequence[int] | None] = [None] * n_prompts
        chosen = np.zeros(n_prompts, dtype=int)
        if self._every:
            chosen = np.array([self._drawn(int(seed)) for seed in observations["partner_seed"]])
            self._ages += [float(self._iteration - self._opponents[i].iteration) for i in chosen]
        for i, opponent in enumerate(self._opponents):
            rows = np.flatnonzero(chosen == i)
            if all_reduce_max(rows.size) if self.in_lockstep else rows.size:
                of_rows = {name: array[rows] for name, array in observations.items()}
                with opponent.in_place():
                    said = self._said(opponent, of_rows).per_row("response_ids")
                for row, ids in zip(rows, said, strict=bool(rows.size)):
                    found[row] = ids.tolist()
        return found

    def replies(self, observations: dict[str, np.ndarray]) -> Replies:
        return self._said(self._opponents[0], observations)

    def _said(self, opponent: _Opponent, observations: dict[str, np.ndarray]) -> Replies:
        """An utterance for each prompt; without one, to a stand-in."""
        if not len(observations["prompt_ids"]):
            ids = np.zeros((1, 1), dtype=np.int64)
            observations = {"prompt_ids": ids, "prompt_mask": np.ones_like(ids)}
        with self._policy.keeping_gathered():
            return self._policy.compute(lambda _: sampled_replies(opponent.policy, observations))

    def _drawn(self, seed: int) -> int:
        """Number of the opponent in the conversation with this seed, by age."""
        random, n = np.random.default_rng(seed), len(self._opponents)
        return n - 1 if random.random() < self._latest_share else int(random.integers(n))

    @contextmanager
    def remembering_prompts(self) -> Iterator[None]:  # type: ignore[override]
        with ExitStack() as stack:
            for opponent in self._opponents:
                stack.enter_context(opponent.policy.remembering_prompts())
            yield

    def logged(self) -> Mapping[str, Sequence[float]]:
        if not self._every:
            return {}
        return {"rollout/opponents": [float(len(self._opponents))], "rollout/opponent_age": self._ages}

    def state_dict(self) -> dict[str, Any]:
        return {"iteration": self._iteration, "copies": [opponent.iteration for opponent in self._opponents]}

    def tensors(self) -> dict[str, Any]:
        """Return the copies, without the initial policy, which a resumed run builds again."""
        return {
            f"{opponent.iteration}.{name}": tensor
            for opponent in self._opponents[1:]
            if opponent.weights is not None
            for name, tensor in opponent.weights.tensors().items()
        }

    def load_state(self, state: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
        self._iteration, self._ages = int(state["iteration"]), []
        del self._opponents[1:]
        for iteration in state["copies"][1:]:
            self._opponents.append(self._opponent(iteration, self._policy.copied_weights()))
        copy_all(self.tensors(), tensors)


def check_pool(
    snapshot_every: int = 0, pool_size: int | None = None, latest_share: float | None = None, learns: str = "agent"
) -> None:
    """Check arguments of :class:`SelfPlayPartner` against each other."""
    if learns == "both" and snapshot_every:
        raise ConfigError(
            "partner 'self_play': learns: both trains the current policy on both sides; remove snapshot_every"
        )
    for name, value in (("pool_size", pool_size), ("latest_share", latest_share)):
        if value is not None and not snapshot_every:
            raise ConfigError(f"partner 'self_play': {name} has no effect without snapshot_every, such as 5")
    if snapshot_every and pool_size == 1:
        raise ConfigError(
            "partner 'self_play': pool_size: 1 has room only for the initial policy; use at least 2, or a "
            "language_model as partner"
        )
