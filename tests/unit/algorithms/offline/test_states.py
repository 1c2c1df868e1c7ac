"""Numbers of whole turns, from those of their tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from rl4dialog.algorithms.offline.bc import MCReturns
from rl4dialog.algorithms.offline.states import TurnStates
from rl4dialog.functional.advantages import Turns
from tests.offline import make_learner, make_log, marked_tokenizer, whole_batch
from tests.tiny import make_gpt2


def test_a_turn_begins_with_its_first_token_and_is_discounted_after_its_last(tmp_path: Path) -> None:
    model = make_gpt2(marked_tokenizer())
    learner = make_learner(MCReturns, make_log(tmp_path, model), model, reranked=True)
    batch = whole_batch(learner)
    n = batch.n_tokens
    for name, start in (("rewards", 0), ("returns", 100), ("loss_weights", 200)):
        setattr(batch, name, batch.scattered(np.arange(start, start + n, dtype=np.float32)))
    states = TurnStates.of(learner.policy, batch, torch.arange(300.0, 300 + n))
    turns = Turns.of(batch)
    assert (turns.lengths > 1).any()
    for u, (first, last) in enumerate(zip(turns.first.tolist(), turns.last.tolist(), strict=True)):
        assert states.rewards[u] == sum(range(first, last + 1))
        assert states.returns[u] == 100 + first and states.weights[u] == 200 + first
        assert states.discounts[u] == 300 + last
