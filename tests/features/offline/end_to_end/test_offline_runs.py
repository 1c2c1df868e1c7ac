"""Offline runs from YAML: resumed bit for bit, loaded with their values, and refused with a reason."""

import json
import re

import pytest
from covering import quick
from runs import DENSE_REWARD, SHORT, contents, make_config, run_folder, train, trained_run, without_times

import rl4dialog
from rl4dialog import cli

OF_REPLIES = ("chai", "ilql_of_replies", "cql_of_replies", "mc_returns_of_replies")


def config_of(tmp_path, id="ilql", **overrides):
    plain, of_replies = id in ("bc", "filtered_bc", "decision_transformer"), id in OF_REPLIES
    policy_args = {"model_name": "builtin/tiny-llama", "generation_kwargs": {"max_new_tokens": 6}}
    if of_replies:
        policy_args["guidance"] = {"n_candidates": 3}
        policy_args["generation_kwargs"]["do_sample"] = True
    elif not plain and id != "awac":
        policy_args["guidance"] = {"beta": 2.0}
    kind = "causal_lm_actor_critic" if plain else "value_reranked_causal_lm" if of_replies else "value_guided_causal_lm"
    alg = {
        "id": id.removesuffix("_of_replies"),
        "args": {"n_steps": 256, "batch_size": 64, "learning_rate": 1e-3},
        "policy": {"id": f"{kind}_policy", "args": policy_args},
    }
    if id == "cql_of_replies":
        alg["args"] |= {"cql_weight": 0.0, "backup": "data"}
    if of_replies:
        of_turns = {"id": "regex", "args": {"pattern": "like .*e"}, "pay": "turn"}
        several_turns = {"datapool__args__samples": "dialogues", "env__args__max_prompt_length": 60}
        overrides = {"reward_fn": of_turns, **several_turns, **overrides}
    if id == "filtered_bc":
        alg["args"]["top_share"] = 0.5
    settings = {
        "alg": alg,
        "tokenizer__model_name": "builtin/tiny-llama",
        "reward_fn": {"id": "regex", "args": {"pattern": "e"}},
        "train_evaluation__max_eval_samples": 3,
    }
    return make_config(tmp_path, **{**settings, **overrides})


IDS = ["ilql", "cql", "mc_returns", "psi_learning", "awac", "bc", "filtered_bc", "decision_transformer", *OF_REPLIES]


