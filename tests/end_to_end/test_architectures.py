"""--dry_run and whole runs with models of many architectures, saved as folders."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from architectures import (
    CAUSAL,
    REFUSED_CAUSAL,
    REFUSED_SEQ2SEQ,
    SEQ2SEQ,
    UNLISTED,
    make_config,
    make_model,
)
from runs import CONFIG, lines, run_folder, train, write_dialogues

TENTH = ("mamba", "mixtral", "opt", "m2m_100", "switch_transformers", "openai-gpt")
WHOLE_RUNS = ("mixtral", "mamba")
MORE_RUNS = ("opt", "gemma2", "jamba", "gpt_oss", "deepseek_v3", "recurrent_gemma", "xlstm", "m2m_100")


def shortened(names: Any, kept: tuple[str, ...]) -> Any:
    """All names, of which `make test` runs a few."""
    return [name if name in kept else pytest.param(name, marks=pytest.mark.long) for name in names]


def config_for(tmp_path: Path, name: str) -> dict[str, Any]:
    """A run with the model in ``tmp_path / "model"``."""
    config = copy.deepcopy(CONFIG)
    config["datapool"]["args"]["path"] = str(write_dialogues(tmp_path / "dialogues"))
    kind = "seq2seq" if name in SEQ2SEQ or name in REFUSED_SEQ2SEQ else "causal"
    config["alg"]["policy"] = {
        "id": f"{kind}_lm_actor_critic_policy",
        "args": {"model_name": str(tmp_path / "model"), "generation_kwargs": {"do_sample": True}},
    }
    return config


@pytest.mark.parametrize("name", shortened([*CAUSAL, *SEQ2SEQ], TENTH))
def test_dry_run_accepts_what_is_tested(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    make_config(name, vocab_size=300).save_pretrained(tmp_path / "model")
    assert train(tmp_path, config_for(tmp_path, name), "--dry_run") == 0
    plan = capsys.readouterr().out
    assert f"{name.split('/')[0]}, tested" in plan
    unknown = ("led", "switch_transformers")
    assert ("not predicted for this architecture" in plan) == (name in unknown)


@pytest.mark.parametrize("name", [*REFUSED_CAUSAL, *REFUSED_SEQ2SEQ, "bert"])
def test_dry_run_refuses_by_name(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    make_config(name, vocab_size=300).save_pretrained(tmp_path / "model")
    assert train(tmp_path, config_for(tmp_path, name), "--dry_run") == 2
    message = capsys.readouterr().err.strip().splitlines()[-1]
    assert message.startswith("error: ") and f"has the architecture '{name}', which cannot be trained: " in message
    assert "Choose a model of another architecture" in message
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", [name for name in UNLISTED if name not in ("bert", "roberta")])
def test_dry_run_examines_what_is_not_listed(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    make_config(name, vocab_size=300).save_pretrained(tmp_path / "model")
    assert train(tmp_path, config_for(tmp_path, name), "--dry_run") == 0
    assert f"{name}, checked with random weights" in capsys.readouterr().out


def test_run_refuses_before_a_warm_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_model("bert", vocab_size=300).save_pretrained(tmp_path / "model")
    config = {**config_for(tmp_path, "bert"), "warm_start": {"n_epochs": 1}}
    assert train(tmp_path, config) == 2
    error = capsys.readouterr().err
    assert "'bert', which cannot be trained" in error and "Warm start" not in error


@pytest.mark.parametrize("name", shortened([*WHOLE_RUNS, *MORE_RUNS], WHOLE_RUNS))
def test_run_with_a_warm_start(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RL4DIALOG_CACHE", str(tmp_path / "cache"))
    make_model(name, vocab_size=300).save_pretrained(tmp_path / "model")
    config = {**config_for(tmp_path, name), "warm_start": {"n_epochs": 1}}
    assert train(tmp_path, config) == 0, capsys.readouterr().err
    rollouts = lines(run_folder(tmp_path) / "rollout_info.jsonl")
    assert rollouts[0]["rollout/kl"] == pytest.approx(0, abs=1e-4)
    assert (run_folder(tmp_path) / "result.json").is_file()
