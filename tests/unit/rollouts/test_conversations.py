"""Replies that become whole conversations: in order, complete, and evaluated once."""

import numpy as np
import pytest
from rows import rows_of
from scripted import LAST_VALUE, Conversation, ScriptedPolicy, roll_out

from rl4dialog.functional.replies import Replies
from rl4dialog.rollouts.collector import RolloutCollector
from rl4dialog.rollouts.conversations import EndedConversation, EvaluatedRows, Groups, GroupSettings
from rl4dialog.rollouts.talk import Reply, replies_in


class Joining(ScriptedPolicy):
    """Joins turns, though no prompt here continues another; notes which prompts it evaluates after how many batches."""

    joins_turns = True

    def __init__(self, *args):
        super().__init__(*args)
        self.evaluated = []

    def reference_log_probs(self, batch):
        self.evaluated.append(
            (
                self.n_passes,
                sorted(ids[mask].tolist() for ids, mask in zip(batch.prompt_ids, batch.prompt_mask, strict=True)),
            )
        )
        return super().reference_log_probs(batch)


def turns(*lengths, **kwargs):
    return Conversation([[n + 1] * n for n in lengths], **kwargs)


SCRIPTS = [[turns(2), turns(2)], [turns(1, 2, 1), turns(1)], [turns(1, 1), turns(1)], [turns(1, 1, 1, 3, cut=True)]]


def stored(rollout):
    return [
        {name: getattr(value, "tolist", lambda v=value: v)() for name, value in vars(row).items()}
        for row in rows_of(rollout.buffer)
    ]


@pytest.mark.parametrize("n_tokens", [2, 8])
def test_rows_are_the_same_whether_they_are_evaluated_at_once_or_at_the_end(n_tokens):
    collector = RolloutCollector(bootstrap_truncated=True)
    found = [
        roll_out(
            [[*script, turns(1), turns(1)] for script in SCRIPTS],
            n_tokens,
            collector,
            policy_class=Joining,
            join_turns=join,
        )
        for join in (True, False)
    ]
    joined, separate = (sorted(stored(rollout), key=lambda row: row["prompt_ids"]) for rollout in found)
    assert joined == separate and LAST_VALUE in [row["last_value"] for row in joined]
    assert [row["episode"] for row in stored(found[0])] == sorted(row["episode"] for row in joined)


def test_each_conversation_is_evaluated_in_the_step_after_its_end():
    rollout = roll_out([[turns(2), turns(2)], [turns(1, 2, 1), turns(1)]], 2, policy_class=Joining, join_turns=True)
    policy = rollout.policy
    assert policy.evaluated == [(2, [[1, 1, 1]]), (3, [[2, 1, 1], [2, 1, 2], [2, 1, 3]])]


@pytest.mark.parametrize("max_turns", [1, None])
def test_single_replies_are_evaluated_at_once_if_it_is_known_that_they_are(max_turns):
    collector = RolloutCollector(max_turns=max_turns)
    scripts = [[turns(2), turns(1), turns(1)], [turns(1), turns(2), turns(1)]]
    rollout = roll_out(scripts, 4, collector, policy_class=Joining, join_turns=True)
    policy = rollout.policy
    first, second = ([[env, number, 1] for env in (1, 2)] for number in (1, 2))
    assert policy.evaluated == ([(1, first), (2, second)] if max_turns == 1 else [(2, first), (2, second)])


