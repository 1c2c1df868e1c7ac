"""The stages: the rule of PPO, by votes and reward model, and configs that keep what the run's config says."""

import pytest
from feedback_files import conversation_rating, correction, preference, rating, write_feedback
from run_files import write_json, write_lines
from runs import make_config

from rl4dialog.core.config import parse_config
from rl4dialog.core.errors import ConfigError, DataError, RunFolderError
from rl4dialog.features.feedback.improvement import Improvable, Verdict, Votes, read_verdict, read_votes, stage_configs
from rl4dialog.training.building.components import check_components

VOTES = Votes(frozenset(map(str, range(60))), n_corrections=2, n_ratings=0)
SUPERVISED = {
    "id": "supervised",
    "model_type": "causal",
    "model_name": "builtin/tiny-gpt2",
    "training_args": {"learning_rate": 1e-3},
    "generation_kwargs": {"do_sample": True, "max_new_tokens": 10},
}


def configs_of(tmp_path, config, votes=VOTES, with_ppo=True):
    checked = parse_config(config, "c.yml")
    found = stage_configs(Improvable(tmp_path / "run", checked, tmp_path / "out"), votes, with_ppo)
    for name, stage in found.items():
        check_components(parse_config(stage, name))
    return found


def test_run_with_rollouts_keeps_its_algorithm(tmp_path):
    config = make_config(tmp_path, alg__id="rloo", warm_start={"n_epochs": 1, "learning_rate": 2e-3})
    config["alg"]["args"]["n_generations"] = 2
    found = configs_of(tmp_path, config)
    assert list(found) == ["reward_model", "corrections", "policy", "comparison"]
    policy = found["policy"]
    assert policy["alg"]["id"] == "rloo" and policy["alg"]["args"]["n_generations"] == 2
    assert policy["alg"]["policy"]["args"]["model_name"] == str(tmp_path / "out" / "corrections" / "model")
    assert "warm_start" not in policy and "vocab_size" not in policy["tokenizer"]
    assert policy["train_evaluation"]["n_iters"] == 2 and "n_iters" not in found["comparison"]["train_evaluation"]
    assert found["corrections"]["alg"]["training_args"]["learning_rate"] == pytest.approx(2e-4)
    assert found["comparison"]["reward_fn"]["id"] == "rouge"


def test_supervised_run_gets_ppo_with_its_sampling(tmp_path):
    config = make_config(tmp_path, alg=SUPERVISED)
    del config["train_evaluation"]["n_iters"]
    policy = configs_of(tmp_path, config, Votes(VOTES.preferences, 0, 0))["policy"]
    assert policy["alg"]["id"] == "ppo" and policy["alg"]["args"]["n_steps"] * policy["env"]["n_envs"] == 3072
    args = policy["alg"]["policy"]["args"]
    assert args["model_name"] == str(tmp_path / "run" / "model")
    assert args["generation_kwargs"] == {"do_sample": True, "max_new_tokens": 10}

    config["alg"] = {**SUPERVISED, "generation_kwargs": {"max_new_tokens": 10}}  # a greedy run
    args = configs_of(tmp_path, config)["policy"]["alg"]["policy"]["args"]
    assert args["generation_kwargs"] == {"do_sample": True, "top_k": 0, "max_new_tokens": 10}


def test_corrections_are_mixed_with_old_data_and_all_are_learned(tmp_path):
    found = configs_of(tmp_path, make_config(tmp_path), with_ppo=False)
    assert list(found) == ["corrections", "comparison"]
    args = found["corrections"]["datapool"]["args"]
    assert [(pool["id"], pool["share"]) for pool in args["pools"]] == [("daily_dialog", 7), ("feedback", 1)]
    assert args["size"] == 2 * 10 * 8
    feedback = args["pools"][1]["args"]
    assert feedback["held_out_share"] == 0 and feedback["context_size"] == 2 and not feedback["in_conversation"]


def test_conversations_have_their_markup_and_pay_every_turn(tmp_path):
    config = make_config(tmp_path)
    config["env"]["args"] |= {"max_turns": 2, "partner_replies": ["hi"]}
    config["reward_fn"] = {"id": "outcome", "args": {"per_turn": 1.0}}
    config["train_evaluation"]["metrics"] = []
    found = configs_of(tmp_path, config)
    assert found["policy"]["reward_fn"]["pay"] == "turn"
    assert found["reward_model"]["datapool"]["args"]["start_utterances"] == 3
    assert found["corrections"]["datapool"]["args"]["pools"][1]["args"]["in_conversation"]


