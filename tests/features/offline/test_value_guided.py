"""Values of replies, and replies chosen by them."""

import pytest
import torch

from rl4dialog.core.errors import ConfigError
from rl4dialog.features.offline.policies.lagging_values import ActionValueHead, ActionValueHeads
from rl4dialog.features.offline.policies.value_guided import (
    Guidance,
    PriorFilter,
    Reranking,
    ValueRerankedCausalLMPolicy,
    _q_of_kept,
)
from rl4dialog.functional.masks import padded
from rl4dialog.functional.replies import Replies
from rl4dialog.policies.causal import CausalLMActorCriticPolicy
from tests.offline import make_guided, randomize
from tests.tiny import make_env, make_gpt2, make_policy, make_tokenizer, next_token


def test_value_of_chosen_actions_is_that_of_all_of_them():
    for width in (None, 5):
        head = ActionValueHead(4, 6, width, init_value=-2.0)
        hidden, ids = torch.randn(3, 4), torch.tensor([0, 5, 2])
        assert (head(hidden) == -2.0).all()
        torch.nn.init.normal_(head.output.weight)
        torch.testing.assert_close(head.at(hidden, ids), head(hidden)[torch.arange(3), ids])
        torch.testing.assert_close(head(hidden, ids), head(hidden)[:, ids])


def test_values_of_few_kept_tokens_are_those_among_all():
    heads, hidden = ActionValueHeads(4, None, 12, 2, 5, 0.0), torch.randn(3, 4)
    for head in heads.q:
        torch.nn.init.normal_(head.output.weight)
    all_values = heads.q_all(hidden).amin(dim=0)
    few, many = torch.zeros(3, 12, dtype=torch.bool), torch.ones(3, 12, dtype=torch.bool)
    few[0, 3] = few[1, 7] = few[2, 3] = True
    torch.testing.assert_close(_q_of_kept(heads, hidden, few)[few], all_values[few])
    for kept in (many, None):
        torch.testing.assert_close(_q_of_kept(heads, hidden, kept), all_values)


@pytest.mark.parametrize("prior", [{"min_p": 0.1}, {"top_k": 2}, {"top_p": 0.9}])
def test_filters_exclude_tokens_but_never_the_sampled_one(prior):
    logits, advantages = torch.tensor([[3.0, 2.0, 0.0, -5.0]]), torch.tensor([[0.0, 0.0, 9.0, 9.0]])
    guidance = Guidance.from_settings({"beta": 1.0, "prior": prior})
    kept = guidance.prior.kept(logits)
    assert guidance.logits(logits, advantages, 1.0, kept).isneginf().tolist() == [[False, False, True, True]]
    with_sampled = guidance.prior.kept(logits, torch.tensor([3]))
    assert with_sampled is not None and with_sampled.tolist() == [[True, True, False, True]]


def test_clip_limits_what_values_add():
    logits, advantages = torch.zeros(1, 3), torch.tensor([[-1.0, 1.0, 100.0]])
    guided = Guidance(beta=2.0, clip=3.0).logits(logits, advantages, 1.0)
    assert guided.tolist() == [[-2.0, 2.0, 3.0]]


def test_only_beta_0_without_filters_changes_nothing():
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
        ({"search": "beam"}, r"needs alg\.policy\.args\.guidance\.num_beams of at least 2"),
        ({"n_candidates": 4}, "n_candidates has a meaning only with"),
        ({"prior_weight": 0.0, "beta": 0.0}, "both 0"),
    ],
)
def test_mistakes_are_named(settings, message):
    with pytest.raises(ConfigError, match=message):
        Guidance.from_settings(settings)


OBS = {
    "prompt_ids": torch.tensor([[1, 1, 4, 5], [6, 7, 8, 9], [3, 3, 3, 4]]),
    "prompt_mask": torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1]]).bool(),
}
KINDS = [(critic, target) for critic in ("shared", "separate") for target in ("model", "heads")]


def make(n_candidates=8, critic="separate", seed=0, **args):
    env, model = make_env(make_tokenizer()), make_gpt2(make_tokenizer())
    policy = ValueRerankedCausalLMPolicy(
        env.observation_space,
        env.action_space,
        lambda _: 1e-3,
        model=model,
        end_of_turn=env.end_of_turn,
        critic=critic,
        **{"guidance": {"n_candidates": n_candidates}, **args},
    )
    randomize(policy, seed)
    return policy


def turn_values(policy, replies):
    heads, hidden = policy._guiding(replies)
    return policy.action_q(heads, hidden, replies).amin(dim=0)


@pytest.mark.parametrize("features", ["last", "mean"])
@pytest.mark.parametrize("share_prompts", [True, False])
def test_values_do_not_depend_on_padding_and_other_rows(features, share_prompts):
    policy = make(features=features, share_prompts=share_prompts)
    prompts = [[4, 5], [4, 5], [4, 5], [6, 7, 8]]
    responses = [[5, 6, 0], [9, 8, 7, 6, 0], [4, 0], [3]]
    together = turn_values(policy, Replies.from_ids(prompts, responses))
    for i, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        alone = turn_values(policy, Replies.from_ids([prompt], [response]))
        torch.testing.assert_close(together[i : i + 1], alone, rtol=1e-4, atol=1e-5)
        states = [
            next_token(policy.language_model, prompt, response[: n + 1])[1][None] for n in range(len(response))
        ]  # trunks are equal copies before training
        state = states[-1] if features == "last" else torch.cat(states).mean(dim=0, keepdim=True)
        expected = torch.stack([head(state)[0, 0] for head in policy._target_heads.q]).min()
        torch.testing.assert_close(alone[0], expected, rtol=1e-4, atol=1e-5)


