"""Turns that are joined to rows: which ones, in which order, and with all numbers of their tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from rows import one_row, rows_of

from rl4dialog.functional.replies import Replies, joined_turns


def turn_rows(*rows: tuple[list[int], list[int]], episode: int = 0, **numbers: Any) -> list[Replies]:
    """A conversation's prompts and replies as rows; a token's value is its id, and its log-probability the negative."""
    return [
        one_row(prompt, reply, episode, turn=turn, values=reply, log_probs=[-id for id in reply], **numbers)
        for turn, (prompt, reply) in enumerate(rows)
    ]


def ids_of(replies: Replies) -> list[tuple[list[int], list[int], list[int]]]:
    """Prompt, response, and agent tokens of each row."""
    return [
        (prompt[prompt_mask].tolist(), response[mask].tolist(), response[own].tolist())
        for prompt, prompt_mask, response, mask, own in zip(
            replies.prompt_ids,
            replies.prompt_mask,
            replies.response_ids,
            replies.token_mask,
            replies.response_mask,
            strict=True,
        )
    ]


def test_turns_whose_prompts_continue_each_other_are_one_row() -> None:
    rows = turn_rows(([1, 2], [3, 4]), ([1, 2, 3, 4, 9, 8], [5]), ([1, 2, 3, 4, 9, 8, 5, 7], [6, 6, 6]))
    joined = joined_turns(Replies.concatenate(rows))
    assert ids_of(joined) == [([1, 2], [3, 4, 9, 8, 5, 7, 6, 6, 6], [3, 4, 5, 6, 6, 6])]
    assert joined.response_mask.tolist() == [[True, True, False, False, True, False, True, True, True]]
    (row,) = rows_of(joined)
    assert row.values.tolist() == [3, 4, 5, 6, 6, 6] and row.log_probs.tolist() == [-3, -4, -5, -6, -6, -6]
    assert row.turn.tolist() == [0, 0, 1, 2, 2, 2]


@pytest.mark.parametrize(
    "second",
    [
        [3, 4, 9],  # context was dropped
        [1, 2, 3, 9],  # the history omits the reply's last token
        [1, 2, 3, 5, 9],  # or has another one
        [1, 2, 3],  # or ends before it
        [0, 1, 2, 3, 4, 9],
    ],
)
def test_prompt_that_does_not_continue_the_row_begins_another(second: list[int]) -> None:
    rows = turn_rows(([1, 2], [3, 4]), (second, [5]), ([*second, 5, 9], [6]))
    joined = joined_turns(Replies.concatenate(rows))
    assert ids_of(joined) == [([1, 2], [3, 4], [3, 4]), (second, [5, 9, 6], [5, 6])]
    assert joined.flat("turn").tolist() == [0, 0, 1, 2]


def test_partner_that_says_nothing_leaves_no_gap() -> None:
    rows = turn_rows(([1, 2], [3, 4]), ([1, 2, 3, 4], [5]))
    assert ids_of(joined_turns(Replies.concatenate(rows))) == [([1, 2], [3, 4, 5], [3, 4, 5])]


def test_conversations_are_not_joined_to_each_other() -> None:
    rows = [*turn_rows(([1], [2]), episode=3), *turn_rows(([1, 2, 3], [4]), episode=8)]
    joined = joined_turns(Replies.concatenate(rows))
    assert ids_of(joined) == [([1], [2], [2]), ([1, 2, 3], [4], [4])]
    assert joined.episode is not None and joined.episode.tolist() == [3, 8]


def test_row_has_the_value_after_its_last_turn_and_the_group_of_all() -> None:
    rows = turn_rows(([1], [2]), ([1, 2, 3], [4]), group=5)
    rows[-1].last_value = torch.tensor([0.7])
    joined = joined_turns(Replies.concatenate(rows))
    assert joined.last_value is not None and joined.last_value.tolist() == pytest.approx([0.7])
    assert joined.group is not None and joined.group.tolist() == [5] and len(joined) == 1


def conversations(seed: int) -> tuple[Replies, list[tuple[list[int], list[int], list[int]]]]:
    """Random conversations, some of whose turns lost context, and their rows as a loop builds them."""
    rng = np.random.default_rng(seed)
    rows, expected = [], []
    for episode in range(5):
        prompt = rng.integers(1, 4, size=rng.integers(1, 4)).tolist()
        is_new = True
        for turn in range(rng.integers(1, 7)):
            reply = rng.integers(1, 4, size=rng.integers(1, 5)).tolist()
            rows.append(one_row(prompt, reply, episode, turn=turn, values=rng.normal(size=len(reply))))
            if is_new:
                expected.append((prompt, reply, reply))
            else:
                first, _, own = expected[-1]
                expected[-1] = (first, (prompt + reply)[len(first) :], own + reply)
            whole = prompt + reply
            prompt = whole + rng.integers(1, 4, size=rng.integers(0, 3)).tolist()
            if rng.random() < 0.3:
                prompt = prompt[1:] or [1]
            is_new = prompt[: len(whole)] != whole
    return Replies.concatenate(rows), expected


@pytest.mark.parametrize("seed", range(20))
def test_rows_are_those_of_a_loop_over_turns(seed: int) -> None:
    replies, expected = conversations(seed)
    joined = joined_turns(replies)
    assert ids_of(joined) == expected
    for name in ("values", "turn", "response_ids"):
        torch.testing.assert_close(joined.flat(name), replies.flat(name), rtol=0, atol=0)
    np.testing.assert_array_equal(np.unique(joined.token_episodes()), np.unique(replies.token_episodes()))
    assert [reply.tolist() for reply in joined.per_reply("values")] == [
        reply.tolist() for reply in replies.per_row("values")
    ]
    again = joined_turns(joined)
    assert ids_of(again) == expected and torch.equal(again.flat("values"), joined.flat("values"))


def test_padding_does_not_matter() -> None:
    replies, expected = conversations(3)
    generator = torch.Generator().manual_seed(0)
    noise = [torch.randint(1, 4, ids.shape, generator=generator) for ids in (replies.prompt_ids, replies.response_ids)]
    replies.prompt_ids = torch.where(replies.prompt_mask, replies.prompt_ids, noise[0])
    replies.response_ids = torch.where(replies.token_mask, replies.response_ids, noise[1])
    assert ids_of(joined_turns(replies)) == expected
