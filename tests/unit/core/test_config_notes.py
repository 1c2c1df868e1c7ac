"""What is said of keys that are ignored, defaulted or read otherwise than in RL4LMs: one line each."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from runs import make_config

from rl4dialog.core.config import parse_config

SAMPLING = {"do_sample": True, "top_k": 0, "max_new_tokens": 8}
SUPERVISED = {"id": "supervised", "model_type": "causal", "model_name": "builtin/tiny-gpt2", "training_args": {}}


def notes(tmp_path: Path, **overrides: Any) -> list[str]:
    overrides.setdefault("alg__policy__args__generation_kwargs", SAMPLING)
    return parse_config(make_config(tmp_path, **overrides), "test").warnings


def supervised_notes(tmp_path: Path, **alg: Any) -> list[str]:
    config = make_config(tmp_path)
    config["alg"] = {**SUPERVISED, "generation_kwargs": SAMPLING, **alg}
    del config["env"], config["train_evaluation"]["n_iters"]
    return parse_config(config, "test").warnings


def test_config_that_leaves_nothing_open_has_no_notes(tmp_path: Path) -> None:
    assert notes(tmp_path) == supervised_notes(tmp_path, loss_on="all") == []


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (
            {"alg__policy__args__generation_kwargs": {"do_sample": True, "max_new_tokens": 8}},
            "alg.policy.args.generation_kwargs samples without top_k, from the whole vocabulary; .* default of 50",
        ),
        (
            {"train_evaluation__generation_kwargs": {"do_sample": True}},
            "train_evaluation.generation_kwargs samples without top_k",
        ),
        ({"train_evaluation__generation_kwargs": {"top_k": 3}}, "has no do_sample: evaluations decode greedily"),
        (
            {"train_evaluation__generation_kwargs": {"do_sample": False, "max_new_tokens": 9}},
            "max_new_tokens is 9, but replies end after 8 tokens",
        ),
        (
            {"train_evaluation__generation_kwargs": {"do_sample": False, "length_penalty": 0.5}},
            "length_penalty has no effect unless num_beams is above 1",
        ),
        (
            {"train_evaluation__generation_kwargs": {"num_beams": 3, "num_return_sequences": 2}},
            "num_return_sequences: only the best reply",
        ),
        ({"train_evaluation__generation_kwargs": {"num_beams": 3, "use_cache": True}}, "use_cache has no effect"),
        (
            {"alg__policy__args__generation_kwargs": {**SAMPLING, "max_new_tokens": 80}},
            "max_new_tokens is 80, but env.args.max_episode_length ends replies after 10 tokens",
        ),
        (
            {"alg__policy__args__generation_kwargs": {**SAMPLING, "max_new_tokens": 10, "min_new_tokens": 11}},
            "min_new_tokens is 11, but replies end after 10 tokens, so none ever ends by itself",
        ),
        (
            {"alg__policy__args__generation_kwargs": {"do_sample": True, "top_k": 0}},
            "has no max_new_tokens: replies end after env.args.max_episode_length = 10 tokens; RL4LMs .* 20",
        ),
        ({"env__args__context_start_token": 0}, "context_start_token has no effect: a decoder-only model continues"),
        ({"tokenizer__truncation_side": "right"}, "truncation_side: right has no effect: .* .left. is used"),
        ({"tokenizer__max_length": 7}, "tokenizer.max_length has no effect: env.args.max_prompt_length"),
        ({"tokenizer__padding_side": "right"}, "padding_side has no effect: prompts are padded on the left"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_each_is_said_in_one_line(tmp_path: Path, overrides: dict[str, Any], expected: str) -> None:
    (note,) = notes(tmp_path, **overrides)
    assert re.search(expected, note)


def test_defaults_of_rl4lms_are_said_to_configs_that_were_written_for_it(tmp_path: Path) -> None:
    no_effect, defaults = notes(tmp_path, alg__policy__args__apply_model_parallel=True, env__args__priority_scale=1.0)
    assert no_effect.startswith("alg.policy.args.apply_model_parallel has no effect")
    assert defaults == (
        "RL4LMs has other defaults for keys that this config does not set: the optimizer is AdamW with weight_decay "
        "1e-6 (here Adam); terminate_on_eos is false (here true)"
    )


def test_sampling_without_top_k_is_said_once(tmp_path: Path) -> None:
    open_settings = {"do_sample": True, "max_new_tokens": 8}
    found = notes(
        tmp_path, alg__policy__args__generation_kwargs=open_settings, train_evaluation__generation_kwargs=open_settings
    )
    assert len(found) == 1


def test_rollouts_without_do_sample_and_encoder_decoders_are_told_of(tmp_path: Path) -> None:
    first, second = notes(tmp_path, alg__policy__args__generation_kwargs={"max_new_tokens": 8})
    assert "evaluations decode greedily" in first and "rollouts sample; RL4LMs then decodes greedily" in second
    start, length = notes(
        tmp_path,
        alg__policy__id="seq2seq_lm_actor_critic_policy",
        alg__policy__args__generation_kwargs={**SAMPLING, "min_length": 2},
        env__args__context_start_token=0,
    )
    assert start.endswith("an encoder-decoder's replies start with the decoder_start_token_id of the model's config")
    assert "counts the start token of an encoder-decoder" in length


def test_beams_under_nlpos_mask_are_refused_by_name(tmp_path: Path) -> None:
    (note,) = notes(
        tmp_path,
        alg__policy__id="maskable_causal_lm_actor_critic_policy",
        alg__id="nlpo",
        train_evaluation__generation_kwargs={"num_beams": 4},
    )
    assert "num_beams is ignored, because NLPO's mask" in note and note.endswith(
        "evaluations decode without beam search, greedily"
    )


def test_what_rl4lms_does_otherwise_in_supervised_training_is_said(tmp_path: Path) -> None:
    (note,) = supervised_notes(tmp_path)
    assert "only replies are trained on; RL4LMs also trains on prompts" in note
    (note,) = supervised_notes(tmp_path, loss_on="all", generation_kwargs={"do_sample": False})
    assert "evaluations end replies after 32 tokens" in note
    saved, logged = supervised_notes(tmp_path, loss_on="all", training_args={"save_total_limit": 1, "logging_steps": 5})
    assert "no effect without save_strategy" in saved and "RL4LMs also evaluates the val split" in logged
    (own,) = supervised_notes(tmp_path, loss_on="all", training_args={"save_strategy": "epoch", "save_total_limit": 1})
    assert "transformers' own checkpoints, besides those of train_evaluation.save_every" in own
    config = make_config(tmp_path, alg={**SUPERVISED, "loss_on": "all"})
    assert any("n_iters does not set the length" in note for note in parse_config(config, "test").warnings)


def test_values_that_are_no_numbers_are_left_to_the_check_of_the_sampler(tmp_path: Path) -> None:
    notes(tmp_path, alg__policy__args__generation_kwargs={**SAMPLING, "max_new_tokens": "abc"})
    notes(tmp_path, train_evaluation__generation_kwargs={**SAMPLING, "max_new_tokens": [3]})
