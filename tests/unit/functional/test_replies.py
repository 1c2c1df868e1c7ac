"""The batch of replies: padding, selecting, parting, and numbers of agent tokens."""

import numpy as np
import pytest
import torch
from rows import one_row

from rl4dialog.functional.replies import Replies, ReplySamples, joined_turns

PROMPTS = [[3], [4, 5, 6], [7, 8]]
RESPONSES = [[11, 12, 13, 14], [15], [16, 17]]


def rows_of_ids(replies):
    prompts = [ids[mask].tolist() for ids, mask in zip(replies.prompt_ids, replies.prompt_mask, strict=True)]
    return list(zip(prompts, [row.tolist() for row in replies.per_row("response_ids")], strict=True))


def batch():
    replies = Replies.from_ids(PROMPTS, RESPONSES)
    replies.values = replies.response_ids / 10
    replies.episode = torch.tensor([4, 9, 4])
    return replies


def test_prompts_are_padded_on_the_left_and_responses_on_the_right():
    replies = batch()
    assert replies.prompt_ids.tolist() == [[0, 0, 3], [4, 5, 6], [0, 7, 8]]
    assert replies.response_ids.tolist() == [[11, 12, 13, 14], [15, 0, 0, 0], [16, 17, 0, 0]]
    assert rows_of_ids(replies) == list(zip(PROMPTS, RESPONSES, strict=True))
    assert torch.equal(replies.token_mask, replies.response_mask) and len(replies) == 3 and replies.n_tokens == 7


def test_chosen_rows_have_no_columns_that_none_of_them_needs_and_are_put_together_again():
    whole = batch()
    parts = [whole[torch.tensor(rows)] for rows in ([2, 1], [0])]
    assert [part.prompt_ids.shape[1] for part in parts] == [3, 1]
    assert [part.response_ids.shape[1] for part in parts] == [2, 4]
    again = Replies.concatenate(parts)
    assert rows_of_ids(again) == [rows_of_ids(whole)[i] for i in (2, 1, 0)]
    torch.testing.assert_close(again.flat("values"), again.flat("response_ids") / 10)
    assert again.episode is not None and again.episode.tolist() == [4, 9, 4] and again.log_probs is None


def test_secrets_have_a_width_of_their_own():
    ids, mask = torch.tensor([[0, 0, 7], [0, 0, 0], [0, 5, 6]]), torch.tensor([[0, 0, 1], [0, 0, 0], [0, 1, 1]])
    whole = batch().with_secrets({"secret_ids": ids, "secret_mask": mask})
    parts = [whole[torch.tensor(rows)] for rows in ([2, 1], [0])]
    assert [part.secret_ids.shape[1] for part in parts] == [2, 1]
    again = Replies.from_observations(Replies.concatenate(parts)[torch.tensor([2, 1, 0])].to("cpu").observations)
    assert torch.equal(again.secret_ids, ids[:, 1:]) and torch.equal(again.secret_mask, mask[:, 1:].bool())
    read = again.behind_secrets()
    assert rows_of_ids(read) == [([7, 3], RESPONSES[0]), (PROMPTS[1], RESPONSES[1]), ([5, 6, 7, 8], RESPONSES[2])]
    assert read.prompt_mask.int().diff(dim=1).min() >= 0, "the mask has no holes"
    on_host, read = read.on_host, Replies(read.prompt_ids, read.prompt_mask, read.response_ids, read.response_mask)
    assert all(np.array_equal(one, other) for one, other in zip(on_host[:4], read.on_host[:4], strict=True))
    assert rows_of_ids(again) == rows_of_ids(whole), "what the policy reads is as before"


def test_numbers_of_agent_tokens_are_taken_out_and_put_back():
    replies = batch()
    assert replies.flat("response_ids").tolist() == [11, 12, 13, 14, 15, 16, 17]
    assert replies.scattered(replies.flat("response_ids")).tolist() == replies.response_ids.tolist()
    assert replies.row_episodes().tolist() == [0, 1, 0]
    assert replies.token_episodes().tolist() == [0, 0, 0, 0, 1, 0, 0]


def test_agent_tokens_need_not_be_all_that_is_real():
    """A row of two turns, with what a partner said between them."""
    replies = one_row([3], [11, 12, 20, 21, 13])
    replies.response_mask = torch.tensor([[True, True, False, False, True]])
    other = Replies.concatenate([replies, one_row([4, 5], [15] * 7)])[torch.tensor([0])]
    assert other.response_ids.tolist() == [[11, 12, 20, 21, 13]] and other.token_mask.all()
    assert other.flat("response_ids").tolist() == ReplySamples(other).actions.tolist() == [11, 12, 13]
    assert other.scattered(torch.tensor([1, 2, 3])).tolist() == [[1, 2, 0, 0, 3]]
    again = Replies.from_observations(other.observations)
    assert torch.equal(again.response_mask, other.response_mask) and again.token_mask.all()


