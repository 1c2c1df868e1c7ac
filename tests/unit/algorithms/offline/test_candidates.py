"""Sampled and drawn replies for CHAI."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl4dialog.algorithms.offline.chai import CHAI, CandidateCache, LoggedReplies, alternatives
from rl4dialog.core.errors import ConfigError
from rl4dialog.functional.advantages import Turns, turn_numbers, turn_replies, turn_states
from rl4dialog.functional.replies import Replies
from tests.offline import make_learner, make_log, marked_tokenizer
from tests.tiny import make_gpt2


def learner_of(folder: Path, **args: Any) -> Any:
    model = make_gpt2(marked_tokenizer())
    return make_learner(CHAI, make_log(folder, model), model, reranked=True, **args)


def test_candidates_are_generated_once_and_do_not_depend_on_the_order(tmp_path: Path) -> None:
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


def test_candidates_have_their_log_probabilities_in_their_states(tmp_path: Path) -> None:
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


def test_logged_replies_are_drawn_uniformly_from_the_kept_conversations(tmp_path: Path) -> None:
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


def test_alternatives_are_rows_state_by_state() -> None:
    rows = alternatives([[1], [2, 3]], [[[4], [5, 6]], [[7], [8]]], torch.device("cpu"))
    assert rows.prompt_ids.tolist() == [[0, 1], [0, 1], [2, 3], [2, 3]]
    assert [ids.tolist() for ids in rows.per_row("response_ids")] == [[4], [5, 6], [7], [8]]


def test_greedy_candidates_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="all candidates would be the same"):
        learner_of(tmp_path, policy={"generation_kwargs": {"do_sample": False}})
