"""Rewards of conversations reach the agent's tokens undiminished, whichever way they are paid and whoever fails."""

import math

import numpy as np
import pytest
from partners import Failing, RulesService
from stable_baselines3.common.vec_env import DummyVecEnv
from tiny import make_gpt2, make_policy, make_tokenizer

from rl4dialog.core.errors import PartnerError, RewardError
from rl4dialog.core.protocols import BatchedConversationReward, BatchedRewardFunction, Partner, SentenceRewardFunction
from rl4dialog.core.reward_parts import RewardPart
from rl4dialog.core.types import AGENT, PARTNER, PartnerReply, Prompt, PromptTurn, Sample
from rl4dialog.envs.worker import make_utterance_env
from rl4dialog.rollouts.buffer import SequenceRolloutBuffer
from rl4dialog.rollouts.collector import RolloutCollector
from rl4dialog.rollouts.conversing import Conversing
from rl4dialog.rollouts.task_rewards import TaskRewards
from rl4dialog.scores.composite import CompositeReward, Linear
from rl4dialog.scores.conversation import ConversationMetric, OutcomeReward, PartnerReward
from rl4dialog.scores.parts import as_parts
from rl4dialog.scores.scoring import Scorer
from rl4dialog.text.end_of_turn import EndOfTurn

N_TURNS, T = 3, 4
SAMPLES = [
    Sample(i, Prompt([PromptTurn(word, " <EOU>")]), [], {"history": [word]}) for i, word in enumerate(["w0", "w1"])
]


class Paying(Partner):
    """Pays 1, 10 and 100 for three utterances, and reports what it has paid."""

    can_open = pays = True
    outcomes = ("paid",)

    def reset(self, meta_info, seed):
        self._n = 0

    def open(self):
        return "w5"

    def reply(self, history):
        self._n += 1
        return PartnerReply(f"w{self._n}", reward=10.0 ** (self._n - 1))

    def outcome(self):
        return {"paid": float(self._n)}


class ByTurn(BatchedConversationReward):
    """At the end 1, 2, 3 for the turns; nothing before."""

    def __call__(self, dialogues, overs):
        self.overs = [*getattr(self, "overs", []), *overs]
        counts = [len(dialogue.texts(AGENT)) for dialogue in dialogues]
        return [[1.0 + i for i in range(n)] if over else 0.0 for n, over in zip(counts, overs, strict=True)]


class One(SentenceRewardFunction):
    def score(self, *args):
        return 1.0


class OneOfBatch(BatchedRewardFunction):
    """Ignores which replies are the last ones."""

    def __call__(self, prompt_texts, gen_texts, ref_texts, dones, meta_infos=None):
        return [1.0] * len(gen_texts)


async def one_of_coroutine(prompt_text, gen_text, ref_texts, meta_info):
    return 1.0


async def one_of_batch_coroutine(prompt_texts, gen_texts, ref_texts, dones, meta_infos):
    return [1.0] * len(gen_texts)


def fails(*_):
    raise ZeroDivisionError("no reward")


KINDS = {
    "sentence": One(),
    "batch": OneOfBatch(),
    "coroutine": one_of_coroutine,
    "batch coroutine": one_of_batch_coroutine,
}


def parts_of(rewards, **changes):
    """Parts of a reward, or of a composite of several."""
    if not isinstance(rewards, dict):
        return [RewardPart(**{**vars(part), **changes}) for part in as_parts(rewards)]
    blocks = [{"id": name, **block} for name, (_, block) in rewards.items()]
    return CompositeReward(blocks, lambda id, args: rewards[id][0]).parts


