"""What is a reward, and where it is scored."""

from __future__ import annotations

from typing import Any

import pytest

from rl4dialog.core.errors import ConfigError
from rl4dialog.rewards.parts import as_parts


def test_classes_written_for_rl4lms_are_told_by_their_parameters() -> None:
    class PerToken:
        def __call__(self, prev_observation, action, current_observation, done, meta_info=None):  # type: ignore[no-untyped-def]
            return 1.0

    class Batched:
        def __call__(self, prompt_texts, gen_texts, ref_texts, dones, meta_infos=None):  # type: ignore[no-untyped-def]
            return [1.0] * len(gen_texts)

    assert not as_parts(PerToken())[0].in_main_process
    assert as_parts(Batched())[0].in_main_process


@pytest.mark.parametrize("reward", [3, lambda text: 1.0, "rouge"])
def test_what_is_no_reward_is_refused_with_the_right_form(reward: Any) -> None:
    with pytest.raises(ConfigError, match="prompt_text, gen_text, ref_texts, meta_info"):
        as_parts(reward, "mine")
