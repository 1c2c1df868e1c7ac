"""The mask that an NLPO policy had at a point of its run.

``model/`` holds the trained model alone. The mask policy is a copy of it as it was after some iteration: the last one,
one that a checkpoint has, or none at all, which is the model that the run began with.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path

from transformers import PreTrainedModel

from rl4dialog.catalog import PolicyRegistry
from rl4dialog.core.config import RunConfig
from rl4dialog.core.errors import RL4DialogError
from rl4dialog.policies.base import LMActorCriticPolicy
from rl4dialog.policies.hashing import weights_hash
from rl4dialog.policies.saving import MASK_FILE, load_state_beside
from rl4dialog.runs.provenance import read_provenance
from rl4dialog.runs.results import is_complete, read_result
from rl4dialog.runs.run_folder import CHECKPOINTS_FOLDER
from rl4dialog.training.building.inference_policy import inference_arguments
from rl4dialog.training.building.language_model import build_language_model
from rl4dialog.training.building.texts import build_texts

_logger = logging.getLogger(__name__)


def masked_policy(
    around: Callable[[PreTrainedModel], LMActorCriticPolicy],
    model: PreTrainedModel,
    config: RunConfig,
    run: Path | None,
    checkpoint: Path | None,
) -> LMActorCriticPolicy:
    """A maskable policy with the mask of its run; where that cannot be found, with the model's own, and a warning.

    Args:
        around: Makes the policy from the model that is to be its mask and its reference.
        model: The trained model.
        config: Of the run.
        run: The run folder, if there is one.
        checkpoint: The one that the model is from, if it is from one.
    """
    masks_by_reference, every = _mask_settings(config)
    folder = checkpoint
    if folder is None and run is not None and is_complete(run):
        n_iterations = int(read_result(run)["iterations"])
        updated = 0 if masks_by_reference else n_iterations - n_iterations % every
        if updated == n_iterations:
            return around(model)
        folder = _checkpoint_between(run, updated, n_iterations)
        if updated == 0 and folder is None:
            masks_by_reference = True  # which is what the mask policy still is
    if masks_by_reference and run is not None:
        first = first_model(config, run)
        if first is not None:
            policy = around(first)
            policy.language_model.load_state_dict(model.state_dict())
            return policy
    elif folder is not None:
        policy = around(model)
        load_state_beside(policy, folder, MASK_FILE)
        return policy
    _logger.warning(
        "the mask that %s was trained with is not there (set train_evaluation.save_every in a run): replies are masked "
        "by what the model itself finds likely",
        run or "the model",
    )
    return around(model)


def _mask_settings(config: RunConfig) -> tuple[bool, int]:
    """Whether the reference is the mask, and after how many iterations a learned one takes over the weights."""
    args = {**PolicyRegistry.defaults(config.policy_id), **inference_arguments(config)}
    return str(args["mask_type"]).startswith("reference"), int(args["target_update_iterations"])


def _checkpoint_between(run: Path, first: int, last: int) -> Path | None:
    """A checkpoint of an iteration from ``first`` to ``last``, between which the mask policy stays the same."""
    for folder in sorted((run / CHECKPOINTS_FOLDER).glob("iteration_*"), reverse=True):
        number = re.fullmatch(r"iteration_(\d+)", folder.name)
        if number and first <= int(number.group(1)) <= last and (folder / MASK_FILE).is_file():
            return folder
    return None


def first_model(config: RunConfig, run: Path) -> PreTrainedModel | None:
    """The language model that a run began with; ``None`` if it cannot be had any more."""
    try:
        model = build_language_model(config, build_texts(config))
    except RL4DialogError as error:
        _logger.warning("the model that the run began with cannot be had: %s", error)
        return None
    recorded = read_provenance(run).get("model_hash")
    return model if recorded in (None, weights_hash(model)) else None
