"""Replies that become whole conversations: in order, complete, and evaluated once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from rows import rows_of
from scripted import LAST_VALUE, Conversation, Rollout, ScriptedPolicy, roll_out

from rl4dialog.functional.replies import Replies
from rl4dialog.rollouts.collector import RolloutCollector
from rl4dialog.rollouts.conversations import Conversations, EndedConversation


class Joining(ScriptedPolicy):
    """Joins turns, though no prompt here continues another; notes which prompts it evaluates after how many batches."""

    joins_turns = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.evaluated: list[tuple[int, list[list[int]]]] = []

    def reference_log_probs(self, batch: Any) -> torch.Tensor:
        self.evaluated.append(
            (
                self.n_passes,
                sorted(ids[mask].tolist() for ids, mask in zip(batch.prompt_ids, batch.prompt_mask, strict=True)),
            )
        )
        return super().reference_log_probs(batch)


def turns(*lengths: int, **kwargs: Any) -> Conversation:
    return Conversation([[n + 1] * n for n in lengths], **kwargs)


SCRIPTS = [[turns(2), turns(2)], [turns(1, 2, 1), turns(1)], [turns(1, 1), turns(1)], [turns(1, 1, 1, 3, cut=True)]]


def stored(rollout: Rollout) -> list[dict[str, Any]]:
    return [
        {name: getattr(value, "tolist", lambda v=value: v)() for name, value in vars(row).items()}
        for row in rows_of(rollout.buffer)
    ]


@pytest.mark.parametrize("n_tokens", [2, 8])
def test_rows_are_the_same_whether_they_are_evaluated_at_once_or_at_the_end(n_tokens: int) -> None:
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


def test_each_conversation_is_evaluated_in_the_step_after_its_end() -> None:
    rollout = roll_out([[turns(2), turns(2)], [turns(1, 2, 1), turns(1)]], 2, policy_class=Joining, join_turns=True)
    policy: Any = rollout.policy
    assert policy.evaluated == [(2, [[1, 1, 1]]), (3, [[2, 1, 1], [2, 1, 2], [2, 1, 3]])]


@pytest.mark.parametrize("max_turns", [1, None])
def test_single_replies_are_evaluated_at_once_if_it_is_known_that_they_are(max_turns: int | None) -> None:
    collector = RolloutCollector(max_turns=max_turns)
    scripts = [[turns(2), turns(1), turns(1)], [turns(1), turns(2), turns(1)]]
    rollout = roll_out(scripts, 4, collector, policy_class=Joining, join_turns=True)
    policy: Any = rollout.policy
    first, second = ([[env, number, 1] for env in (1, 2)] for number in (1, 2))
    assert policy.evaluated == ([(1, first), (2, second)] if max_turns == 1 else [(2, first), (2, second)])


def test_replies_of_several_batches_are_put_in_the_order_of_their_conversations() -> None:
    policy: Any = ScriptedPolicy([])
    conversations = Conversations(policy, join=False)
    for batch in ([[5], [6, 6]], [[7, 7, 7]], [[8], [9]]):
        replies = Replies.from_ids([[1]] * len(batch), batch)
        conversations.add(replies)
    earned = [np.full(n, 0.1 * n, dtype=np.float32) for n in (1, 2, 3, 1, 1)]
    for episode, (numbers, last_value) in enumerate([([1, 2, 4], 0.5), ([0, 3], 0.0)]):
        cut = [number == 2 for number in numbers]
        conversations.end(
            EndedConversation(numbers, [earned[number] for number in numbers], cut, episode, 3, last_value)
        )
    rows = conversations.rows()
    assert [row.tolist() for row in rows.per_row("response_ids")] == [[6, 6], [7, 7, 7], [9], [5], [8]]
    assert rows.episode is not None and rows.episode.tolist() == [0, 0, 0, 1, 1]
    assert rows.group is not None and rows.group.tolist() == [3] * 5
    assert rows.last_value is not None and rows.last_value.tolist() == [0, 0, 0.5, 0, 0]
    assert rows.values is not None and rows.flat("values").tolist() == pytest.approx(
        [0.06, 0.06, 0.07, 0.07, 0.07, 0.09, 0.05, 0.08]
    )
    assert rows.flat("cut").tolist() == [0, 0, 1, 1, 1, 0, 0, 0]
    assert rows.flat("task_rewards").tolist() == pytest.approx([0.2, 0.2, 0.3, 0.3, 0.3, 0.1, 0.1, 0.1])
