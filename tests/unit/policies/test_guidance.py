from __future__ import annotations

from typing import Any

import pytest
import torch

from rl4dialog.core.errors import ConfigError
from rl4dialog.policies.heads import ActionValueHead, ActionValueHeads
from rl4dialog.policies.value_guided import Guidance, PriorFilter, _q_of_kept, guided_logits, kept_by_prior


def test_value_of_chosen_actions_is_that_of_all_of_them() -> None:
    for width in (None, 5):
        head = ActionValueHead(4, 6, width, init_value=-2.0)
        hidden, ids = torch.randn(3, 4), torch.tensor([0, 5, 2])
        assert (head(hidden) == -2.0).all()
        torch.nn.init.normal_(head.output.weight)
        torch.testing.assert_close(head.at(hidden, ids), head(hidden)[torch.arange(3), ids])
        torch.testing.assert_close(head(hidden, ids), head(hidden)[:, ids])


def test_heads_have_trained_parameters_of_their_own() -> None:
    heads = ActionValueHeads(4, None, 6, 2, 5)
    hidden, ids = torch.randn(3, 4), torch.tensor([0, 5, 2])
    assert heads.q_all(hidden).shape == (2, 3, 6) and heads.q_at(hidden, ids).shape == (2, 3)
    assert heads(hidden).shape == (3,)
    assert {id(p) for p in heads.trained_parameters()} == {id(p) for p in heads.parameters()}


def test_values_of_few_kept_tokens_are_those_among_all() -> None:
    heads, hidden = ActionValueHeads(4, None, 12, 2, 5), torch.randn(3, 4)
    for head in heads.q:
        torch.nn.init.normal_(head.output.weight)
    all_values = heads.q_all(hidden).amin(dim=0)
    few, many = torch.zeros(3, 12, dtype=torch.bool), torch.ones(3, 12, dtype=torch.bool)
    few[0, 3] = few[1, 7] = few[2, 3] = True
    torch.testing.assert_close(_q_of_kept(heads, hidden, few)[few], all_values[few])
    for kept in (many, None):
        torch.testing.assert_close(_q_of_kept(heads, hidden, kept), all_values)


def test_filters_exclude_tokens_but_never_the_sampled_one() -> None:
    logits, advantages = torch.tensor([[3.0, 2.0, 0.0, -5.0]]), torch.tensor([[0.0, 0.0, 9.0, 9.0]])
    guidance = Guidance.from_settings({"beta": 1.0, "prior": {"min_p": 0.1}})
    kept = kept_by_prior(logits, guidance)
    assert guided_logits(logits, advantages, guidance, 1.0, kept).isneginf().tolist() == [[False, False, True, True]]
    with_sampled = kept_by_prior(logits, guidance, torch.tensor([3]))
    assert with_sampled is not None and with_sampled.tolist() == [[True, True, False, True]]


def test_clip_limits_what_values_add() -> None:
    logits, advantages = torch.zeros(1, 3), torch.tensor([[-1.0, 1.0, 100.0]])
    guided = guided_logits(logits, advantages, Guidance(beta=2.0, clip=3.0), 1.0)
    assert guided.tolist() == [[-2.0, 2.0, 3.0]]


def test_only_beta_0_without_filters_changes_nothing() -> None:
    assert Guidance(beta=0.0).changes_nothing and Guidance(beta=0.0, search="rerank", n_candidates=4).changes_nothing
    assert not Guidance(beta=0.1).changes_nothing
    assert not Guidance(beta=0.0, prior_weight=0.5).changes_nothing
    assert not Guidance(beta=0.0, prior=PriorFilter(top_k=3)).changes_nothing


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beta": -1.0}, "guidance.beta"),
        ({"beta": float("inf")}, "guidance.beta"),
        ({"prior": {"top": 3}}, "unknown key 'alg.policy.args.guidance.prior.top'"),
        ({"prior": {"min_p": 1.0}}, "min_p"),
        ({"search": "bean"}, "guidance.search"),
        ({"search": "beam"}, "needs num_beams of at least 2"),
        ({"n_candidates": 4}, "n_candidates has a meaning only with"),
        ({"prior_weight": 0.0, "beta": 0.0}, "both 0"),
    ],
)
def test_mistakes_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Guidance.from_settings(settings)