class Trial:
    """A tiny model that talks in two environments with a partner."""

    def __init__(self, parts, partner, on_error="raise", **overrides):
        tokenizer = make_tokenizer(marker="<EOU>")
        end = EndOfTurn(tokenizer, [0], "<EOU>")
        service = partner(tokenizer) if isinstance(partner, type(lambda: 0)) else None
        in_workers = [part for part in parts if not part.in_main_process]
        kwargs = {
            **{"end_of_turn": end, "samples": SAMPLES, "reward_parts": in_workers, "max_turns": N_TURNS},
            **{"max_prompt_length": 40, "max_episode_length": T, "shares_dialogues": True},
            **({"partner": partner} if service is None else {"outside_partner": service.side}),
            **overrides,
        }
        self._make = lambda *_: make_utterance_env({"vocab_size": len(tokenizer), **kwargs})
        in_main = [part for part in parts if part.in_main_process]
        self.rewards = TaskRewards(parts, Scorer(in_main, on_error).values)
        self.env, self.service, self.masks = DummyVecEnv([self._make, self._make]), service, on_error == "mask"
        self.policy = make_policy(self.env, make_gpt2(tokenizer), end, max_reply_length=T)

    def collect(self, n_tokens=20):
        self.env.seed(0)
        buffer = SequenceRolloutBuffer(1, self.env.observation_space, self.env.action_space, "cpu")
        collector = RolloutCollector(
            self.rewards, self.masks, partner=self.service, has_partner=True, mask_failed_partners=self.masks
        )
        stats, _ = collector.collect(
            self.policy, self.env, buffer, self.env.reset(), n_tokens, lambda *_: True, join_turns=False
        )
        assert stats is not None
        self.stats = stats
        return buffer.replies

    def talk(self):
        return Conversing(self._make, self.service, self.rewards)(self.policy, SAMPLES, [1, 2])

    def earned(self):
        """What each utterance of each conversation earned; all of it on its last token."""
        rows = self.collect()
        totals = {}
        for episode, rewards in zip(rows.episode.tolist(), rows.per_reply("task_rewards"), strict=True):
            assert not np.any(rewards[:-1]), "not on the last token"
            totals.setdefault(episode, []).append(float(rewards[-1]))
        return list(totals.values())


def check(trial, expected):
    """Rollouts and evaluations pay this for the turns of each conversation."""
    found = trial.earned()
    assert len(found) >= 2
    for of_conversation in found:
        np.testing.assert_allclose(of_conversation, expected, rtol=1e-6)
    assert [episode["r"] for episode in trial.stats.episodes] == pytest.approx([sum(expected)] * len(found))
    for talk in trial.talk():
        paid = [turn.reward for turn in talk.dialogue.said if turn.speaker == AGENT]
        np.testing.assert_allclose(paid, expected, rtol=1e-6)
        assert talk.total == pytest.approx(sum(expected))


@pytest.mark.parametrize("first", ["sample", "agent", "partner"])
def test_partner_pays_for_the_utterance_that_it_answers(first):
    check(Trial(parts_of(PartnerReward()), Paying(), first_speaker=first), [1.0, 10.0, 100.0])


def test_outcome_is_paid_on_the_agents_last_token():
    check(Trial(parts_of(OutcomeReward({"paid": 2.0}, -0.5)), Paying()), [-0.5, -0.5, 5.5])


@pytest.mark.parametrize("pay", ["end", "turn"])
def test_list_pays_every_turn_and_says_once_when_it_is_over(pay):
    reward = ByTurn()
    trial = Trial(parts_of(reward, each_turn=pay == "turn"), Paying())
    check(trial, [1.0, 2.0, 3.0])
    assert reward.overs.count(True) * N_TURNS == len(reward.overs)
    assert [talk.rewards for talk in trial.talk()] == [{"reward": 6.0}] * 2
    assert trial.stats.means["rollout/reward/reward"] == pytest.approx(6.0)


@pytest.mark.parametrize("pay", ["end", "turn"])
@pytest.mark.parametrize("kind", KINDS)
def test_any_reward_is_paid_at_the_end_or_by_turn(kind, pay):
    parts = parts_of(KINDS[kind], each_turn=pay == "turn", weight=0.5)
    check(Trial(parts, Paying()), [0.5] * 3 if pay == "turn" else [0.0, 0.0, 0.5])


def test_parts_of_a_composite_are_clipped_weighted_and_summed():
    rewards = {
        "partner": (PartnerReward(), {"clip": 20, "weight": 0.1}),
        "by_turn": (ByTurn(), {"clip": [0, 2], "weight": 10.0}),
        "one": (One(), {"pay": "turn"}),
        "batch": (OneOfBatch(), {"weight": 1000.0}),
    }
    check(Trial(parts_of(rewards), Paying()), [0.1 + 10 + 1, 1.0 + 20 + 1, 2.0 + 20 + 1 + 1000])


@pytest.mark.parametrize("n", [1, 2])
def test_changing_weight_is_no_part_of_a_conversations_reward(n):
    trial = Trial(parts_of(PartnerReward(), weight=Linear(0.5, 0.5, 2)), Paying())
    talks = Conversing(trial._make, None, trial.rewards)(trial.policy, SAMPLES[:n], [1, 2][:n])
    assert [(talk.total, talk.rewards) for talk in talks] == [(55.5, {"reward": 111.0})] * n


