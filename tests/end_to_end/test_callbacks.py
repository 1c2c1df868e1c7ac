"""Callbacks and outputs of a config in whole runs."""

import csv
import json

import pytest
from runs import lines, make_config, supervised, train, trained_run
from transformers import AutoModelForCausalLM

from rl4dialog.core.errors import ConfigError
from rl4dialog.training.building.components import check_without_rollouts

ONCE = """
from stable_baselines3.common.callbacks import BaseCallback
from rl4dialog import CallbackRegistry

@CallbackRegistry.register("once")
class Once(BaseCallback):
    def _on_rollout_end(self):
        if self.model.iteration == 1:
            self.logger.record("rollout/once", 1.0)

    def _on_step(self):
        return True
"""


def test_run_that_a_callback_stops_ends_as_a_whole_one(tmp_path, capsys):
    config = make_config(
        tmp_path,
        train_evaluation__n_iters=4,
        logging={"outputs": ["csv"]},
        callbacks=[
            {"id": "save_best_model", "args": {"metric": "length/words", "mode": "max"}},
            {"id": "stop_on_reward_threshold", "args": {"threshold": -1.0}},
        ],
    )
    folder = trained_run(tmp_path, config)
    assert [line["iteration"] for line in lines(folder / "training_info.jsonl")] == [1]
    for split in ("val", "test"):
        assert [line["epoch"] for line in lines(folder / f"{split}_split_metrics.jsonl")] == [0, 1]
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("stopped")]
    assert len(said) == 1 and said[0] in (folder / "log.txt").read_text(encoding="utf-8")
    assert said[0].startswith("stopped after iteration 1 of 4 by stop_on_reward_threshold: rollout/task_reward is ")
    with open(folder / "progress.csv", newline="") as file:
        assert [row["time/iterations"] for row in csv.DictReader(file)] == ["0", "1"]
    for name in ("model", "best_model"):
        AutoModelForCausalLM.from_pretrained(folder / name)

    predictions = json.loads((folder / "epoch_1_test_split_predictions.json").read_text(encoding="utf-8"))
    rewards = [prediction["reward"] for prediction in predictions]
    assert rewards == [prediction["reward/rouge"] for prediction in predictions]
    assert rewards == pytest.approx([prediction["lexical/rouge_rouge1"] for prediction in predictions])
    metrics = lines(folder / "test_split_metrics.jsonl")[1]["metrics"]
    assert metrics["reward"] == pytest.approx(sum(rewards) / len(rewards))
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    assert result["val"]["after"] == lines(folder / "val_split_metrics.jsonl")[1]["metrics"]


def test_callback_that_returns_false_ends_the_rollout(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(
        "from rl4dialog import CallbackRegistry\n"
        "@CallbackRegistry.register('second_rollout')\n"
        "def second_rollout(locals_, globals_):\n"
        "    return locals_['self'].iteration < 1\n",
        encoding="utf-8",
    )
    config = make_config(
        tmp_path,
        imports=["./mine.py"],
        callbacks=[{"id": "second_rollout"}],
        train_evaluation__max_eval_samples=2,
        train_evaluation__score_predictions=False,
        train_evaluation__eval_every=5,
    )
    folder = trained_run(tmp_path, config)
    assert [line["iteration"] for line in lines(folder / "rollout_info.jsonl")] == [1]
    assert [line["epoch"] for line in lines(folder / "val_split_metrics.jsonl")] == [0, 1]
    assert "reward" not in lines(folder / "test_split_metrics.jsonl")[1]["metrics"]
    assert "by second_rollout: its _on_step returned False" in capsys.readouterr().err


def test_what_was_logged_once_is_written_once(tmp_path):
    (tmp_path / "mine.py").write_text(ONCE, encoding="utf-8")
    config = make_config(
        tmp_path, imports=["./mine.py"], callbacks=[{"id": "once"}], train_evaluation__eval_every=5, alg__id="a2c"
    )
    config["alg"]["args"] = {"n_steps": 8}
    config["train_evaluation"]["metrics"] = []
    written = lines(trained_run(tmp_path, config) / "rollout_info.jsonl")
    assert [line.get("rollout/once") for line in written] == [1.0, None]


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"callbacks": [{"id": "stop_on_reward_threshold", "args": {"threshold": 1.0}}]}, "acts on rollouts"),
        ({"logging": {"log_infos": ["x"]}}, "has no meaning with alg.id: supervised, which makes no rollouts"),
        ({"logging": {"info_fns": [{"id": "returns"}]}}, "logging.info_fns has no meaning with alg.id: supervised"),
        ({"logging": {"conversations": True}}, "logging.conversations has no meaning with alg.id: supervised"),
    ],
)
def test_supervised_run_refuses_what_needs_rollouts(tmp_path, refused, extra, message):
    config = make_config(tmp_path, **extra, alg=supervised(num_train_epochs=1))
    refused(train(tmp_path, config), message)
    with pytest.raises(ConfigError, match="'stop_on_reward_threshold' acts on rollouts"):
        check_without_rollouts("stop_on_reward_threshold", {}, "callbacks[0]")
    check_without_rollouts("stop_on_reward_threshold", {"metric": "length/words"}, "callbacks[0]")


@pytest.mark.parametrize(
    ("info_fns", "message"),
    [
        ([{"id": "retuns"}], "unknown info function 'retuns'; did you mean 'returns'?"),
        ([{"id": "returns", "args": {"n": 1}}], "info_fns[0].args.n: info function 'returns' has no argument 'n'"),
        ([{"id": "returns"}, {"id": "returns"}], "logging.info_fns[1]: returns is listed twice; remove one"),
    ],
)
def test_wrong_functions_of_rollouts_are_refused(tmp_path, refused, info_fns, message):
    refused(train(tmp_path, make_config(tmp_path, logging={"info_fns": info_fns})), message)
