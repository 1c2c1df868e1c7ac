"""The tensors that RL4LMs' rewards read of an observation."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import torch
from tiny import make_env, make_tokenizer

from rl4dialog.core.reward_parts import RewardPart
from rl4dialog.core.types import Sample


def test_tensors_are_rl4lms_in_name_shape_and_padding() -> None:
    tokenizer = make_tokenizer()
    env = make_env(tokenizer, samples=[Sample(0, "w0 w1", ["w2"])], max_prompt_length=4, max_episode_length=3)
    env.reset(seed=0)
    for token in (5, 6):
        env.step(token)
    state, pad = env.state, tokenizer.pad_token_id
    expected = {
        "prompt_or_input_encoded_pt": [[pad, pad, 3, 4]],
        "prompt_or_input_attention_mask_pt": [[0, 0, 1, 1]],
        "context_encoded_pt": [[pad, 5, 6]],
        "context_attention_mask_pt": [[0, 1, 1]],
        "input_encoded_pt": [[pad, pad, pad, 3, 4, 5, 6]],
        "input_attention_mask_pt": [[0, 0, 0, 1, 1, 1, 1]],
    }
    for name, values in expected.items():
        tensor = getattr(state, name)
        assert tensor.dtype == torch.int64 and tensor.tolist() == values, name
    assert state.action_history == ["w2", "w3"] and state.context_text == "w2 w3"
    assert (state.prompt_or_input_text, state.target_or_reference_texts) == ("w0 w1", ["w2"])


def test_reward_that_reads_the_tensors_works_in_an_environment() -> None:
    seen: list[int] = []

    def reward(previous: Any, action: int, current: Any, done: bool, meta_info: Any = None) -> float:
        seen.append(int(current.input_attention_mask_pt.sum() - previous.input_attention_mask_pt.sum()))
        assert int(current.context_encoded_pt[0, -1]) == action
        return 0.0

    env = make_env(make_tokenizer(), reward_parts=[RewardPart("tensors", 1.0, reward)])
    env.reset(seed=0)
    env.step(5), env.step(6)
    assert seen == [1, 1]


def test_observations_do_without_torch_until_a_tensor_is_asked_for() -> None:
    code = "import sys, rl4dialog.envs.conversation; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
