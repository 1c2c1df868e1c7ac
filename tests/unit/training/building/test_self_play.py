"""Runs that cannot play with themselves are refused before anything is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from runs import make_config

from rl4dialog.core.config import parse_config
from rl4dialog.core.errors import ConfigError
from rl4dialog.training.building.components import check_components
from rl4dialog.training.building.partner import build_partner
from rl4dialog.training.building.self_play import n_weight_copies
from rl4dialog.training.building.texts import build_texts

MODEL = {"model_type": "causal", "model_name": "builtin/tiny-gpt2"}
LENGTH = {"id": "length_penalty", "args": {"max_length": 3}}


def config_of(folder: Path, args: dict[str, Any] | None = None, **overrides: Any) -> Any:
    partner = {"id": "self_play", "args": args or {}}
    settings = {"reward_fn": LENGTH, "env__args__max_turns": 2, "env__args__partner": partner, **overrides}
    return parse_config(make_config(folder, **settings), "test")


@pytest.mark.parametrize(
    ("args", "overrides", "message"),
    [
        ({"learns": "both", "snapshot_every": 3}, {}, "learns: both trains the current policy on both sides"),
        ({"pool_size": 3}, {}, "pool_size has no effect without snapshot_every"),
        ({"snapshot_every": -1}, {}, r"env\.args\.partner\.args\.snapshot_every"),
        (
            {},
            {"train_evaluation__partner": {"id": "self_play", "args": {"snapshot_every": 2}}},
            r"train_evaluation\.partner\.args\.snapshot_every: evaluations have no copies",
        ),
        (
            {},
            {"alg": {"id": "supervised", **MODEL, "training_args": {"num_train_epochs": 1}}},
            "not supported with alg.id: supervised, which has no rollouts; use a language_model as partner",
        ),
    ],
)
def test_config_that_cannot_be_played_is_refused(
    tmp_path: Path, args: dict[str, Any], overrides: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check_components(config_of(tmp_path, args, **overrides))
    check_components(config_of(tmp_path))


def test_self_play_is_refused_with_fsdp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(ConfigError, match=r"env\.args\.partner is not supported with FSDP"):
        check_components(config_of(tmp_path))


def test_partner_has_the_format_lengths_and_sampling_of_the_agent(tmp_path: Path) -> None:
    sampling = {"alg__policy__args__generation_kwargs": {"do_sample": True, "max_new_tokens": 7}}
    config = config_of(tmp_path, **sampling, env__args__max_partner_length=9)
    texts = build_texts(config)
    side: Any = build_partner(config.env.args.partner, config, texts).side  # type: ignore[union-attr]
    assert side.max_length == 7 and side.dialogue_format.name == "eou" and side.dialogue_format.in_conversation
    # Built-in models have 24 + 7 positions; 9 tokens leave 22 of them for the prompt.
    own = config_of(tmp_path, {"generation_kwargs": {"do_sample": False}}, **sampling, env__args__max_partner_length=9)
    side = build_partner(own.env.args.partner, own, texts).side  # type: ignore[union-attr]
    assert (side.max_prompt_length, side.max_length) == (22, 9)


def test_datapool_must_have_a_dialogue_format(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    texts = build_texts(config)
    for pool in texts.data.pools.values():
        pool.dialogue_format = None
    with pytest.raises(ConfigError, match="'daily_dialog' has none; use a datapool of dialogues"):
        build_partner(config.env.args.partner, config, texts)


def test_copies_are_counted(tmp_path: Path) -> None:
    pool, other = {"snapshot_every": 2, "pool_size": 3}, {"train_evaluation__partner": {"id": "scripted"}}
    assert n_weight_copies(config_of(tmp_path)) == (0, True)
    assert n_weight_copies(config_of(tmp_path, **other)) == (0, False)
    assert n_weight_copies(config_of(tmp_path, pool, **other)) == (2, True)
    assert n_weight_copies(config_of(tmp_path, {"snapshot_every": 2})) == (3, True)
    assert n_weight_copies(config_of(tmp_path, env__args__partner={"id": "facts"})) == (0, False)
