"""A folder of RL4LMs' configs passes ``--dry_run`` and runs two iterations, and what is read otherwise is said.

Its own 44 run where RL4DIALOG_TEST_RL4LMS_CONFIGS names the folder ``scripts/training/task_configs`` of its repository.
"""

import os
import re
import runpy
import shutil
import sys
from functools import partial
from pathlib import Path

import pytest
import yaml
from check_configs import _tiny_model, check_configs
from covering import quick
from runs import changed

from rl4dialog.cli import main_of
from rl4dialog.core.errors import ConfigError

SCRIPT = Path(__file__).parents[2] / "scripts" / "check_configs.py"
OURS = Path(__file__).parent / "rl4lms_configs"
THEIRS = Path(os.environ.get("RL4DIALOG_TEST_RL4LMS_CONFIGS", "not given"))
RL, SUPERVISED, DIALOGUE = "summarization_t5_ppo.yml", "film_gpt2_supervised.yml", "dialog_gpt2_nlpo.yml"
MODEL_PARALLEL = "alg.policy.args.apply_model_parallel has no effect"
START = "env.args.context_start_token has no effect: an encoder-decoder's"
NOTES = {
    "answers_t5_ppo.yml": [
        MODEL_PARALLEL,
        START,
        "tokenizer.truncation_side: right has no effect",
        "alg.policy.args.generation_kwargs has no max_new_tokens",
    ],
    "dialog_gpt2_nlpo.yml": [
        MODEL_PARALLEL,
        "train_evaluation.generation_kwargs.num_beams is ignored, because NLPO's mask",
    ],
    "film_gpt2_supervised.yml": [
        "alg.generation_kwargs samples without top_k",
        "alg.loss_on is reply",
        "alg.training_args.save_total_limit",
        "alg.training_args.logging_steps",
    ],
    "summarization_t5_ppo.yml": [
        MODEL_PARALLEL,
        "alg.policy.args.prompt_truncation_side has no effect",
        START,
        "alg.policy.args.generation_kwargs samples without top_k",
        "generation_kwargs.min_length counts",
    ],
    "table_t5_supervised.yml": ["alg.training_args.logging_steps"],
}


def check(folder):
    return check_configs(folder, partial(main_of, "train"), lambda report: None)


@pytest.mark.parametrize("name", quick(SUPERVISED, DIALOGUE, of=NOTES))
def test_config_in_rl4lms_schema_runs_and_says_what_it_means(tmp_path, name):
    shutil.copy(OURS / name, tmp_path)
    (report,) = check(tmp_path)
    assert (report.name, report.failed, report.error) == (name, "", "")
    for expected in NOTES[name]:
        assert [note for note in report.notes if note.startswith(expected)], (expected, report.notes)


def test_every_config_in_rl4lms_schema_is_known():
    assert [path.name for path in sorted(OURS.glob("*.yml"))] == [*NOTES]


def test_config_that_does_not_run_is_one_line_and_an_exit_code(tmp_path, monkeypatch, capsys):
    text = (OURS / "summarization_t5_ppo.yml").read_text(encoding="utf-8")
    (tmp_path / "a.yml").write_text(text.replace("length_penalty", "lenght_penalty"), encoding="utf-8")
    (tmp_path / "b.yml").write_text("alg: {}\n", encoding="utf-8")
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    first, second, last = capsys.readouterr().out.splitlines()
    assert first.startswith("a.yml: --dry_run failed") and "did you mean 'length_penalty'" in first
    assert second.startswith("b.yml: reading failed: b.yml: the key 'alg.id' is missing; ")
    assert (last, ended.value.code) == ("0 of 2 configs pass --dry_run and run two iterations", 1)


BAD = {
    "a_without_datapool": (RL, {"datapool": None}, "reading failed: .*datapool"),
    "b_without_training_args": (
        SUPERVISED,
        {"alg.training_args": None},
        "reading failed: .*'training_args' is missing",
    ),
    "c_without_model": (RL, {"alg.policy": None}, "reading failed: .*'policy' is missing"),
    "d_unknown_datapool": (RL, {"datapool.id": "imbd"}, "reading failed: unknown datapool 'imbd'; did you mean 'imdb'"),
    "e_other_datapool": (RL, {"datapool.id": "crd3"}, r"reading failed: datapool\.id: .* stand-in .* 'crd3'"),
    "f_metric": (RL, {"train_evaluation.metrics": ["rouge"]}, r"reading failed: .*train_evaluation\.metrics\[0\]"),
    "g_text": (RL, {"tokenizer": "t5-small"}, "reading failed: .*tokenizer"),
    "h_context": (DIALOGUE, {"datapool.args.context_size": "x"}, r"--dry_run failed.*: .*datapool\.args\.context_size"),
    "i_no_arguments": (RL, {"alg.args": None}, "--dry_run ok, 2 iterations ok"),
}


def test_each_config_that_cannot_be_run_is_told_by_its_key(tmp_path):
    for name, (original, changes, _) in BAD.items():
        config = yaml.safe_load((OURS / original).read_text(encoding="utf-8"))
        (tmp_path / f"{name}.yml").write_text(yaml.safe_dump(changed(config, changes)), encoding="utf-8")
    reports = check(tmp_path)
    assert [report.name for report in reports] == [f"{name}.yml" for name in BAD]
    for report, (_, _, expected) in zip(reports, BAD.values(), strict=True):
        assert re.search(f": {expected}", str(report)) and "\n" not in str(report), str(report)


@pytest.mark.parametrize(
    ("name", "policy", "stand_in"),
    [
        ("builtin/smollm2-135m-instruct", "causal_lm_actor_critic_policy", "builtin/tiny-llama"),
        ("builtin/stories15m", "maskable_causal_lm_actor_critic_policy", "builtin/tiny-llama"),
        ("gpt2", "causal_lm_actor_critic_policy", "builtin/tiny-gpt2"),
        ("facebook/blenderbot-400M-distill", "seq2seq_lm_actor_critic_policy", "builtin/tiny-bart"),
        ("t5-base", "seq2seq_lm_actor_critic_policy", "builtin/tiny-t5"),
    ],
)
def test_stand_in_has_the_architecture_of_the_model(name, policy, stand_in):
    alg = {"id": "ppo", "policy": {"id": policy, "args": {"model_name": name}}}
    assert _tiny_model({"alg": alg}) == stand_in


@pytest.mark.long
def test_config_with_adapters_and_a_chat_template_runs(tmp_path):
    shutil.copy(Path(__file__).parents[2] / "task_configs" / "openers" / "smollm2_ppo.yml", tmp_path)
    (report,) = check(tmp_path)
    assert (report.failed, report.error, report.stand_ins) == ("", "", ["chat_template"])


def test_error_that_nobody_expected_is_the_report_of_its_config(tmp_path):
    for name in ("a.yml", "b.yml"):
        shutil.copy(OURS / RL, tmp_path / name)

    def train(arguments):
        raise ValueError("x\ny")

    for report, name in zip(check_configs(tmp_path, train, lambda report: None), "ab", strict=True):
        assert (report.name, report.failed, report.error) == (f"{name}.yml", "--dry_run", "ValueError: x y")


def test_folder_without_configs_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match=r"contains no \.yml files"):
        check(tmp_path)


@pytest.mark.long
@pytest.mark.skipif(not THEIRS.is_dir(), reason="RL4DIALOG_TEST_RL4LMS_CONFIGS names no folder of configs")
def test_rl4lms_own_configs_run():
    reports = check(THEIRS)
    assert len(reports) == 44
    assert [str(report) for report in reports if report.failed] == []
