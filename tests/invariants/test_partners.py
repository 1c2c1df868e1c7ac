"""A conversation is the same wherever its partner is: in a worker, in the process, or in front of the environments."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from partners import RulesService
from runs import assert_same_run, complete_run, contents, keep_registries, make_config, run_folder, train

from rl4dialog.catalog import PartnerRegistry

RULES = {
    "rules": [{"pattern": "[aeiou]", "replies": "oh , why ?"}, {"pattern": "[xyz]", "leaves": True}],
    "otherwise": "i see .",
}


def config_of(folder: Path, partner: dict[str, Any], vec_env: str = "blocks", **overrides: Any) -> dict[str, Any]:
    """Two iterations of conversations of up to three turns, with rewards that need no references."""
    folder.mkdir(exist_ok=True)
    rewards = [
        {"id": "length_penalty", "args": {"max_length": 2}, "pay": "turn"},
        {"id": "repetition_penalty", "weight": 0.5},
    ]
    settings = {
        "reward_fn": {"id": "composite", "args": {"rewards": rewards}},
        "env__n_envs": 4,
        "env__vec_env": vec_env,
        "env__args__max_prompt_length": 60,
        "env__args__max_turns": 3,
        "env__args__partner": partner,
        "train_evaluation__metrics": [{"id": "conversation"}],
        "train_evaluation__max_eval_samples": 3,
        "train_evaluation__eval_every": 2,
        "train_evaluation__save_every": 2,
        **({"env__n_workers": 2} if vec_env == "blocks" else {}),
        **overrides,
    }
    return make_config(folder, **settings)


@pytest.fixture(autouse=True)
def registries(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_registries(monkeypatch)
    PartnerRegistry.add("rules_service", RulesService)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A saved tiny model."""
    folder = tmp_path_factory.mktemp("model")
    with complete_run(folder, make_config(folder, train_evaluation__n_iters=0, seed=7)):
        yield str(run_folder(folder) / "model")


def said_by_partner(folder: Path) -> list[str]:
    """What the partner said in all recorded conversations."""
    files = [found for name, found in contents(folder).items() if name.endswith("predictions.json")]
    turns = [turn for found in files for record in found for turn in record["turns"] if not turn.get("given")]
    assert {turn["speaker"] for turn in turns} == {"agent", "partner"}
    return [turn["text"] for turn in turns if turn["speaker"] == "partner"]


def assert_same_but_for_environments(one: Path, other: Path) -> None:
    """Weights, optimizer, logs and predictions are the same; environments with another partner have another state."""
    a, b = contents(one), contents(other)
    assert a.keys() == b.keys() and any(name.endswith("optimizer.safetensors") for name in a)
    assert [name for name in a if a[name] != b[name] and not name.endswith("state.json")] == []


def test_rules_say_the_same_in_workers_in_the_process_and_as_a_service(tmp_path: Path) -> None:
    for name, vec_env in (("blocks", "blocks"), ("dummy", "dummy"), ("service", "blocks")):
        partner = {"id": "rules_service" if name == "service" else "rules", "args": RULES}
        assert train(tmp_path / name, config_of(tmp_path / name, partner, vec_env)) == 0
    assert_same_run(run_folder(tmp_path / "blocks"), run_folder(tmp_path / "dummy"))
    assert_same_but_for_environments(run_folder(tmp_path / "blocks"), run_folder(tmp_path / "service"))
    assert set(said_by_partner(run_folder(tmp_path / "service"))) == {"oh , why ?", "i see ."}


def test_language_model_says_the_same_wherever_the_environments_are(tmp_path: Path, model: str) -> None:
    partner = {"id": "language_model", "args": {"model_name": model}}
    # Its utterances may be longer than the agent's.
    settings = {"env__args__max_partner_length": 14, "env__args__first_speaker": "partner"}
    for vec_env in ("blocks", "dummy"):
        assert train(tmp_path / vec_env, config_of(tmp_path / vec_env, partner, vec_env, **settings)) == 0
    assert_same_run(run_folder(tmp_path / "blocks"), run_folder(tmp_path / "dummy"))
    said = said_by_partner(run_folder(tmp_path / "dummy"))
    assert len(set(said)) > 10


@pytest.mark.parametrize("id", ["rules", "language_model"])
def test_run_with_a_partner_that_is_given_more_iterations_is_the_longer_run(
    tmp_path: Path, model: str, id: str
) -> None:
    drawn = {**RULES, "otherwise": ["i see .", "well ?", "and then ?"]}
    partner = {"id": id, "args": {"model_name": model} if id == "language_model" else drawn}
    vec_env = "dummy" if id == "language_model" else "blocks"
    folders = whole, halves = tmp_path / "whole", tmp_path / "halves"
    long, short = (
        [config_of(folder, partner, vec_env, train_evaluation__n_iters=n) for folder in folders] for n in (4, 2)
    )
    assert train(whole, long[0]) == 0
    assert train(halves, short[1]) == 0
    assert train(halves, long[1], "--resume") == 0
    assert_same_run(run_folder(whole), run_folder(halves))
