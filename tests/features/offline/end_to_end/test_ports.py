"""The scripts of ILQL's README for Wordle, run here with at most five changed lines."""

import pytest
from ports import assert_few_lines_changed, run_commands

ILQL = """
    cd scripts/train/wordle
    python train_bc.py train.bsize=64
    python train_iql.py train.bsize=64 model.alpha=0.005 model.tau=0.8
    python ../../eval/wordle/eval_policy.py
"""
ILQL_PORT = """
    rl4dialog train --config_path task_configs/wordle/llama_bc.yml --experiment_name bc GAMES
    rl4dialog train --config_path task_configs/wordle/llama_ilql.yml --experiment_name ilql --set alg.args.tau=0.8 GAMES
    rl4dialog evaluate --run rl4dialog_exps/ilql --output_path evaluated
"""
GAMES = (
    "--set datapool.args.n_train=40 datapool.args.n_val=4 datapool.args.n_test=4 warm_start.n_epochs=1 "
    "alg.args.n_steps=256 alg.args.batch_size=128 train_evaluation.n_iters=1 train_evaluation.eval_every=1"
)


def test_scripts_of_ilql_train_and_evaluate(tmp_path, monkeypatch):
    pytest.importorskip("rl4dialog.features.games")
    assert_few_lines_changed(ILQL, ILQL_PORT)
    run_commands(ILQL_PORT.replace("GAMES", GAMES), monkeypatch, tmp_path)
    assert (tmp_path / "evaluated" / "metrics.json").is_file()
