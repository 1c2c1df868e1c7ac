"""Self-play is a conversation with a language model of the same weights, and its partner's tokens are never trained."""

import json

import pytest
import torch
from collected import collect
from conversing import MARKER, algorithm_on_conversations
from covering import quick
from runs import complete_run, contents, keep_registries, make_config, run_folder, train, trained_run
from tiny import make_gpt2, make_tokenizer

from rl4dialog import cli
from rl4dialog.algorithms.on_policy.ppo import PPO
from rl4dialog.core.config import OnPolicyConfig, parse_config
from rl4dialog.core.types import AGENT
from rl4dialog.data.dialogue_format import DialogueFormat
from rl4dialog.envs.conversation import OutsidePartner
from rl4dialog.partners.self_play import SelfPlayPartner
from rl4dialog.rollouts.collector import RolloutCollector
from rl4dialog.text.end_of_turn import EndOfTurn
from rl4dialog.training.assembly import Assembly
from rl4dialog.training.building.policy import all_arguments
from rl4dialog.training.memory import predict_memory

KINDS = {"causal": "builtin/tiny-gpt2", "seq2seq": "builtin/tiny-t5"}


def config_of(folder, partner, **overrides):
    """An iteration of conversations of up to three turns, with evaluations before and after it."""
    settings = {
        "reward_fn": {"id": "length_penalty", "args": {"max_length": 1}, "pay": "turn"},
        "env__n_envs": 4,
        "env__args__max_prompt_length": 60,
        "env__args__max_episode_length": 8,
        "env__args__max_partner_length": 8,
        "env__args__max_turns": 3,
        "env__args__partner": partner,
        "train_evaluation__n_iters": 1,
        "train_evaluation__metrics": [{"id": "conversation"}],
        "train_evaluation__max_eval_samples": 3,
        "train_evaluation__save_every": 1,
        "logging__conversations": True,
        **overrides,
    }
    return make_config(folder, **settings)


@pytest.fixture(autouse=True)
def registries(monkeypatch):
    keep_registries(monkeypatch)


@pytest.fixture(scope="module", params=quick("causal", of=KINDS))
def kind_and_model(tmp_path_factory, request):
    """A saved tiny model."""
    folder = tmp_path_factory.mktemp("model")
    policy = {"id": f"{request.param}_lm_actor_critic_policy", "args": {"model_name": KINDS[request.param]}}
    config = make_config(folder, train_evaluation__n_iters=0, env__args__max_prompt_length=70, alg__policy=policy)
    with complete_run(folder, config):
        yield request.param, str(run_folder(folder) / "model")


def test_present_weights_talk_like_a_language_model_with_equal_weights(tmp_path, kind_and_model):
    """In the first iteration they are equal, and in evaluations, where the partner is the initial policy."""
    kind, model = kind_and_model
    sampling = {"do_sample": False} if kind == "seq2seq" else {"do_sample": True, "temperature": 0.9}
    policy = {
        "id": f"{kind}_lm_actor_critic_policy",
        "args": {"model_name": model, "generation_kwargs": {"do_sample": True}},
    }
    args = {"model_name": model, "architecture": kind, "generation_kwargs": sampling}
    partners = [{"id": "language_model", "args": args}, {"id": "self_play", "args": {"generation_kwargs": sampling}}]
    folders = tmp_path / "frozen", tmp_path / "itself"
    for folder, partner in zip(folders, partners, strict=True):
        config = config_of(folder, partner, alg__policy=policy, tokenizer={"model_name": model}, seed=3)
        assert train(folder, config) == 0
    a, b = (contents(run_folder(folder)) for folder in folders)
    assert a.keys() == b.keys() and "conversations.jsonl.gz" in a
    assert [name for name in a if a[name] != b[name] and not name.endswith("state.json")] == []
    said = [turn["text"] for name in b if name.endswith("predictions.json") for r in b[name] for turn in r["turns"]]
    assert len(set(said)) > 5


def test_evaluation_of_a_finished_run_has_the_frozen_beginning_as_partner(tmp_path):
    config = config_of(tmp_path, {"id": "self_play"}, alg__args__learning_rate=0.01)
    folder = trained_run(tmp_path, config)
    assert cli.main(["evaluate", "--run", str(folder), "--output_path", str(tmp_path / "found")]) == 0
    found = json.loads((tmp_path / "found" / "predictions.json").read_text())
    before, after = (json.loads((folder / f"epoch_{i}_test_split_predictions.json").read_text()) for i in (0, 1))
    assert [record["turns"] for record in found] == [record["turns"] for record in after]
    assert [record["turns"] for record in found] != [record["turns"] for record in before]


def playing_itself(joins, learns="agent"):
    """An algorithm of self-play before its first rollout."""
    tokenizer, is_both = make_tokenizer(marker=MARKER), learns == "both"
    in_markers = DialogueFormat("eou", None, in_conversation=True)
    side = OutsidePartner(in_markers, EndOfTurn(tokenizer, [0], MARKER), len(tokenizer), 59, 5)
    partner = SelfPlayPartner(side, learns=learns)
    algorithm = algorithm_on_conversations(
        PPO,
        make_gpt2(tokenizer),
        env_kwargs={"partner": None, "outside_partner": side, "max_turns": 3, "shares_dialogues": is_both},
        collector=RolloutCollector(partner=partner, has_partner=True, keeps_dialogues=is_both),
        policy_kwargs={"critic": "shared", "share_prompts": False, "max_reply_length": 5},
        n_epochs=1,
        batch_size=10_000,
        join_turns=joins,
    )
    partner.begin_run(algorithm.policy)
    return algorithm


