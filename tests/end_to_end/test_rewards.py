"""Whole runs with rewards of many parts: weights that change, clipping, a judge that answers late or not at all."""

import math

import pytest
from judges import KEY, Endpoint, said, save_judge
from runs import SHORT, lines, make_config, run_folder, train

JUDGE = """
import asyncio
from rl4dialog import RewardFunctionRegistry

@RewardFunctionRegistry.register('judge')
async def judge(prompt_text, gen_text, ref_texts, meta_info):
    await asyncio.sleep(0.001)
    return {answer}
"""
REWARDS = [
    {
        "id": "rouge",
        "args": {"shaping": "every_token"},
        "weight": {"schedule": "linear", "start": 1.0, "end": 0.0, "n_iters": 3},
    },
    {"id": "length_penalty", "args": {"max_length": 0, "per_word": 1.0}, "clip": [-1, 0], "weight": 0.5},
    {"id": "missing_eos_penalty"},
    {"id": "judge", "weight": {"schedule": "piecewise", "values": [[1, 1.0], [3, 10.0]]}},
]


def config_with_judge(tmp_path, answer, rewards=REWARDS, **keys):
    (tmp_path / "mine.py").write_text(JUDGE.format(answer=answer), encoding="utf-8")
    reward_fn = {"id": "composite", "args": {"rewards": rewards}, "async_calls": {"retries": 0}, **keys}
    return make_config(tmp_path, **SHORT, imports=["./mine.py"], reward_fn=reward_fn)


def logged(tmp_path, name="rollout_info.jsonl"):
    return lines(run_folder(tmp_path) / name)


@pytest.mark.parametrize("vec_env", ["dummy", pytest.param("blocks", marks=pytest.mark.long)])
def test_scheduled_clipped_and_awaited_parts_add_up_in_every_iteration(tmp_path, vec_env):
    config = config_with_judge(tmp_path, "2.0 * bool(gen_text)")
    config["env"]["vec_env"] = vec_env
    config["train_evaluation"] |= {"n_iters": 3, "eval_every": 3, "max_eval_samples": 6}
    metric = {"id": "composite", "args": {"rewards": [part for part in REWARDS if part["id"] != "missing_eos_penalty"]}}
    config["train_evaluation"]["metrics"] = [{"id": "reward", "args": metric}]
    assert train(tmp_path, config) == 0
    infos = logged(tmp_path)
    assert [info["rollout/reward/rouge/weight"] for info in infos] == [1.0, 0.5, 0.0]
    assert [info["rollout/reward/judge/weight"] for info in infos] == [1.0, 1.0, 10.0]
    for info in infos:
        # What is clipped is at least a word, or else nothing is said and the judge gives 0.
        n_said = info["rollout/reward/judge"] / 2
        assert info["rollout/reward/length_penalty"] < -1
        assert info["rollout/task_reward"] == pytest.approx(
            info["rollout/reward/rouge"] * info["rollout/reward/rouge/weight"]
            - 0.5 * n_said
            + info["rollout/reward/missing_eos_penalty"]
            + info["rollout/reward/judge"] * info["rollout/reward/judge/weight"],
            abs=1e-5,
        )
    measured = logged(tmp_path, "test_split_metrics.jsonl")[-1]["metrics"]
    assert {"reward/composite", "reward/rouge", "reward/judge", "reward/length_penalty"} <= measured.keys()
    assert measured["reward/judge"] == pytest.approx(2.0, abs=1.0)


def test_normalized_and_clipped_run_logs_what_was_earned(tmp_path):
    rewards = [{"id": "judge"}]
    plain = config_with_judge(tmp_path, "1000.0 + 100 * len(gen_text)", rewards)
    scaled = {**plain, "reward_fn": {**plain["reward_fn"], "normalize": "running", "clip": 2}}
    losses, earned = [], []
    for config in (plain, scaled):
        assert train(tmp_path, config, "--overwrite") == 0
        losses.append(logged(tmp_path, "training_info.jsonl")[0]["train/value_loss"])
        earned.append([info["rollout/task_reward"] for info in logged(tmp_path)])
    assert earned[0][0] == earned[1][0] > 1000
    assert losses[0] > 1e5 and losses[1] < 10


