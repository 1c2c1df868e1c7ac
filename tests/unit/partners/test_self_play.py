"""The agent as its own partner: who answers, which copies are kept, and that the agent is not disturbed."""

import numpy as np
import pytest
import torch
from conversing import MARKER, conversation_env
from tiny import make_gpt2, make_policy, make_t5, make_tokenizer

from rl4dialog.core.errors import ConfigError
from rl4dialog.data.dialogue_format import DialogueFormat
from rl4dialog.envs.conversation import OutsidePartner
from rl4dialog.partners.self_play import SelfPlayPartner
from rl4dialog.rollouts.conversing import partner_answers
from rl4dialog.text.end_of_turn import EndOfTurn

TOKENIZER = make_tokenizer(marker=MARKER)
END = EndOfTurn(TOKENIZER, [0], MARKER)
SIDE = OutsidePartner(DialogueFormat("eou", None, in_conversation=True), END, len(TOKENIZER), 12, 5)
PROMPTS = {
    "prompt_ids": np.array([[1, 3, 4], [4, 5, 3], [3, 3, 6], [5, 4, 3]]),
    "prompt_mask": np.array([[0, 1, 1], [1, 1, 1], [1, 1, 1], [1, 1, 1]]),
}
GREEDY = {"do_sample": False}
LORA = {"r": 2, "target_modules": ["c_attn"]}


def policy_of(model=None, **kwargs):
    return make_policy(conversation_env(TOKENIZER), model or make_gpt2(TOKENIZER), **kwargs)


def partner_of(policy, **kwargs):
    partner = SelfPlayPartner(SIDE, **{"generation_kwargs": GREEDY, **kwargs})
    partner.begin_run(policy)
    return partner


def train(policy, seed):
    """Change the weights as an optimizer does: in place."""
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.actor_parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=random)


def answers(partner, seeds=(0, 0, 0, 0)):
    found, problems = partner_answers(partner, {**PROMPTS, "partner_seed": np.array(seeds)})
    assert not problems
    return found


def said_by(policy):
    """What a policy says on its own."""
    obs = {name: torch.as_tensor(array) for name, array in PROMPTS.items()}
    ids = policy.generate(obs, **GREEDY, max_new_tokens=5).per_row("response_ids")
    return [each.tolist() for each in ids]


def weights_of(policy):
    return [p.detach().clone() for p in policy.language_model.parameters()]


@pytest.mark.parametrize("kind", [make_gpt2, make_t5])
def test_present_policy_answers_with_its_present_weights(kind):
    policy = policy_of(kind(TOKENIZER))
    partner = partner_of(policy)
    before = answers(partner)
    assert before == said_by(policy)
    train(policy, 1)
    assert answers(partner) == said_by(policy) != before


@pytest.mark.parametrize(
    "settings", [{}, {"reference": "none"}, {"offload_reference": True}, {"lora": LORA}, {"critic": "shared"}]
)
def test_frozen_beginning_does_not_change_when_the_policy_trains(settings):
    policy = policy_of(**settings)
    frozen, pool = partner_of(policy, is_frozen=True), partner_of(policy, snapshot_every=1)
    before = answers(frozen)
    train(policy, 1)
    trained = weights_of(policy)
    assert answers(frozen) == answers(pool) == before != answers(partner_of(policy))
    assert all(map(torch.equal, trained, weights_of(policy)))


def test_reference_holds_the_frozen_beginning_without_a_copy():
    policy = policy_of()
    held, reference = policy.initial_weights().tensors(), dict(policy._reference_model.named_parameters())
    assert held and all(held[name] is reference[name] for name in held)
    assert policy.initial_weights() is policy.initial_weights()
    assert set(policy_of(lora=LORA).initial_weights().tensors()) == {
        name for name, p in policy_of(lora=LORA).language_model.named_parameters() if p.requires_grad
    }


@pytest.mark.parametrize("settings", [{}, {"lora": LORA}])
def test_copies_are_the_policy_at_the_beginning_of_an_iteration(settings):
    policy = policy_of(**settings)
    partner = partner_of(policy, snapshot_every=2, pool_size=3, latest_share=1.0)
    expected = {1: said_by(policy)}
    for iteration in range(2, 6):
        train(policy, iteration)
        partner.begin_iteration(iteration)
        expected[iteration] = said_by(policy)
        newest = iteration if iteration % 2 else iteration - 1
        assert answers(partner) == expected[newest], iteration
        assert set(partner.logged()["rollout/opponent_age"]) == {iteration - newest}
    assert partner.state_dict()["copies"] == [1, 3, 5] and partner.logged()["rollout/opponents"] == [3.0]
    assert len({str(each) for each in expected.values()}) == 5


