"""The page of partners from people, walked with tiny models: from a table of dialogues to a cross-play table."""

import json
import shlex
from pathlib import Path

import pytest
import yaml
from pages import blocks
from people_table import write_people
from runs import changed

from rl4dialog.cli import main
from rl4dialog.core.features import features

PAGE = "docs/cross_play.md"
SHORTER = {
    "partner.yml": {"alg.training_args.num_train_epochs": 1, "train_evaluation.max_eval_samples": 8},
    "agent.yml": {
        "env.n_envs": 8,
        "warm_start.n_epochs": 1,
        "alg.args.n_steps": 32,
        "alg.args.batch_size": 128,
        "train_evaluation.n_iters": 1,
        "train_evaluation.eval_every": 1,
        "train_evaluation.max_eval_samples": 8,
    },
}


def commands():
    """The commands of the first block of the page."""
    first = blocks(PAGE, "bash")[0].replace("\\\n", " ")
    return [shlex.split(line)[1:] for line in first.splitlines() if line.strip()]


def test_page_has_at_most_eight_commands_and_a_plan():
    assert [name for name, *_ in commands()] == ["init", "init", "benchmark", "simulate", "validate-partner"]


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.skipif("inspection" not in features(), reason="the page ends with a command of the feature inspection")
def test_page_leads_from_a_table_to_a_cross_play_table(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_people(Path("talks.jsonl"))
    (plan,) = [block for block in blocks(PAGE, "yaml") if block.startswith("title:")]
    Path("cross_play.yml").write_text(plan, encoding="utf-8")
    Path("said_back.py").write_text(blocks(PAGE, "python")[0], encoding="utf-8")
    more = {
        "init": ["--model", "builtin/tiny-gpt2"],
        "benchmark": ["--set", "seeds=[0]"],
        "simulate": ["--n", "60"],
        "validate-partner": ["--output_path", "validation"],
    }
    for name, *arguments in commands():
        assert main([name, *arguments, *more[name]]) == 0, capsys.readouterr().err
        for file, overrides in SHORTER.items() if name == "init" else ():
            if (path := Path(file)).exists():
                config = yaml.safe_load(path.read_text(encoding="utf-8"))
                path.write_text(yaml.safe_dump(changed(config, overrides)), encoding="utf-8")
    found = json.loads(Path("people/cross_play.json").read_text(encoding="utf-8"))
    assert found["met"] == {"one group": ["group_0"], "two groups": ["group_0", "group_1"]}
    assert found["partners"] == ["group_0", "group_1", "group_2"]
    table = Path("people/page.md").read_text(encoding="utf-8")
    assert "| agent | group_0 | group_1 | group_2 | met | never met | gap |" in table
    (verdict,) = json.loads(Path("validation/partners.json").read_text(encoding="utf-8"))["verdicts"].values()
    assert "talks like people in" in verdict or "not in" in verdict
