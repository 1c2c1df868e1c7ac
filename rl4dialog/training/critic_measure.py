"""How good a critic is: its values beside the mean returns of conversations that go on from the same states.

A continuation repeats a conversation up to the state in a new environment, and then draws other random numbers, as in
VinePPO (Kazemnejad et al. 2024, arXiv 2410.01679). Returns are discounted as in training, without the KL penalty.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from rl4dialog.core.config import OnPolicyConfig
from rl4dialog.core.errors import DataError, ModelError, PartnerError
from rl4dialog.core.protocols import PartnerService, Player
from rl4dialog.core.seeding import derive_seed
from rl4dialog.core.types import AGENT, Sample
from rl4dialog.functional.advantages import Episodes
from rl4dialog.functional.statistics import spearman
from rl4dialog.rollouts.buffer import build_estimator
from rl4dialog.rollouts.conversing import Begun
from rl4dialog.rollouts.talk import Reply, Talk
from rl4dialog.runs.progress import Progress
from rl4dialog.training.building.conversations import build_partner, conversing_with, why_unmeasured
from rl4dialog.training.building.policy import all_arguments
from rl4dialog.training.evaluation import is_kept
from rl4dialog.training.random_state import random_states_kept

if TYPE_CHECKING:
    from rl4dialog.training.assembly import Assembly

Floats = NDArray[np.float64]
MIN_STATES = 10  # for a statistic
DIGITS = 9
N_CONTINUATIONS, MIN_ITERATIONS = 16, 10  # during training: of each state, and before a warning
CHANCE_ERRORS = 1.645  # by chance in one of twenty measures of a critic that orders nothing
AT_CHANCE = (
    "the critic orders states no better than chance: try alg.args.critic_warmup_iters: 10, "
    "alg.policy.args.critic_lr_factor: 5 or alg.args.critic_epochs: 1"
)
OF_OTHER_REWARDS = (
    "values are of normalized rewards or include the KL penalty, returns do not: explained variance and slope suffer"
)


@dataclass(frozen=True)
class State:
    """A state before an utterance of the agent, or after first tokens of a reply, from which conversations go on."""

    sample: Sample
    seed: int  # of the partner
    begun: Begun
    turn: int = 0  # number of the agent's utterance from which returns count
    value: float = math.nan  # what the critic says of it
    texts: tuple[str, ...] = ()  # the utterances so far

    def later(self, talk: Talk, turn: int) -> State:
        """The state before an utterance of the agent in a conversation that went on from here."""
        places = [i for i, (speaker, _) in enumerate(talk.steps) if speaker == AGENT]
        return replace(self, begun=replace(self.begun, steps=talk.steps[: places[turn]]), texts=_texts(talk, turn))

    def anew(self, seed: int) -> State:
        """The same state, after which the partner draws other random numbers."""
        return replace(self, begun=replace(self.begun, seeds={**self.begun.seeds, len(self.begun.steps): seed}))


class CriticMeasure:
    """Draws states of a policy's conversations, and continues them, with the partner and settings of rollouts.

    The partner is built, unless it answers from the main process and is given as `service`. If nothing `repeats`,
    there are no continuations, and any partner will do.
    """

    notes: Sequence[str] = ()  # what restricts the statistics

    def __init__(
        self,
        parts: Assembly,
        policy: Any,
        critic: Any,
        seed: int,
        service: PartnerService | None = None,
        repeats: bool = True,
    ) -> None:
        config = parts.config
        if (why := why_unmeasured(config, repeats)) or not isinstance(config, OnPolicyConfig):
            raise ModelError(f"the critic of this run cannot be measured: {why}")
        self._config, self._policy, self._critic, self._seed = config, policy, critic, seed
        args, chosen, settings = all_arguments(config), config.env.args.conversation_partner, policy.settings
        partner = build_partner(chosen, config, parts.texts) if service is None and chosen is not None else service
        n_secret = parts.lengths.secret
        self._conversing = conversing_with(partner, config, parts.texts, parts.scorer, n_secret)
        if service is None:
            self._conversing.begin_run(policy)
        kl, reward = config.alg.kl_div, config.reward_fn
        if kl.norm_reward or reward.normalize != "none" or reward.clip or (kl.coeff and args["credit"] != "turn"):
            self.notes = [OF_OTHER_REWARDS]
        turn_gamma = args["gamma"] if args.get("turn_gamma") is None else args["turn_gamma"]
        self._estimator = build_estimator(args["credit"], gamma=args["gamma"], turn_gamma=turn_gamma)
        # A reply goes on as a longer prompt, so its tokens must not change the distribution in another way.
        reads_on = policy.joins_turns and settings.repetition_penalty == 1 and not settings.no_repeat_ngram_size
        self._within_replies = chosen is None and args["credit"] != "turn" and reads_on

    def drawn(self, samples: Sequence[Sample], n: int, k: int) -> tuple[list[State], Floats, Floats]:
        """States of n conversations, evenly from their turns or the tokens of single replies, without failed ones.

        Also returns of k continuations of each, (states, k); and turn, value and return of all seen states, (m, 3).
        """
        rng, states, seen = np.random.default_rng(self.derived("states")), list[State](), []
        order, places = rng.permutation(len(samples)), (rng.permutation(n) + rng.random(n)) / n
        starts = [State(samples[order[i % len(order)]], self.derived("partner", i), Begun()) for i in range(n)]
        for start, place, talk in zip(starts, places, self.held("conversations", starts, True), strict=True):
            if talk is not None:
                values: list[Any] = [reply.of_tokens("values") for reply in talk.replies]
                turn, token = int(place * len(values)), int(place * len(values[0])) if self._within_replies else 0
                state, ids = start.later(talk, turn), talk.replies[turn].of_tokens("response_ids")
                begun = replace(state.begun, words=ids[:token].tolist())  # type: ignore[index]
                states.append(replace(state, begun=begun, turn=turn, value=float(values[turn][token])))
                each = enumerate(zip(values, self.returns(talk.replies), strict=True))
                seen += [(t, v[token], g[token]) for t, (v, g) in each]
        returns = self.continued(states, k)
        known = [bool(np.isfinite(row).all()) for row in returns]
        if sum(known) < MIN_STATES:
            raise DataError(f"a critic is measured on at least {MIN_STATES} states, but only {sum(known)} go on")
        return list(itertools.compress(states, known)), returns[known], np.array(seen)

    def continued(self, states: Sequence[State], k: int, what: str = "continuations") -> Floats:
        """Returns of k continuations of each state; NaN for one that failed. Shape (n, k)."""
        rows = [state.anew(self.derived(what, i, j)) for i, state in enumerate(states) for j in range(k)]
        found = np.full(len(rows), math.nan)
        for i, (state, talk) in enumerate(zip(rows, self.held(what, rows), strict=True)):
            n_said = sum(speaker == AGENT for speaker, _ in state.begun.steps)
            if talk is not None and (n_said >= len(talk.replies) or _texts(talk, n_said) != state.texts):
                raise PartnerError(
                    f"the partner did not repeat its answers about sample {state.sample.id!r}, so the critic cannot be "
                    f"measured: they may depend only on the history, the sample and the partner's seeds"
                )
            if talk is not None:
                found[i] = self.returns(talk.replies)[state.turn][len(state.begun.words)]
        return found.reshape(-1, k)

    def returns(self, replies: Sequence[Reply], last_value: float = 0.0) -> list[Floats]:
        """Discounted sums of rewards from each token on, by reply, with the value of the state after the last."""
        lengths, of = [reply.n_tokens for reply in replies], np.concatenate([reply.rewards for reply in replies])[None]  # type: ignore[arg-type]
        turns, none = np.repeat(np.arange(len(lengths)), lengths)[None], np.zeros_like(of)
        episode = Episodes(of, none, none, none, turns, np.ones(of.shape, dtype=bool), np.array([last_value]))
        return np.split(self._estimator(episode).returns[0], np.cumsum(lengths)[:-1])

    def held(
        self, what: str, states: Sequence[State], with_values: bool = False, players: Sequence[Player] = ()
    ) -> list[Talk | None]:
        """Conversations from states, in batches of equally many first tokens; ``None`` for one that is left out.

        With ``players``, one for each state, these speak instead of the policy.
        """
        talks: list[Talk | None] = [None] * len(states)
        n_words, size = np.array([len(s.begun.words) for s in states]), self._config.train_evaluation.eval_batch_size
        equal = [np.flatnonzero(n_words == n) for n in np.unique(n_words)]
        values_of = self._critic.predict_sequence_values if with_values else None
        progress = Progress(f"Holding {what}", "conversation", len(states), 0, 60.0, stays=False)
        with random_states_kept(), progress:
            for part in (rows[start : start + size] for rows in equal for start in range(0, len(rows), size)):
                torch.manual_seed(self.derived(what, int(part[0])))
                of = [states[i] for i in part]
                columns, begun = ([s.sample for s in of], [s.seed for s in of]), [s.begun for s in of]
                own = [players[i] for i in part] if players else None
                found = self._conversing(self._policy, *columns, players=own, begun=begun, values_of=values_of)
                for i, talk in zip(part, found, strict=True):
                    talks[i] = talk if is_kept(talk, self._config) else None
                progress.advance(len(part))
        return talks

    def derived(self, *names: str | int) -> int:
        """A seed for these names."""
        return derive_seed(self._seed, *names)


def value_ranks(states: Sequence[State], returns: Floats) -> tuple[dict[str, float], str | None]:
    """Rank correlations of values with mean returns (n, k), and a warning if they are no better than chance.

    ``value_rank`` is that of all states, ``value_rank_within_turns`` the weighted mean of those within turns. Turns in
    which values or returns are equal are left out; a critic whose values are equal in all of them has 0.
    """
    values, turns = (np.array([getattr(state, name) for state in states]) for name in ("value", "turn"))
    means, found, at_chance = returns.mean(axis=1).round(DIGITS), dict[str, float](), False
    for key, groups in (("value_rank", np.zeros_like(turns)), ("value_rank_within_turns", turns)):
        each = [(values[groups == group], means[groups == group]) for group in np.unique(groups)]
        each = [(v, g) for v, g in each if len(v) > 2 and np.ptp(g)]
        each = [(v, g) for v, g in each if np.ptp(v)] or each
        if each and (key == "value_rank" or np.ptp(turns)):
            n_free = sum(len(v) - 1 for v, _ in each)
            found[key] = sum((len(v) - 1) * float(np.nan_to_num(spearman(v, g))) for v, g in each) / n_free
            at_chance = found[key] < CHANCE_ERRORS / math.sqrt(n_free)
    return found, AT_CHANCE if at_chance else None


def _texts(talk: Talk, turn: int) -> tuple[str, ...]:
    """All utterances before the agent's utterance of this number."""
    return tuple(each.text for each in talk.dialogue.turns[: talk.dialogue.turn_bounds[turn]])