@pytest.mark.parametrize("where", ["worker", "main"])
def test_reward_that_fails_masks_the_conversation_or_stops(where):
    """In the first conversations of each environment only."""

    class Once(ByTurn):
        def __call__(self, dialogues, overs):
            found = super().__call__(dialogues, overs)
            if not hasattr(self, "failed") and any(overs):
                self.failed = True
                found[overs.index(True)][0] = float("nan")  # known only at the end, for a turn long ago
            return found

    parts = parts_of(Once()) if where == "main" else parts_of(fails)
    with pytest.raises(RewardError, match=r"nan|ZeroDivisionError"):
        Trial(parts, Paying()).collect()
    if where == "main":
        trial = Trial(parts_of(Once()), Paying(), "mask")
        assert all(earned == [1.0, 2.0, 3.0] for earned in trial.earned())
        assert trial.stats.n_masked == 1
    else:
        with pytest.raises(RewardError, match=r"first 100 episodes.*ZeroDivisionError: no reward"):
            Trial(parts, Paying(), "mask", max_turns=2).collect()


def by_seed(every):
    return Failing(PartnerReply(failed="the line is dead"), every=every)


def service_that(broken, **kwargs):
    rules = [{"pattern": "x", "replies": "w3"}]
    return lambda tokenizer: RulesService(rules, "w3", tokenizer=tokenizer, max_length=6, broken=broken, **kwargs)


class Dead:
    """Breaks some of the calls of a service."""

    def __init__(self, every=1):
        self._n, self._every = 0, every

    def __call__(self, found):
        self._n += 1
        if self._n % self._every == 0:
            raise ConnectionError("the line is dead")
        return found


@pytest.mark.parametrize("first", ["sample", "partner"])
@pytest.mark.parametrize("where", ["worker", "service"])
def test_partner_that_always_fails_stops_the_rollout(where, first, monkeypatch):
    monkeypatch.setattr(RulesService, "_answer", lambda self, prompt: [3, 25])
    partner = by_seed(1) if where == "worker" else service_that(Dead(), opening="w3")
    trial = Trial(parts_of(One()), partner, first_speaker=first)
    with pytest.raises(PartnerError, match=r"sample .*the line is dead"):
        trial.collect()
    trial = Trial(parts_of(One()), partner, "mask", first_speaker=first)
    with pytest.raises(PartnerError, match=r"100 of the first 100 .*partner_on_error: raise"):
        trial.collect()
    for talk in trial.talk():
        assert talk.partner_failed and "the line is dead" in str(talk.error) and not talk.replies


@pytest.mark.parametrize("first", ["sample", "partner"])
@pytest.mark.parametrize("where", ["worker", "service"])
def test_partner_that_fails_at_times_leaves_the_other_conversations(where, first, monkeypatch):
    monkeypatch.setattr(RulesService, "_answer", lambda self, prompt: [3, 25])
    partner = by_seed(3) if where == "worker" else service_that(Dead(7), opening="w3")
    trial = Trial(parts_of(One(), each_turn=True), partner, "mask", first_speaker=first)
    rows = trial.collect(60)
    assert trial.stats.n_masked > 0 and trial.stats.means["rollout/partner_failed"] > 0
    assert trial.stats.means["rollout/masked_rewards"] == trial.stats.n_masked
    n_rows = np.bincount(rows.episode.numpy())
    assert n_rows.tolist() == [N_TURNS] * len(trial.stats.episodes), "only whole conversations are trained on"
    assert all(episode["r"] == N_TURNS and episode["l"] >= N_TURNS for episode in trial.stats.episodes)


def test_no_environment_waits_in_a_conversation_that_its_partner_has_begun(monkeypatch):
    """A checkpoint holds only the start of a conversation, before the opening."""
    monkeypatch.setattr(RulesService, "_answer", lambda self, prompt: [3, 25])
    kwargs = {"first_speaker": "partner", "end_when": {"agent": ["w[1-5]"]}}  # conversations of unequal length
    trial = Trial(parts_of(One()), service_that(None, opening="w3"), **kwargs)
    for n_tokens in range(1, 60, 3):
        trial.collect(n_tokens)
        assert [view.env.speaker for view in trial.env.envs] == [PARTNER] * 2, n_tokens


def test_rewards_of_conversations_that_nobody_scores_are_unknown():
    trial = Trial([], Paying())
    talks = Conversing(trial._make)(trial.policy, SAMPLES, [1, 2])
    assert all(math.isnan(turn.reward) for talk in talks for turn in talk.dialogue.said if turn.speaker == AGENT)
    assert "conversation/return" not in ConversationMetric().compute([talk.dialogue for talk in talks])
