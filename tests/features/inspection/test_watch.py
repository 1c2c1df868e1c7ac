"""Every warning: silent on a healthy history, told on a sick one, and told once; and where it is written."""

import json
import logging
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from runs import make_config, run_folder, train
from tqdm import tqdm

from rl4dialog.core.errors import RunFolderError
from rl4dialog.features.inspection.watch import (
    CHECKS,
    QUIET_ITERATIONS,
    RunFacts,
    WatchCallback,
    Watcher,
    already_best,
    already_equal,
)
from rl4dialog.runs.run_folder import WARNINGS_FILE, RunFolder
from rl4dialog.training.building.rewards import TOTAL

N_ITERATIONS = 40
FACTS = RunFacts(target_kl=0.1, max_turns=8)
Change = Callable[[int], dict[str, Any]]


def healthy(i, rng):
    """A record as a good run of PPO on small_talk logs it."""
    progress = i / N_ITERATIONS
    return {
        "iteration": i,
        "rollout/kl": 0.1 * progress + rng.normal(0, 0.008),
        "rollout/kl_se": 0.008,
        "rollout/kl_coeff": 0.05 * 0.98**i,
        "rollout/log_prob": -0.9 + 0.1 * progress + rng.normal(0, 0.03),
        "rollout/cut_replies": 0.02,
        "rollout/reply_length": 12 + rng.normal(0, 0.3),
        "rollout/distinct_replies": 0.96,
        "rollout/repeated_trigrams": 0.003,
        "rollout/truncated_mass": 0.1,
        "rollout/context_dropped": 0.02,
        "rollout/partner_failed": 0.01,
        "rollout/partner_echo": 0.001,
        "rollout/partner_repeats": 0.01,
        "rollout/turns": 4.2,
        "rollout/ended_by/partner": 0.5,
        "rollout/empty_replies": 0.01,
        "rollout/task_reward": 0.4 + 0.1 * progress + rng.normal(0, 0.02),
        "rollout/task_reward_std": 0.35,
        "rollout/n_episodes": 256,
        "rollout/masked_rewards": 2,
        "rollout/reward/both": 0.45,
        "rollout/reward/both/intent": 0.55 + 0.15 * progress + rng.normal(0, 0.02),
        "rollout/reward/both/meteor": 0.30 + rng.normal(0, 0.02),
        "train/loss": 0.1,
        "train/grad_norm": 1.0,
        "train/skipped_steps": 0,
        "train/constant_advantages": 0.3,
        "train/first_approx_kl": 1e-9,
        "train/explained_variance": 0.15 * progress,
    }


def told(change=lambda i: {}, facts=None, n=N_ITERATIONS):
    """What is said of a healthy history with some values changed."""
    watcher, rng = Watcher(facts or FACTS), np.random.default_rng(0)
    return [trouble for i in range(1, n + 1) for trouble in watcher.observe({**healthy(i, rng), **change(i)})]


def from_20(**values):
    """Values that are logged from iteration 20 on."""
    return lambda i: {f"rollout/{key}": value for key, value in values.items()} if i >= 20 else {}


RETURNS = {"train/lowest_return": -10.0, "train/highest_return": -1.0}
SICK = {
    "kl_negative": from_20(kl=-0.05),
    "kl_exploding": from_20(kl=0.6),
    "kl_coefficient": lambda i: {"rollout/kl_coeff": 0.05 * 1.1**i, "rollout/kl": 0.15},
    "first_ratio": lambda i: {"train/first_approx_kl": 1e-3 if i >= 20 else 0.0},
    "truncated_sampler": from_20(truncated_mass=0.5),
    "entropy_collapse": from_20(log_prob=-0.05, distinct_replies=0.4),
    "replies_reach_limit": from_20(cut_replies=0.95),
    "replies_vanish": from_20(reply_length=1.5),
    "repeated_replies": from_20(distinct_replies=0.05),
    "repeated_tokens": from_20(repeated_trigrams=0.6),
    "context_dropped": from_20(context_dropped=0.3),
    "partner_fails": from_20(partner_failed=0.2),
    "partner_echoes": from_20(partner_echo=0.4),
    "partner_repeats": from_20(partner_repeats=0.4),
    "partner_leaves_at_once": from_20(**{"turns": 1.02, "ended_by/partner": 0.97}),
    "empty_replies": from_20(empty_replies=0.5),
    "reward_fails": from_20(masked_rewards=32),
    "reward_constant": lambda i: {
        **from_20(task_reward_std=0.0, task_reward=0.2)(i),
        "train/constant_advantages": float(i >= 20),
    },
    "advantages_constant": lambda i: {"train/constant_advantages": 0.95 if i >= 20 else 0.5},
    "reward_parts_opposed": lambda i: {"rollout/reward/both/meteor": 0.3 - 0.005 * i},
    "gradient_not_finite": lambda i: {"train/skipped_steps": 2 if i == 20 else 0},
    "explained_variance": lambda i: {"train/explained_variance": 0.0},
    "line_search": lambda i: {"train/is_line_search_success": float(i < 20)},
    "values_outside_returns": lambda i: {**RETURNS, "train/q_mean": 30.0 if i >= 20 else -6.0},
    "advantages_vanish": lambda i: {**RETURNS, "train/advantage_abs": 1e-5 if i >= 20 else 0.5},
    "few_weighted_tokens": lambda i: {"train/effective_share": 0.01 if i >= 20 else 0.5},
}


