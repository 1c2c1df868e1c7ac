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
from stable_baselines3.common.utils import explained_variance

from rl4dialog.core.config import OnPolicyConfig
from rl4dialog.core.errors import DataError, ModelError, PartnerError
from rl4dialog.core.protocols import PartnerService
from rl4dialog.core.seeding import derive_seed
from rl4dialog.core.types import AGENT, Sample
from rl4dialog.functional.advantages import Episodes
from rl4dialog.functional.statistics import bootstrap_intervals, spearman, split_half_reliability
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
Utterance = tuple[float, Floats]
"""What the critic says of an utterance: its reward and the next value; and returns (k,), one if it ends everything."""
MIN_STATES = 10  # for a statistic
N_BINS, N_ALTERNATIVES, DIGITS = 10, 5, 9
N_CONTINUATIONS, MIN_ITERATIONS = 16, 10  # during training: of each state, and before a warning
CHANCE_ERRORS = 1.645  # by chance in one of twenty measures of a critic that orders nothing
AT_CHANCE = (
    "the critic orders states no better than chance: try alg.args.critic_warmup_iters: 10, alg.args.value_gae_lambda: "
    "1, alg.policy.args.critic_lr_factor: 5 or alg.args.critic_epochs: 1"
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

    The partner is built, unless it answers from the main process and is given as `service`.
    """

    notes: Sequence[str] = ()  # what restricts the statistics

    def __init__(
        self, parts: Assembly, policy: Any, critic: Any, seed: int, service: PartnerService | None = None
    ) -> None:
        config = parts.config
        if (why := why_unmeasured(config)) or not isinstance(config, OnPolicyConfig):
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
        rng, states, seen = np.random.default_rng(self._derived("states")), list[State](), []
        order, places = rng.permutation(len(samples)), (rng.permutation(n) + rng.random(n)) / n
        starts = [State(samples[order[i % len(order)]], self._derived("partner", i), Begun()) for i in range(n)]
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
        rows = [state.anew(self._derived(what, i, j)) for i, state in enumerate(states) for j in range(k)]
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

    def alternatives(self, states: Sequence[State], k: int) -> list[list[Utterance]]:
        """Distinct next utterances of each state."""
        numbered = itertools.product(enumerate(states), range(N_ALTERNATIVES))
        rows = [(i, state.anew(self._derived("utterance", i, j))) for (i, state), j in numbered]
        found: dict[tuple[int, str], Utterance] = {}
        going_on: dict[tuple[int, str], State] = {}
        talks = self.held("alternatives", [state for _, state in rows], True)
        for (i, state), talk in zip(rows, talks, strict=True):
            if talk is None or (key := (i, talk.replies[state.turn].text)) in found:
                continue
            after, value = state.turn + 1, 0.0
            if after < len(talk.replies):
                going_on[key] = state.later(talk, after)
                value = float(talk.replies[after].of_tokens("values")[0])  # type: ignore[index]
            own = talk.replies[state.turn : after]
            found[key] = float(self.returns(own, value)[0][0]), self.returns(own)[0][:1]
        for key, returns in zip(going_on, self.continued([*going_on.values()], k, "their continuations"), strict=True):
            found[key] = found[key][0], returns
        return [[each for (number, _), each in found.items() if number == i] for i in range(len(states))]

    def returns(self, replies: Sequence[Reply], last_value: float = 0.0) -> list[Floats]:
        """Discounted sums of rewards from each token on, by reply, with the value of the state after the last."""
        lengths, of = [reply.n_tokens for reply in replies], np.concatenate([reply.rewards for reply in replies])[None]  # type: ignore[arg-type]
        turns, none = np.repeat(np.arange(len(lengths)), lengths)[None], np.zeros_like(of)
        episode = Episodes(of, none, none, none, turns, np.ones(of.shape, dtype=bool), np.array([last_value]))
        return np.split(self._estimator(episode).returns[0], np.cumsum(lengths)[:-1])

    def held(self, what: str, states: Sequence[State], with_values: bool = False) -> list[Talk | None]:
        """Conversations from states, in batches of equally many first tokens; ``None`` for one that is left out."""
        talks: list[Talk | None] = [None] * len(states)
        n_words, size = np.array([len(s.begun.words) for s in states]), self._config.train_evaluation.eval_batch_size
        equal = [np.flatnonzero(n_words == n) for n in np.unique(n_words)]
        values_of = self._critic.predict_sequence_values if with_values else None
        progress = Progress(f"Holding {what}", "conversation", len(states), 0, 60.0, stays=False)
        with random_states_kept(), progress:
            for part in (rows[start : start + size] for rows in equal for start in range(0, len(rows), size)):
                torch.manual_seed(self._derived(what, int(part[0])))
                of = [states[i] for i in part]
                columns, begun = ([s.sample for s in of], [s.seed for s in of]), [s.begun for s in of]
                found = self._conversing(self._policy, *columns, begun=begun, values_of=values_of)
                for i, talk in zip(part, found, strict=True):
                    talks[i] = talk if is_kept(talk, self._config) else None
                progress.advance(len(part))
        return talks

    def _derived(self, *names: str | int) -> int:
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


def critic_statistics(
    states: Sequence[State], returns: Floats, seen: Floats, alternatives: Sequence[Sequence[Utterance]] = ()
) -> dict[str, Any]:
    """Statistics of a critic by key, the bins of its calibration, and notes: a warning, and what cannot be computed.

    From the states and returns of k continuations of each, (n, k); turn, value and return of all states that were seen
    in some conversations, (m, 3); and utterances in some of the states.
    """
    values, turns = (np.array([getattr(state, name) for state in states]) for name in ("value", "turn"))
    means, (found, warning), unranked = returns.mean(axis=1).round(DIGITS), value_ranks(states, returns), list[str]()
    notes = [warning] if warning else []
    if np.ptp(values) and np.ptp(means):
        (interval,) = bootstrap_intervals(lambda i: [spearman(values[i], means[i])], len(values), n_resamples=500)
        found |= {"value_rank/low": interval.low, "value_rank/high": interval.high}
        found["slope"] = float(np.polyfit(values, means, 1)[0])
    found["reliability"] = split_half_reliability(returns)
    found["value_rank/highest"] = math.sqrt(found["reliability"])
    # At most, values explain the variance between states: that of their means without the noise of these.
    noise = float(returns.var(axis=1, ddof=1).mean())
    between = max(float(means.var(ddof=1)) - noise / returns.shape[1], 0.0)
    found["explained_variance"] = float(explained_variance(seen[:, 1], seen[:, 2]))
    found["explained_variance/highest"] = between / (between + noise or math.nan)
    for turn in np.unique(turns) if np.ptp(turns) else ():
        own, (_, v, g) = turns == turn, seen[seen[:, 0] == turn].T
        found[f"explained_variance/turn_{turn + 1}"] = float(explained_variance(v, g))
        if own.sum() >= MIN_STATES and np.ptp(values[own]) and np.ptp(means[own]):
            found[f"value_rank/turn_{turn + 1}"] = spearman(values[own], means[own])
        else:
            unranked.append(str(turn + 1))
    if unranked:
        why = f"fewer than {MIN_STATES} states, or equal values or returns"
        notes.append(f"turn {', '.join(unranked)} without a rank correlation: {why}")
    pairs = np.array([pair for of_state in alternatives for pair in _ordered(of_state)])
    if len(pairs) >= MIN_STATES:
        found |= dict(zip(("order", "order/halves"), pairs.mean(axis=0).tolist(), strict=True))
    notes.append(f"{len(pairs)} pairs of utterances in the same state differ in their returns")
    parts = np.array_split(np.argsort(values, kind="stable"), min(N_BINS, len(values) // 2))
    bins = [{"value": float(values[p].mean()), "mean_return": float(means[p].mean()), "n": len(p)} for p in parts]
    return {"metrics": dict(sorted(found.items())), "bins": bins, "notes": notes}


def _ordered(utterances: Sequence[Utterance]) -> list[tuple[float, ...]]:
    """For pairs of utterances, whether their values have the order of their mean returns; 0.5 for equal ones.

    The second number is whether both halves of the continuations have the same order. Left out are pairs with equal
    returns, and those that both end the conversation, in which no value is asked.
    """
    pairs = []
    for (value, returns), (other, others) in itertools.combinations(utterances, 2):
        k = max(len(returns), len(others))
        differences = np.resize(returns, k) - np.resize(others, k)
        total, one, two = (differences[part].sum().round(DIGITS) for part in np.s_[:, ::2, 1::2])
        if k > 1 and total and math.isfinite(total):
            pairs.append(tuple((1 + np.sign([(value - other) * total, one * two])) / 2))
    return pairs


def _texts(talk: Talk, turn: int) -> tuple[str, ...]:
    """All utterances before the agent's utterance of this number."""
    return tuple(each.text for each in talk.dialogue.turns[: talk.dialogue.turn_bounds[turn]])