def test_few_votes_are_learned_in_more_epochs(tmp_path):
    votes = [Votes(frozenset(map(str, range(n))), 0, 0) for n in (60, 3000)]
    found = [configs_of(tmp_path, make_config(tmp_path), each)["reward_model"]["alg"] for each in votes]
    assert [each["training_args"]["num_train_epochs"] for each in found] == [25, 3]


def test_earlier_reward_model_is_replaced_as_metric(tmp_path):
    earlier = tmp_path / "earlier" / "model"
    earlier.mkdir(parents=True)
    (earlier / "reward_model.json").write_text("{}")
    metrics = [{"id": "length"}, {"id": "learned_reward", "args": {"model_name": str(earlier)}}]
    found = configs_of(tmp_path, make_config(tmp_path, train_evaluation__metrics=metrics))["comparison"]
    new = {"id": "learned_reward", "args": {"model_name": str(tmp_path / "out" / "reward_model")}}
    assert found["train_evaluation"]["metrics"] == [{"id": "length"}, new]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"alg": {"id": "bc", "policy": {"id": "causal_lm_actor_critic_policy", "args": {"model_name": "m"}}}}, "bc"),
        ({"datapool": {"id": "imdb", "args": {"path": "x"}}}, "'imdb' of .* has no dialogues"),
    ],
)
def test_runs_that_cannot_be_improved_are_refused(tmp_path, changes, message):
    with pytest.raises(ConfigError, match=message):
        configs_of(tmp_path, make_config(tmp_path, **changes))


def write_predictions(run, split, margins):
    run.mkdir(exist_ok=True)
    texts = {"split_name": split, "prompt_text": "x", "generated_text": "", "ref_text": ""}
    rows = [{**texts, "sample_id": id, "score": 0.0, "margin": margin} for id, margin in margins.items()]
    write_json(run / f"epoch_3_{split}_split_predictions.json", rows)
    write_lines(run / f"{split}_split_metrics.jsonl", [{"epoch": 3, "metrics": {}}])


def test_votes_are_choices_between_different_replies(tmp_path):
    given = [preference("a", "b", 0, id="1"), preference("c", "c", 0), correction("d", "e"), rating("f", 1)]
    votes = read_votes(write_feedback(tmp_path / "f.jsonl", given))
    assert votes == Votes(frozenset({"1"}), n_corrections=1, n_ratings=1, models={"m": 6})
    assert str(votes) == "1 preference, 1 correction, 1 rating" and not votes.are_enough

    given = [correction("d", "e"), conversation_rating("a", 1), conversation_rating("b", -1)]
    votes = read_votes(write_feedback(tmp_path / "g.jsonl", given))
    assert str(votes) == "0 preferences, 1 correction, 0 ratings (and 2 conversation ratings, not used here)"
    given = [preference("a", "b", 0, id="1"), preference("b", "a", 0, id="2")]  # the second one replaces the first
    assert read_votes(write_feedback(tmp_path / "h.jsonl", given)).preferences == {"2"}
    assert [Votes(frozenset(map(str, range(n))), 0, 0).are_enough for n in (49, 50)] == [False, True]
    with pytest.raises(DataError, match="has no feedback"):
        read_votes(write_feedback(tmp_path / "i.jsonl", []))


def test_verdict_counts_held_out_preferences_and_no_corrections(tmp_path):
    write_predictions(tmp_path / "run", "val", {"a": 1.0, "b": -1.0, "correction": 5.0})
    write_predictions(tmp_path / "run", "test", {"c": 0.0, "d": 0.1})
    (tmp_path / "run" / "config.json").write_text('{"seed": 0}')
    verdict = read_verdict(tmp_path / "run", Votes(frozenset("abcd"), 1, 0))
    assert verdict == Verdict(2.5, 4)
    assert str(verdict).startswith("2.5 of 4 held-out preferences right: 0.62 (95 % interval 0.2")

    (tmp_path / "run" / "epoch_3_test_split_predictions.json").unlink()
    with pytest.raises(RunFolderError, match="no predictions of split 'test'"):
        read_verdict(tmp_path / "run", Votes(frozenset("a"), 0, 0))


@pytest.mark.parametrize(("n_right", "n", "is_good"), [(14, 20, False), (15, 20, True), (4, 20, False), (0, 0, False)])
def test_interval_must_be_above_a_half(n_right, n, is_good):
    assert Verdict(n_right, n).is_good is is_good