def test_every_check_has_a_sick_history_and_a_name_of_its_own():
    assert sorted(SICK) == sorted(check.name for check in CHECKS)


def test_healthy_history_is_silent():
    assert told() == []


@pytest.mark.parametrize("name", SICK)
def test_sick_history_is_told_once_with_advice(name):
    (trouble,) = told(SICK[name])
    assert trouble.name == name
    assert trouble.iteration >= 15 or name == "kl_coefficient"
    assert any(char.isdigit() for char in trouble.message), "it says what was measured"
    assert trouble.advice.endswith(".")


def test_healthy_run_on_a_log_is_silent():
    watcher = Watcher(RunFacts())
    for i in range(1, N_ITERATIONS + 1):
        logged = {"rollout/tokens": 4096, "rollout/n_conversations": 500, "rollout/logged_return": -6.9, **RETURNS}
        losses = {"train/loss": 3.0, "train/q_loss": 1.5, "train/v_loss": 0.5, "train/policy_loss": 1.0}
        values = {"train/q_mean": -5.0, "train/v_mean": -5.0, "train/advantage_abs": 0.01 * i}
        steps = {"train/grad_norm": 1.0, "train/skipped_steps": 0, "train/effective_share": 0.4}
        assert watcher.observe({"iteration": i, "rollout/epoch": 0.5 * i, **logged, **losses, **values, **steps}) == []


# What looks like trouble, and is none.
FINE = {
    "KL below 0 by its standard error": (lambda i: {"rollout/kl": -0.01, "rollout/kl_se": 0.02}, None),
    "a policy that is certain of different replies": (from_20(log_prob=-0.03), None),
    "KL a little below 0": (lambda i: {"rollout/kl": -0.02}, None),
    "KL of rounding": (lambda i: {"rollout/kl": -5e-4, "rollout/kl_se": 0.0}, None),
    "large KL for one iteration": (lambda i: {"rollout/kl": 0.8} if i == 20 else {}, None),
    "large KL that costs nothing": (lambda i: {"rollout/kl": 4.0, "rollout/kl_coeff": 0.0}, RunFacts()),
    "ratio rounded in bf16": (lambda i: {"train/first_approx_kl": 5e-4}, RunFacts(precision="bf16")),
    "replies cut from the start": (lambda i: {"rollout/cut_replies": 1.0}, None),
    "same replies from the start": (lambda i: {"rollout/distinct_replies": 0.02}, None),
    "same rewards of few episodes": (lambda i: {"rollout/task_reward_std": 0.0, "rollout/n_episodes": 2}, None),
    "no critic": (lambda i: {"train/explained_variance": math.nan}, None),
    "returns that a critic can hardly predict": (lambda i: {"train/explained_variance": (-1) ** i * 0.1 - 0.05}, None),
    "a critic that is far off once": (lambda i: {"train/explained_variance": -15.0 if i == 25 else 0.1}, None),
    "returns without variance": (lambda i: {"train/explained_variance": None}, None),
    "a line search that fails at times": (lambda i: {"train/is_line_search_success": float(i % 3 == 0)}, None),
    "a part that falls by a tenth": (lambda i: {"rollout/reward/both/meteor": 0.3 - 0.001 * i}, None),
    "a partner that fails once": (lambda i: {"rollout/partner_failed": 0.1} if i == 20 else {}, None),
    "a partner that ends long conversations": (lambda i: {"rollout/ended_by/partner": 1.0}, None),
    "an agent that leaves at once": (lambda i: {"rollout/turns": 1.0, "rollout/ended_by/partner": 0.0}, None),
    "single replies": (
        lambda i: {"rollout/turns": 1.0, "rollout/ended_by/partner": 1.0},
        RunFacts(target_kl=0.1, max_turns=1),
    ),
    "values that begin at 0": (lambda i: {**RETURNS, "train/q_mean": -0.2 * i}, None),
    "values that contain log-probabilities": (
        lambda i: {**RETURNS, "train/q_mean": -90.0},
        RunFacts(target_kl=0.1, values_are_returns=False),
    ),
    "advantages that begin at 0": (lambda i: {**RETURNS, "train/advantage_abs": 0.0 if i < 8 else 0.1}, None),
    "a part with a negative weight": (
        lambda i: {"rollout/reward/both/intent": 0.5, "rollout/reward/bad": -0.3 + 0.005 * i},
        RunFacts(target_kl=0.1, reward_weights={"both": 1.0, "bad": -1.0}),
    ),
}


