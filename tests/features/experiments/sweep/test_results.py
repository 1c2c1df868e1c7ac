"""Files and table of a sweep."""

import json
from dataclasses import replace

from runs import make_config, write_config
from sweeps import result, write_run

from rl4dialog.core.config import load_config
from rl4dialog.features.experiments.sweep.results import base_config, pareto_front, write_sweep
from rl4dialog.features.experiments.sweep.running import Objective

KEY = "alg.kl_div.coeff"


def test_front_has_what_nothing_else_beats():
    kl_and_reward = {"a": (0.2, 0.5), "b": (0.1, 0.4), "c": (0.3, 0.45), "d": (0.1, 0.3)}
    results = [result(name, kl=kl, reward=reward) for name, (kl, reward) in kl_and_reward.items()]
    assert [found.name for found in pareto_front([*results, result("e", 1.0)])] == ["b", "a"]


def test_best_config_is_written_and_trains_from_any_folder(tmp_path, capsys):
    (tmp_path / "mine.py").write_text("")
    path = str(write_config(tmp_path, {**make_config(tmp_path), "imports": ["./mine.py"]}))
    results = [
        result("trial_000", 0.25, values={KEY: "0.1"}, kl=0.1, reward=1.0),
        result("trial_001", 0.5, values={KEY: "1e-05"}, kl=0.2, reward=2.0),
        result("trial_002", values={KEY: "0.3"}, state="failed", error="boom"),
        result("trial_003", values={KEY: "0.4"}, state="pruned"),
    ]
    folder = tmp_path / "s"
    for found in results[:2]:
        write_run(folder / found.name, [1.0, 2.0])
    write_sweep(folder, results, Objective("m"), base_config(path, ["seed=3"], 0), [])
    text = (folder / "best.yml").read_text(encoding="utf-8")
    assert text.startswith("# trial_001, the best of 4 trials: m 0.5 on the val split.\n# alg.kl_div.coeff: 1e-05\n")
    best = load_config(folder / "best.yml")
    assert best.model_dump()["alg"]["kl_div"]["coeff"] == 1e-5
    assert best.seed == 3 and best.imports == [str(tmp_path / "mine.py")]
    written = json.loads((folder / "sweep.json").read_text(encoding="utf-8"))
    assert (written["best"], written["split"]) == ("trial_001", "val")
    assert [trial["on_front"] for trial in written["trials"]] == [True, True, False, False]
    assert (folder / "sweep.png").read_bytes().startswith(b"\x89PNG")
    output = capsys.readouterr().out
    assert "Trials: 2 complete, 1 pruned, 1 failed (trial_002)" in output


def test_best_config_of_another_algorithm_has_what_its_run_used(tmp_path):
    path = str(write_config(tmp_path, make_config(tmp_path, alg__args__vf_coef=0.5)))
    folder, best = tmp_path / "s", result("trial_000", 0.5, values={"alg.id": "grpo"}, kl=0.1, reward=1.0)
    write_run(folder / best.name, [1.0, 2.0])
    used = make_config(tmp_path, alg__id="grpo", alg__args__n_generations=2)
    (folder / best.name / "config.json").write_text(json.dumps(used))
    write_sweep(folder, [replace(best, runs=[folder / best.name])], Objective("m"), base_config(path, [], 0), [])
    assert load_config(folder / "best.yml").alg.args == used["alg"]["args"]


def test_no_trial_within_the_kl_means_no_best_config(tmp_path, capsys):
    write_run(tmp_path / "t", [1.0])
    write_sweep(tmp_path, [result("t", 0.5, kl=0.3, reward=1.0)], Objective("m", "maximize", 0.2), {}, [])
    assert "There is no best config: no trial is complete with a KL of at most 0.2." in capsys.readouterr().out
    assert not (tmp_path / "best.yml").exists()
    # Without a metric, reward and KL are compared.
    write_sweep(tmp_path, [result("t", kl=0.3, reward=1.0)], Objective(None), {}, [])
    assert json.loads((tmp_path / "sweep.json").read_text())["best"] is None
    assert (tmp_path / "sweep.png").is_file() and "best" not in capsys.readouterr().out


def test_each_swept_key_has_its_column_even_if_names_end_alike(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    keys = ("alg.args.learning_rate", "warm_start.learning_rate")
    results = [result(f"trial_00{i}", i, values=dict(zip(keys, ("1", "2"), strict=True)), kl=0.5) for i in range(2)]
    for found in results:
        write_run(tmp_path / "s" / found.name, [1.0])
    config = base_config(str(write_config(tmp_path, make_config(tmp_path))), [], 0)
    write_sweep(tmp_path / "s", results, Objective("m"), config, [])
    output = capsys.readouterr().out
    assert output.count("learning_rate") == 2
    (row,) = [line for line in output.splitlines() if "trial_001" in line and "|" in line]
    assert [cell.strip() for cell in row.split("|")][1:4] == ["trial_001", "1", "2"]
