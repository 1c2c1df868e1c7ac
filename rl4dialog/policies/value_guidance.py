"""Values beside an exported language model: ``value_guidance.json`` and ``value_guidance.safetensors`` in its folder.

Transformers ignores both files, so outside of this package the folder loads as the language model alone.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from rl4dialog.core.errors import ModelError
from rl4dialog.core.pretrained import GUIDANCE_FILE
from rl4dialog.policies.base import LMActorCriticPolicy
from rl4dialog.policies.saving import CRITIC_FILE, TARGET_FILE, copy_all, gathered, states_beside

VALUES_FILE = "value_guidance.safetensors"
GUIDANCE_FILES = (GUIDANCE_FILE, VALUES_FILE)


def save_value_guidance(policy: LMActorCriticPolicy, folder: Path) -> None:
    """Write the values of a guided policy."""
    guidance: Any = policy.guidance  # type: ignore[union-attr]
    settings = {"version": 1, "guidance": dataclasses.asdict(guidance), "policy": type(policy).__name__}
    (folder / GUIDANCE_FILE).write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
    save_file(gathered(_values(policy)), folder / VALUES_FILE)


def load_value_guidance(policy: LMActorCriticPolicy, folder: Path) -> None:
    """Load the values into a policy of the same architecture."""
    path = folder / VALUES_FILE
    if not path.is_file():
        raise ModelError(f"{path} is missing, so the language model in this folder cannot be guided")
    copy_all(_values(policy), load_file(path))


def _values(policy: LMActorCriticPolicy) -> dict[str, Tensor]:
    states = states_beside(policy)
    return {**states.get(CRITIC_FILE, {}), **states.get(TARGET_FILE, {})}