def test_replies_of_several_batches_are_put_in_the_order_of_their_conversations():
    policy = ScriptedPolicy([])
    conversations, said = EvaluatedRows(policy, join=False), list[Reply]()
    for batch in ([[5], [6, 6]], [[7, 7, 7]], [[8], [9]]):
        replies = conversations.add(Replies.from_ids([[1]] * len(batch), batch))
        assert replies is not None
        said += replies_in(replies)
    for reply in said:
        reply.rewards = np.full(reply.n_tokens, 0.1 * reply.n_tokens, dtype=np.float32)
    said[2].is_cut = True
    for episode, (numbers, last_value) in enumerate([([1, 2, 4], 0.5), ([0, 3], 0.0)]):
        conversations.end(EndedConversation([said[number] for number in numbers], episode, 3, last_value))
    rows = conversations.all()
    assert [row.tolist() for row in rows.per_row("response_ids")] == [[6, 6], [7, 7, 7], [9], [5], [8]]
    assert rows.episode is not None and rows.episode.tolist() == [0, 0, 0, 1, 1]
    assert rows.group is not None and rows.group.tolist() == [3] * 5
    assert rows.last_value is not None and rows.last_value.tolist() == [0, 0, 0.5, 0, 0]
    assert rows.values is not None and rows.flat("values").tolist() == pytest.approx(
        [0.06, 0.06, 0.07, 0.07, 0.07, 0.09, 0.05, 0.08]
    )
    assert rows.flat("cut").tolist() == [0, 0, 1, 1, 1, 0, 0, 0]
    assert rows.flat("task_rewards").tolist() == pytest.approx([0.2, 0.2, 0.3, 0.3, 0.3, 0.1, 0.1, 0.1])


SAME, DIFFERENT = [[5], [5]], [[5], [6]]


def ended(rewards, group=0):
    reply = Reply(n_tokens=len(rewards), rewards=np.array(rewards, dtype=np.float32))
    return EndedConversation([reply], group=group)


def rollout(groups, n_tokens, **settings):
    """Two environments that answer the same prompts with these replies, whose rewards are their ids."""
    scripts = [[Conversation([pair[env]]) for pair in groups] for env in range(2)]
    return roll_out(scripts, n_tokens, groups=GroupSettings(2, **settings))


def stored_ids(found):
    return [row.response_ids.tolist() for row in rows_of(found.buffer)]


@pytest.mark.parametrize(
    ("constant", "expected", "n_episodes"),
    [("keep", [5, 5, 5, 6], 4), ("drop", [5, 6], 4), ("resample", [5, 6, 5, 6], 8)],
)
def test_constant_groups_are_kept_or_dropped_or_replaced(constant, expected, n_episodes):
    found = rollout([SAME, DIFFERENT, SAME, DIFFERENT, DIFFERENT], 4, constant=constant)
    assert [id for (id,) in stored_ids(found)] == expected
    assert found.stats.n_tokens == len(expected) and len(found.stats.episodes) == n_episodes
    assert found.stats.means["rollout/constant_groups"] == 0.5
    assert found.stats.means.get("rollout/spoken_tokens", 4) == n_episodes
    # Rewards are those of all replies of the policy, also of those that are left out.
    assert found.stats.means["rollout/task_reward"] == pytest.approx(5.25)


def test_resampling_ends_with_a_warning(caplog):
    found = rollout([DIFFERENT, SAME, SAME, SAME, SAME, DIFFERENT], 3, constant="resample", max_resampling=2)
    assert stored_ids(found) == [[5], [6]]
    assert "3 of 4 groups had equal rewards: alg.args.max_resampling = 2 ends the rollout with 2 of 3 tokens" in (
        caplog.text
    )


@pytest.mark.parametrize("constant", ["drop", "resample"])
def test_rollout_of_constant_groups_only_is_kept(constant):
    found = rollout([SAME] * 8, 2, constant=constant, max_resampling=2)
    assert {tuple(reply) for reply in stored_ids(found)} == {(5,)}
    assert found.stats.means["rollout/constant_groups"] == 1


def test_group_without_two_rewards_is_constant():
    groups = Groups(GroupSettings(2, "drop"))
    assert groups.add(0, ended([1.0])) == [] and groups.add(0, None) == []
    assert groups.found_constant == [True] and len(groups.rest()) == 1


def test_rewards_that_differ_by_rounding_are_constant():
    groups = Groups(GroupSettings(2, "drop"))
    for rewards in ([0.1, 0.2, 0.3], [0.3, 0.2, 0.1]):
        assert groups.add(0, ended(rewards)) == []
    first, second = ended([1.0], 1), ended([1.5, 0.0], 1)
    assert groups.add(1, first) == [] and groups.add(1, second) == [first, second]
    assert groups.found_constant == [True, False] and groups.rest() == []
    assert groups.n_tokens == 6 + 3