@pytest.mark.parametrize("what", FINE)
def test_what_only_looks_like_trouble_is_silent(what):
    assert told(*FINE[what]) == []


def masked_by_partner(i):
    masked, ended = (100, 400) if i % 3 == 0 else (0, 16)
    counts = {"rollout/masked_rewards": masked, "rollout/n_episodes": ended - masked}
    return {**counts, "rollout/partner_failed": masked / ended}


BAD = RunFacts(target_kl=0.1, reward_weights={"bad": -1.0})
# Facts, and name and words of the only warning about a history.
WORDS = [
    (lambda i: {"train/explained_variance": -3.0}, FACTS, "explained_variance", "4.0 times the returns' variance"),
    (
        SICK["partner_leaves_at_once"],
        FACTS,
        "partner_leaves_at_once",
        "97% of the conversations, after 1.02 of at most",
    ),
    (lambda i: {"rollout/reward/bad": 0.3 + 0.005 * i}, BAD, "reward_parts_opposed", "'bad' went from 0.315 to 0.38"),
    (
        lambda i: {"rollout/reward/both/meteor": float(i < 20)},
        FACTS,
        "reward_parts_opposed",
        "meteor' went from 1 to 0",
    ),
    (lambda i: {"train/policy_loss": None if i == 7 else 0.1}, FACTS, "gradient_not_finite", "policy_loss not finite"),
    (masked_by_partner, FACTS, "partner_fails", ""),
    (from_20(truncated_mass=None, sampler_kl=0.7), FACTS, "truncated_sampler", "sampler's KL from the policy is 0.70"),
    (SICK["reward_fails"], FACTS, "reward_fails", "the reward failed for 7% of the episodes"),
]


@pytest.mark.parametrize(("change", "facts", "name", "words"), WORDS, ids=[name for _, _, name, _ in WORDS])
def test_trouble_is_told_in_numbers(change, facts, name, words):
    (trouble,) = told(change, facts)
    assert trouble.name == name and words in trouble.message


def test_trouble_is_told_as_soon_as_a_mean_of_iterations_shows_it():
    assert [told(change)[0].iteration for change in (WORDS[1][0], WORDS[3][0])] == [22, 24]


def test_trouble_is_told_again_when_it_was_over_for_long():
    def change(i):
        return {"train/skipped_steps": float(i in (5, 6, 9, 9 + QUIET_ITERATIONS + 1))}

    assert [trouble.iteration for trouble in told(change)] == [5, 9 + QUIET_ITERATIONS + 1]


def test_few_episodes_are_a_constant_reward_if_the_run_begins_with_them():
    equal = {"rollout/task_reward_std": 0.0, "rollout/task_reward": 0.5, "rollout/n_episodes": 4}
    assert "reward_constant" in [trouble.name for trouble in told(lambda i: equal, n=3)]


def test_a_run_with_nothing_but_an_iteration_is_silent():
    watcher = Watcher(RunFacts(target_kl=0.1))
    assert not any(watcher.observe({"iteration": i, "rollout/note": "text"}) for i in range(1, 50))


CONSTANT = '''
from rl4dialog import RewardFunctionRegistry

@RewardFunctionRegistry.register("constant")
def constant(prompt_text, gen_text, ref_texts, meta_info):
    """Pays the same for every reply."""
    return 0.5
'''


def warnings_in(folder):
    path = folder / WARNINGS_FILE
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []


