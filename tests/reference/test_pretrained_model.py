"""A real pretrained language model, stories260K of llama2.c: its published greedy output, and a run on top of it.

Runs where RL4DIALOG_TEST_DATA names a folder with `weights/stories260K_hf` (the model in transformers' format) and
`weights/stories260K/expected_greedy_200.txt` (what llama2.c's `run stories260K.bin -t 0 -n 200` prints).
"""

import json
import os
from pathlib import Path

import pytest
import torch
from runs import make_config, run_folder, train
from transformers import AutoModelForCausalLM

from rl4dialog.policies.generation import GenerationSettings, all_steps, sample_steps
from rl4dialog.policies.models import load_language_model
from rl4dialog.text.end_of_turn import EndOfTurn
from rl4dialog.text.tokenizer import build_tokenizer
from tests.tiny import causal_decoder

DATA = Path(os.environ.get("RL4DIALOG_TEST_DATA", "not given"))
STORIES = DATA / "weights" / "stories260K_hf"
pytestmark = pytest.mark.skipif(not STORIES.is_dir(), reason="RL4DIALOG_TEST_DATA names no folder with the model")
GREEDY = GenerationSettings(do_sample=False)


@pytest.fixture(scope="module")
def stories():
    tokenizer = build_tokenizer(str(STORIES))
    return load_language_model(str(STORIES), tokenizer, 256, 256, AutoModelForCausalLM).eval(), tokenizer


def story(stories, ids, mask, n_tokens):
    """Greedy continuations, the prompt included."""
    model, tokenizer = stories
    end = EndOfTurn(tokenizer, [tokenizer.eos_token_id])
    obs = {"prompt_ids": torch.tensor(ids), "prompt_mask": torch.tensor(mask)}
    replies = all_steps(sample_steps(causal_decoder(model, *obs.values()), obs, GREEDY, end, n_tokens))
    return [
        tokenizer.decode([*torch.tensor(row)[torch.tensor(m).bool()].tolist(), *reply[keep].tolist()], True)
        for row, m, reply, keep in zip(ids, mask, replies.response_ids, replies.response_mask, strict=True)
    ]


def test_published_greedy_output_comes_out_byte_for_byte(stories):
    expected = (DATA / "weights" / "stories260K" / "expected_greedy_200.txt").read_bytes()
    written = story(stories, [[1]], [[1]], 200)[0].strip()
    assert len(expected) > 400
    assert written.encode() == expected.strip()


def test_left_padding_beside_a_longer_prompt_changes_no_byte(stories):
    longer = stories[1]("The dog ran to the big tree and")["input_ids"]
    padding = len(longer) - 1
    both = story(stories, [[0] * padding + [1], longer], [[0] * padding + [1], [1] * len(longer)], 60)
    assert both[0] == story(stories, [[1]], [[1]], 60)[0]
    assert both[1] == story(stories, [longer], [[1] * len(longer)], 60)[0]


def test_run_on_a_pretrained_model_of_another_architecture(tmp_path):
    config = make_config(
        tmp_path,
        tokenizer={"model_name": str(STORIES)},
        alg__policy__args__model_name=str(STORIES),
        env__args={"max_prompt_length": 60, "max_episode_length": 8},
    )
    assert train(tmp_path, config) == 0
    first = json.loads((run_folder(tmp_path) / "rollout_info.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert abs(first["rollout/kl"]) < 1e-4