def test_full_pool_drops_any_copy_but_the_beginning_by_seed():
    kept = []
    for seed in (0, 0, 1, 2, 3):
        partner, history = partner_of(policy_of(), snapshot_every=1, pool_size=4, run_seed=seed), []
        for iteration in range(2, 9):
            partner.begin_iteration(iteration)
            copies = partner.state_dict()["copies"]
            assert copies[0] == 1 and copies[-1] == iteration and len(copies) == min(iteration, 4)
            history.append(copies)
        kept.append(history)
    assert kept[0] == kept[1] and len({str(history) for history in kept}) > 1


def test_opponent_of_a_conversation_depends_on_its_seed_only():
    policy = policy_of()
    partner = partner_of(policy, snapshot_every=1, pool_size=4, latest_share=0.5)
    for iteration in (2, 3, 4):
        train(policy, iteration)
        partner.begin_iteration(iteration)
    drawn = np.array([partner._drawn(seed) for seed in range(4000)])
    shares = np.bincount(drawn, minlength=4) / len(drawn)
    # The newest one is also among those that are drawn uniformly.
    np.testing.assert_allclose(shares, [0.125, 0.125, 0.125, 0.625], atol=0.025)
    seeds = [int(np.flatnonzero(drawn == i)[0]) for i in (2, 0, 3, 0)]
    alone = [answers(partner, [seed] * 4)[row] for row, seed in enumerate(seeds)]
    assert answers(partner, seeds) == alone
    ages = partner.logged()["rollout/opponent_age"]
    assert ages[-4:] == [1.0, 3.0, 0.0, 3.0]


def test_answering_leaves_prompts_and_random_state_of_the_agent_alone():
    policy = policy_of()
    partner = partner_of(policy, snapshot_every=1, pool_size=2, latest_share=0.5)
    train(policy, 1)
    partner.begin_iteration(2)
    obs = {name: torch.as_tensor(array) for name, array in PROMPTS.items()}
    with policy.remembering_prompts(), partner.remembering_prompts():
        policy.generate(obs, **GREEDY)
        cache = policy._prompt_cache
        rows, layers = dict(cache._rows), [tensor.clone() for layer in cache._layers for tensor in layer]
        state = torch.get_rng_state()
        first = answers(partner, range(4))
        assert answers(partner, range(4)) == first
        assert torch.equal(state, torch.get_rng_state())  # greedy answers draw nothing
        assert policy._prompt_cache is cache and cache._rows == rows
        assert all(map(torch.equal, layers, (tensor for layer in cache._layers for tensor in layer)))
        assert all(opponent.policy._prompt_cache is not cache for opponent in partner._opponents)
    assert policy._prompt_cache is None
    assert answers(partner, range(4)) == first


@pytest.mark.parametrize("settings", [{}, {"lora": LORA}])
def test_pool_is_restored_bitwise(settings):
    policies = []
    for _ in range(2):
        torch.manual_seed(0)
        policies.append(policy_of(**settings))
    policy, twin = policies
    partner = partner_of(policy, snapshot_every=1, pool_size=3, latest_share=0.3)
    for iteration in (2, 3, 4, 5):
        train(policy, iteration)
        partner.begin_iteration(iteration)
    state, tensors = partner.state_dict(), {name: each.clone() for name, each in partner.tensors().items()}
    assert {name.partition(".")[0] for name in tensors} == {str(each) for each in state["copies"][1:]}
    other = partner_of(twin, snapshot_every=1, pool_size=3, latest_share=0.3)
    other.load_state(state, tensors)
    assert other.state_dict() == state
    assert all(torch.equal(each, tensors[name]) for name, each in other.tensors().items())
    assert answers(other, range(4)) == answers(partner, range(4))
    assert other.logged() == partner.logged()


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"learns": "both", "snapshot_every": 3}, "remove snapshot_every"),
        ({"pool_size": 3}, "pool_size has no effect without snapshot_every"),
        ({"latest_share": 0.5}, "latest_share has no effect without snapshot_every"),
        ({"snapshot_every": 2, "pool_size": 1}, "has room only for the initial policy; use at least 2"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(kwargs, message):
    with pytest.raises(ConfigError, match=message):
        SelfPlayPartner(SIDE, **kwargs)
