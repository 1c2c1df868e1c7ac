"""`rl4dialog improve`: its plan, the rule of PPO, continuing, and the report."""

import json
import random
import shutil

import pytest
import yaml
from feedback_files import correction, mixed_feedback, preference, rating, write_feedback

from rl4dialog.cli import main
from rl4dialog.core.errors import RewardError
from rl4dialog.features.feedback import improvement
from rl4dialog.runs.reading import read_run
from rl4dialog.runs.report.pages import write_report
from rl4dialog.scores.scoring import Scorer

QUICK = (
    *("--set", "reward_model.alg.training_args.num_train_epochs=1"),
    *("--set", "reward_model.train_evaluation.eval_every=1"),
)


@pytest.fixture
def run(plain_run):
    return plain_run


@pytest.fixture
def trained(monkeypatch):
    """Names of the stages that were trained, here in the process of the test."""
    names = []

    def run_command(arguments):
        names.append(arguments[-1])
        return main(arguments)

    monkeypatch.setattr(improvement, "run_command", run_command)
    return names


@pytest.fixture
def improve(tmp_path, run, trained):
    def call(given, *flags):
        path = tmp_path / "feedback.jsonl"
        path.unlink(missing_ok=True)
        write_feedback(path, given)
        return main(
            ["improve", "--run", str(run), "--feedback", str(path), "--output", str(tmp_path / "better"), *flags]
        )

    return call


def random_votes(n):
    rng = random.Random(0)
    return [preference("yes it is", "no it is", rng.randrange(2), (f"hello {i}",)) for i in range(n)]


def test_few_votes_train_on_corrections_alone_and_say_so_first(improve, trained, tmp_path, capsys, refused):
    given = mixed_feedback(3)
    assert improve(given) == 0
    plan, progress = capsys.readouterr()
    assert "\nResult: " in progress
    assert "3 preferences, 3 corrections, 3 ratings" in plan and "replies   12 of m (none of this run)\n" in plan
    assert "There are 3 preferences, 47 too few: the model learns the 3 corrections alone, without PPO" in plan
    assert plan.index("47 too few") < plan.index("Test metrics") < plan.index("Report: ")
    assert trained == ["corrections"]
    better = tmp_path / "better"
    report = (better / "report.html").read_text(encoding="utf-8")
    assert "Corrected replies" in report and "yes 0 sure" in report and "without PPO" in report
    of_corrections = read_run(better / "comparison").metrics["corrections"]
    assert of_corrections[1]["loss/reference"] < of_corrections[0]["loss/reference"]
    test = read_run(better / "comparison").metrics["test"]
    assert test[0]["kl/per_token"] == 0 < test[1]["kl/per_token"] and "reward" in test[1]
    # Nothing is repeated, and other feedback is refused.
    assert improve(given) == 0 and trained == ["corrections"]
    assert capsys.readouterr().out.count("[done]") == 2
    assert improve([*given, correction("a", "b")]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "now: 3 preferences, 4 corrections" in error and "choose another --output" in error
    assert write_report(better / "comparison").is_file()


def test_reward_that_fails_in_the_comparison_is_a_failure_and_is_asked_again(
    improve, trained, tmp_path, monkeypatch, refused
):
    def fail(*args):
        raise RewardError("the judge does not answer")

    given = mixed_feedback(2)
    with monkeypatch.context() as patch:
        patch.setattr(Scorer, "score", fail)
        refused(improve(given), "the judge does not answer")
    assert not (tmp_path / "better" / "comparison" / "result.json").exists()
    assert improve(given) == 0 and trained == ["corrections"]
    assert "reward" in read_run(tmp_path / "better" / "comparison").metrics["test"][1]


def test_judgements_of_empty_replies_are_no_reason_for_ppo(improve, capsys, tmp_path):
    given = [rating("", 1), rating(" ", -1), correction("", "better")]
    assert improve(given, "--force", *QUICK) == 2
    assert "all 3 judged replies in " in capsys.readouterr().err and not (tmp_path / "better").exists()
    assert improve(given, "--dry_run") == 0
    assert "3 of m (3 empty)" in capsys.readouterr().out


def test_force_runs_ppo_and_an_interrupted_improvement_continues(improve, trained, tmp_path, run, monkeypatch):
    train = improvement.run_command

    def interrupted(arguments):
        return 75 if arguments[-1] == "policy" else train(arguments)

    given = mixed_feedback(5)
    monkeypatch.setattr(improvement, "run_command", interrupted)
    assert improve(given, "--force", *QUICK) == 2
    assert trained == ["reward_model", "corrections"]
    monkeypatch.setattr(improvement, "run_command", train)
    assert improve(given, "--force", *QUICK) == 0
    assert trained == ["reward_model", "corrections", "policy"]
    better = tmp_path / "better"
    policy = yaml.safe_load((better / "policy.yml").read_text(encoding="utf-8"))
    assert policy["alg"]["policy"]["args"]["model_name"] == str(better / "corrections" / "model")
    assert policy["alg"]["args"]["n_steps"] == 16 and policy["reward_fn"]["id"] == "learned_reward"
    metrics = read_run(better / "comparison").metrics["test"][1]
    assert {"semantic/learned_automodel_metric", "length/words", "lexical/rouge_rouge1"} <= metrics.keys()
    models = json.loads((better / "comparison" / "models.json").read_text(encoding="utf-8"))
    assert models == {"before": str(run / "model"), "after": str(better / "policy" / "model")}
    assert "held-out preferences right" in (better / "report.html").read_text(encoding="utf-8")


def test_reward_model_like_a_coin_prevents_ppo(improve, trained, tmp_path, capsys):
    votes = random_votes(50)
    assert improve(votes, *QUICK) == 2
    assert trained == ["reward_model"]
    captured = capsys.readouterr()
    assert "There are enough preferences; the reward model decides after stage 1" in captured.out
    assert "no better than a coin, and there are no corrections" in " ".join(captured.err.split())
    shutil.rmtree(tmp_path / "better")
    assert improve([*votes, correction("a", "yes b")], *QUICK) == 0
    assert trained == ["reward_model", "reward_model", "corrections"]
    assert "corrections and old data, without PPO" in (tmp_path / "better" / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), "has 7 preferences, 0 corrections, 0 ratings: PPO takes at least 50 preferences (43 more)"),
        (("--force", "--set", "polic.seed=1"), "begin with a stage of this plan, such as reward_model.seed=1; did you"),
        (("--force", "--set", "policy.alg.args.n_step=1"), "n_step"),
        (("--force", "--set", "reward_model.alg.ensemble=1"), "add --set policy.reward_fn.args.std_penalty=0"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_written(improve, tmp_path, flags, message, refused):
    refused(improve(random_votes(7), *flags), message)
    assert not (tmp_path / "better").exists()
