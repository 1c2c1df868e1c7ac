"""The script of the feedback loop: rounds of selected pairs, PPO on the true utility, and what it writes."""

import json
import sys
from pathlib import Path

import feedback_loop as loop
import pytest

from rl4dialog.cli import main
from rl4dialog.core.errors import ConfigError
from rl4dialog.core.feedback import read_pairs
from rl4dialog.features.feedback import improvement

SCRIPT = Path(__file__).parents[2] / "scripts" / "feedback_loop.py"
QUICK = [
    f"--set=reward_model.{key}"
    for key in ("alg.training_args.num_train_epochs=1", "train_evaluation.eval_every=1", "alg.ensemble=2")
]


def test_selected_rounds_and_ppo_on_the_utility(plain_run, tmp_path, monkeypatch, capsys):
    commands = []

    def run_command(arguments):
        commands.append(" ".join(arguments))
        return main(arguments)

    monkeypatch.setattr(loop, "run_command", run_command)
    monkeypatch.setattr(improvement, "run_command", run_command)
    output = tmp_path / "loop"

    def run_script(*flags):
        argv = [str(SCRIPT), "--run", str(plain_run), "--output", str(output), "--n_held_out", "6", *flags]
        monkeypatch.setattr(sys, "argv", [*argv, "--n_votes", "16", "10", "--strategy", "disagreement", *QUICK])
        loop.main()
        found = json.loads((output / "results.json").read_text(encoding="utf-8"))
        return found

    first, second = run_script("--without_ppo")
    assert (first["n_votes"], second["n_votes"]) == (10, 16) and first["policy"] is None
    added = read_pairs(output / "pairs_16.jsonl")
    assert added[:10] == read_pairs(output / "pairs_10.jsonl")
    assert [pair.strategy for pair in added] == ["random"] * 10 + ["disagreement"] * 6
    votes = [(output / f"votes_{n}.jsonl").read_text(encoding="utf-8").splitlines() for n in (10, 16)]
    assert [json.loads(line)["chosen"] for line in votes[1][:10]] == [json.loads(line)["chosen"] for line in votes[0]]
    n_before = len(commands)
    *with_ppo, ceiling = run_script("--ceiling")
    with pytest.raises(ConfigError, match=r"was made with --seed 0, not 1; choose another --output"):
        run_script("--seed", "1")
    # Reward models and queues are not made again.
    assert [command.split()[0] for command in commands[n_before:]] == ["train"] * 4
    assert [each["accuracy"] for each in with_ppo] == [first["accuracy"], second["accuracy"]]
    assert ceiling["n_votes"] is None and ceiling["accuracy"] is None and ceiling["policy"]["curve"]
    rewards = json.loads((output / "improved_on_utility" / "policy" / "config.json").read_text(encoding="utf-8"))
    assert rewards["reward_fn"]["id"] == "composite"
    table = capsys.readouterr().out
    assert "| none: PPO on the utility |  | " in table