def test_values_of_joined_turns_are_those_of_rows_of_their_own():
    policy = make()
    joined = Replies.from_ids([[4, 5]], [[6, 0, 7, 8, 9, 0]])
    joined.response_mask = torch.tensor([[True, True, False, False, True, True]])
    joined.turn = torch.tensor([[0, 0, 0, 0, 1, 1]])
    apart = Replies.from_ids([[4, 5], [4, 5, 6, 0, 7, 8]], [[6, 0], [9, 0]])
    torch.testing.assert_close(turn_values(policy, joined), turn_values(policy, apart), rtol=1e-4, atol=1e-5)
    with pytest.raises(ConfigError, match=r"unknown key 'alg.policy.args.guidance.beta'"):
        Reranking.from_settings({"beta": 2.0})
    for name in ("q_values", "advantages", "predict_sequence_values"):
        found, expected = getattr(policy, name)(joined), getattr(policy, name)(apart)
        torch.testing.assert_close(found[joined.response_mask], expected.flatten(), rtol=1e-4, atol=1e-5)
        assert found[0, 0] == found[0, 1] != found[0, 4] and found[0, 2] == 0


def test_one_candidate_is_a_sample_of_the_language_model_bit_for_bit():
    env = make_env(make_tokenizer())
    plain = make_policy(env, make_gpt2(make_tokenizer()), policy_class=CausalLMActorCriticPolicy, critic="none")
    found = []
    for policy in (plain, make(1)):
        torch.manual_seed(3)
        found.append(policy.generate(OBS))
    assert torch.equal(found[0].response_ids, found[1].response_ids)
    assert torch.equal(found[0].log_probs, found[1].log_probs)


@pytest.mark.parametrize("use", ["target", "online"])
@pytest.mark.parametrize("weight", [0.0, 0.5])
@torch.no_grad()
def test_reply_is_the_candidate_of_the_highest_rank(use, weight):
    policy = make(guidance={"n_candidates": 6, "log_prob_weight": weight, "use": use})
    torch.manual_seed(1)
    best = policy.generate(OBS)
    torch.manual_seed(1)
    many = policy.sample({name: each.repeat_interleave(6, dim=0) for name, each in OBS.items()})
    heads = policy.heads if use == "online" else policy._target_heads
    for prompt in range(3):
        ranks, texts = [], []
        for row in range(6 * prompt, 6 * prompt + 6):
            reply = many.response_ids[row][many.response_mask[row]].tolist()
            ids = OBS["prompt_ids"][prompt][OBS["prompt_mask"][prompt]].tolist()
            state = next_token(policy.language_model, ids, reply)[1][None]
            log_prob = sum(
                next_token(policy.language_model, ids, reply[:i])[0].log_softmax(-1)[id] for i, id in enumerate(reply)
            )
            ranks.append(float(torch.stack([head(state)[0, 0] for head in heads.q]).min() + weight * log_prob))
            texts.append(reply)
        chosen = texts[max(range(6), key=ranks.__getitem__)]
        assert best.response_ids[prompt][best.response_mask[prompt]].tolist() == chosen


def test_greedy_decoding_has_no_candidates():
    with pytest.raises(ConfigError, match="n_candidates is 8, but generation_kwargs gives the same reply"):
        make().generate(OBS, do_sample=False)


@pytest.mark.parametrize(("critic", "target"), KINDS)
def test_lagging_values_move_by_the_rate(critic, target):
    policy = make(critic=critic, target=target)
    with torch.no_grad():
        for parameter in (p for p in policy.parameters() if p.requires_grad):
            parameter.add_(1.0)
    before = {name: tensor.clone() for name, tensor in policy.states()["target"].items()}
    policy.update_targets(0.25)
    trained = dict(policy.heads.named_parameters())
    if critic == "shared":
        model = policy._trunk(policy.language_model)
        trained |= {f"trunk.{name}": parameter for name, parameter in model.named_parameters()}
    assert any("trunk" in name for name in before) == (target == "model")
    for name, tensor in policy.states()["target"].items():
        wanted = 0.75 * before[name] + 0.25 * trained[name.removeprefix("_target_heads.")]
        torch.testing.assert_close(tensor, wanted)


@pytest.mark.parametrize(
    "search", [{"search": "beam", "num_beams": 4}, {"search": "rerank", "n_candidates": 4}], ids=str
)
def test_guided_searches_find_only_tokens(search):
    tokenizer = make_tokenizer()
    n, model = len(tokenizer), make_gpt2(tokenizer)
    model.resize_token_embeddings(n + 5)
    env = make_env(tokenizer, vocab_size=n + 5)
    policy = make_guided(env, model, n, guidance={"beta": 1.0, **search})
    ids, mask = padded([[3, 4, 5], [6, 7], [8]], left=True)
    assert int(policy.generate({"prompt_ids": ids, "prompt_mask": mask}).response_ids.max()) < n
    q = policy.target_q_all(torch.randn(2, 32))
    assert float(q.amax()) > -1e3 > float(q[:, n:].max())