def test_rows_of_several_turns_are_split_into_their_replies():
    replies = one_row([3], [11, 12, 20, 21, 13])
    replies.response_mask = torch.tensor([[True, True, False, False, True]])
    replies.turn = torch.tensor([[0, 0, 0, 0, 1]])
    replies = Replies.concatenate([replies, one_row([4], [15, 16], turn=1)])
    assert [reply.tolist() for reply in replies.per_reply("response_ids")] == [[11, 12], [13], [15, 16]]
    assert [reply.tolist() for reply in replies.per_row("response_ids")] == [[11, 12, 13], [15, 16]]
    replies.turn = None
    assert [reply.tolist() for reply in replies.per_reply("response_ids")] == [[11, 12, 13], [15, 16]]


@pytest.mark.parametrize("lockstep", [True, False])
def test_passes_over_parts_give_the_numbers_of_the_whole(monkeypatch, lockstep):
    monkeypatch.setattr("rl4dialog.functional.replies.FIXED_COST", {})
    sizes = []

    def numbers_of(part):
        sizes.append(len(part))
        return part.response_ids * 2.0

    replies = batch()
    assert replies.computed(numbers_of, lockstep).tolist() == (replies.response_ids * 2.0).tolist()
    assert sizes == ([3] if lockstep else [1, 2]), "two rows are of one length"


def test_observation_of_single_tokens_asks_for_the_next_one():
    obs = {
        "prompt_ids": torch.tensor([[0, 3], [4, 5]]),
        "prompt_mask": torch.tensor([[0, 1], [1, 1]]),
        "context_ids": torch.tensor([[6, 7], [0, 0]]),
        "context_mask": torch.tensor([[1, 1], [0, 0]]),
    }
    replies = Replies.from_observations(obs)
    assert replies.response_mask.tolist() == [[False, False, True], [True, False, False]]
    assert replies.token_mask.tolist() == [[True, True, True], [True, False, False]]
    assert replies.response_ids[0, :2].tolist() == [6, 7] and replies.n_tokens == 2


def test_observations_of_replies_are_read_back():
    replies = batch()
    again = Replies.from_observations(replies.observations)
    assert rows_of_ids(again) == rows_of_ids(replies) and again.values is None
    without = {name: tensor for name, tensor in replies.observations.items() if name != "token_mask"}
    assert torch.equal(Replies.from_observations(without).token_mask, replies.response_mask)


def test_samples_with_other_advantages_are_parted_with_them():
    samples = ReplySamples(batch()).with_numbers(advantages=torch.arange(7.0))
    assert samples.advantages.tolist() == list(range(7))
    parts = list(samples.split(2))
    assert [part.advantages.tolist() for part in parts] == [[0, 1, 2, 3, 4], [5, 6]]
    np.testing.assert_array_equal(parts[1].old_values, np.float32([1.6, 1.7]))


def test_row_has_the_value_after_its_last_turn_and_the_group_of_all():
    rows = [one_row([1], [2], turn=0, group=5), one_row([1, 2, 3], [4], turn=1, group=5)]
    rows[-1].last_value = torch.tensor([0.7])
    joined = joined_turns(Replies.concatenate(rows))
    assert joined.last_value is not None and joined.last_value.tolist() == pytest.approx([0.7])
    assert joined.group is not None and joined.group.tolist() == [5] and len(joined) == 1


def ids_of(replies):
    """Prompt, response, and agent tokens of each row."""
    r = replies
    rows = zip(r.prompt_ids, r.prompt_mask, r.response_ids, r.token_mask, r.response_mask, strict=True)
    return [
        (prompt[real].tolist(), response[mask].tolist(), response[own].tolist())
        for prompt, real, response, mask, own in rows
    ]


def conversations(seed):
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


@pytest.mark.parametrize("seed", range(8))
def test_rows_are_those_of_a_loop_over_turns(seed):
    replies, expected = conversations(seed)
    joined = joined_turns(replies)
    assert ids_of(joined) == expected
    for name in ("values", "turn", "response_ids"):
        torch.testing.assert_close(joined.flat(name), replies.flat(name), rtol=0, atol=0)
    np.testing.assert_array_equal(np.unique(joined.token_episodes()), np.unique(replies.token_episodes()))
    again = joined_turns(joined)
    assert ids_of(again) == expected and torch.equal(again.flat("values"), joined.flat("values"))


def test_padding_does_not_matter():
    replies, expected = conversations(3)
    generator = torch.Generator().manual_seed(0)
    noise = [torch.randint(1, 4, ids.shape, generator=generator) for ids in (replies.prompt_ids, replies.response_ids)]
    replies.prompt_ids = torch.where(replies.prompt_mask, replies.prompt_ids, noise[0])
    replies.response_ids = torch.where(replies.token_mask, replies.response_ids, noise[1])
    assert ids_of(joined_turns(replies)) == expected
