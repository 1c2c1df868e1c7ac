"""--dry_run and whole runs with models of many architectures, saved as folders."""

import pytest
from architectures import CAUSAL, REFUSED_CAUSAL, REFUSED_SEQ2SEQ, SEQ2SEQ, UNLISTED, make_config, make_model
from covering import quick
from runs import lines, run_folder, train
from runs import make_config as make_run

TENTH = ("mamba", "mixtral", "opt", "m2m_100", "switch_transformers", "openai-gpt")
WHOLE_RUNS = ("mixtral", "mamba")
MORE_RUNS = ("opt", "gemma2", "jamba", "gpt_oss", "deepseek_v3", "recurrent_gemma", "xlstm", "m2m_100")


def config_for(tmp_path, name):
    """A run with the model in ``tmp_path / "model"``."""
    kind = "seq2seq" if name in SEQ2SEQ or name in REFUSED_SEQ2SEQ else "causal"
    args = {"model_name": str(tmp_path / "model"), "generation_kwargs": {"do_sample": True}}
    return make_run(tmp_path, alg__policy={"id": f"{kind}_lm_actor_critic_policy", "args": args})


@pytest.mark.parametrize("name", quick(*TENTH, of=[*CAUSAL, *SEQ2SEQ]))
def test_dry_run_accepts_what_is_tested(tmp_path, name, capsys):
    make_config(name, vocab_size=300).save_pretrained(tmp_path / "model")
    assert train(tmp_path, config_for(tmp_path, name), "--dry_run") == 0
    plan = capsys.readouterr().out
    assert f"{name.split('/')[0]}, tested" in plan
    unknown = ("led", "switch_transformers")
    assert ("not predicted for this architecture" in plan) == (name in unknown)


@pytest.mark.parametrize("name", quick("xlnet", "prophetnet", of=[*REFUSED_CAUSAL, *REFUSED_SEQ2SEQ]))
def test_dry_run_refuses_by_name(tmp_path, name, capsys):
    make_config(name, vocab_size=300).save_pretrained(tmp_path / "model")
    assert train(tmp_path, config_for(tmp_path, name), "--dry_run") == 2
    message = capsys.readouterr().err.strip().splitlines()[-1]
    assert message.startswith("error: ") and f"has the architecture '{name}', which cannot be trained: " in message
    assert "Choose a model of another architecture" in message
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", [name for name in UNLISTED if name not in ("bert", "roberta")])
def test_dry_run_examines_what_is_not_listed(tmp_path, name, capsys):
    make_config(name, vocab_size=300).save_pretrained(tmp_path / "model")
    assert train(tmp_path, config_for(tmp_path, name), "--dry_run") == 0
    assert f"{name}, checked with random weights" in capsys.readouterr().out


def test_run_refuses_before_a_warm_start(tmp_path, capsys):
    make_model("bert", vocab_size=300).save_pretrained(tmp_path / "model")
    config = {**config_for(tmp_path, "bert"), "warm_start": {"n_epochs": 1}}
    assert train(tmp_path, config) == 2
    error = capsys.readouterr().err
    assert "'bert', which cannot be trained" in error and "Warm start" not in error


@pytest.mark.parametrize("name", quick(*WHOLE_RUNS, of=[*WHOLE_RUNS, *MORE_RUNS]))
def test_run_with_a_warm_start(tmp_path, name, monkeypatch, capsys):
    monkeypatch.setenv("RL4DIALOG_CACHE", str(tmp_path / "cache"))
    make_model(name, vocab_size=300).save_pretrained(tmp_path / "model")
    config = {**config_for(tmp_path, name), "warm_start": {"n_epochs": 1}}
    assert train(tmp_path, config) == 0, capsys.readouterr().err
    rollouts = lines(run_folder(tmp_path) / "rollout_info.jsonl")
    assert rollouts[0]["rollout/kl"] == pytest.approx(0, abs=1e-4)
    assert (run_folder(tmp_path) / "result.json").is_file()