def test_run_with_a_constant_reward_is_warned_of_it(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(CONSTANT)
    config = make_config(
        tmp_path,
        imports=["./mine.py"],
        reward_fn={"id": "constant"},
        env__n_envs=12,
        train_evaluation__n_iters=4,
        train_evaluation__eval_every=4,
    )
    assert train(tmp_path, config) == 0
    (warning,) = warnings_in(run_folder(tmp_path))
    assert warning["iteration"] == 3 and warning["name"] == "reward_constant"
    assert warning["message"] == "every episode of the last 3 iterations earned 0.5"
    log = (run_folder(tmp_path) / "log.txt").read_text(encoding="utf-8")
    assert f"iteration 3: {warning['message']} (reward_constant). {warning['advice']}" in log
    assert "1 warning (reward_constant), with advice, in " in capsys.readouterr().out


def test_model_at_the_highest_reward_is_reported_before_training(tmp_path):
    (tmp_path / "paying.py").write_text(CONSTANT)
    config = make_config(tmp_path, imports=["./paying.py"], reward_fn={"id": "constant"})
    config["datapool"] = {"id": "small_talk", "args": {"max_size": 400}}
    config["train_evaluation"] |= {"n_iters": 0, "max_eval_samples": 40, "metrics": []}
    assert train(tmp_path, config) == 0
    (warning,) = warnings_in(run_folder(tmp_path))
    assert (warning["iteration"], warning["name"]) == (0, "reward_at_best")
    assert warning["message"] == "40 of 40 replies already earn the highest reward of all, 0.5"


@pytest.mark.parametrize(
    ("rewards", "is_best"),
    [
        ([1.0] * 31, False),  # too few
        ([1.0] * 32, True),
        ([0.0] * 32, False),  # nothing was ever earned
        ([2.0] * 36 + [0.0] * 4, True),
        ([2.0] * 35 + [0.0] * 5, False),
        ([0.0] * 36 + [-1.0] * 4, True),
        ([1.0] * 32 + [math.nan] * 32, True),
    ],
)
def test_replies_are_at_the_highest_reward_if_hardly_any_could_earn_more(rewards, is_best):
    assert bool(already_best(rewards)) is is_best


@pytest.mark.parametrize(("n_equal", "n_other", "is_equal"), [(36, 4, True), (35, 5, False), (31, 0, False)])
def test_replies_equal_references_if_nine_in_ten_do(n_equal, n_other, is_equal):
    replies = [" It is on its way. "] * n_equal + ["It is on its"] * n_other
    references = "<START-1>It was lost.<END-1><START-2>It is on its way.<END-2>"
    records = [{"generated_text": reply, "ref_text": references} for reply in replies]
    without = {"generated_text": "", "ref_text": ""}
    assert bool(already_equal([*records, without])) is is_equal
    assert not already_equal([each | {"generated_text": ""} for each in records]), "nothing is no reference"


def test_run_warns_of_replies_that_equal_their_references_though_meteor_rates_them_by_length(tmp_path):
    texts = ["no", "it is here", "we do not know where your parcel is"]
    records = [
        {"generated_text": texts[i % 3], "ref_text": f"<START-1>{texts[i % 3]}<END-1>", TOTAL: 1 - 0.5 ** (i % 3 + 1)}
        for i in range(40)
    ]
    WatchCallback(RunFacts(), folder := RunFolder(tmp_path, "p", "e")).check_start(records)
    (warning,) = folder.read_jsonl(WARNINGS_FILE)
    assert warning["name"] == "equal_to_references" and warning["message"].startswith("40 of 40 replies")


def continued(folder, n_logged):
    """A callback at the start of a run that has been trained for some iterations."""
    for i in range(1, n_logged + 1):
        folder.append_jsonl("rollout_info.jsonl", {"iteration": i, "rollout/kl": 0.01})
        folder.append_jsonl("training_info.jsonl", {"iteration": i, "train/skipped_steps": int(i >= 2)})
    callback = WatchCallback(RunFacts(), folder)
    logger = SimpleNamespace(name_to_value={"train/skipped_steps": 1})
    callback.model = SimpleNamespace(iteration=n_logged + 1, logger=logger)
    callback._on_training_start()
    return callback


@pytest.mark.parametrize("message", [None, "a\u2028b"])
def test_continued_run_tells_only_what_was_not_told(tmp_path, message):
    folder = RunFolder(tmp_path, "p", "e")
    if message is not None:  # otherwise it was cut off with the file
        warning = {"iteration": 2, "name": "gradient_not_finite", "message": message, "advice": "b"}
        folder.append_jsonl(WARNINGS_FILE, warning)
    callback = continued(folder, 4)
    callback._on_rollout_end()
    callback._on_rollout_start()
    assert [warning["iteration"] for warning in folder.read_jsonl(WARNINGS_FILE)] == [2]
    assert callback.summary is not None and callback.summary.startswith("1 warning (gradient_not_finite)")


def test_file_that_is_no_jsonl_is_named(tmp_path):
    folder = RunFolder(tmp_path, "p", "e")
    folder.path(WARNINGS_FILE).write_text("half a li", encoding="utf-8")
    with pytest.raises(RunFolderError, match=r"warnings\.jsonl cannot be read"):
        continued(folder, 2)


def test_warning_stands_above_the_progress_bar(tmp_path, capsys):
    console = logging.StreamHandler()
    logging.root.addHandler(console)
    try:
        with tqdm(total=3) as bar:
            bar.update(1)
            continued(RunFolder(tmp_path, "p", "e"), 3)
            bar.update(1)
    finally:
        logging.root.removeHandler(console)
    lines = capsys.readouterr().err.replace("\r", "\n").splitlines()
    (line,) = [line for line in lines if "gradient" in line]
    assert line.startswith("iteration 2: ") and "it/s" not in line
