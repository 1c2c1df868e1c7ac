"""Which conversations filtered behaviour cloning keeps."""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rl4dialog.core.errors import ConfigError
from rl4dialog.features.offline.algorithms.bc import FilteredBC, MCReturns
from rl4dialog.features.offline.algorithms.chai import (
    CHAI,
    CandidateCache,
    LoggedReplies,
    turn_numbers,
    turn_replies,
    turn_states,
)
from rl4dialog.features.offline.algorithms.q_learning import States
from rl4dialog.functional.advantages import Turns
from rl4dialog.functional.replies import Replies
from tests.offline import make_learner, make_log, marked_tokenizer, whole_batch
from tests.tiny import make_gpt2


def test_a_turn_begins_with_its_first_token_and_is_discounted_after_its_last(tmp_path):
    model = make_gpt2(marked_tokenizer())
    learner = make_learner(MCReturns, make_log(tmp_path, model), model, reranked=True)
    batch = whole_batch(learner)
    n = batch.n_tokens
    for name, start in (("rewards", 0), ("returns", 100), ("loss_weights", 200)):
        setattr(batch, name, batch.scattered(np.arange(start, start + n, dtype=np.float32)))
    states = States.of(learner.policy, batch, torch.arange(300.0, 300 + n))
    turns = Turns.of(batch)
    assert (turns.lengths > 1).any()
    for u, (first, last) in enumerate(zip(turns.first.tolist(), turns.last.tolist(), strict=True)):
        assert states.rewards[u] == sum(range(first, last + 1))
        assert states.returns[u] == 100 + first and states.weights[u] == 200 + first
        assert states.discounts[u] == 300 + last


class Log:
    """A log, of which only the returns are read."""

    def __init__(self, returns):
        self.returns = np.asarray(returns, dtype=np.float32)

    def __len__(self):
        return len(self.returns)


def kept(returns, top_share=None, min_return=None):
    settings = SimpleNamespace(top_share=top_share, min_return=min_return)
    return FilteredBC.select(settings, Log(returns)).tolist()


@pytest.mark.parametrize(
    ("returns", "share", "expected"),
    [
        ([3.0, -1.0, 2.0, 5.0], 0.5, [0, 3]),
        ([3.0, -1.0, 2.0, 5.0], 0.25, [3]),
        ([1.0, 2.0, 2.0, 2.0], 0.5, [1, 2]),  # of equal ones, the first
    ],
)
def test_share_with_the_highest_returns_is_kept_in_order(returns, share, expected):
    assert kept(returns, share) == expected


def test_returns_from_the_lowest_one_on_are_kept(caplog):
    assert kept([3.0, -1.0, 2.0, 5.0], min_return=2.0) == [0, 2, 3] and not caplog.text
    assert kept([3.0, -1.0], min_return=-1.0) == [0, 1]
    assert "alg.args.min_return: -1 leaves out no conversation" in caplog.text
    with pytest.raises(ConfigError, match="min_return is 6, but the highest return of the log is 5; lower it"):
        kept([3.0, 5.0], min_return=6.0)


def test_only_what_is_kept_is_learned(tmp_path):
    model = make_gpt2(marked_tokenizer())
    learner = make_learner(FilteredBC, make_log(tmp_path, model), model, top_share=0.4)
    assert learner.kept.tolist() == [1, 2]  # with the returns 3.5 and 2
    learner._draw_batches()
    assert {int(number) for batch in learner._batches for number in batch} == {1, 2}
    assert learner.logger.name_to_value["rollout/logged_return"] == pytest.approx(2.75, abs=0.75)


def learner_of(folder, **args):
    model = make_gpt2(marked_tokenizer())
    return make_learner(CHAI, make_log(folder, model), model, reranked=True, **args)


def test_state_of_a_turn_is_all_that_was_read_before_it():
    replies = Replies.from_ids([[7], [8, 9]], [[1, 2, 3, 4], [5]])
    replies.response_mask = torch.tensor([[True, True, False, True], [True, False, False, False]])
    replies.turn = torch.tensor([[0, 0, 0, 1], [0, 0, 0, 0]])
    assert turn_states(replies, Turns.of(replies)) == [[7], [7, 1, 2, 3], [8, 9]]


def test_candidates_are_generated_once_and_do_not_depend_on_the_order(tmp_path):
    learner = learner_of(tmp_path)
    policy, calls, sample = learner.policy, [], learner.policy.sample
    policy.sample = lambda obs: calls.append(len(obs["prompt_ids"])) or sample(obs)
    groups = np.array([0, 1, 1, 0, 1])
    first, second = (CandidateCache(learner.log, groups, 3, seed=0) for _ in range(2))
    state = torch.get_rng_state()
    first.fill(policy, np.array([0]))
    assert sum(calls) == 3 * (2 + 3)  # conversations 0 and 3, and the state after 3, which was cut
    first.fill(policy, np.array([3, 0]))
    assert len(calls) == 1
    first.fill(policy, np.array([0, 4]))
    second.fill(policy, np.array([4]))
    second.fill(policy, np.array([3]))
    assert torch.equal(state, torch.get_rng_state())
    batch = learner.log.replies(np.arange(5))
    numbers = turn_numbers(batch, Turns.of(batch))
    for number in numbers:
        assert first[number] == second[number]
    assert len({tuple(ids) for number in numbers for ids in first[number].replies}) > len(numbers)


def test_candidates_have_their_log_probabilities_in_their_states(tmp_path):
    learner = learner_of(tmp_path, policy={"generation_kwargs": {"top_k": 3}})
    cache = CandidateCache(learner.log, np.zeros(5, dtype=np.int64), 2, seed=0)
    cache.fill(learner.policy, np.array([0]))
    batch = learner.log.replies(np.arange(5))
    turns = Turns.of(batch)
    for number, state in zip(turn_numbers(batch, turns), turn_states(batch, turns), strict=True):
        for ids, log_prob in zip(cache[number].replies, cache[number].log_probs, strict=True):
            replies = Replies.from_ids([state], [ids])
            logits = learner.policy.model_logits(learner.policy.policy_hidden(replies).tokens)
            kept = logits.topk(3, dim=1)  # the sampler's distribution
            for step, id in enumerate(ids):
                assert id in kept.indices[step]
            expected = sum(float(logits[step, id] - kept.values[step].logsumexp(0)) for step, id in enumerate(ids))
            assert log_prob == pytest.approx(expected, rel=1e-3, abs=1e-3)


def test_logged_replies_are_drawn_uniformly_from_the_kept_conversations(tmp_path):
    learner = learner_of(tmp_path)
    assert learner.log.n_replies.tolist() == [2, 2, 1, 2, 1][: len(learner.log)]
    logged = LoggedReplies(learner.log, np.array([0, 3]))
    assert len(logged) == 4
    drawn = Counter(tuple(ids) for ids in logged.draw(4000, np.random.default_rng(0)))
    batch = learner.log.replies(np.array([0, 3]))
    turns = Turns.of(batch)
    replies = [tuple(ids) for ids in turn_replies(batch, turns)][:4]
    assert drawn.keys() == set(replies)
    for reply in replies:
        assert drawn[reply] == pytest.approx(1000, abs=120)


def test_greedy_candidates_are_an_error(tmp_path):
    with pytest.raises(ConfigError, match="all candidates would be the same"):
        learner_of(tmp_path, policy={"generation_kwargs": {"do_sample": False}})
