"""Trained policies that values guide: their guidance wherever they are used, and refusals where it would be lost."""

import json

import pytest
from guided_runs import walks_config
from runs import lines, module_run, train, trained_run, write_config

import rl4dialog
from rl4dialog import cli
from rl4dialog.core.errors import ConfigError, ModelError
from rl4dialog.inference.loading import LoadedPolicy
from rl4dialog.partners.language_model import LanguageModelPartner
from rl4dialog.runs.reading import read_run
from rl4dialog.runs.report.curves import panels, remaining_keys

PROMPT = "from j <EOU>"
BETA = "alg.policy.args.guidance.beta"


run = module_run(lambda folder: walks_config())


@pytest.fixture
def loaded(run):
    return rl4dialog.load_policy(run)


def test_values_in_the_model_folder_are_those_of_the_last_checkpoint(run, loaded):
    of_checkpoint = rl4dialog.load_policy(run, "last")
    for numbers in ("q_values", "advantages", "values", "log_probs"):
        one, other = (getattr(each, numbers)([PROMPT], ["p r t"]) for each in (loaded, of_checkpoint))
        assert one == other and len(set(one[0])) > 1


def test_set_changes_beta_in_every_command(run, tmp_path, capsys, refused):
    (tmp_path / "prompts.txt").write_text(f"{PROMPT}\n" * 8)
    partner = ("--set", "env.args.partner_replies=[go on]", "--set", "env.args.max_turns=2")
    commands = {
        "generate": ("--input", str(tmp_path / "prompts.txt"), "--output"),
        "simulate": (*partner, "--n", "4", "--output"),
        "evaluate": ("--output_path",),
    }
    for command, flags in commands.items():
        found = []
        for name, beta in (("own", 4.0), ("other", 100.0)):
            output = tmp_path / (f"{command}_{name}" + ("" if command == "evaluate" else ".jsonl"))
            assert cli.main([command, "--run", str(run), "--set", f"{BETA}={beta}", *flags, str(output)]) == 0
            if command == "evaluate":
                (output,) = output.glob("*predictions.json")
                found.append(output.read_text(encoding="utf-8"))
            else:
                found.append(json.dumps([{**line, "system": ""} for line in lines(output)]))
        assert found[0] != found[1], command
    capsys.readouterr()
    refused(
        cli.main(["evaluate", "--run", str(run), "--set", f"{BETA}=-1", "--output_path", str(tmp_path / "no")]),
        f"{BETA}: input should be greater than or equal to 0",
    )


def test_model_that_would_lose_its_values_is_refused(run, tmp_path):
    folder = str(run / "model")
    names = {"alg__policy__args__model_name": folder, "tokenizer__model_name": folder}
    on_policy = {
        "alg__policy__id": "causal_lm_actor_critic_policy",
        "alg__policy__args__guidance": None,
        "alg__policy__args__init_value": None,
        "alg__id": "filtered_bc",
        "alg__args": {"n_steps": 200, "batch_size": 100, "top_share": 0.5},
    }
    message = rf"guided by values of its tokens.* write '{folder}#prior_only'"
    for changes in (names, {**names, **on_policy}):
        for flag in ((), ("--dry_run",)):
            with pytest.raises(ModelError, match=message):
                train(tmp_path, walks_config(**changes), "--debug", "--overwrite", *flag)
    with pytest.raises(ModelError, match=message):
        LanguageModelPartner(folder)
    config = rl4dialog.core.config.load_config(write_config(tmp_path, walks_config(**on_policy)))
    with pytest.raises(ModelError, match=message):
        LoadedPolicy(config, folder)


def test_language_model_of_a_guided_run_is_named_by_a_suffix(run, tmp_path, loaded):
    name = f"{run / 'model'}#prior_only"
    config = walks_config(alg__policy__args__model_name=name, tokenizer__model_name=name, train_evaluation__n_iters=0)
    again = rl4dialog.load_policy(trained_run(tmp_path, config))
    with loaded.guided_by(0.0):
        expected = loaded.log_probs([PROMPT], ["p r t"])
    with again.guided_by(0.0):
        assert again.log_probs([PROMPT], ["p r t"]) == expected
    assert LanguageModelPartner(name).side is not None


def test_run_that_another_run_reads_without_its_values_is_not_replaced(run, refused):
    name = f"{run / 'model'}#prior_only"
    config = walks_config(alg__policy__args__model_name=name, tokenizer__model_name=name)
    refused(train(run.parents[2], config, "--overwrite"), f"{name} is in the run folder")


def test_vllm_is_refused(tmp_path, refused):
    refused(
        train(tmp_path, walks_config(generation__backend="vllm")),
        "generation.backend: vllm is not supported with alg.id: ilql",
    )


def test_published_model_is_only_the_language_model(run, capsys, refused):
    push = ["push_to_hub", "--run", str(run), "--repo_id", "jane/walks", "--dry_run"]
    refused(cli.main(push), "is guided by values")
    assert cli.main([*push, "--prior_only"]) == 0
    assert "model.safetensors" in (printed := capsys.readouterr().out) and "value_guidance" not in printed
    card = (run / "model" / "README.md").read_text(encoding="utf-8")
    assert "offline reinforcement learning (ilql)" in card and "**which are not included here**" in card
    assert "model-index" not in card


def test_exported_file_is_only_the_language_model(run, tmp_path, capsys, refused):
    export = ["export", "--run", str(run), "--output", str(tmp_path / "model.gguf")]
    refused(cli.main(export), "is guided by values, which a GGUF file cannot contain")
    assert cli.main([*export, "--prior_only"]) == 0
    assert "Checked: " in capsys.readouterr().out


def test_iterations_log_the_range_of_returns_and_the_report_draws_them(run):
    (info,) = lines(run / "training_info.jsonl")
    assert -10.0 <= info["train/lowest_return"] < info["train/highest_return"] <= 0.0
    longer = read_run(run)
    longer.iterations.append(dict.fromkeys(longer.iterations[0], 0.123))  # only what varies is drawn
    titles = {panel.title for panel in panels([longer])}
    assert {"Loss of Q", "Loss of V", "Imitation loss", "Q of logged tokens", "Passes over the log"} <= titles
    assert not [key for key in remaining_keys(read_run(run), ()) if "kl" in key]
    assert "train/<wbr>q_<wbr>loss" in (run / "report.html").read_text(encoding="utf-8"), "in the table of a short run"


def test_beta_without_the_language_model_is_above_0(loaded):
    for beta in (-1.0, float("nan"), True):
        with pytest.raises(ConfigError, match="beta must be a number of at least 0"), loaded.guided_by(beta):
            pass
    guidance = rl4dialog.features.offline.policies.value_guided.Guidance(beta=1.0, prior_weight=0.0)
    with pytest.raises(ConfigError, match="beta must be above 0, because prior_weight is 0"):
        guidance.with_beta(0.0)