@pytest.mark.parametrize("joins", [True, False])
def test_no_gradient_reaches_the_tokens_of_the_other_side(joins):
    algorithm = playing_itself(joins)
    policy = algorithm.policy
    assert len(collect(algorithm)) > 0
    seen = []
    evaluate = policy.evaluate_actions

    def spy(obs, actions):
        seen.append(obs)
        return evaluate(obs, actions)

    def keep(module, args, output):
        output.last_hidden_state.retain_grad()
        seen.append(output.last_hidden_state)

    policy.evaluate_actions = spy
    policy.language_model.base_model.register_forward_hook(keep)
    algorithm.train()
    n_between = 0
    for obs, hidden in zip(seen[::2], seen[1::2], strict=True):
        mask, n_prompt = obs["response_mask"], obs["prompt_mask"].sum(dim=1)
        read = torch.zeros(hidden.shape[:2], dtype=torch.bool)
        rows, steps = mask.nonzero(as_tuple=True)
        read[rows, n_prompt[rows] - 1 + steps] = True  # the states that predict what the agent said
        norms = hidden.grad.norm(dim=2)
        assert (norms[read] > 0).all() and (norms[~read] == 0).all()
        last = mask.shape[1] - mask.flip(1).int().argmax(dim=1)
        n_between += int((last - mask.sum(dim=1)).sum())
    assert (n_between > 0) == joins  # tokens of the partner between two utterances of the agent


@pytest.mark.parametrize("joins", [True, False])
def test_both_sides_are_rows_with_equal_returns(joins):
    algorithm = playing_itself(joins, "both")
    replies, dialogues = collect(algorithm), algorithm.collector.dialogues
    assert replies.episode is not None and replies.task_rewards is not None and replies.group is not None
    episodes = replies.episode.unique().tolist()
    assert len(episodes) == 2 * len(dialogues)
    assert replies.log_probs is not None and (replies.log_probs[replies.response_mask] < 0).all()
    for i, dialogue in enumerate(dialogues):
        rows = [replies.episode == episode for episode in episodes[2 * i : 2 * i + 2]]
        mine, theirs = (replies.task_rewards[of_side][replies.response_mask[of_side]] for of_side in rows)
        torch.testing.assert_close(mine.sum(), theirs.sum())
        assert mine.abs().sum() > 0
        ids = [id for turn in dialogue.said if turn.speaker == AGENT for id in turn.ids or ()]
        assert replies.response_ids[rows[0]][replies.response_mask[rows[0]]].tolist() == ids
        assert replies.group[rows[0]].unique().tolist() != replies.group[rows[1]].unique().tolist()
        for of_side in rows:
            assert {*replies.turn[of_side][replies.response_mask[of_side]].tolist()} == {0, 1, 2}


@pytest.mark.parametrize("first_speaker", quick("partner", of=["sample", "partner"]))
def test_log_probs_of_both_sides_are_those_of_the_policy(tmp_path, first_speaker):
    """So the KL to the beginning is 0 on both sides."""
    partner = {"id": "self_play", "args": {"learns": "both"}}
    config = config_of(tmp_path, partner, env__args__first_speaker=first_speaker, env__args__max_turns=2)
    logged = json.loads((trained_run(tmp_path, config) / "rollout_info.jsonl").read_text().splitlines()[0])
    assert abs(logged["rollout/kl"]) < 1e-5


@pytest.mark.parametrize(
    ("args", "overrides", "message"),
    [
        ({"snapshot_every": 2}, {}, "remove snapshot_every"),
        ({"generation_kwargs": {"do_sample": True}}, {}, "both sides sample alike"),
        ({}, {"env__args__bootstrap_truncated": True}, "bootstrap_truncated"),
        ({}, {"alg__policy__id": "maskable_causal_lm_actor_critic_policy", "alg__id": "nlpo"}, "without the mask"),
    ],
)
def test_both_sides_learn_only_as_one_policy(tmp_path, args, overrides, message, refused):
    config = config_of(tmp_path, {"id": "self_play", "args": {"learns": "both", **args}}, **overrides)
    refused(train(tmp_path, config), message)


def test_plan_counts_the_copies(tmp_path):
    def frozen(partner, **changes):
        config = parse_config(config_of(tmp_path, partner, **changes), "test")
        assert isinstance(config, OnPolicyConfig)
        plan = predict_memory(config, Assembly(config).texts, all_arguments(config))
        return plan.frozen

    pool = {"id": "self_play", "args": {"snapshot_every": 2, "pool_size": 5}}
    shared, other = {"alg__policy__args__critic": "shared"}, {"id": "scripted", "args": {"replies": ["a", "b", "c"]}}
    alone = frozen(other, **shared)  # the reference
    assert frozen({"id": "self_play"}, **shared) == alone
    assert frozen(pool, **shared) == 5 * alone  # the reference is the initial policy
    none = {**shared, "alg__policy__args__reference": "none", "alg__kl_div__coeff": 0.0}
    assert frozen(other, **none) == 0
    assert frozen({"id": "self_play"}, **none) == alone and frozen(pool, **none) == 5 * alone
    moved = {**shared, "alg__policy__args__offload_reference": True}
    assert frozen({"id": "self_play"}, **moved) - frozen(other, **moved) == alone
    evaluated = {"train_evaluation__partner": other}
    assert frozen({"id": "self_play"}, **none, **evaluated) == 0
    lora = {**shared, "lora": {"r": 2, "target_modules": ["c_attn"]}}
    adapters = frozen({"id": "self_play"}, **lora) - frozen(other, **lora)
    assert 0 < adapters < alone / 20
    assert frozen(pool, **lora) - frozen(other, **lora) == 5 * adapters