@pytest.mark.parametrize("id", quick("ilql", "filtered_bc", "chai", of=IDS))
def test_run_is_resumed_bit_for_bit(id, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    n_iters = {"train_evaluation__n_iters": 2, "train_evaluation__save_every": 1}
    assert train(whole, config_of(whole, id, **n_iters)) == 0
    shorter = config_of(parts, id, **{**n_iters, "train_evaluation__n_iters": 1})
    assert train(parts, shorter) == 0
    assert train(parts, config_of(parts, id, **n_iters), "--resume") == 0
    found = [contents(run_folder(folder)) for folder in (whole, parts)]
    if id == "ilql":
        assert found[0]["rollout_info.jsonl"][0]["rollout/epoch"] % 1, "it is resumed in the middle of an epoch"
    if id == "filtered_bc":
        assert "filtered_bc: learns from " in (run_folder(whole) / "log.txt").read_text(encoding="utf-8")
    # The evaluation after the first run's end is of one more split.
    names = {name for name in found[0] if "epoch_1_test" not in name and "test_split" not in name}
    assert any(name.endswith("optimizer.safetensors") for name in names)
    for name in names:
        assert without_times(found[0][name]) == without_times(found[1][name]), name


def test_loaded_policy_reranks_like_the_one_that_was_trained(tmp_path):
    config = config_of(tmp_path, "ilql_of_replies", train_evaluation__n_iters=1, train_evaluation__save_every=1)
    final, last = (rl4dialog.load_policy(trained_run(tmp_path, config), checkpoint=each) for each in (None, "last"))
    prompts, replies = ["hello there <EOU>"], ["good morning"]
    for name in ("q_values", "advantages", "values", "log_probs"):
        assert getattr(final, name)(prompts, replies) == getattr(last, name)(prompts, replies)
    assert len(set(final.q_values(prompts, replies)[0])) == 1 and final.q_values(prompts, replies)[0][0] != 0
    for seed in range(3):
        assert (
            final.generate(prompts, seed=seed)
            == last.generate(prompts, seed=seed)
            == [final.chat("hello there", seed=seed)]
        )
    output = tmp_path / "evaluation"
    assert cli.main_of("evaluate", ["--run", str(run_folder(tmp_path)), "--output_path", str(output)]) == 0
    logged = json.loads((run_folder(tmp_path) / "test_split_metrics.jsonl").read_text().splitlines()[-1])["metrics"]
    found = json.loads((output / "metrics.json").read_text())["metrics"]
    assert found and all(logged[key] == value for key, value in found.items())


def test_changed_log_is_refused_on_resume(tmp_path, capsys):
    n_iters = {"train_evaluation__n_iters": 1, "train_evaluation__save_every": 1}
    (trained_run(tmp_path, config_of(tmp_path, **n_iters)) / "result.json").unlink()
    more = config_of(
        tmp_path, **{**n_iters, "train_evaluation__n_iters": 2}, reward_fn={"id": "meteor", "args": {"synonyms": False}}
    )
    assert train(tmp_path, more, "--resume") == 2
    assert "error: " in (printed := capsys.readouterr().err) and "Traceback" not in printed


GUIDANCE = "alg__policy__args__guidance"
GREEDY = {"alg__policy__args__generation_kwargs": {"max_new_tokens": 6}}
PLAIN = {"alg__policy__id": "causal_lm_actor_critic_policy", "alg__policy__args": {"model_name": "builtin/tiny-llama"}}
MIN_RETURN = "alg__args__min_return"
ERRORS = [
    ("ilql", {"alg__kl_div": {"coeff": 0.1}}, "the key 'kl_div' has no meaning with alg.id: ilql"),
    ("ilql", PLAIN, "alg.id: ilql, which needs a policy with values of tokens"),
    ("ilql", {"alg__args__tau": 1.0}, "alg.args.tau"),
    ("ilql", {"alg__args__gamma": 1.5}, "alg.args.gamma"),
    ("ilql", {"alg__args__polyak_rate": 2.0}, "alg.args.polyak_rate"),
    ("ilql", {"alg__args__batch_size": 1024}, "batch_size is 1024 agent tokens, but an iteration has only 256"),
    ("ilql", {"alg__args__cql_temperature": 2.0}, "no effect without alg.args.cql_weight"),
    ("ilql", {"alg__args__imitation_beta": 2.0}, "no effect without alg.args.imitation: exp or sign"),
    ("ilql", {"alg__args__imitation": "sign", "alg__args__imitation_beta": 2.0}, "a share of at most 1 with imitation"),
    ("ilql", {"alg__args__imitation": "exp", "alg__args__policy_weight": 0.0}, "because alg.args.policy_weight is 0"),
    ("ilql", {"alg__args__value_min": 1.0, "alg__args__value_max": -1.0}, "value_min is 1; it must be below value_max"),
    ("ilql_of_replies", {"alg__args__imitation": "exp"}, "imitation: exp weighs tokens, but values are of replies"),
    ("ilql", {GUIDANCE: {"bta": 2.0}}, "unknown key 'alg.policy.args.guidance.bta'; did you mean"),
    ("ilql", {GUIDANCE: {"prior": {"min_p": 1.5}}}, "guidance.prior.min_p"),
    ("ilql", {GUIDANCE: {"num_beams": 3}}, "num_beams has a meaning only with"),
    ("ilql", {"alg__policy__args__reference": "initial"}, "the reference is the language model itself"),
    ("ilql", {"alg__rewards": "reward_fn", "reward_fn": None}, "alg.rewards: reward_fn needs the key 'reward_fn'"),
    ("ilql", {"alg__rewards": "log"}, "have the return 0, so alg.id: ilql has nothing to learn from"),
    ("ilql", {"reward_fn": None}, "have the return 0, so alg.id: ilql has nothing to learn from"),
    ("ilql_of_replies", GREEDY, "n_candidates is 3, but evaluations decode greedily"),
    ("ilql_of_replies", {"alg__args__cql_weight": 0.1}, "alg.args.cql_weight: the penalty is a sum over all actions"),
    ("ilql_of_replies", {"alg__args__discount_per": "token"}, "discount_per: token has no meaning with values"),
    ("cql_of_replies", {"alg__args__backup": "max"}, "alg.args.backup: max is a maximum over all actions"),
    ("chai", {"alg__args__policy_weight": 1.0}, "policy_weight has no effect, because chai trains no language model"),
    ("chai", {"alg__args__v_weight": 1.0}, "v_weight has no effect, because this algorithm learns no V"),
    ("chai", {"alg__policy__id": "value_guided_causal_lm_policy"}, "value_reranked_causal_lm_policy"),
    ("chai", {GUIDANCE: {"beta": 1.0}}, "unknown key 'alg.policy.args.guidance.beta'"),
    ("chai", {"alg__policy__args__train_prior": True}, "train_prior has no effect with alg.id: chai"),
    ("filtered_bc", {"alg__args__top_share": 0.001}, "conversations is none; raise it"),
    ("filtered_bc", {MIN_RETURN: 100.0, "alg__args__top_share": None}, "but the highest return of the log is"),
    ("filtered_bc", {MIN_RETURN: 0.1}, "needs one of alg.args.top_share and"),
    ("awac", {"alg__args__temperature": 0.0}, "alg.args.temperature"),
]


@pytest.mark.parametrize(("id", "changes", "message"), ERRORS, ids=[f"{id}: {said[:40]}" for id, _, said in ERRORS])
def test_mistake_is_one_paragraph(id, changes, message, tmp_path, capsys):
    assert train(tmp_path, config_of(tmp_path, id, train_evaluation__score_predictions=False, **changes)) == 2
    printed = " ".join(capsys.readouterr().err.split())
    assert message in printed and "Traceback" not in printed


def test_dry_run_shows_the_log_and_the_heads(tmp_path, capsys):
    assert train(tmp_path, config_of(tmp_path), "--dry_run") == 0
    printed = capsys.readouterr().out
    for row in ("logged conversations", "passes over the log", "parameters of the Q heads"):
        assert row in printed


def test_log_of_a_ppo_run_is_learned_with_its_own_tokens(tmp_path):
    ppo, offline = tmp_path / "ppo", tmp_path / "offline"
    reward = {"reward_fn": DENSE_REWARD, "logging": {"conversations": True}}
    run = trained_run(ppo, make_config(ppo, **SHORT, **reward))
    config = config_of(offline, "ilql", train_evaluation__n_iters=1)
    config["tokenizer"] = {"model_name": str(run / "model")}
    config["alg"]["policy"]["args"]["model_name"] = str(run / "model")
    log = str(run / "conversations.jsonl.gz")
    config["datapool"] = {"id": "conversations", "args": {"path": {"train": log}, "held_out_share": 0.2}}
    text = (trained_run(offline, config) / "log.txt").read_text()
    counts = re.search(r"log: (\d+) conversations, (\d+) replies, (\d+) replies with logged token ids", text)
    assert counts is not None and counts[1] == counts[2] == counts[3]
    assert "rewards: from the log" in text