@pytest.mark.parametrize("algorithm", ["ppo", "rloo"])
def test_judge_behind_an_endpoint_scores_a_run_and_its_key_is_in_no_file(tmp_path, monkeypatch, capfd, algorithm):
    monkeypatch.setenv("JUDGE_KEY", KEY)
    monkeypatch.setenv("RL4DIALOG_CACHE", str(tmp_path / "cache"))
    with Endpoint() as endpoint:
        args = {"rubric": "Be kind.", "model": "wise", "api_key_env": "JUDGE_KEY"}
        config = make_config(tmp_path, **SHORT, reward_fn={"id": "judge", "args": {**args, "base_url": endpoint.url}})
        if algorithm == "rloo":
            endpoint.answer = lambda question: said("A")
            config["reward_fn"]["args"]["compare"] = "group"
            config["train_evaluation"]["score_predictions"] = False
            config["alg"] |= {"id": "rloo", "args": {"n_steps": 16, "n_generations": 2, "batch_size": 16}}
        assert train(tmp_path, config) == 0
    expected = 0.5 if algorithm == "rloo" else 6 / 9
    for info in logged(tmp_path):
        assert info["rollout/reward/judge"] == pytest.approx(expected)
    assert endpoint.keys and set(endpoint.keys) == {f"Bearer {KEY}"}
    assert KEY not in "".join(capfd.readouterr())
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 10 and not [path for path in files if KEY.encode() in path.read_bytes()]


@pytest.mark.parametrize("compare", ["scale", pytest.param("group", marks=pytest.mark.long)])
def test_local_judge_scores_a_run_and_a_dry_run_does_not_load_it(tmp_path, monkeypatch, compare):
    monkeypatch.setenv("RL4DIALOG_CACHE", str(tmp_path / "cache"))
    args = {"rubric": "Be kind.", "model_name": save_judge(tmp_path / "judge"), "compare": compare}
    config = make_config(tmp_path, **SHORT, reward_fn={"id": "judge", "args": args}, env__vec_env="blocks")
    config["train_evaluation"] |= {"n_iters": 2, "eval_every": 2}
    if compare == "group":
        config["train_evaluation"]["score_predictions"] = False
        config["alg"] |= {"id": "grpo", "args": {"n_steps": 16, "n_generations": 2, "batch_size": 16}}
    weights = tmp_path / "judge" / "model.safetensors"
    weights.rename(tmp_path / "elsewhere")
    assert train(tmp_path, config, "--dry_run") == 0
    (tmp_path / "elsewhere").rename(weights)
    assert train(tmp_path, config) == 0
    earned = [info["rollout/reward/judge"] for info in logged(tmp_path)]
    assert len(earned) == 2 and all(0 < each < 1 for each in earned)
    if compare == "group":
        assert earned == pytest.approx([0.5, 0.5])  # what one reply wins, the other loses
    else:
        assert len(set(earned)) == 2 and abs(earned[0] - 0.5) > 1e-3


# Fails every so many calls.
FAILING = """
import itertools
from rl4dialog import RewardFunctionRegistry

calls = itertools.count(1)

@RewardFunctionRegistry.register("failing")
def failing(prompt_text, gen_text, ref_texts, meta_info, every):
    if next(calls) % every == 0:
        return float("nan")
    return sum(c.isalpha() for c in gen_text) / (1 + len(gen_text))
"""
SMALL = {
    **SHORT,
    "train_evaluation__metrics": [],
    "train_evaluation__eval_every": 9,
    "train_evaluation__score_predictions": False,
}


@pytest.mark.parametrize(("algorithm", "every"), [("ppo", 10), ("rloo", 2)])
def test_masked_failures_are_counted_and_the_rest_is_learned_from(tmp_path, algorithm, every):
    (tmp_path / "mine.py").write_text(FAILING, encoding="utf-8")
    reward = {"id": "failing", "args": {"every": every}, "on_error": "mask"}
    config = make_config(tmp_path, imports=["./mine.py"], reward_fn=reward, **SMALL)
    config["env"]["n_envs"] = 4
    config["alg"]["id"] = algorithm
    config["alg"]["args"] |= {"n_steps": 60} | ({"n_generations": 2} if algorithm == "rloo" else {})
    assert train(tmp_path, config) == 0
    rollouts = logged(tmp_path)
    n_masked = sum(line["rollout/masked_rewards"] for line in rollouts)
    n_calls = n_masked + sum(line["rollout/n_episodes"] for line in rollouts)
    assert n_masked == n_calls // every > 0
    assert all(line["rollout/tokens"] >= 240 for line in rollouts), "what is masked does not count"
    for line in logged(tmp_path, "training_info.jsonl"):
        assert all(math.isfinite(value) for value in line.values())
