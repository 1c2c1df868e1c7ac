import json
import sys

import pytest
from runs import make_config, run_folder, write_config

from rl4dialog import cli


def sweep(tmp_path, config, *flags):
    return cli.main_of(
        "sweep",
        [
            *("--config_path", str(write_config(tmp_path, config))),
            *("--base_path_to_store_results", str(tmp_path / "runs")),
            *("--project_name", "p", "--experiment_name", "e", *flags),
        ],
    )


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--search", "alg.args.n_epochs=int:1:2"], "--search needs --metric"),
        (["--grid", "alg.args.n_epochs=1", "--n_trials", "3"], "--n_trials has a meaning only with --search"),
        (["--grid", "alg.args.n_epochs=1", "--pruner", "none"], "--pruner has a meaning only with --search"),
        (["--grid", "alg.args.n_epochs=1", "--max_kl", "1"], "--max_kl has a meaning only with --metric"),
        (["--grid", "alg.args.n_epochs=1", "--n_jobs", "0"], "--n_jobs must be at least 1, not 0"),
        (["--grid", "alg.args.n_epochs=1", "--max_kl", "nan", "--metric", "reward"], "max_kl must be above 0, got nan"),
        (["--grid", "alg.args.gamma=1", "--set", "seed=1", "--set", "seed=2"], "--set seed is given twice"),
        (["--grid", "alg.args.n_epochs=1", "--seeds", "1", "1"], "--seeds contains a seed twice"),
        (["--grid", "alg.args.n_epoch=1"], "n_epoch'; did you mean 'n_epochs'"),
        (["--grid", "alg.kl_dv.coeff=1"], "alg.kl_dv'; did you mean 'kl_div'"),
        (["--grid", "alg.kl_div.target_kl=0.1,-1"], "with alg.kl_div.target_kl=-1: "),
        (["--search", "alg.kl_div.target_kl=float:-1:1", "--metric", "m"], "with alg.kl_div.target_kl=-1.0: "),
    ],
)
def test_mistakes_are_told_before_the_first_run(tmp_path, flags, message, capsys):
    assert sweep(tmp_path, make_config(tmp_path), *flags) == 2
    assert message in capsys.readouterr().err
    assert not run_folder(tmp_path).exists()


def test_run_without_kl_needs_a_metric(tmp_path, capsys):
    alg = {"id": "supervised", "model_name": "builtin/tiny-gpt2", "model_type": "causal", "training_args": {}}
    config = make_config(tmp_path, alg=alg)
    flags = ["--grid", "alg.training_args.weight_decay=0.0,0.1"]
    assert sweep(tmp_path, config, *flags) == 2
    assert "this run has no KL to compare the reward with; pass --metric" in capsys.readouterr().err
    assert sweep(tmp_path, config, *flags, "--metric", "m", "--max_kl", "1") == 2
    assert "--max_kl has no meaning here" in capsys.readouterr().err


@pytest.mark.long
def test_search_trains_selects_and_is_extended(tmp_path, capfd):
    pytest.importorskip("optuna")
    config = make_config(tmp_path, train_evaluation__n_iters=1)
    flags = ["--search", "alg.args.learning_rate=log:1e-5:1e-3", "--metric", "reward"]
    assert sweep(tmp_path, config, *flags, "--pruner", "median") == 2
    assert "--pruner median compares trials in between" in capfd.readouterr().err
    for n_trials in (1, 2):
        assert sweep(tmp_path, config, *flags, "--n_trials", str(n_trials)) == 0
    assert capfd.readouterr().err.count(" starts: ") == 2, "the first trial is not repeated"
    folder = run_folder(tmp_path)
    written = json.loads((folder / "sweep.json").read_text(encoding="utf-8"))
    assert [trial["state"] for trial in written["trials"]] == ["complete", "complete"]
    best = json.loads((folder / written["best"] / "config.json").read_text(encoding="utf-8"))
    assert (folder / "sweep.png").is_file()
    assert cli.main_of("train", ["--config_path", str(folder / "best.yml"), "--dry_run"]) == 0
    assert f"learning_rate: {best['alg']['args']['learning_rate']}" in (folder / "best.yml").read_text().splitlines()[1]
    assert sweep(tmp_path, config, *flags, "--seeds", "5") == 2
    assert "was started with another --seeds" in capfd.readouterr().err


@pytest.mark.long
def test_grid_works_without_optuna(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    config = make_config(tmp_path, train_evaluation__n_iters=1)
    assert sweep(tmp_path, config, "--grid", "alg.kl_div.coeff=0.1,0.2", "--n_jobs", "2") == 0
    written = json.loads((run_folder(tmp_path) / "sweep.json").read_text(encoding="utf-8"))
    assert [trial["name"] for trial in written["trials"]] == ["coeff_0.1", "coeff_0.2"]
