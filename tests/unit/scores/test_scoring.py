"""Finished replies are scored by rewards of all kinds, whose values are checked."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from rl4dialog.core.errors import ConfigError, RewardError
from rl4dialog.core.protocols import BatchedRewardFunction, RewardFunction
from rl4dialog.core.reward_parts import FinishedReplies, RewardPart
from rl4dialog.rollouts.talk import Reply, Talk
from rl4dialog.rollouts.task_rewards import TaskRewards
from rl4dialog.scores.composite import Linear
from rl4dialog.scores.conversation import OutcomeReward, PartnerReward
from rl4dialog.scores.parts import as_parts
from rl4dialog.scores.scoring import Scorer, check_scores


@pytest.mark.parametrize("values", [[1, 2.0], (1, 2), np.array([1.0, 2.0]), torch.tensor([[1.0], [2.0]]), [[1], [2]]])
def test_scores_may_be_any_kind_of_sequence(values):
    assert check_scores(values, "r", ["a", "b"]) == [1.0, 2.0]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), None, "x"])
def test_bad_score_names_reward_value_and_sample_or_is_masked(bad):
    with pytest.raises(RewardError, match=r"reward 'r' returned .* for sample 'b'"):
        check_scores([1.0, bad], "r", ["a", "b"])
    masked = check_scores([1.0, bad], "r", ["a", "b"], on_error="mask")
    assert masked[0] == 1.0 and np.isnan(masked[1])


def test_scorer_names_the_sample_whose_reward_raised():
    def picky(prompt_text, gen_text, ref_texts, meta_info):
        return 1.0 / len(gen_text)

    parts = as_parts(picky, "picky")
    replies = FinishedReplies(["p", "q"], ["text", ""], [["r"], ["r"]], sample_ids=[10, 11])
    with pytest.raises(RewardError, match="'picky' failed on sample 11: ZeroDivisionError"):
        Scorer(parts).score(replies)
    scores = Scorer(parts, on_error="mask").score(replies)
    assert scores.total[0] == 0.25 and np.isnan(scores.total[1])


class PerToken(RewardFunction):
    """Is called in the workers, not here."""

    def __call__(self, *args, **kwargs):
        raise AssertionError


class Hundred(BatchedRewardFunction):
    """A hundred for every reply that is the last of its episode."""

    def __call__(self, prompt_texts, gen_texts, ref_texts, dones, meta_infos=None):
        return [100.0 * done for done in dones]


def test_reward_that_pays_nothing_or_for_failure_is_refused():
    with pytest.raises(ConfigError, match="all weights and per_turn are 0"):
        OutcomeReward({"success": 0.0})


@pytest.mark.parametrize("reward", [OutcomeReward(per_turn=1.0), PartnerReward()])
def test_reply_without_a_partner_does_not_earn_what_a_partner_pays(reward):
    replies = FinishedReplies(["p"], ["g"], [["r"]])
    with pytest.raises(RewardError, match=r"'mine' failed on sample 0: .*it comes from the partner of a conversation"):
        Scorer(as_parts(reward, "mine")).score(replies)
    assert np.isnan(Scorer(as_parts(reward), on_error="mask").score(replies).total).all()


def talk(*values, is_over=True, text="g"):
    """A conversation after an utterance with a token per value."""
    array = np.array(values, dtype=np.float32)
    texts = {"prompt_text": "p", "gen_text": text, "ref_texts": ["r"], "meta_info": {}, "sample_id": 7}
    return Talk(
        replies=[Reply(n_tokens=len(values))], info={"reward_parts": {"token": array}, **texts}, is_over=is_over
    )


def test_utterance_earns_its_tokens_clipped_and_weighted_and_whole_replies_on_the_last():
    parts = [
        RewardPart("token", Linear(1.0, 3.0, 3), PerToken(), clip=(-1.0, 1.0)),
        *[replace(part, weight=0.5) for part in as_parts(Hundred(), "reply")],
    ]
    scorer = Scorer(parts[1:])
    talks = [talk(0.5, -4.0), talk(2.0, 0.0, 0.25, is_over=False)]
    for iteration, weight in ((1, 1.0), (2, 2.0), (3, 3.0), (9, 3.0)):
        task_rewards = TaskRewards(parts, scorer.values)
        paid = task_rewards(talks, iteration)
        assert [each.per_token.tolist() for each in paid] == [
            [0.5 * weight, -weight + 50.0],
            [weight, 0.0, 0.25 * weight],
        ]
        assert [each.values for each in paid] == [{"token": -3.5, "reply": 100.0}, {"token": 2.25, "reply": 0.0}]
        assert task_rewards.weights(iteration) == {"token/weight": weight}


def test_terms_of_an_earlier_batch_are_not_those_of_a_failed_one():
    class WithTerms(BatchedRewardFunction):
        """Fails on replies ``bad``."""

        def __call__(self, prompt_texts, gen_texts, ref_texts, dones, meta_infos=None):
            if "bad" in gen_texts:
                raise ValueError
            self.last_parts = {"half": [0.5] * len(gen_texts)}
            return [1.0] * len(gen_texts)

    parts = as_parts(WithTerms(), "mine")
    task_rewards = TaskRewards(parts, Scorer(parts, on_error="mask").values)
    assert [each.values for each in task_rewards([talk(0.0)] * 2, 1)] == [{"mine": 1.0, "mine/half": 0.5}] * 2
    for failed in task_rewards([talk(0.0, text="bad")] * 4, 1):
        assert np.isnan(failed.per_token).all() and failed.values.keys() == {"mine"}
